/* temp_dir.h - a folder of a test's own under /tmp. */
#ifndef NVLLM_TESTS_UNIT_TEMP_DIR_H
#define NVLLM_TESTS_UNIT_TEMP_DIR_H

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[64];

static void make_dir(void)
{
    strcpy(dir, "/tmp/nvllm-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static void remove_dir(void)
{
    nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
