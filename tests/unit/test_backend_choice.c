/* test_backend_choice.c - which backend is taken, with and without a device and its module. */
#include "daemon/backend_choice.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"

#define NOWHERE "/nowhere/nvllm-cuda.so"

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

static const struct {
    const char *device; /* NULL: the machine has none */
    enum option_backend wanted;
    const char *module;
    int code;
    const char *name;    /* of the backend that is chosen where there is no error */
    const char *says[3]; /* the error or the warning; none: no warning */
} cases[] = {
    {NULL, OPTION_BACKEND_AUTO, FAKE_MODULE, 0, "cpu", {NULL}},
    {"nvidiactl", OPTION_BACKEND_AUTO, FAKE_MODULE, 0, "fake", {NULL}},
    /* a device without an installed module is the CPU, and a warning */
    {"nvidia0", OPTION_BACKEND_AUTO, NOWHERE, 0, "cpu", {NOWHERE}},
    /* a device whose module does not work is an error, not the CPU */
    {"nvidia0", OPTION_BACKEND_AUTO, file, -ENOEXEC, NULL, {file}},
    {"nvidia0", OPTION_BACKEND_AUTO, FAKE_MODULE_OTHER_ABI, -ENOEXEC, NULL, {"interface"}},
    {"nvidia0", OPTION_BACKEND_CPU, NOWHERE, 0, "cpu", {NULL}},
    /* cuda wants the module, device or not, and says what is missing and what to do */
    {NULL, OPTION_BACKEND_CUDA, FAKE_MODULE, 0, "fake", {NULL}},
    {NULL,
     OPTION_BACKEND_CUDA,
     NOWHERE,
     -ENOENT,
     NULL,
     {NOWHERE, "backend.module", "--backend cpu"}},
    {NULL, OPTION_BACKEND_CUDA, "nvllm-cuda.so", -EINVAL, NULL, {"absolute"}},
    {NULL, OPTION_BACKEND_CUDA, NO_BACKEND, -ENOEXEC, NULL, {BACKEND_SYMBOL}},
};

/* Which backend is chosen, by the option, the machine and the module. */
TEST(backend_is_chosen, .n = N(cases))
{
    const struct options o = {.backend = cases[_i].wanted,
                              .backend_module = (char *)(uintptr_t)cases[_i].module};
    int r;

    if (cases[_i].device)
        put_file(cases[_i].device);
    memset(&c, 0xff, sizeof(c));
    r = backend_choose(&c, &o, &cpu, dev, &e);
    ck_assert_int_eq(r, cases[_i].code);
    if (r == 0) {
        ck_assert_str_eq(c.ops->name, cases[_i].name);
        ck_assert_int_eq(*c.warning.text != '\0', cases[_i].says[0] != NULL);
    }
    for (int i = 0; i < 3 && cases[_i].says[i]; i++)
        ck_assert_ptr_nonnull(strstr(r ? e.text : c.warning.text, cases[_i].says[i]));
}

/* Named devices are those of the ranks; without a name they are the first ones. */
TEST(devices_of_ranks)
{
    struct options o = {.backend_module = (char *)(uintptr_t)NOWHERE,
                        .cuda_cache_folder = (char *)(uintptr_t) "",
                        .nccl = (char *)(uintptr_t) "",
                        .rendezvous = (char *)(uintptr_t) "",
                        .backend = OPTION_BACKEND_CPU,
                        .tensor_parallel = 2, /* ranks: 2 */
                        .cuda_devices = {.list = {5, 3}, .n = 2}};
    struct backend_options b;

    ck_assert_int_eq(backend_choose(&c, &o, &cpu, dev, &e), 0);
    b = backend_options_of(&o);
    ck_assert(b.tp_size == 2 && b.n_devices == 2 && b.devices[0] == 5 && b.devices[1] == 3);
    o.cuda_devices.n = 0;
    ck_assert_int_eq(backend_choose(&c, &o, &cpu, dev, &e), 0);
    b = backend_options_of(&o);
    ck_assert(b.tp_size == 2 && b.n_devices == 2 && b.devices[0] == 0 && b.devices[1] == 1);
    o.cuda_devices.n = 1;
    ck_assert_int_eq(backend_choose(&c, &o, &cpu, dev, &e), 0); /* the CPU has none */
    o.backend = OPTION_BACKEND_CUDA;
    ck_assert_int_eq(backend_choose(&c, &o, &cpu, dev, &e), -EINVAL);
    ck_assert_msg(strstr(e.text, "cuda.devices: 1 device is named, but model.tensor_parallel is 2"),
                  "%s", e.text);
    o.tensor_parallel = 0;
    b = backend_options_of(&o);
    ck_assert(b.tp_size == 1 && b.n_devices == 1 && b.devices[0] == 5);
}

/* In a cluster they are those of this process's ranks, and a backend must know of other processes.
 */
TEST(devices_of_a_process)
{
    struct options o = {.backend_module = (char *)(uintptr_t)FAKE_MODULE,
                        .cuda_cache_folder = (char *)(uintptr_t) "",
                        .nccl = (char *)(uintptr_t) "/n",
                        .rendezvous = (char *)(uintptr_t) "/r",
                        .backend = OPTION_BACKEND_CUDA,
                        .tensor_parallel = 3, /* ranks: 4 */
                        .world_size = 2,
                        .cluster_rank = 1,
                        .cuda_devices = {.list = {5, 3, 1}, .n = 3}};
    struct backend_options b;

    ck_assert_int_eq(backend_choose(&c, &o, &cpu, dev, &e), -EINVAL);
    ck_assert_msg(strstr(e.text, "cuda.devices: 3 devices are named") &&
                      strstr(e.text, "is 4 in 2 processes"),
                  "%s", e.text);
    o.cuda_devices.n = 2;
    ck_assert_int_eq(backend_choose(&c, &o, &cpu, dev, &e), -ENOTSUP);
    ck_assert_msg(strstr(e.text, "the fake backend runs in one process"), "%s", e.text);
    o.backend = OPTION_BACKEND_CPU;
    ck_assert_int_eq(backend_choose(&c, &o, &cpu, dev, &e), -ENOTSUP);
    b = backend_options_of(&o);
    ck_assert(b.tp_size == 4 && b.n_devices == 2 && b.devices[0] == 5 && b.devices[1] == 3);
    ck_assert(b.n_processes == 2 && b.process == 1);
    ck_assert_str_eq(b.nccl, "/n");
    ck_assert_str_eq(b.rendezvous, "/r");
}

RUN_TESTS("backend_choice", setup, teardown)
