/* disk_tier.c - see disk_tier.h. */
#include "engine/disk_tier.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/util/file.h"
#include "engine/util/list.h"
#include "engine/util/thread.h"

enum {
    PAGE = 4096, /* the index begins behind one; direct I/O wants memory and offsets so */
    THREADS = 4, /* requests that a disk has at a time */
};

#define BLOCKS_NAME "kv-blocks"
#define INDEX_NAME  "kv-index"

static const char magic[16] = "nvllm kv index 1";

struct header {
    char magic[sizeof(magic)];
    uint64_t record_bytes;
    XXH128_hash_t secret; /* of the secret: under another one no record counts */
    char contents[PAGE - 40];
};
_Static_assert(sizeof(struct header) == PAGE, "the first page of the index");

enum op { OP_STORE, OP_LOAD, OP_FORGET, OP_RESTORE };

struct job {
    struct list link; /* in loads, jobs, running or ended */
    enum op op;
    int32_t block;
    void *memory;
    bool ok;
    struct node_record record; /* OP_STORE; its tokens are behind it */
};

enum trouble { TROUBLE_WRITE, TROUBLE_READ, N_TROUBLES };

struct disk_tier {
    char folder[PATH_MAX];
    int blocks_fd, index_fd;
    size_t block_bytes, stride, record_bytes;
    int32_t block_len, n_blocks;
    uint8_t secret[PREFIX_CACHE_SECRET];
    void (*warn)(const char *text);
    XXH128_hash_t
        *checks; /* [n_blocks] of the bytes; whose job has the block reads and writes it */

    pthread_t threads[THREADS];
    int n_threads;
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t work, news;
    struct list loads, jobs, running, ended; /* loads go first */
    bool stop;
    bool troubled[N_TROUBLES];

    bool *recorded; /* [n_blocks] the engine thread's: has a record that has been given, or will
                     * have a new one */
    char *copies;   /* [max_copies] jobs, each with room for a record */

    /* The index as it was found: OP_RESTORE fills it in, then the engine thread has it. */
    bool is_read;
    char *index;    /* [n_blocks, record_bytes] */
    int32_t *order; /* [n_order] blocks whose record counts, by depth */
    int32_t n_order, n_given;
};

/* ---- bytes */

static int write_all(int fd, const void *from, size_t n, uint64_t at)
{
    while (n > 0) {
        const ssize_t k = pwrite(fd, from, n, (off_t)at);

        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? -errno : -ENOSPC;
        from = (const char *)from + k;
        n -= (size_t)k;
        at += (uint64_t)k;
    }
    return 0;
}

static XXH128_hash_t sum_of(const struct disk_tier *d, const struct node_record *r)
{
    return XXH3_128bits_withSecret(&r->check, d->record_bytes - sizeof(r->sum), d->secret,
                                   sizeof(d->secret));
}

static uint64_t record_at(const struct disk_tier *d, int32_t block)
{
    return PAGE + (uint64_t)block * d->record_bytes;
}

static void trouble(struct disk_tier *d, enum trouble kind, const char *file, int r)
{
    static const char *const doing[N_TROUBLES] = {"cannot write", "cannot read"};
    struct err e;
    bool first;

    pthread_mutex_lock(&d->lock);
    first = !d->troubled[kind];
    d->troubled[kind] = true;
    pthread_mutex_unlock(&d->lock);
    if (!first)
        return;
    err_set(&e, r, "cache.disk: %s %s/%s: %s; such blocks are computed again", doing[kind],
            d->folder, file,
            r == -EBADMSG ? "it holds other bytes than were written" : strerror(-r));
    d->warn(e.text);
}

/* ---- jobs: a thread of the tier */

static int erase(struct disk_tier *d, int32_t block)
{
    struct node_record *zeros = calloc(1, d->record_bytes);
    int r = zeros ? write_all(d->index_fd, zeros, d->record_bytes, record_at(d, block)) : -ENOMEM;

    free(zeros);
    return r;
}

