/* test_disk_tier.c - blocks come back from the file, before and after a restart, or not at all. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/disk_tier.h"
#include "tests/unit/run_suite.h"

enum {
    LEN = 16,
    BLOCK = 8192,
    N_BLOCKS = 8,
    RECORD = sizeof(struct node_record) + LEN * sizeof(int32_t),
    HEADER = 4096,
};

static struct disk_tier *disk;
static char folder[] = "/tmp/nvllm-disk-XXXXXX", template[] = "/tmp/nvllm-disk-XXXXXX";
static _Alignas(4096) char memory[N_BLOCKS][BLOCK];
static uint8_t secret[PREFIX_CACHE_SECRET] = "a secret";
static atomic_int n_warnings;
static struct disk_options options;
static struct err why;
static atomic_bool next_is_slow; /* the next write */

/* Instead of the C library's. */
ssize_t pwrite(int fd, const void *from, size_t n, off_t at)
{
    if (atomic_exchange(&next_is_slow, false))
        usleep(50000);
    return syscall(SYS_pwrite64, fd, from, n, at);
}

static void warn(const char *text)
{
    ck_assert_ptr_nonnull(strstr(text, "cache.disk"));
    n_warnings++;
}

static char *path(const char *name)
{
    static char text[64];

    snprintf(text, sizeof(text), "%s/%s", folder, name);
    return text;
}

static int open_disk(void)
{
    int r = disk_tier_open(&disk, &options, &why);

    return r < 0 ? r : disk_tier_start(disk, N_BLOCKS, &why);
}

static void reopen(void)
{
    disk_tier_close(disk);
    disk = NULL;
    ck_assert_msg(open_disk() == 0, "%s", why.text);
}

static void set_up(void)
{
    memcpy(folder, template, sizeof(folder));
    ck_assert_ptr_nonnull(mkdtemp(folder));
    options = (struct disk_options){.folder = folder,
                                    .bytes = N_BLOCKS * BLOCK,
                                    .block_bytes = BLOCK,
                                    .block_len = LEN,
                                    .contents = "these",
                                    .secret = secret,
                                    .warn = warn};
    n_warnings = 0;
    ck_assert_msg(open_disk() == 0, "%s", why.text);
}

static void tear_down(void)
{
    disk_tier_close(disk);
    disk = NULL;
    unlink(path("kv-blocks"));
    unlink(path("kv-index"));
    ck_assert_int_eq(rmdir(folder), 0);
}

/* How the one copy under way ends. */
static bool ends_well(uint32_t id)
{
    struct copy_result r;

    while (disk_tier_ended(disk, &r, 1, 100) == 0)
        ;
    ck_assert_uint_eq(r.id, id);
    return r.ok;
}

static bool store(int32_t block, int32_t depth)
{
    struct node_record *r = calloc(1, RECORD);
    bool ok;

    r->depth = depth;
    r->client = (uint64_t)block;
    r->tokens[LEN - 1] = 7 * block;
    memset(memory[block], 'a' + block, BLOCK);
    disk_tier_store(disk, (uint32_t)block, block, memory[block], r);
    free(r); /* it was copied */
    ok = ends_well((uint32_t)block);
    memset(memory[block], 0, BLOCK);
    return ok;
}

static bool load(int32_t block)
{
    bool ok;

    memset(memory[0], 0, BLOCK);
    disk_tier_load(disk, 1, block, memory[0]);
    ok = ends_well(1);
    if (ok)
        for (int i = 0; i < BLOCK; i++)
            ck_assert_int_eq(memory[0][i], 'a' + block);
    return ok;
}

/* The blocks of the records that are there, in their order, as digits. */
static const char *records(void)
{
    static char text[N_BLOCKS + 1];
    const struct node_record *r;
    int32_t block, n = 0;

    while (!disk_tier_is_read(disk, 100))
        ;
    while ((r = disk_tier_next_record(disk, &block))) {
        ck_assert_uint_eq(r->client, (uint64_t)block);
        ck_assert_int_eq(r->tokens[LEN - 1], 7 * block);
        text[n++] = (char)('0' + block);
    }
    text[n] = '\0';
    return text;
}

