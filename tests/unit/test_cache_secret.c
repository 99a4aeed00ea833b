/* test_cache_secret.c - a secret that is kept is the same again, and a bad file is refused. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"
#include "tests/unit/run_suite.h"

static char folder[64], file[96];
static uint8_t secret[PREFIX_CACHE_SECRET], again[PREFIX_CACHE_SECRET];
static struct err err;

static void set_up(void)
{
    strcpy(folder, "/tmp/cache_secret.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/cache-secret", folder);
}

static void tear_down(void)
{
    remove(file);
    ck_assert_int_eq(rmdir(folder), 0);
}

/* When it is loaded, and when that is checked before. */
static void expect_refused(int code, const char *reason)
{
    for (int checked = 0; checked < 2; checked++) {
        ck_assert_int_eq(checked ? cache_secret_check(folder, &err)
                                 : cache_secret_load(secret, folder, &err),
                         code);
        ck_assert_int_eq(strncmp(err.text, "cache.folder: ", 14), 0);
        ck_assert_ptr_nonnull(strstr(err.text, file));
        ck_assert_ptr_nonnull(strstr(err.text, reason));
    }
}

/* Without a folder each call draws another secret; with one, the first call's is kept. */
TEST(is_kept_in_a_folder)
{
    struct stat st;

    ck_assert_int_eq(cache_secret_load(secret, NULL, &err), 0);
    ck_assert_int_eq(cache_secret_load(again, NULL, &err), 0);
    ck_assert_mem_ne(secret, again, sizeof(secret));
    ck_assert_int_eq(cache_secret_load(secret, folder, &err), 0);
    ck_assert_mem_ne(secret, again, sizeof(secret));
    ck_assert_int_eq(cache_secret_load(again, folder, &err), 0);
    ck_assert_mem_eq(secret, again, sizeof(secret));
    ck_assert_int_eq(stat(file, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(st.st_size, PREFIX_CACHE_SECRET);
}

/* A file of another size, one that others can read, a device and a folder are refused by name. */
TEST(bad_files_are_refused)
{
    ck_assert_int_eq(cache_secret_load(secret, folder, &err), 0);
    ck_assert_int_eq(chmod(file, 0640), 0);
    expect_refused(-EPERM, "mode 640");
    ck_assert_int_eq(chmod(file, 0600), 0);
    ck_assert_int_eq(truncate(file, PREFIX_CACHE_SECRET - 1), 0);
    expect_refused(-EINVAL, "191 bytes, but a secret has 192");
    ck_assert_int_eq(remove(file), 0);
    ck_assert_int_eq(symlink("/dev/zero", file), 0);
    expect_refused(-EINVAL, "is not a regular file");
    ck_assert_int_eq(remove(file), 0);
    ck_assert_int_eq(mkdir(file, 0700), 0);
    expect_refused(-EINVAL, "is not a regular file");
}

/* A folder that is not there is an error, not a place to make. */
TEST(missing_folder_is_an_error)
{
    ck_assert_int_eq(cache_secret_load(secret, "/nonexistent", &err), -ENOENT);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/cache-secret: cannot be created"));
    ck_assert_int_eq(cache_secret_check("/nonexistent", &err), -ENOENT);
    ck_assert_str_eq(err.text, "cache.folder: /nonexistent: No such file or directory");
}

/* A check makes no file, and takes one that is right. */
TEST(check_changes_nothing)
{
    ck_assert_int_eq(cache_secret_check(folder, &err), 0);
    ck_assert_int_eq(access(file, F_OK), -1);
    ck_assert_int_eq(cache_secret_load(secret, folder, &err), 0);
    ck_assert_int_eq(cache_secret_check(folder, &err), 0);
}

RUN_TESTS("cache_secret", set_up, tear_down)