static int store(struct disk_tier *d, struct job *j)
{
    int r = erase(d, j->block);

    if (r == 0 && !j->memory)
        return 0;
    if (r == 0)
        r = write_all(d->blocks_fd, j->memory, d->block_bytes, (uint64_t)j->block * d->stride);
    if (r < 0)
        return r;
    j->record.check = d->checks[j->block] = XXH3_128bits(j->memory, d->block_bytes);
    j->record.sum = sum_of(d, &j->record);
    return write_all(d->index_fd, &j->record, d->record_bytes, record_at(d, j->block));
}

static int load(struct disk_tier *d, struct job *j)
{
    struct err e; /* the caller says more */
    int r = file_read(d->blocks_fd, BLOCKS_NAME, (uint64_t)j->block * d->stride, j->memory,
                      d->block_bytes, &e);

    if (r == 0 && !digests_equal(XXH3_128bits(j->memory, d->block_bytes), d->checks[j->block]))
        r = -EBADMSG;
    return r;
}

static const struct node_record *record_of(const struct disk_tier *d, int32_t block)
{
    return (const void *)(d->index + (size_t)block * d->record_bytes);
}

/* Fills in d->order; found [n_order] are the blocks in their own order. */
static int sort_by_depth(struct disk_tier *d, const int32_t *found)
{
    int32_t deepest = 0, *at;

    for (int32_t i = 0; i < d->n_order; i++)
        if (record_of(d, found[i])->depth > deepest)
            deepest = record_of(d, found[i])->depth;
    at = calloc((size_t)deepest + 2, sizeof(*at));
    if (!at)
        return -ENOMEM;
    for (int32_t i = 0; i < d->n_order; i++)
        at[record_of(d, found[i])->depth + 1]++;
    for (int32_t i = 0; i < deepest; i++)
        at[i + 1] += at[i];
    for (int32_t i = 0; i < d->n_order; i++)
        d->order[at[record_of(d, found[i])->depth]++] = found[i];
    free(at);
    return 0;
}

/* Notes the records that count. A part of the file that is not there holds none. */
static int restore(struct disk_tier *d, int32_t *found)
{
    const size_t bytes = (size_t)d->n_blocks * d->record_bytes;
    struct stat st;
    uint64_t there;
    struct err e; /* the caller says more */
    int r;

    if (fstat(d->index_fd, &st) < 0)
        return -errno;
    there = st.st_size > PAGE ? (uint64_t)st.st_size - PAGE : 0;
    if (there > bytes)
        there = bytes;
    r = file_read(d->index_fd, INDEX_NAME, PAGE, d->index, there, &e);
    if (r < 0)
        return r;
    for (int32_t i = 0; i < (int32_t)(there / d->record_bytes); i++) {
        const struct node_record *rec = record_of(d, i);

        if (rec->sum.low64 == 0 && rec->sum.high64 == 0)
            continue;
        if (!digests_equal(rec->sum, sum_of(d, rec)) || rec->depth < 0 ||
            rec->depth > INT32_MAX / d->block_len) {
            trouble(d, TROUBLE_READ, INDEX_NAME, -EBADMSG);
            (void)erase(d, i);
            continue;
        }
        d->checks[i] = rec->check;
        found[d->n_order++] = i;
    }
    return sort_by_depth(d, found);
}

static int restore_index(struct disk_tier *d)
{
    int32_t *found = calloc((size_t)d->n_blocks, sizeof(*found));
    int r = -ENOMEM;

    d->index = calloc((size_t)d->n_blocks, d->record_bytes);
    d->order = calloc((size_t)d->n_blocks, sizeof(*d->order));
    if (found && d->index && d->order)
        r = restore(d, found);
    free(found);
    if (r < 0) { /* what is not known could not be cleared */
        d->n_order = 0;
        (void)!ftruncate(d->index_fd, PAGE);
    }
    return r;
}

