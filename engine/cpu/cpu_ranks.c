/* cpu_ranks.c - see cpu_ranks.h.
 *
 * Several ranks are tasks of a pool that has a thread for each, the caller's among them: a step is
 * posted once, and all read it where it is. What a rank divides further goes to a pool of its own.
 */
#include "engine/cpu/cpu_ranks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/machine.h"
#include "engine/util/must.h"

struct rank {
    struct cpu_pool *pool;
    struct weights weights;
    struct region weight_memory;
    struct kv_pool kv;
    struct forward *forward;
};

struct cpu_ranks {
    struct cpu_ranks_options o;
    const struct model_config *config;
    struct cpu_pool *threads; /* of the ranks; NULL: there is one */
    struct forward_team team; /* unused by one rank */
    struct region logits;     /* [FORWARD_LOGIT_ROWS, vocab_size] */
    /* of the call that all ranks take part in */
    const struct batch *batch;
    const int32_t *ids;
    float *sums;
    int first, n;
    struct rank ranks[SHARD_MAX_RANKS];
};

static const struct weights_layout layout = {.vectors = DTYPE_F32,
                                             .k_align = CPU_K_ALIGN,
                                             .align = 64,
                                             .piece_elements = 2 << 20};

int cpu_ranks_measure(uint64_t *out, const struct model_config *c, int32_t tp_size, struct err *e)
{
    uint64_t all = 0, one;

    for (int32_t i = 0; i < tp_size; i++) {
        const int r = weights_measure(&one, c, (struct shard){i, tp_size}, &layout, e);

        if (r < 0)
            return r;
        all += one;
    }
    *out = all;
    return 0;
}

static int new_pool(struct cpu_pool **out, int n_threads, struct err *e)
{
    const int r = cpu_pool_new(out, n_threads);

    return r < 0 ? err_set(e, r, "cannot start %d threads: %s", n_threads, strerror(-r)) : 0;
}

/* A rank's share of the threads, one at least. */
static int share_of_threads(const struct cpu_ranks_options *o, int32_t rank)
{
    const int share = o->n_threads / o->tp_size + (rank < o->n_threads % o->tp_size);

    return share < 1 ? 1 : share > CPU_POOL_MAX_THREADS ? CPU_POOL_MAX_THREADS : share;
}

static int take_weights(struct cpu_ranks *r, int32_t rank, struct err *e)
{
    struct rank *k = &r->ranks[rank];
    char what[32] = "the model's weights";
    int code = weights_init(&k->weights, r->config, (struct shard){rank, r->o.tp_size}, &layout, e);

    if (r->o.tp_size > 1)
        snprintf(what, sizeof(what), "the weights of rank %d", rank);
    if (code == 0)
        code = region_init(&k->weight_memory, what, k->weights.bytes, e);
    if (code == 0)
        weights_place(&k->weights, k->weight_memory.base);
    return code;
}

static int open_rank(struct cpu_ranks *r, int32_t rank, struct err *e)
{
    struct rank *k = &r->ranks[rank];
    const struct forward_options o = {
        .ops = r->o.ops,
        .pool = k->pool,
        .config = r->config,
        .shard = {rank, r->o.tp_size},
        .team = r->o.tp_size > 1 ? &r->team : NULL,
        .weights = &k->weights,
        .kv = &k->kv,
        .logits = (float *)(void *)r->logits.base,
        .max_seqs = r->o.max_seqs,
        .beat = rank == 0 ? r->o.beat : NULL, /* the others keep up with it */
    };

    return forward_new(&k->forward, &o, e);
}

/* A rank's part of the loading of all. */
struct loading {
    const struct cpu_ranks *r;
    int32_t rank;
};

static void on_progress(void *ctx, double done)
{
    const struct loading *l = ctx;

    l->r->o.progress(l->r->o.progress_ctx, (l->rank + done) / l->r->o.tp_size);
}

static int load_piece(void *model, int thread, const struct weight_piece *p, struct err *e)
{
    const struct matrix to = weight_piece_rows(p);

    (void)thread;
    return weight_piece_read(model, p, &to, e);
}

/* One rank after the other, each by as many threads as all have. */
int cpu_ranks_read_weights(struct cpu_ranks *r, struct err *e)
{
    const int n = cpu_ranks_threads(r);
    struct loading l = {.r = r};
    int code = 0;

    for (; l.rank < r->o.tp_size && code == 0; l.rank++)
        code =
            weights_load(&r->ranks[l.rank].weights,
                         n < WEIGHTS_MAX_THREADS ? n : WEIGHTS_MAX_THREADS, load_piece,
                         (void *)(uintptr_t)r->o.model, r->o.progress ? on_progress : NULL, &l, e);
    return code;
}

void cpu_ranks_drop_weights(struct cpu_ranks *r)
{
    for (int32_t i = 0; i < r->o.tp_size; i++)
        region_empty(&r->ranks[i].weight_memory);
}

/* What all ranks need together: each alone is checked when its memory is taken, before any of it is
 * used. */
