/* planted_backend.c - the CUDA backend as a module that fails on command, for tests through the
 * daemon; the product has no such option.
 *
 * What to do stands in a file `plan` in the folder that the module was loaded from, a word and a
 * number a line:
 *   trap N    the device stops with a sticky error in the N-th step
 *   hang N    the device hangs there
 *   stop N    the last rank's thread stops there
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
#include <sys/syscall.h>
#include <unistd.h>

#include "cuda/ranks.h"
#include "engine/backend.h"
#include "tests/gpu/trap.h"

enum { POISON = 0xff }; /* in every byte: NaN in bf16 */

/* backend.c is compiled once more for this module, with its table under this name. */
extern const struct backend_ops nvllm_planted_inner;

static long trap_step, hang_step, stop_step;
static bool poison;
static int32_t block_len;
static uint64_t block_bytes;
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
        else if (strcmp(word, "stop") == 0)
            stop_step = number;
        else if (strcmp(word, "poison") == 0)
            poison = number != 0;
        else
            break;
    }
    fclose(f);
    return n == EOF ? 0 : err_set(e, -EINVAL, "%s: none of trap, hang, stop and poison", path);
}

static int planted_open(struct backend **out, const struct model *model,
                        const struct backend_options *options, struct err *e)
{
    struct backend_info info;
    struct backend *b;
    int r = read_plan(e);

    if (r == 0)
        r = nvllm_planted_inner.open(&b, model, options, e);
    if (r < 0)
        return r;
    nvllm_planted_inner.info(b, &info);
    block_len = options->block_len;
    block_bytes = info.block_bytes;
    n_begun = calloc((size_t)info.tiers[TIER_DEVICE].n_blocks, sizeof(*n_begun));
    tails = calloc((size_t)options->max_seqs, sizeof(*tails));
    for (int32_t i = 0; tails && i < options->max_seqs; i++)
        tails[i].block = -1;
    if (!n_begun || !tails) {
        nvllm_planted_inner.close(b);
        return err_set(e, -ENOMEM, "out of memory");
    }
    if (poison &&
        (cudaMemset(cuda_backend_rank(b)->forward.kv.base, POISON,
                    (size_t)info.tiers[TIER_DEVICE].n_blocks * info.block_bytes) != cudaSuccess ||
         cudaDeviceSynchronize() != cudaSuccess)) {
        nvllm_planted_inner.close(b);
        return err_set(e, -EIO, "the blocks cannot be poisoned");
    }
    *out = b;
    return 0;
}

static cudaError_t poison_block(struct backend *b, int32_t block)
{
    return cudaMemsetAsync((char *)cuda_backend_rank(b)->forward.kv.base +
                               (uint64_t)block * block_bytes,
                           POISON, block_bytes, cuda_backend_rank(b)->device.launch.stream);
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

/* Faults of ranks are the last one's. */
static cudaStream_t last_stream(const struct backend *b)
{
    const struct ranks *all = cuda_backend_ranks(b);
    int last = 0;

    while (last + 1 < MAX_RANKS && ranks_at(all, last + 1))
        last++;
    return ranks_at(all, last)->device.launch.stream;
}

static void stay(int signal)
{
    (void)signal;
    for (;;)
        (void)pause();
}

/* The last one that was started. */
static int stop_last_rank(struct err *e)
{
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    char path[300], name[32];
    long last = 0;

    while (tasks && (entry = readdir(tasks))) {
        FILE *f;

        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        f = fopen(path, "re");
        if (f && fgets(name, sizeof(name), f) && strcmp(name, "cuda-rank\n") == 0)
            last = atol(entry->d_name) > last ? atol(entry->d_name) : last;
        if (f)
            fclose(f);
    }
    if (tasks)
        closedir(tasks);
    if (last == 0 || signal(SIGUSR2, stay) == SIG_ERR ||
        syscall(SYS_tgkill, getpid(), last, SIGUSR2) < 0)
        return err_set(e, -EIO, "no rank's thread can be stopped");
    return 0;
}

static int plant(struct backend *b, long step, struct err *e)
{
    if (trap_step == step && trap_device(last_stream(b)) != cudaSuccess)
        return err_set(e, -EIO, "the trap cannot be planted");
    if (hang_step == step && hang_device(last_stream(b)) != cudaSuccess)
        return err_set(e, -EIO, "the endless kernel cannot be planted");
    return stop_step == step ? stop_last_rank(e) : 0;
}

static int planted_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    int r;

    if (poison && (poison_left(b, batch) != cudaSuccess || poison_begun(b, batch) != cudaSuccess))
        return err_set(e, -EIO, "a block cannot be poisoned");
    note_tails(batch);
    r = plant(b, (long)batch->step, e);
    return r < 0 ? r : nvllm_planted_inner.submit(b, batch, e);
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
    .wait = planted_wait,
    .idle = planted_idle,
    .sleep = planted_sleep,
    .wake = planted_wake,
    .close = planted_close,
};
