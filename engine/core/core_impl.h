/* core_impl.h - the core's own state, for the core's files and for tests that look inside.
 *
 * PLANT(x) is the constant 0 in the product; in test builds it switches on one deliberate bug that
 * the simulation must find (util/plant.h).
 *
 * A sequence with a slot is in exactly one of the lists prefilling, decoding and draining. A
 * draining sequence has stopped, but a step in flight still uses its blocks. */
#ifndef NVLLM_ENGINE_CORE_CORE_IMPL_H
#define NVLLM_ENGINE_CORE_CORE_IMPL_H

#include "engine/backend.h"
#include "engine/inspect.h"
#include "engine/trace.h"
#include "engine/util/min.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"
#include "engine/core/sequence.h"

/* ---- a step between plan and commit: which sequences take part with which positions */

struct step_entry {
    struct sequence *sequence;
    bool decode;       /* else a prefill chunk, or drafts */
    bool update;       /* sets the sequence's sampler state */
    int32_t start;     /* first position */
    int32_t n;         /* positions */
    int32_t token;     /* a decode's input: an id or ~row */
    int32_t n_drafts;  /* the last n_drafts positions of the chunk are drafts */
    bool by_model;     /* the draft model proposed these drafts */
    int32_t wanted;    /* its last `wanted` rows are sampled from */
    int32_t first_row; /* place of these in batch.rows, once built */
    int32_t n_summed;  /* the hidden states of its last n_summed rows are summed */
    int32_t sum;       /* place in batch.sums, once built */
    uint32_t counter;  /* of the token that the first of them samples */
};

/* Its memory is taken at start, so nothing that a backend reads moves. */
struct step {
    struct batch max;           /* sizes that a batch of this memory can have */
    struct batch head;          /* number of the step, and counts of what is planned so far */
    struct batch *batch;        /* once built */
    struct step_entry *entries; /* [max.n_seqs] head.n_seqs, in the order of planning */
    int32_t n_drafts;           /* of the entries */
    int32_t n_running;          /* sequences that ran when planning began: each may want a row */
    struct batch_copy *copies;  /* [max.n_copies] head.n_copies */
    const uint32_t **masks;     /* [max.n_masks] that core_masks() hands out */
};

/* A copy under way; its id is its place in core.copies. */
struct core_copy {
    uint64_t node;
    uint8_t from_tier, to_tier; /* equal: none */
    int32_t from, to;
};

/* A block that core_store_all() copies down. */
struct core_store {
    uint64_t node;
    uint8_t from_tier, to_tier;
};

struct core {
    struct core_options options;
    int32_t max_blocks;            /* of one sequence */
    struct blocks *tiers[N_TIERS]; /* NULL: no such tier */
    struct blocks *blocks;         /* the device's */
    struct prefix_cache *cache;
    struct fair fair;
    struct id_map requests; /* by id */
    struct list all;        /* the same requests, in order of arrival */
    struct heap deadlines;  /* struct request */
    uint64_t last_order;

    struct list prefilling; /* in order of admission */
    struct list decoding;   /* the least recently planned first */
    struct list draining;
    struct list loading; /* in SEQ_LOADING */
    int32_t n_prefilling, n_decoding;
    int64_t n_queued_tokens; /* known tokens of the sequences that wait */
    int32_t n_requests, n_requests_running;
    int64_t n_alive;     /* choices that have not ended */
    int32_t n_offloaded; /* sequences with tables of host blocks: at most 1 */
    bool no_offload;     /* core_set_offload(): the host tier's memory is not ready */
    bool host_short;     /* an offloaded sequence did not get a block in the step being planned */
    int32_t n_returning; /* device blocks freed when the draining sequences finish */

    struct sequence **slots; /* [max_seqs] who has it, or NULL */
    int32_t *free_slots;     /* [n_free_slots] */
    int32_t n_free_slots;
    int32_t *tables;       /* [max_seqs, max_blocks] */
    int32_t *block_tokens; /* [2, block_len] scratch */
    int32_t *block_refs;   /* [n_blocks] scratch of core_inspect */

    struct core_copy *copies; /* [max_copies] */
    int32_t n_copies, max_copies;
    int32_t next_copy;           /* where a free id is looked for */
    bool restoring;              /* what is on disk is not known yet: nothing is written there */
    int32_t n_arriving;          /* copies to the device under way */
    int32_t n_storing;           /* copies to disk, of these under way */
    struct core_store *to_store; /* [n_to_store] NULL before core_store_all() */
    int32_t n_to_store;
    int32_t n_stores; /* of the array, those that are done included */

