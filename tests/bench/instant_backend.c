/* instant_backend.c - nvllm-instant.so: a backend that answers at once, or after a set time, and
 * costs nothing: what is measured around it is the daemon alone.
 *
 * The n-th token of a sequence is n mod INSTANT_IDS. Nothing is checked: tests have nvllm-fake.so
 * for that. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/backend.h"
#include "tests/bench/instant.h"

struct backend {
    struct instant *shared;
    struct backend_info info;
    int32_t *ids[BACKEND_IN_FLIGHT + 1];    /* [max_seqs] step n at n % (BACKEND_IN_FLIGHT + 1) */
    int32_t n_rows[BACKEND_IN_FLIGHT + 1];  /* the same */
    uint64_t due_ns[BACKEND_IN_FLIGHT + 1]; /* the same */
    uint64_t submitted, waited;
    float *zeros; /* [max_seqs * SAMPLING_MAX_LOGPROBS] for who asks for logprobs */
};

static void instant_close(struct backend *b)
{
    if (!b)
        return;
    if (b->shared)
        munmap(b->shared, sizeof(*b->shared));
    for (int i = 0; i <= BACKEND_IN_FLIGHT; i++)
        free(b->ids[i]);
    free(b->zeros);
    free(b);
}

static int map_shared(struct backend *b, const char *folder, struct err *e)
{
    char path[4096];
    void *p;
    int fd;

    snprintf(path, sizeof(path), "%s/" INSTANT_FILE, folder ? folder : "");
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    p = mmap(NULL, sizeof(*b->shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return err_set(e, -errno, "%s: cannot be mapped", path);
    b->shared = p;
    return 0;
}

static int instant_open(struct backend **out, const struct model *model,
                        const struct backend_options *options, struct err *e)
{
    struct backend *b = calloc(1, sizeof(*b));
    size_t n_seqs = (size_t)options->max_seqs;
    int32_t n_blocks;
    int r;

    (void)model;
    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    r = map_shared(b, options->cache_folder, e);
    if (r < 0)
        goto fail;
    r = err_set(e, -ENOMEM, "out of memory");
    /* As many as there can be use for, or fewer: a block takes a byte. */
    n_blocks = options->max_seqs * (options->max_seq_len / options->block_len + 1);
    if (options->tier_bytes[TIER_DEVICE] && options->tier_bytes[TIER_DEVICE] < (uint64_t)n_blocks)
        n_blocks = (int32_t)options->tier_bytes[TIER_DEVICE];
    for (int i = 0; i <= BACKEND_IN_FLIGHT; i++) {
        b->ids[i] = calloc(n_seqs, sizeof(*b->ids[i]));
        if (!b->ids[i])
            goto fail;
    }
    b->zeros = calloc(n_seqs, SAMPLING_MAX_LOGPROBS * sizeof(*b->zeros));
    if (!b->zeros)
        goto fail;
    b->info = (struct backend_info){
        .n_devices = 1,
        .tp_size = 1,
        .devices = {{.name = "answers at once", .pci = "0000:65:00.0"}},
        .tiers = {{.n_blocks = n_blocks, .bytes = (uint64_t)n_blocks}},
        .block_bytes = 1,
        .kv_dtype = KV_DTYPE_F32,
    };
    *out = b;
    return 0;
fail:
    instant_close(b);
    return r;
}

static void instant_info(const struct backend *b, struct backend_info *out)
{
    *out = b->info;
}

static int instant_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    uint64_t step_us = atomic_load_explicit(&b->shared->step_us, memory_order_relaxed);
    uint64_t row_us = atomic_load_explicit(&b->shared->row_us, memory_order_relaxed);
    uint64_t took_us = step_us + row_us * (uint64_t)batch->n_tokens;
    size_t at = batch->step % (BACKEND_IN_FLIGHT + 1);
    uint64_t start = b->due_ns[(batch->step - 1) % (BACKEND_IN_FLIGHT + 1)];
    uint64_t now = step_us ? instant_now_ns() : 0;

    (void)e;
    for (int32_t i = 0; i < batch->n_rows; i++)
        b->ids[at][i] = (int32_t)(batch_rows(batch)[i].counter % INSTANT_IDS);
    b->n_rows[at] = batch->n_rows;
    b->due_ns[at] = step_us ? (start > now ? start : now) + took_us * 1000 : 0;
    b->submitted = batch->step;
    return 0;
}

static int instant_wait(struct backend *b, struct step_result *out, struct err *e)
{
    size_t at = ++b->waited % (BACKEND_IN_FLIGHT + 1);
    const float *zeros = b->zeros;

    (void)e;
    if (b->due_ns[at]) {
        struct timespec due = {.tv_sec = (time_t)(b->due_ns[at] / 1000000000u),
                               .tv_nsec = (long)(b->due_ns[at] % 1000000000u)};

        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
            ;
        /* Only steps that take time are timed. One row tells: the others are of the same step. */
        if (b->n_rows[at])
            atomic_store(&b->shared->ended_ns[b->ids[at][0]], instant_now_ns());
    }
    *out = (struct step_result){
        .step = b->waited,
        .n_rows = b->n_rows[at],
        .ids = b->ids[at],
        .logprobs = zeros,
        .top_ids = (const int32_t *)(const void *)zeros,
        .top_logprobs = zeros,
    };
    return 0;
}

__attribute__((visibility("default"))) extern const struct backend_ops nvllm_backend;
const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "instant",
    .open = instant_open,
    .info = instant_info,
    .submit = instant_submit,
    .wait = instant_wait,
    .close = instant_close,
};
