/* planted_backend.c - the CUDA backend as a module that fails on command, for tests through the
 * daemon; the product has no such option.
 *
 * What to do stands in a file `plan` in the folder that the module was loaded from, a word and a
 * number a line:
 *   trap N    a device stops with a sticky error in the N-th step
 *   hang N    a device hangs there
 *   peer N    a device reads another one's memory there, behind all that was allocated
 *   stop N    a rank's thread stops there; of n ranks it is always number N % n
 *   onto 0    all ranks are on device 0, which no configuration asks for
 *   poison 1  every KV block is filled with NaN at open, when a sequence begins to write it, and
 *             when the sequence that began it is gone and has not filled it; so a sequence that
 *             reads what was not written for it computes NaN
 *
 * A backend is not told what becomes of blocks. The prefix cache may find a full one until another
 * sequence begins it. It never finds one that is not full: that belongs to one sequence, which is
 * certainly gone when another one is loaded into its sampler state. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda/ranks.h"
#include "engine/backend.h"
#include "engine/util/must.h"
#include "tests/gpu/trap.h"

enum { POISON = 0xff }; /* in every byte: NaN in bf16 */

/* backend.c is compiled once more for this module, with its table under this name. */
extern const struct backend_ops nvllm_planted_inner;

static long trap_step, hang_step, peer_step, stop_step;
static bool onto_one;
static char time_path[4096];
static bool poison;
static int32_t block_len;
static uint32_t *n_begun; /* [n_blocks] how often each was begun */

/* By sampler state: the block that its sequence has in part, and when that was begun. */
static struct tail {
    int32_t block; /* -1: none */
    uint32_t n_begun;
} * tails;

static int read_plan(struct err *e)
{
    char path[4096], word[16];
    const char *end;
    Dl_info self;
    long number;
    FILE *f;
    int n;

    if (!dladdr(&trap_step, &self))
        return err_set(e, -EINVAL, "plan: where is this module?");
    end = strrchr(self.dli_fname, '/');
    snprintf(time_path, sizeof(time_path), "%.*s/fault_time", end ? (int)(end - self.dli_fname) : 0,
             self.dli_fname);
    snprintf(path, sizeof(path), "%.*s/plan", end ? (int)(end - self.dli_fname) : 0,
             self.dli_fname);
    f = fopen(path, "re");
    if (!f)
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    while ((n = fscanf(f, "%15s %ld", word, &number)) == 2) {
        if (strcmp(word, "trap") == 0)
            trap_step = number;
        else if (strcmp(word, "hang") == 0)
            hang_step = number;
        else if (strcmp(word, "peer") == 0)
            peer_step = number;
        else if (strcmp(word, "stop") == 0)
            stop_step = number;
        else if (strcmp(word, "onto") == 0)
            onto_one = true;
        else if (strcmp(word, "poison") == 0)
            poison = number != 0;
        else
            break;
    }
    fclose(f);
    return n == EOF
               ? 0
               : err_set(e, -EINVAL, "%s: none of trap, hang, peer, stop, onto and poison", path);
}

static int n_ranks(const struct backend *b)
{
    int n = 1;

    while (n < MAX_RANKS && ranks_at(cuda_backend_ranks(b), n))
        n++;
    return n;
}

/* A rank's stream, with its device the thread's own. A fault that cannot be planted must not look
 * like one that was. */
static cudaStream_t stream_of(const struct backend *b, int i)
{
    const struct device *d = &ranks_at(cuda_backend_ranks(b), i)->device;

    must(cudaSetDevice(d->id) == cudaSuccess);
    return d->launch.stream;
}

static int planted_open(struct backend **out, const struct model *model,
                        const struct backend_options *options, struct err *e)
{
    struct backend_options o = *options;
    struct backend_info info;
    struct backend *b;
    int r = read_plan(e);

    for (int i = 0; onto_one && i < o.n_devices; i++)
        o.devices[i] = 0;
    if (r == 0)
        r = nvllm_planted_inner.open(&b, model, &o, e);
    if (r < 0)
        return r;
    nvllm_planted_inner.info(b, &info);
    block_len = options->block_len;
    n_begun = calloc((size_t)info.tiers[TIER_DEVICE].n_blocks, sizeof(*n_begun));
    tails = calloc((size_t)options->max_seqs, sizeof(*tails));
    for (int32_t i = 0; tails && i < options->max_seqs; i++)
        tails[i].block = -1;
    if (!n_begun || !tails) {
        nvllm_planted_inner.close(b);
        return err_set(e, -ENOMEM, "out of memory");
    }
    for (int i = 0; poison && i < n_ranks(b); i++) {
        const struct rank *rank = ranks_at(cuda_backend_ranks(b), i);

        (void)stream_of(b, i);
        must(cudaMemset(rank->forward.kv.base, POISON,
                        (size_t)info.tiers[TIER_DEVICE].n_blocks * rank->block_bytes) ==
                 cudaSuccess &&
             cudaDeviceSynchronize() == cudaSuccess);
    }
    *out = b;
    return 0;
}

static cudaError_t poison_block(struct backend *b, int32_t block)
{
    cudaError_t code = cudaSuccess;

    for (int i = n_ranks(b) - 1; i >= 0 && code == cudaSuccess; i--) {
        const struct rank *rank = ranks_at(cuda_backend_ranks(b), i);

        code = cudaMemsetAsync((char *)rank->forward.kv.base + (uint64_t)block * rank->block_bytes,
                               POISON, rank->block_bytes, stream_of(b, i));
    }
    return code;
}