    struct step steps[BACKEND_IN_FLIGHT]; /* step n is steps[n % BACKEND_IN_FLIGHT] */
    uint64_t planned;                     /* number of the last step handed out */
    uint64_t committed;

    /* The schedule's memory from one step to the next. */
    struct step_cost cost;
    int32_t n_short;         /* blocks that the step being planned needs and did not get */
    int32_t n_ahead;         /* decoding sequences that may have two steps in flight */
    int32_t n_alone;         /* decoding sequences for which the draft model is never asked */
    int32_t n_model_blocks;  /* blocks of the draft model that all decoding texts would take */
    double model_acceptance; /* rate at which drafts of the draft model are accepted */
    int32_t watermark;       /* blocks kept free on admission, after a preemption */

    struct trace *trace; /* NULL: none */

    struct core_event *events;
    int32_t n_events, max_events;

    struct core_stats stats;                       /* the counters that only grow */
    uint64_t n_stored[N_TIERS], n_loaded[N_TIERS]; /* copies down to each tier, and up from it */
    /* Counted for tests: */
    uint64_t n_prefix_waits; /* sequences that waited for a prefix */
    uint64_t n_yields;       /* preempted for another user's part */
    uint64_t n_loads;        /* sequences that waited for copies */
    uint64_t n_offloads;     /* sequences that ran offloaded */
};

/* Blocks that n_tokens take: block_len is a power of two, and division is slow. */
static inline int32_t core_blocks_for(const struct core *c, int32_t n_tokens)
{
    const int64_t len = c->options.block_len;

    return (int32_t)((n_tokens + len - 1) >> __builtin_ctz((unsigned)len));
}

/* Blocks that one offloaded request may have: what the host tier has left when it also holds a copy
 * of every device block. */
static inline int32_t core_host_room(const struct core *c)
{
    const int32_t n = c->options.tier_blocks[TIER_HOST] - c->options.n_blocks;

    return c->options.offload && !c->no_offload && n > 0 ? n : 0;
}

/* Blocks of a sequence of its greatest length; the last token needs no slot. */
static inline int32_t core_blocks_at_most(const struct core *c, const struct request *q)
{
    return core_blocks_for(c, q->n_prompt + q->max_tokens - 1);
}

/* How many of its tokens a sequence computes in chunks and may share with others: those known when
 * it begins, or its prompt alone. */
static inline int32_t core_n_chunked(const struct core *c, const struct sequence *s)
{
    return c->options.replay && !PLANT(PLANT_REPLAY_IN_CHUNKS) ? s->request->n_prompt
                                                               : sequence_n_tokens(s);
}

/* How many blocks of its prefix a sequence can use: one token at least is computed. */
static inline int32_t core_n_findable(const struct core *c, const struct sequence *s)
{
    if (s->request->pooling == CORE_POOL_ALL && !PLANT(PLANT_SUM_OF_SOME))
        return 0;
    return (core_n_chunked(c, s) - 1) / c->options.block_len;
}

static inline bool core_is_offloaded(const struct sequence *s)
{
    return s->request->home == TIER_HOST;
}

/* The tier whose blocks its table names. */
static inline struct blocks *core_blocks_of(const struct core *c, const struct sequence *s)
{
    return c->tiers[s->request->home];
}

static inline bool core_needs_block(const struct core *c, const struct sequence *s)
{
    return core_blocks_for(c, s->n_planned + 1) > s->n_table;
}

static inline int32_t core_in_flight(const struct core *c)
{
    return (int32_t)(c->planned - c->committed);
}

/* Blocks that users divide by their shares. */
static inline int32_t core_pool(const struct core *c)
{
    return c->options.n_blocks - c->cache->n_pinned;
}

static inline int32_t core_n_running(const struct core *c)
{
    return c->n_prefilling + c->n_decoding;
}

/* step.c */
/* max: n_tokens, n_seqs, max_blocks, n_history (tokens of one sequence) and n_copies of the largest
 * batch. -ENOMEM, -EOVERFLOW. */
int step_init(struct step *st, const struct batch *max);
void step_deinit(struct step *st);

struct step_entry *step_add(struct step *st, struct sequence *s, bool decode);

/* True when there is room for what the update of s brings; always for the first. */
bool step_has_room_for_update(const struct step *st, const struct sequence *s);
void step_add_update(struct step *st, struct step_entry *e);

/* n_blocks: of the device. */
const struct batch *step_build(struct step *st, int32_t block_len, int32_t n_blocks);