static void run(struct disk_tier *d, struct job *j)
{
    const bool reads = j->op == OP_LOAD || j->op == OP_RESTORE;
    int r;

    if (j->op == OP_STORE)
        r = store(d, j);
    else if (j->op == OP_LOAD)
        r = load(d, j);
    else if (j->op == OP_FORGET)
        r = erase(d, j->block);
    else
        r = restore_index(d);
    if (r < 0)
        trouble(d, reads ? TROUBLE_READ : TROUBLE_WRITE,
                j->op == OP_LOAD || j->op == OP_STORE ? BLOCKS_NAME : INDEX_NAME, r);
    j->ok = r == 0;
}

static bool is_running(const struct disk_tier *d, int32_t block)
{
    LIST_EACH (const struct job, j, link, &d->running)
        if (j->block == block)
            return true;
    return false;
}

/* Under the lock: the next job, or NULL. What is asked of a block's record is done in that order,
 * by one thread after the other. Once the tier is being closed, no copy begins. */
static struct job *next_job(struct disk_tier *d)
{
    if (!d->stop && !list_empty(&d->loads))
        return CONTAINER_OF(d->loads.next, struct job, link);
    LIST_EACH (struct job, j, link, &d->jobs) {
        if (is_running(d, j->block))
            continue;
        if (d->stop && j->op == OP_STORE)
            j->memory = NULL; /* what was there before is gone all the same */
        return j;
    }
    return NULL;
}

