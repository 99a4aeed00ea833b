/* sim_backend_impl.h - the state of a backend without a model: sim_backend.c computes with it,
 * sim_backend_check.c checks batches against it. */
#ifndef NVLLM_TESTS_SIM_SIM_BACKEND_IMPL_H
#define NVLLM_TESTS_SIM_SIM_BACKEND_IMPL_H

#include "engine/backend.h"
#include "tests/sim/rng.h"
#include "tests/sim/sim_backend.h"

enum { MAX_COPIES = 4096 }; /* under way */

struct slot {
    int32_t token;
    int32_t position;
    uint64_t hash; /* of the prefix up to and with this token */
    uint64_t written_step, read_step;
    int32_t writer; /* sequence of written_step */
    bool decoded;   /* by a decode, not in a chunk */
};

struct state {
    bool set;
    struct sampling sampling; /* without bias */
    int32_t stop_ids[SAMPLING_MAX_STOP_IDS];
    uint64_t hash; /* of the tokens known, where the sampling needs them */
    int32_t n_known;
};

/* Copies marked `after` under way that read or write a block. */
struct place {
    int32_t n_from, n_to;
};

struct copy {
    struct batch_copy copy;
    uint64_t step;
    bool ended, ok;
};

/* A step submitted and not waited for. */
struct pending {
    const struct batch *batch;
    uint64_t checksum;
    bool masked; /* it has the masks that it needs */
};

struct result {
    int32_t n, n_sums;
    float *sums;         /* [max_seqs, SIM_SUM_DIM] */
    int32_t *ids;        /* [max_seqs] */
    float *logprobs;     /* [max_seqs] */
    int32_t *top_ids;    /* [max_seqs, SAMPLING_MAX_LOGPROBS] */
    float *top_logprobs; /* the same */
};

struct sim_backend {
    struct sim_backend_options o;
    struct rng rng;
    struct slot *slots[N_TIERS];   /* [n_blocks * block_len] */
    struct place *places[N_TIERS]; /* [n_blocks] */
    struct state *states;          /* [max_seqs] */
    uint32_t *masks;               /* [max_seqs, mask_words] of one step */
    size_t mask_words;
    struct pending pending[BACKEND_IN_FLIGHT]; /* step n at n % BACKEND_IN_FLIGHT */
    uint64_t submitted, computed, waited;
    struct result results[BACKEND_IN_FLIGHT + 1]; /* the step before must outlive two more */
    int32_t n_offloaded, n_chunks;                /* of the batch being checked */
    int32_t n_alone;                              /* chunks of offloaded sequences */
    int32_t n_copies;
    struct copy *copies;       /* [MAX_COPIES] submitted and not yet reported */
    struct copy_result *ended; /* [MAX_COPIES] of the last wait */
};

static inline const int32_t *table_of(const struct batch *t, int32_t seq)
{
    return batch_block_table(t) + (size_t)seq * (size_t)t->max_blocks;
}

static inline int32_t slot_of(const struct sim_backend *b, const struct batch *t, int32_t seq,
                              int32_t position)
{
    const int shift = __builtin_ctz((unsigned)b->o.block_len); /* division is slow */

    return (table_of(t, seq)[position >> shift] << shift) + (position & (b->o.block_len - 1));
}

static inline struct slot *slot_at(const struct sim_backend *b, int32_t slot)
{
    const int32_t n = b->o.n_blocks[TIER_DEVICE] * b->o.block_len;

    return slot < n ? &b->slots[TIER_DEVICE][slot] : &b->slots[TIER_HOST][slot - n];
}

static inline struct result *result_of(struct sim_backend *b, uint64_t step)
{
    return &b->results[step % (BACKEND_IN_FLIGHT + 1)];
}

/* ---- sim_backend_check.c: NULL, or a static text of what was wrong */

/* A batch that is submitted. Notes what it reads and writes, and its copies. */
const char *sim_backend_check(struct sim_backend *b, const struct batch *t);

/* The wanted rows of a step, whose sampler updates are there. */
const char *sim_backend_check_rows(const struct sim_backend *b, const struct batch *t);

#endif