/* Blocks that are not full, of sequences whose states other ones get. */
static cudaError_t poison_left(struct backend *b, const struct batch *batch)
{
    cudaError_t code = cudaSuccess;

    for (int i = 0; i < batch->n_updates && code == cudaSuccess; i++) {
        struct tail *t = &tails[batch_updates(batch)[i].state];

        if (t->block >= 0 && n_begun[t->block] == t->n_begun)
            code = poison_block(b, t->block);
        t->block = -1;
    }
    return code;
}

/* A row at the first slot of a block begins it: no sequence uses its old content. */
static cudaError_t poison_begun(struct backend *b, const struct batch *batch)
{
    cudaError_t code = cudaSuccess;

    for (int i = 0; i < batch->n_tokens && code == cudaSuccess; i++)
        if (batch_slots(batch)[i] % block_len == 0) {
            n_begun[batch_slots(batch)[i] / block_len]++;
            code = poison_block(b, batch_slots(batch)[i] / block_len);
        }
    return code;
}

static void note_tails(const struct batch *batch)
{
    for (int i = 0; i < batch->n_rows; i++) {
        struct tail *t = &tails[batch_rows(batch)[i].state];
        const int32_t slot = batch_slots(batch)[batch_rows(batch)[i].row];

        t->block = slot % block_len + 1 < block_len ? slot / block_len : -1;
        t->n_begun = n_begun[slot / block_len];
    }
}

static void stay(int signal)
{
    (void)signal;
    for (;;)
        (void)pause();
}

static int by_number(const void *a, const void *b)
{
    const long x = *(const long *)a, y = *(const long *)b;

    return x < y ? -1 : x > y;
}

/* Threads have numbers in the order in which they began; those that CUDA starts under a rank's have
 * its name, and come later. */
static void stop_thread(int rank)
{
    enum { MAX_THREADS = 1024 };
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    char path[300], name[32];
    long ids[MAX_THREADS];
    int n = 0;

    must(tasks);
    while (n < MAX_THREADS && (entry = readdir(tasks))) {
        FILE *f;

        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        f = fopen(path, "re");
        if (f && fgets(name, sizeof(name), f) && strcmp(name, "cuda-rank\n") == 0)
            ids[n++] = atol(entry->d_name);
        if (f)
            fclose(f);
    }
    closedir(tasks);
    qsort(ids, (size_t)n, sizeof(*ids), by_number);
    must(rank < n && signal(SIGTRAP, stay) != SIG_ERR); /* one that such threads do not block */
    must(syscall(SYS_tgkill, getpid(), ids[rank], SIGTRAP) == 0);
}

/* When the fault began, by the clock that Python's time.monotonic() reads, beside the plan. */
static void note_time(void)
{
    struct timespec t;
    FILE *f = fopen(time_path, "we");

    must(f && clock_gettime(CLOCK_MONOTONIC, &t) == 0);
    fprintf(f, "%lld.%09ld", (long long)t.tv_sec, t.tv_nsec);
    must(fclose(f) == 0);
}

/* An address of the next rank's device where there is nothing: no device has so much memory. */
static const void *of_peer(const struct backend *b, int rank)
{
    const int peer = (rank + 1) % n_ranks(b);

    return (const char *)ranks_at(cuda_backend_ranks(b), peer)->forward.kv.base + (1ull << 40);
}

static void plant(struct backend *b, long step)
{
    const int rank = (int)(step % n_ranks(b));

    if (trap_step == step || hang_step == step || peer_step == step || stop_step == step)
        note_time();
    if (trap_step == step)
        must(trap_device(stream_of(b, rank)) == cudaSuccess);
    if (hang_step == step)
        must(hang_device(stream_of(b, rank)) == cudaSuccess);
    if (peer_step == step)
        must(misread_device(stream_of(b, rank), of_peer(b, rank)) == cudaSuccess);
    if (stop_step == step)
        stop_thread(rank);
    (void)stream_of(b, 0);
}

static int planted_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    if (poison && (poison_left(b, batch) != cudaSuccess || poison_begun(b, batch) != cudaSuccess))
        return err_set(e, -EIO, "a block cannot be poisoned");
    note_tails(batch);
    plant(b, (long)batch->step);
    return nvllm_planted_inner.submit(b, batch, e);
}

static int planted_mask(struct backend *b, const uint32_t *const *masks, struct err *e)
{
    return nvllm_planted_inner.mask(b, masks, e);
}

static void planted_info(const struct backend *b, struct backend_info *out)
{
    nvllm_planted_inner.info(b, out);
}

static int planted_wait(struct backend *b, struct step_result *out, struct err *e)
{
    return nvllm_planted_inner.wait(b, out, e);
}

static int planted_idle(struct backend *b, struct err *e)
{
    return nvllm_planted_inner.idle(b, e);
}

static void planted_close(struct backend *b)
{
    nvllm_planted_inner.close(b);
    free(n_begun);
    free(tails);
    n_begun = NULL;
    tails = NULL;
}

static int planted_sleep(struct backend *b, bool keep_blocks, struct err *e)
{
    return nvllm_planted_inner.sleep(b, keep_blocks, e);
}

static int planted_wake(struct backend *b, struct err *e)
{
    return nvllm_planted_inner.wake(b, e);
}

extern const struct backend_ops nvllm_backend;

__attribute__((visibility("default"))) const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .open = planted_open,
    .info = planted_info,
    .submit = planted_submit,
    .mask = planted_mask,
    .wait = planted_wait,
    .idle = planted_idle,
    .sleep = planted_sleep,
    .wake = planted_wake,
    .close = planted_close,
};