/* core.c */
/* A choice that has not ended; or NULL. */
struct sequence *core_choice(struct core *c, uint64_t id, int32_t choice);
void core_emit(struct core *c, const struct core_event *e);
void core_enqueue(struct sequence *s);
/* Takes a sequence from the queue until its prefix is there. */
void core_hold_back(struct sequence *s, enum sequence_state state, struct list *waiters);
/* Takes it from the queue, or from where it was held back. */
void core_unqueue(struct sequence *s);
/* Takes a running sequence from its list: nothing is planned for it any more. Its blocks return
 * at once, or where a step in flight has it, with that step. */
void core_halt(struct core *c, struct sequence *s, enum sequence_state state);
/* Queues the sequences whose prefix writer has written, or all that wait for writer. */
void core_wake(struct core *c, struct sequence *writer, bool all);
void core_end_choice(struct core *c, struct sequence *s, enum core_reason reason, uint64_t now_us);
void core_end_request(struct core *c, struct request *q, enum core_reason reason, uint64_t now_us);
void core_drained(struct core *c, struct sequence *s); /* its last step is committed */

/* tiers.c */
int core_tiers_init(struct core *c); /* -ENOMEM */
void core_tiers_deinit(struct core *c);
/* Begins to copy up what the prefix of s has in lower tiers, of its blocks [n, max) that follow
 * chain. True: s waits for that now, in SEQ_LOADING. */
bool core_load(struct core *c, struct step *st, struct sequence *s, int32_t n, int32_t max,
               uint64_t chain);
void core_copy_down(struct core *c, struct step *st);
void core_commit_copies(struct core *c, const struct step_result *r);

/* drafts.c */
/* As core_draft(). */
int32_t core_set_drafts(struct sequence *s, const int32_t *tokens, int32_t n);
/* The next token of s can be sampled in the step being planned. */
bool core_may_sample(const struct sequence *s);
/* How many of its drafts s may have in the step, were there rows and blocks. */
int32_t core_n_drafts(const struct step *st, const struct sequence *s);
/* The entry's last rows are sampled from: that of the last known token and of its drafts. */
void core_want_rows(struct step *st, struct step_entry *e, int32_t n_drafts);

/* speculation.c */
extern const double core_first_acceptance; /* of the draft model, before it was asked */
/* The draft model can draft for s, if that pays. */
bool core_may_ask_model(const struct core *c, const struct sequence *s);
/* Blocks of the draft model that the text of s takes, with drafts. */
int32_t core_model_blocks(const struct core *c, const struct sequence *s);
/* Counts n drafts of the draft model, of which the first n_right were right. */
void core_update_acceptance(struct core *c, struct sequence *s, int32_t n_right, int32_t n);
/* A token has been added to the text of s. */
void core_learn(struct core *c, struct sequence *s);
/* After a commit: proposes drafts for s, unless it has masks. */
void core_speculate(struct core *c, struct sequence *s);

/* core_cache.c */
int core_cache_answer(struct core *c, const struct inspect_query *q, const int32_t *prompt,
                      int32_t n_prompt, struct inspect_report *out);

/* Pinned blocks that a prompt begins with and would use. */
int32_t core_pinned_prefix(const struct core *c, struct cache_namespace *ns, const int32_t *prompt,
                           int32_t n_prompt);

/* preempt.c */
/* The sequence to preempt when blocks run out; NULL: only one runs. */
struct sequence *core_victim(const struct core *c);
void core_preempt(struct core *c, struct sequence *s);
/* For s, which waits, preempts sequences of users that have more than their part: one for its slot,
 * if the user of s has less than its part; or as many as free n blocks, if with these the user
 * stays within its part or has nothing that runs. Slot and blocks become free when the steps in
 * flight are committed. One slot at a time: once s has begun, its user may no longer be the
 * next. */
void core_claim_slot(struct core *c, const struct sequence *s);
void core_claim_blocks(struct core *c, const struct sequence *s, int64_t n);
/* Whose slot s may claim; NULL: nobody's. */
struct sequence *core_slot_victim(const struct core *c, const struct sequence *s);

/* admit.c */
void core_admit_waiting(struct core *c, struct step *st, uint64_t now_us);
/* Blocks that s, which waits, still has to take to begin, and those that it may have. */
void core_needs(struct core *c, const struct sequence *s, int32_t *needed, int32_t *available);

/* schedule.c */
/* Adds the rows that s, which runs, could have in this step to its user's. */
void core_count_runnable(const struct core *c, const struct sequence *s);
/* Lists the full blocks within the first n_positions, which are written, in the prefix cache. */
void core_list_blocks(struct core *c, struct sequence *s, int32_t n_positions);

#endif