static int check_memory(const struct cpu_ranks *r, struct err *e)
{
    const uint64_t there = machine_memory();
    uint64_t needed;
    const int code = cpu_ranks_measure(&needed, r->config, r->o.tp_size, e);

    if (code < 0 || needed <= there)
        return code;
    return err_set(e, -ENOMEM, "the model's weights: %.1f MiB of memory needed, %.1f MiB available",
                   (double)needed / 0x1p20, (double)there / 0x1p20);
}

static int open_parts(struct cpu_ranks *r, struct err *e)
{
    const int32_t tp_size = r->o.tp_size;
    int code = tp_size > 1 ? check_memory(r, e) : 0;

    if (code == 0 && tp_size > 1)
        code = new_pool(&r->threads, tp_size, e);

    for (int32_t i = 0; i < tp_size && code == 0; i++) {
        code = new_pool(&r->ranks[i].pool, share_of_threads(&r->o, i), e);
        if (code == 0)
            code = take_weights(r, i, e);
    }
    if (code == 0)
        code = cpu_ranks_read_weights(r, e);
    if (code == 0)
        code = region_init(&r->logits, "logits",
                           FORWARD_LOGIT_ROWS * (size_t)r->config->vocab_size * sizeof(float), e);
    for (int32_t i = 0; i < tp_size && code == 0; i++)
        code = open_rank(r, i, e);
    return code;
}

int cpu_ranks_new(struct cpu_ranks **out, const struct cpu_ranks_options *o, struct err *e)
{
    struct cpu_ranks *r;
    void *memory;
    int code;

    must(o->tp_size >= 1 && o->tp_size <= SHARD_MAX_RANKS && o->n_threads > 0);
    if (posix_memalign(&memory, _Alignof(struct cpu_ranks), sizeof(*r)))
        return err_set(e, -ENOMEM, "out of memory");
    r = memory;
    *r = (struct cpu_ranks){.o = *o, .config = model_config(o->model)};
    cpu_barrier_init(&r->team.barrier, o->tp_size);
    code = open_parts(r, e);
    if (code < 0) {
        cpu_ranks_free(r);
        return code;
    }
    *out = r;
    return 0;
}

void cpu_ranks_free(struct cpu_ranks *r)
{
    if (!r)
        return;
    for (int32_t i = 0; i < r->o.tp_size; i++) {
        struct rank *k = &r->ranks[i];

        forward_free(k->forward);
        weights_deinit(&k->weights);
        region_deinit(&k->weight_memory);
        cpu_pool_free(k->pool);
    }
    cpu_pool_free(r->threads);
    region_deinit(&r->logits);
    cpu_barrier_deinit(&r->team.barrier);
    free(r);
}

void cpu_ranks_use(struct cpu_ranks *r, const struct kv_pool *kv)
{
    const size_t part = kv->block_bytes / (size_t)r->o.tp_size;

    for (int32_t i = 0; i < r->o.tp_size; i++) {
        r->ranks[i].kv = *kv;
        r->ranks[i].kv.base += (size_t)i * part;
    }
}

/* Calls run for each rank; those that wait for each other have a thread each. */
static void each_rank(struct cpu_ranks *r, void (*run)(void *ranks, int rank, int thread))
{
    if (r->threads)
        cpu_pool_run(r->threads, r->o.tp_size, run, r);
    else
        run(r, 0, 0);
}

static void run_rank(void *ranks, int rank, int thread)
{
    const struct cpu_ranks *r = ranks;

    (void)thread;
    forward_run(r->ranks[rank].forward, r->batch, r->ids, rank == 0 ? r->sums : NULL);
}

void cpu_ranks_run(struct cpu_ranks *r, const struct batch *b, const int32_t *ids, float *sums)
{
    if (b->n_tokens == 0)
        return;
    r->batch = b;
    r->ids = ids;
    r->sums = sums;
    each_rank(r, run_rank);
}

static void logits_of_rank(void *ranks, int rank, int thread)
{
    const struct cpu_ranks *r = ranks;

    (void)thread;
    forward_logits(r->ranks[rank].forward, r->first, r->n);
}

const float *cpu_ranks_logits(struct cpu_ranks *r, int first, int n)
{
    r->first = first;
    r->n = n;
    each_rank(r, logits_of_rank);
    return (const float *)(void *)r->logits.base;
}

struct cpu_pool *cpu_ranks_pool(const struct cpu_ranks *r)
{
    return r->ranks[0].pool;
}

int cpu_ranks_threads(const struct cpu_ranks *r)
{
    int n = 0;

    for (int32_t i = 0; i < r->o.tp_size; i++)
        n += cpu_pool_threads(r->ranks[i].pool);
    return n;
}

uint64_t cpu_ranks_weight_bytes(const struct cpu_ranks *r)
{
    uint64_t bytes = 0;

    for (int32_t i = 0; i < r->o.tp_size; i++)
        bytes += r->ranks[i].weight_memory.bytes;
    return bytes;
}

uint64_t cpu_ranks_work_bytes(const struct cpu_ranks *r)
{
    uint64_t bytes = r->logits.bytes;

    for (int32_t i = 0; i < r->o.tp_size; i++)
        bytes += forward_bytes(r->ranks[i].forward);
    return bytes;
}
