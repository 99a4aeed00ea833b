/* batch.h - one step of work as one block of memory: all that a backend is given; and its answer.
 *
 * A batch is a head and, behind it, arrays that the head finds by byte offset. It holds no pointer
 * that reaches out of it, so one broadcast brings a step to ranks and followers. The accessors
 * below give the arrays; batch_layout() lays a batch out, batch_check() checks one received.
 *
 * Sequences with one row that continue a generation (decodes) come first, then sequences with draft
 * tokens, then prefill chunks. A decode whose next token is known already, computed again after a
 * preemption, is not sampled from.
 *
 * Two steps are in flight: step n + 1 is submitted before step n has been read back, so a decode
 * row may name what step n sampled instead of a token id. A sequence that turns out to have ended
 * costs one discarded row. A sequence with drafts, which follow from the last token, has no row in
 * the step after one of its own until that is committed.
 *
 * Masks follow from the last token too, but only sampling needs them. So a batch says which rows
 * have one, and the masks themselves come when the step before has been committed, while the device
 * computes: see mask() in backend.h.
 *
 * Drafts: a sequence may have several rows that are all wanted: that of its last committed token
 * and those of the draft tokens after it. The backend computes each as it would compute a decode,
 * to the bit where it promises that a batch changes nothing, and samples it with its own counter;
 * the core accepts the drafts that equal what was sampled before them.
 * A sequence whose sampling needs history (penalties) never has drafts: a backend may count each
 * sampled token at once.
 *
 * Copies move blocks between tiers. One marked `before` is done when the step computes, after the
 * `before` copies listed ahead of it; one marked `after` starts when the step has computed, so it
 * may read what the step wrote, and may take longer than the steps behind it. Neither its source is
 * rewritten nor its target read until a result names it as done. A step may have copies and no
 * rows; a step with no rows ends when a copy under way ends, or about a millisecond later: so the
 * core can plan what has come meanwhile.
 *
 * Owner: the core. A batch stays unchanged until the backend's wait() has returned that step; the
 * result belongs to the backend and holds until its next wait(). Backends copy what they keep of
 * sampler updates. */
#ifndef NVLLM_ENGINE_BATCH_H
#define NVLLM_ENGINE_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/sampling.h"

enum { BATCH_VERSION = 5 };

/* Where the bytes of a KV block may lie. A block id names a place within one tier; in block tables
 * and slots the host tier's ids follow those of the device, as backend_info counts them. */
enum tier { TIER_DEVICE, TIER_HOST, TIER_DISK, N_TIERS };

/* One row whose logits are wanted and sampled from. */
struct batch_row {
    int32_t row;      /* 0 .. n_tokens - 1 */
    int32_t state;    /* sampler state, 0 .. max_seqs - 1, set by this or an earlier step */
    uint32_t counter; /* index of the token to sample among the sequence's generated ones: Philox */
    int32_t mask;     /* which of the step's masks, or -1: every token is allowed */
    uint32_t ban_stops; /* 1: counter < min_tokens, stop ids are not to be sampled */
};

/* Rows of one sequence whose hidden states are wanted: their sum, after the final norm. */
struct batch_sum {
    int32_t row, n_rows; /* at least 1 */
};

/* Sets a sampler state before the rows of this step are sampled: a sequence begins, or begins again
 * after preemption. Afterwards the backend itself counts each token that it samples for the state
 * (for the penalties). Offsets count entries of the batch's history, bias and stop_ids. */
struct sampler_update {
    int32_t state;
    int32_t n_prompt;         /* leading tokens of the history that are prompt */
    int32_t n_history;        /* 0 unless sampling_needs_history() */
    int32_t history_at;       /* prompt, then what was generated so far */
    int32_t bias_at;          /* sampling.n_bias entries */
    int32_t stop_ids_at;      /* sampling.n_stop_ids entries */
    struct sampling sampling; /* its pointers are NULL: see batch_sampling() */
};

enum copy_when { COPY_BEFORE, COPY_AFTER };

/* Copies one block; the tiers differ. */
struct batch_copy {
    uint32_t id; /* not that of another copy under way */
    uint8_t from_tier, to_tier;
    uint8_t when;   /* enum copy_when */
    uint8_t unused; /* 0 */
    int32_t from, to;
};

/* Such copies are not the backend's: engine_disk.c makes them. */
static inline bool copy_is_of_disk(const struct batch_copy *c)
{
    return c->from_tier == TIER_DISK || c->to_tier == TIER_DISK;
}

/* The head. Counts first, then where the arrays begin, in bytes from the head's own begin. */
struct batch {
    uint32_t version;    /* BATCH_VERSION */
    int32_t n_offloaded; /* of n_seqs: with all their blocks in the host tier. If one of these has a
                          * chunk, no other sequence has one */
    uint64_t bytes;      /* of the whole block */
    uint64_t checksum;   /* XXH3 of what is behind the head, in debug builds; else 0 */
    uint64_t step;       /* 1, 2, 3, …: the order of submission */
    int32_t n_tokens;    /* rows of this step */
    int32_t n_seqs;      /* sequences with rows in this step */
    int32_t n_decodes;   /* the first n_decodes sequences have one row each */
    int32_t n_drafted;   /* the next n_drafted have draft tokens: two rows or more, all wanted */
    int32_t n_rows;      /* rows sampled from; sequences and drafts are at most max_seqs */
    int32_t n_updates;   /* sampler states to set first */
    int32_t max_blocks;  /* width of block_table */
    int32_t n_history, n_bias, n_stop_ids; /* of all updates */
    int32_t n_masks;                       /* of the rows */
    int32_t n_copies;
    int32_t n_sums;  /* at most max_seqs */
    uint32_t unused; /* 0 */
    uint64_t tokens_at, positions_at, slots_at, q_start_at, kv_len_at, block_table_at, rows_at;
    uint64_t updates_at, history_at, bias_at, stop_ids_at, copies_at, sums_at;
};

