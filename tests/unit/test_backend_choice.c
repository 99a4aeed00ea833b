/* test_backend_choice.c - which backend is taken, with and without a device and its module. */
#include "daemon/backend_choice.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"

static const struct backend_ops cpu = {.abi = BACKEND_ABI, .name = "cpu"};
static char dev[] = "/tmp/nvllm-test-XXXXXX";
static char file[64]; /* in dev */
static struct backend_choice c;
static struct err e;

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(dev));
}

static void teardown(void)
{
    if (*file)
        unlink(file);
    ck_assert_int_eq(rmdir(dev), 0);
}

static void put_file(const char *name)
{
    int fd;

    snprintf(file, sizeof(file), "%s/%s", dev, name);
    fd = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    close(fd);
}

static int choose(enum option_backend wanted, const char *module)
{
    memset(&c, 0xff, sizeof(c));
    return backend_choose(&c, wanted, &cpu, module, dev, &e);
}

/* Without a device it is the CPU, and nothing is said. */
TEST(no_device_is_the_cpu)
{
    ck_assert_int_eq(choose(OPTION_BACKEND_AUTO, FAKE_MODULE), 0);
    ck_assert_ptr_eq(c.ops, &cpu);
    ck_assert_str_eq(c.warning.text, "");
}

/* With a device and the module it is the module. */
TEST(device_and_module_are_taken)
{
    put_file("nvidiactl");
    ck_assert_int_eq(choose(OPTION_BACKEND_AUTO, FAKE_MODULE), 0);
    ck_assert_str_eq(c.ops->name, "fake");
}

/* A device without an installed module is the CPU, said aloud. */
TEST(device_without_module_is_said)
{
    put_file("nvidia0");
    ck_assert_int_eq(choose(OPTION_BACKEND_AUTO, "/nowhere/nvllm-cuda.so"), 0);
    ck_assert_ptr_eq(c.ops, &cpu);
    ck_assert_ptr_nonnull(strstr(c.warning.text, "/nowhere/nvllm-cuda.so"));
}

/* A device whose module does not work is an error, not the CPU. */
TEST(broken_module_is_an_error)
{
    put_file("nvidia0");
    ck_assert_int_lt(choose(OPTION_BACKEND_AUTO, file), 0);
    ck_assert_ptr_nonnull(strstr(e.text, file));
    ck_assert_int_lt(choose(OPTION_BACKEND_AUTO, FAKE_MODULE_OTHER_ABI), 0);
    ck_assert_ptr_nonnull(strstr(e.text, "interface"));
}

/* cpu is the CPU, whatever there is. */
TEST(cpu_is_the_cpu)
{
    put_file("nvidia0");
    ck_assert_int_eq(choose(OPTION_BACKEND_CPU, "/nowhere"), 0);
    ck_assert_ptr_eq(c.ops, &cpu);
    ck_assert_str_eq(c.warning.text, "");
}

/* cuda wants the module, device nodes or not, and says what is missing and what to do. */
TEST(cuda_wants_the_module)
{
    ck_assert_int_eq(choose(OPTION_BACKEND_CUDA, FAKE_MODULE), 0);
    ck_assert_str_eq(c.ops->name, "fake");
    ck_assert_int_eq(choose(OPTION_BACKEND_CUDA, "/nowhere/nvllm-cuda.so"), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.text, "/nowhere/nvllm-cuda.so"));
    ck_assert_ptr_nonnull(strstr(e.text, "backend.module"));
    ck_assert_ptr_nonnull(strstr(e.text, "--backend cpu"));
    ck_assert_int_eq(choose(OPTION_BACKEND_CUDA, "nvllm-cuda.so"), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "absolute"));
}

/* A library that is no backend is refused by name. */
TEST(library_without_the_symbol_is_refused)
{
    ck_assert_int_eq(choose(OPTION_BACKEND_CUDA, NO_BACKEND), -ENOEXEC);
    ck_assert_ptr_nonnull(strstr(e.text, BACKEND_SYMBOL));
}

int main(void)
{
    return run_tests("backend_choice", setup, teardown);
}