static void *thread_main(void *tier)
{
    struct disk_tier *d = tier;
    struct job *j;

    pthread_mutex_lock(&d->lock);
    while ((j = next_job(d)) || !d->stop) {
        if (!j) {
            pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        list_remove(&j->link);
        list_append(&d->running, &j->link);
        pthread_mutex_unlock(&d->lock);
        run(d, j);
        pthread_mutex_lock(&d->lock);
        list_remove(&j->link);
        d->is_read |= j->op == OP_RESTORE;
        if (j->op == OP_STORE || j->op == OP_LOAD)
            list_append(&d->ended, &j->link);
        else
            free(j);
        pthread_cond_broadcast(&d->news);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* ---- the engine thread */

static struct job *copy_job(const struct disk_tier *d, uint32_t id)
{
    return (void *)(d->copies + (size_t)id * (sizeof(struct job) + d->record_bytes));
}

static void ask(struct disk_tier *d, struct job *j, enum op op, int32_t block, void *memory)
{
    j->op = op;
    j->block = block;
    j->memory = memory;
    if (op == OP_STORE || op == OP_FORGET)
        d->recorded[block] = op == OP_STORE && memory;
    pthread_mutex_lock(&d->lock);
    list_append(op == OP_LOAD ? &d->loads : &d->jobs, &j->link);
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

void disk_tier_store(struct disk_tier *d, uint32_t id, int32_t block, const void *memory,
                     const struct node_record *record)
{
    memcpy(&copy_job(d, id)->record, record, d->record_bytes);
    ask(d, copy_job(d, id), OP_STORE, block, (void *)(uintptr_t)memory);
}

void disk_tier_load(struct disk_tier *d, uint32_t id, int32_t block, void *memory)
{
    ask(d, copy_job(d, id), OP_LOAD, block, memory);
}

void disk_tier_forget(struct disk_tier *d, int32_t block)
{
    struct job *j = d->recorded[block] ? calloc(1, sizeof(*j)) : NULL;

    if (j) /* without memory the record stays until the block is written again */
        ask(d, j, OP_FORGET, block, NULL);
}

/* Under the lock: waits for news, or until wait_ms are over. */
static void wait_for_news(struct disk_tier *d, int wait_ms)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)wait_ms * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_clockwait(&d->news, &d->lock, CLOCK_MONOTONIC, &until);
}

int32_t disk_tier_ended(struct disk_tier *d, struct copy_result *out, int32_t max, int wait_ms)
{
    int32_t n = 0;

    pthread_mutex_lock(&d->lock);
    if (list_empty(&d->ended) && wait_ms > 0)
        wait_for_news(d, wait_ms);
    for (; n < max && !list_empty(&d->ended); n++) {
        struct job *j = CONTAINER_OF(d->ended.next, struct job, link);
        const size_t at = (size_t)((char *)j - d->copies);

        list_remove(&j->link);
        out[n] = (struct copy_result){(uint32_t)(at / (sizeof(*j) + d->record_bytes)), j->ok};
    }
    pthread_mutex_unlock(&d->lock);
    return n;
}

bool disk_tier_is_read(struct disk_tier *d, int wait_ms)
{
    bool is_read;

    pthread_mutex_lock(&d->lock);
    if (!d->is_read && wait_ms > 0)
        wait_for_news(d, wait_ms);
    is_read = d->is_read;
    pthread_mutex_unlock(&d->lock);
    return is_read;
}

const struct node_record *disk_tier_next_record(struct disk_tier *d, int32_t *block)
{
    if (d->n_given == d->n_order) {
        free(d->index);
        free(d->order);
        d->index = NULL;
        d->order = NULL;
        d->n_given = d->n_order = 0;
        return NULL;
    }
    *block = d->order[d->n_given++];
    d->recorded[*block] = true;
    return record_of(d, *block);
}

int32_t disk_tier_blocks(const struct disk_tier *d)
{
    return d->n_blocks;
}

/* ---- from open to close */

/* A regular file of this user's, which nobody else can read. flags: more than to read and write. */
static int open_file(int *out, const struct disk_tier *d, const char *name, int flags,
                     struct err *e)
{
    char path[PATH_MAX + 16];
    struct stat st;
    int fd, r = 0;

    snprintf(path, sizeof(path), "%s/%s", d->folder, name);
    fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags, 0600);
    if (fd < 0)
        return err_set(e, -errno, "cache.disk: %s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0)
        r = err_set(e, -errno, "cache.disk: %s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_uid != geteuid())
        r = err_set(e, -EPERM, "cache.disk: %s: not a file of this user", path);
    else if (fchmod(fd, 0600) < 0)
        r = err_set(e, -errno, "cache.disk: %s: %s", path, strerror(errno));
    if (r < 0)
        close(fd);
    else
        *out = fd;
    return r;
}

/* Direct, where the file system and the size of blocks allow it. */
static int open_blocks(struct disk_tier *d, struct err *e)
{
    int r = -EINVAL;

    if (d->block_bytes % PAGE == 0)
        r = open_file(&d->blocks_fd, d, BLOCKS_NAME, O_DIRECT, e);
    if (r == -EINVAL)
        r = open_file(&d->blocks_fd, d, BLOCKS_NAME, 0, e);
    if (r == 0 && ftruncate(d->blocks_fd, (off_t)((uint64_t)d->n_blocks * d->stride)) < 0)
        r = err_set(e, -errno, "cache.disk: %s/%s: %s", d->folder, BLOCKS_NAME, strerror(errno));
    return r;
}

/* The index of these contents: one of others is emptied. */
static int open_index(struct disk_tier *d, const struct disk_options *o, struct err *e)
{
    const off_t most = (off_t)(PAGE + (uint64_t)d->n_blocks * d->record_bytes);
    struct header want = {.record_bytes = d->record_bytes}, have = {.record_bytes = 0};
    struct stat st;
    int r = open_file(&d->index_fd, d, INDEX_NAME, 0, e);

    if (r < 0)
        return r;
    if (flock(d->index_fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(e, -errno, "cache.disk: %s/%s: %s", d->folder, INDEX_NAME,
                       errno == EWOULDBLOCK ? "another process uses it; give each nvllmd a "
                                              "cache.folder of its own"
                                            : strerror(errno));
    memcpy(want.magic, magic, sizeof(magic));
    want.secret = XXH3_128bits(d->secret, sizeof(d->secret));
    snprintf(want.contents, sizeof(want.contents), "%s", o->contents);
    if (fstat(d->index_fd, &st) < 0)
        r = -errno;
    if (r == 0 && st.st_size >= PAGE) /* else it is new, or cut */
        r = file_read(d->index_fd, INDEX_NAME, 0, &have, sizeof(have), e);
    if (r == 0 && memcmp(&want, &have, sizeof(want)) != 0) {
        if (st.st_size > 0)
            d->warn(
                "cache.disk: the folder has blocks of another model, or of another format: they "
                "are dropped");
        if (ftruncate(d->index_fd, 0) < 0)
            r = -errno;
        else
            r = write_all(d->index_fd, &want, sizeof(want), 0);
    } else if (r == 0 && st.st_size > most && ftruncate(d->index_fd, most) < 0) {
        r = -errno;
    }
    return r < 0 ? err_set(e, r, "cache.disk: %s/%s: %s", d->folder, INDEX_NAME, strerror(-r)) : 0;
}

static int open_files(struct disk_tier *d, const struct disk_options *o, struct err *e)
{
    const uint64_t n = o->bytes / d->stride;
    int r;

    if (snprintf(d->folder, sizeof(d->folder), "%s", o->folder) >= (int)sizeof(d->folder))
        return err_set(e, -ENAMETOOLONG, "cache.folder: the path is too long");
    if (n == 0 || n > INT32_MAX / 4)
        return err_set(e, -EINVAL, "cache.disk: %.1f MiB, but one KV block takes %.1f MiB; %s",
                       (double)o->bytes / 0x1p20, (double)d->stride / 0x1p20,
                       n == 0 ? "raise it" : "lower it, or raise cache.block_len");
    d->n_blocks = (int32_t)n;
    r = open_index(d, o, e);
    if (r == 0)
        r = open_blocks(d, e);
    if (r < 0)
        return r;
    d->recorded = calloc(n, sizeof(*d->recorded));
    d->checks = calloc(n, sizeof(*d->checks));
    return d->recorded && d->checks ? 0 : err_set(e, -ENOMEM, "cache.disk: out of memory");
}

int disk_tier_open(struct disk_tier **out, const struct disk_options *o, struct err *e)
{
    struct disk_tier *d = calloc(1, sizeof(*d));
    int r;

    if (!d)
        return err_set(e, -ENOMEM, "cache.disk: out of memory");
    d->index_fd = d->blocks_fd = -1;
    d->block_len = o->block_len;
    d->block_bytes = o->block_bytes;
    d->stride = (o->block_bytes + PAGE - 1) / PAGE * PAGE;
    d->record_bytes = sizeof(struct node_record) + (size_t)o->block_len * sizeof(int32_t);
    d->warn = o->warn;
    memcpy(d->secret, o->secret, sizeof(d->secret));
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->news, NULL);
    list_init(&d->loads);
    list_init(&d->jobs);
    list_init(&d->running);
    list_init(&d->ended);
    r = open_files(d, o, e);
    if (r < 0)
        disk_tier_close(d);
    else
        *out = d;
    return r;
}

int disk_tier_start(struct disk_tier *d, int32_t max_copies, struct err *e)
{
    struct job *restore = calloc(1, sizeof(*restore));
    int r = 0;

    d->copies = calloc((size_t)max_copies, sizeof(struct job) + d->record_bytes);
    if (!d->copies || !restore) {
        free(restore);
        return err_set(e, -ENOMEM, "cache.disk: out of memory");
    }
    ask(d, restore, OP_RESTORE, 0, NULL);
    for (; r == 0 && d->n_threads < THREADS; d->n_threads += r == 0)
        r = thread_start(&d->threads[d->n_threads], "disk", thread_main, d);
    return d->n_threads > 0 ? 0 : err_set(e, r, "cache.disk: no thread: %s", strerror(-r));
}

void disk_tier_close(struct disk_tier *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->work);
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < d->n_threads; i++)
        pthread_join(d->threads[i], NULL);
    if (d->index_fd >= 0)
        close(d->index_fd);
    if (d->blocks_fd >= 0)
        close(d->blocks_fd);
    LIST_EACH (struct job, j, link, &d->jobs) /* of OP_RESTORE, where there is no thread */
        free(j);
    pthread_cond_destroy(&d->news);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    free(d->recorded);
    free(d->checks);
    free(d->copies);
    free(d->index);
    free(d->order);
    free(d);
}