enum { BATCH_ALIGN = 16 }; /* of the block and of each array */

/* What the rows of a sequence are, in the order in which a batch has its sequences. */
enum batch_kind { BATCH_DECODE, BATCH_DRAFTED, BATCH_CHUNK };

/* Given a head with its counts, sets version, bytes and offsets. -EINVAL: a count is negative;
 * -EOVERFLOW: the block would be too large. */
int batch_layout(struct batch *head);

/* After the arrays are filled: sets the checksum in debug builds. */
void batch_seal(struct batch *b);

/* NULL if the n bytes at b are a batch: its version, every array within the block, its checksum in
 * debug builds; else what is wrong. The contents of the arrays are not checked. */
const char *batch_check(const struct batch *b, size_t n);

static inline void *batch_at(const struct batch *b, uint64_t at)
{
    return (char *)(uintptr_t)b + at;
}

/* The accessors of an array: for those who read it, and (_mut) for whoever fills it. */
#define BATCH_ARRAY(type, name)                                                                    \
    static inline const type *batch_##name(const struct batch *b)                                  \
    {                                                                                              \
        return (const type *)batch_at(b, b->name##_at);                                            \
    }                                                                                              \
    static inline type *batch_##name##_mut(struct batch *b)                                        \
    {                                                                                              \
        return (type *)batch_at(b, b->name##_at);                                                  \
    }

/* clang-format off */
/* [n_tokens] an id, or ~i: what row i of batch_rows() of the step before sampled */
BATCH_ARRAY(int32_t, tokens)
BATCH_ARRAY(int32_t, positions)             /* [n_tokens] 0-based place in the sequence */
BATCH_ARRAY(int32_t, slots)                 /* [n_tokens] block_id * block_len + offset: of K, V */
BATCH_ARRAY(int32_t, q_start)               /* [n_seqs + 1] rows of i: q_start[i] .. q_start[i+1] */
BATCH_ARRAY(int32_t, kv_len)                /* [n_seqs] tokens attended over, this step's too */
BATCH_ARRAY(int32_t, block_table)           /* [n_seqs, max_blocks]; unused: -1 */
BATCH_ARRAY(struct batch_row, rows)         /* [n_rows] in order of row */
BATCH_ARRAY(struct sampler_update, updates) /* [n_updates] */
BATCH_ARRAY(struct batch_copy, copies)      /* [n_copies] */
BATCH_ARRAY(struct batch_sum, sums)         /* [n_sums] in order of row */
/* clang-format on */
#undef BATCH_ARRAY

/* Rows of decodes and of sequences with drafts, which come first. */
static inline int32_t batch_decode_rows(const struct batch *b)
{
    return b->n_drafted ? batch_q_start(b)[b->n_decodes + b->n_drafted] : b->n_decodes;
}

/* [u->n_history] */
static inline const int32_t *batch_history(const struct batch *b, const struct sampler_update *u)
{
    return (const int32_t *)batch_at(b, b->history_at) + u->history_at;
}

/* The update's sampling with its pointers set: into the batch. */
static inline struct sampling batch_sampling(const struct batch *b, const struct sampler_update *u)
{
    struct sampling s = u->sampling;

    s.bias = (const struct logit_bias *)batch_at(b, b->bias_at) + u->bias_at;
    s.stop_ids = (const int32_t *)batch_at(b, b->stop_ids_at) + u->stop_ids_at;
    return s;
}

/* Copies n masks, as mask() of backend.h takes them, one behind the other: [n][words]. */
static inline void batch_join_masks(uint32_t *to, const uint32_t *const *masks, int32_t n,
                                    size_t words)
{
    for (int32_t i = 0; i < n; i++, to += words) {
        if (masks[i])
            memcpy(to, masks[i], words * sizeof(*to));
        else
            memset(to, 0xff, words * sizeof(*to));
    }
}

enum {
    BATCH_NUMERICS = -1 /* in ids: the row's logits held NaN or Inf, or its mask and min_tokens
                         * leave no id; ends that request alone */
};

struct copy_result {
    uint32_t id;
    bool ok; /* false: the target holds nothing of use */
};

struct step_result {
    uint64_t step;
    int32_t n_rows;
    const int32_t *ids;    /* [n_rows] sampled id or BATCH_NUMERICS */
    const float *logprobs; /* [n_rows] of the sampled id, natural log; 0 where not asked for */
    /* [n_rows, SAMPLING_MAX_LOGPROBS] best first; the first n_logprobs hold */
    const int32_t *top_ids;
    const float *top_logprobs;
    int32_t n_sums, sum_dim;
    const float *sums; /* [n_sums, sum_dim] */
    int32_t n_copies;
    const struct copy_result *copies; /* [n_copies] that ended since the last wait: each once, those
                                       * of this step marked `before` now at the latest */
};

#endif