static void overwrite(const char *name, off_t at, const char *with, size_t n)
{
    int fd = open(path(name), O_WRONLY);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(pwrite(fd, with, n, at), (ssize_t)n);
    close(fd);
}

/* What is stored can be loaded, any number of times, and copies are told once. */
TEST(stores_and_loads)
{
    struct copy_result r;

    ck_assert_int_eq(disk_tier_blocks(disk), N_BLOCKS);
    ck_assert_str_eq(records(), "");
    ck_assert(store(2, 0) && store(5, 1));
    ck_assert(load(5) && load(2) && load(5));
    ck_assert_int_eq(disk_tier_ended(disk, &r, 1, 0), 0);
    ck_assert_int_eq(n_warnings, 0);
}

/* After a restart records come by depth, those of equal depth by block. */
TEST(finds_them_again)
{
    ck_assert(store(6, 0) && store(1, 2) && store(3, 1) && store(0, 1));
    reopen();
    ck_assert_str_eq(records(), "6031");
    ck_assert(load(6) && load(1) && load(3) && load(0));
    reopen();
    ck_assert_str_eq(records(), "6031");
    ck_assert_int_eq(n_warnings, 0);
}

/* A block that is forgotten, or stored from nowhere, has no record any more; its bytes may stay. */
TEST(forgets)
{
    struct node_record *r = calloc(1, RECORD);

    ck_assert(store(1, 0) && store(2, 0) && store(3, 0));
    disk_tier_forget(disk, 2);
    disk_tier_forget(disk, 4); /* never had one */
    disk_tier_store(disk, 0, 3, NULL, r);
    ck_assert(ends_well(0));
    free(r);
    reopen();
    ck_assert_str_eq(records(), "1");
}

/* To erase a record takes its time: one that is stored after it stays. */
TEST(erases_before_it_stores_again)
{
    ck_assert(store(3, 0));
    next_is_slow = true;
    disk_tier_forget(disk, 3);
    while (next_is_slow)
        ;
    ck_assert(store(3, 0));
    reopen();
    ck_assert_str_eq(records(), "3");
    ck_assert(load(3));
}

/* A bit that has changed in a block, its record or the record's sum: a miss, told once. */
TEST(sees_what_has_changed)
{
    ck_assert(store(1, 0) && store(2, 0) && store(3, 0) && store(4, 0));
    overwrite("kv-blocks", 2 * BLOCK + 4711, "?", 1);
    overwrite("kv-index", HEADER + 3 * RECORD + RECORD - 1, "?", 1);
    overwrite("kv-index", HEADER + 4 * RECORD, "?", 1);
    reopen();
    ck_assert_str_eq(records(), "12");
    ck_assert_int_eq(n_warnings, 1);
    ck_assert(load(1) && !load(2));
    ck_assert_int_eq(n_warnings, 1);
}

/* Blocks of other contents, or under another secret, are dropped for good. */
TEST(belongs_to_one_secret_and_model)
{
    for (int i = 0; i < 2; i++) {
        ck_assert(store(1, 0));
        reopen();
        ck_assert_str_eq(records(), "1");
        n_warnings = 0;
        options.contents = i == 0 ? "those" : "these";
        secret[3] ^= i;
        reopen();
        ck_assert_str_eq(records(), "");
        ck_assert_int_eq(n_warnings, 1);
        options.contents = "these";
        secret[3] ^= i;
        reopen();
        ck_assert_str_eq(records(), "");
    }
}

/* A block that is forgotten at any time after its store was asked for has no record, whether the
 * store is told or not. */
