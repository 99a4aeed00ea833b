/* test_algo_file.c - measured choices come back as they were written, or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <dirent.h>

#include "cuda/algo_file.h"
#include "tests/unit/run_suite.h"

static const char key[] = "a device, compute 90";
static char folder[64], file[512];

static struct algo_record record_of(int m)
{
    struct algo_record r = {.shape = {m, 6144, 1024, 2, 6144}, .us = 10.5f};

    memset(r.algo, m, sizeof(r.algo));
    return r;
}

/* The name of the only file in the folder. */
static void find_file(void)
{
    DIR *d = opendir(folder);
    const struct dirent *entry;
    int n = 0;

    ck_assert_ptr_nonnull(d);
    while ((entry = readdir(d)))
        if (entry->d_name[0] != '.') {
            snprintf(file, sizeof(file), "%s/%s", folder, entry->d_name);
            n++;
        }
    closedir(d);
    ck_assert_int_eq(n, 1);
}

static int write_to(const char *in, const char *with, struct algo_record *records, int n,
                    struct err *e)
{
    return algo_file_write(in, with, &(struct algo_records){records, n}, e);
}

static void setup(void)
{
    struct algo_record records[] = {record_of(16), record_of(32), record_of(48)};
    struct err e;

    strcpy(folder, "/tmp/nvllm-algo-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(write_to(folder, key, records, 3, &e), 0);
    find_file();
}

static void teardown(void)
{
    (void)unlink(file);
    (void)rmdir(folder);
}

static int count_of(const char *in, const char *with)
{
    struct algo_records r;
    struct err e;

    ck_assert_int_eq(algo_file_read(&r, in, with, &e), 0);
    for (int i = 0; i < r.n; i++) {
        const struct algo_record expected = record_of(r.all[i].shape.m);

        ck_assert_int_eq(memcmp(&r.all[i], &expected, sizeof(expected)), 0);
    }
    free(r.all);
    return r.n;
}

static size_t slurp(char *to, size_t room)
{
    FILE *f = fopen(file, "re");
    size_t n;

    ck_assert_ptr_nonnull(f);
    n = fread(to, 1, room, f);
    fclose(f);
    return n;
}

static void spill(const char *from, size_t n)
{
    FILE *f = fopen(file, "we");

    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(from, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

/* What was written is read; another write replaces it; nobody else may read the file. */
TEST(records_come_back)
{
    struct algo_record other = record_of(64);
    struct stat s;
    struct err e;

    ck_assert_int_eq(count_of(folder, key), 3);
    ck_assert_int_eq(stat(file, &s), 0);
    ck_assert_int_eq(s.st_mode & 07777, 0600);
    ck_assert_int_eq(write_to(folder, key, &other, 1, &e), 0);
    ck_assert_int_eq(count_of(folder, key), 1);
    ck_assert_int_eq(write_to(folder, key, NULL, 0, &e), 0);
    ck_assert_int_eq(count_of(folder, key), 0);
    find_file(); /* nothing temporary is left */
}

/* Another device or version has no records here, and keeps its own beside these. */
TEST(other_keys_have_other_records)
{
    ck_assert_int_eq(count_of(folder, "a device, compute 91"), 0);
    ck_assert_int_eq(count_of("/nowhere", key), 0);
    ck_assert_int_eq(count_of(folder, ""), 0);
}

/* A file of another key under this one's name is none. */
TEST(a_file_of_another_key_is_none)
{
    struct algo_record other = record_of(16);
    char first[512], bytes[4096];
    struct err e;
    size_t n;

    strcpy(first, file);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(write_to(folder, "other", &other, 1, &e), 0);
    find_file();
    n = slurp(bytes, sizeof(bytes));
    ck_assert_int_eq(unlink(file), 0);
    strcpy(file, first);
    spill(bytes, n);
    ck_assert_int_eq(chmod(file, 0600), 0);
    ck_assert_int_eq(count_of(folder, key), 0);
}

/* One byte changed anywhere, or any number of them missing or added: no records, no crash. */
TEST(a_damaged_file_is_none)
{
    char bytes[4096], changed[4096];
    const size_t n = slurp(bytes, sizeof(bytes));

    ck_assert_uint_gt(n, 3 * sizeof(struct algo_record));
    for (size_t i = 0; i < n; i++) {
        memcpy(changed, bytes, n);
        changed[i] = (char)(changed[i] ^ 1 << i % 8);
        spill(changed, n);
        ck_assert_int_eq(count_of(folder, key), 0);
        spill(bytes, i);
        ck_assert_int_eq(count_of(folder, key), 0);
    }
    memset(changed, 0, sizeof(changed));
    memcpy(changed, bytes, n);
    spill(changed, n + sizeof(struct algo_record));
    ck_assert_int_eq(count_of(folder, key), 0);
    spill(bytes, n);
    ck_assert_int_eq(count_of(folder, key), 3);
}

/* Records that no shape can have are not handed on, even where the sums are right. */
TEST(senseless_records_are_none)
{
    struct algo_record r[6];
    struct err e;

    for (int i = 0; i < 6; i++)
        r[i] = record_of(16);
    r[0].shape.m = 0;
    r[1].shape.n = -1;
    r[2].shape.k = INT32_MIN;
    r[3].shape.out = -1;
    r[4].us = NAN;
    r[5].shape.y_stride = 6143;
    for (int i = 0; i < 6; i++) {
        ck_assert_int_eq(write_to(folder, key, &r[i], 1, &e), 0);
        ck_assert_int_eq(count_of(folder, key), 0);
    }
}

/* What others may write to, or what is no regular file, is not read. */
TEST(what_others_may_have_written_is_none)
{
    ck_assert_int_eq(chmod(file, 0620), 0);
    ck_assert_int_eq(count_of(folder, key), 0);
    ck_assert_int_eq(chmod(file, 0602), 0);
    ck_assert_int_eq(count_of(folder, key), 0);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(mkfifo(file, 0600), 0);
    ck_assert_int_eq(count_of(folder, key), 0);
}

/* The largest file comes back; one that is longer is not read. */
TEST(the_size_is_bounded)
{
    struct algo_record *r = calloc(ALGO_FILE_MAX, sizeof(*r));
    struct err e;

    for (int i = 0; i < ALGO_FILE_MAX; i++)
        r[i] = record_of(i + 1);
    ck_assert_int_eq(write_to(folder, key, r, ALGO_FILE_MAX, &e), 0);
    ck_assert_int_eq(count_of(folder, key), ALGO_FILE_MAX);
    ck_assert_int_eq(truncate(file, 1 << 30), 0);
    ck_assert_int_eq(count_of(folder, key), 0);
    free(r);
}

/* A folder is made; where that cannot be, the error names it. */
TEST(a_folder_that_cannot_be_is_told)
{
    struct algo_record r = record_of(16);
    char sub[128];
    struct err e;

    snprintf(sub, sizeof(sub), "%s/sub/sub", folder);
    ck_assert_int_eq(write_to(sub, key, &r, 1, &e), -ENOENT);
    ck_assert_msg(strstr(e.text, sub), "%s", e.text);
    ck_assert_int_eq(write_to(file, key, &r, 1, &e), -ENOTDIR);
    ck_assert_msg(strstr(e.text, file), "%s", e.text);
    ck_assert_int_eq(unlink(file), 0);
    ck_assert_int_eq(rmdir(folder), 0);
    ck_assert_int_eq(write_to(folder, key, &r, 1, &e), 0);
    ck_assert_int_eq(count_of(folder, key), 1);
}

RUN_TESTS("algo_file", setup, teardown)