TEST(forgets_what_is_under_way)
{
    struct node_record *r = calloc(1, RECORD);
    struct copy_result ended;

    for (int i = 0; i < 100; i++) {
        disk_tier_store(disk, 3, i % N_BLOCKS, memory[1], r);
        usleep((unsigned)i);
        disk_tier_forget(disk, i % N_BLOCKS);
        while (i % 2 == 0 && disk_tier_ended(disk, &ended, 1, 100) == 0)
            ;
        reopen();
        ck_assert_str_eq(records(), "");
    }
    free(r);
}

/* Many copies and erasures at once, then a close in between: each block is as it was stored, or not
 * there. */
TEST(many_at_once)
{
    struct node_record *r = calloc(1, RECORD);
    struct copy_result ended[N_BLOCKS];

    for (int round = 0; round < 50; round++) {
        for (int32_t i = 0; i < N_BLOCKS; i++) {
            memset(memory[i], 'a' + i, BLOCK);
            r->client = (uint64_t)i;
            r->tokens[LEN - 1] = 7 * i;
            disk_tier_forget(disk, i);
            disk_tier_store(disk, (uint32_t)i, i, memory[i], r);
        }
        for (int32_t n = 0; round % 5 > 0 && n < N_BLOCKS;)
            n += disk_tier_ended(disk, ended, N_BLOCKS, 100);
        reopen();
        for (const char *at = records(); *at; at++)
            ck_assert(load(*at - '0'));
    }
    free(r);
    ck_assert_int_eq(n_warnings, 0);
}

/* Less space: what lies behind is gone; more again: it stays gone. */
TEST(shrinks_and_grows)
{
    struct stat st;

    ck_assert(store(1, 0) && store(6, 0));
    options.bytes = 4 * BLOCK + 100;
    reopen();
    ck_assert_int_eq(disk_tier_blocks(disk), 4);
    ck_assert_str_eq(records(), "1");
    ck_assert_int_eq(stat(path("kv-blocks"), &st), 0);
    ck_assert_int_eq(st.st_size, 4 * BLOCK);
    options.bytes = N_BLOCKS * BLOCK;
    reopen();
    ck_assert_str_eq(records(), "1");
}

/* Files of 0600; a second process, a folder in a file's place and too little space are refused by
 * name. */
TEST(refuses_by_name)
{
    struct disk_tier *second = NULL;
    struct stat st;

    ck_assert_int_eq(stat(path("kv-index"), &st), 0);
    ck_assert_uint_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(disk_tier_open(&second, &options, &why), -EWOULDBLOCK);
    ck_assert_ptr_nonnull(strstr(why.text, "another process"));
    disk_tier_close(disk);
    disk = NULL;
    options.bytes = BLOCK - 1;
    ck_assert_int_eq(open_disk(), -EINVAL);
    ck_assert_ptr_nonnull(strstr(why.text, "cache.disk"));
    options.bytes = N_BLOCKS * BLOCK;
    ck_assert_int_eq(unlink(path("kv-blocks")), 0);
    ck_assert_int_eq(mkdir(path("kv-blocks"), 0700), 0);
    ck_assert_int_eq(open_disk(), -EISDIR);
    ck_assert_ptr_nonnull(strstr(why.text, path("kv-blocks")));
    ck_assert_int_eq(rmdir(path("kv-blocks")), 0);
    ck_assert_int_eq(symlink("/etc/passwd", path("kv-blocks")), 0);
    ck_assert_int_eq(open_disk(), -ELOOP);
}

/* Blocks whose size is no multiple of a page go through the page cache. */
TEST(odd_sizes)
{
    struct node_record *r = calloc(1, RECORD);

    options.block_bytes = BLOCK - 100;
    options.contents = "odd";
    reopen();
    memset(memory[0], 0, BLOCK);
    ck_assert_int_eq(disk_tier_blocks(disk), N_BLOCKS);
    disk_tier_store(disk, 0, 7, memory[1], r);
    free(r);
    ck_assert(ends_well(0));
    disk_tier_load(disk, 0, 7, memory[2]);
    ck_assert(ends_well(0));
}

RUN_TESTS("disk_tier", set_up, tear_down)
