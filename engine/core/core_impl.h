/* core_impl.h - the core's own state: for core*.c, and for tests that look inside; for nobody else.
 *
 * A sequence with a slot is in exactly one of the lists prefilling, decoding and draining. Draining
 * are those that run no more while a step in flight still reads or writes their blocks. */
#ifndef NVLLM_ENGINE_CORE_CORE_IMPL_H
#define NVLLM_ENGINE_CORE_CORE_IMPL_H

#include "engine/backend.h"
#include "engine/core/blocks.h"
#include "engine/core/core.h"
#include "engine/core/fair_queue.h"
#include "engine/util/heap.h"
#include "engine/util/id_map.h"
#include "engine/inspect.h"
#include "engine/util/list.h"
#include "engine/util/plant.h"
#include "engine/core/prefix_cache.h"
#include "engine/core/sequence.h"
#include "engine/core/step.h"
#include "engine/core/step_cost.h"

/* Who stands back in the step being planned; see core_time.c. */
struct core_time {
    struct fair_use *first;    /* of those that have something to run */
    struct fair_use *light;    /* for whom; NULL: nobody does */
    struct fair_use *newcomer; /* who begins with this step, if it can */
    bool any_back;             /* of the first */
    bool looks;                /* the light one has the step for itself, to see what that takes */
    double gain;               /* what the others may add, for each round of the light one */
    double burst_us;           /* and at a time, at most */
    double decode_us;          /* what each decode adds */
    int32_t n_decodes, n_rows; /* what all have added */
};

/* A copy under way; its id is its place in core.copies. */
struct core_copy {
    uint64_t node;
    uint8_t from_tier, to_tier; /* from_tier N_TIERS: none */
    int32_t from, to;
};

struct core {
    struct core_options options;
    int32_t max_blocks;            /* of one sequence */
    struct blocks *tiers[N_TIERS]; /* NULL: no such tier */
    struct blocks *blocks;         /* the device's */
    struct prefix_cache *cache;
    struct fair_queue *queue;
    struct id_map requests; /* by id */
    struct list all;        /* the same */
    struct heap deadlines;
    uint64_t last_order;

    struct list prefilling; /* in order of admission */
    struct list decoding;   /* who was planned longest ago first */
    struct list draining;
    struct list loading;
    int32_t n_prefilling, n_decoding, n_draining;
    int64_t n_waiting, n_held, n_loading;
    int64_t n_queued_tokens; /* known tokens of these */
    int32_t n_requests, n_requests_running;
    int64_t n_alive;     /* choices that have not ended */
    int32_t n_returning; /* blocks that the end of those draining will free */

    struct sequence **slots; /* [max_seqs] who has it, or NULL */
    int32_t *free_slots;     /* [n_free_slots] */
    int32_t n_free_slots;
    int32_t *tables;           /* [max_seqs, max_blocks] */
    struct sequence **scratch; /* [max_seqs] */
    int32_t *block_tokens;     /* [2, block_len] scratch */
    int32_t *block_refs;       /* [blocks of the largest tier] scratch of core_verify */

    struct core_copy *copies; /* [max_copies] */
    int32_t n_copies, max_copies;
    int32_t next_copy; /* where a free id is looked for */
    bool copy_failed;  /* since there was a request */

    struct step steps[BACKEND_IN_FLIGHT]; /* step n is steps[n % BACKEND_IN_FLIGHT] */
    uint64_t planned;                     /* number of the last step handed out */
    uint64_t committed;

    /* The schedule's memory from one step to the next. */
    int32_t prompt_rows; /* at most, beside decodes */
    int32_t alone_rows;  /* the same without */
    struct step_cost cost;
    double one_us, row_us; /* of one decode alone, and of one prompt row more */
    struct core_time time;
    uint64_t last_client;      /* who asked last */
    uint64_t several_until_us; /* so long after there were several, steps are kept short */
    double newcomers_us;       /* what others have yet to have for newcomers' first steps */
    uint64_t n_plans;          /* plans made, also those that came to nothing */
    int64_t n_wanted;          /* blocks that who could not be admitted last would have needed */
    int32_t n_short;           /* blocks wanted in vain by the step being planned */
    int32_t margin;            /* blocks kept free on admission, from a preemption on */
    bool squeezed;             /* blocks ran out in the step being planned: nothing is admitted */
    bool prompts_turn;         /* max_batch_tokens 1: whose turn it is */
    const struct sequence *stuck; /* who could not be admitted, when this many blocks were there */
    int32_t stuck_blocks;
    uint64_t stuck_until; /* the step in which it is tried again anyway */

    struct core_event *events;
    int32_t n_events, max_events;
    int64_t n_events_owed; /* terminal events that the requests alive can cause */
    bool events_taken;

    struct core_stats stats;             /* the counters that only grow */
    uint64_t n_held_ever;                /* sequences held back, for tests */
    uint64_t n_copied[N_TIERS], n_loads; /* copies into each tier, waits for them, for tests */
    uint64_t n_drafts, n_accepted;       /* for tests */
    uint64_t n_yields;                   /* preempted for another client's share, for tests */
};

static inline int32_t core_blocks_for(const struct core *c, int32_t n_tokens)
{
    return (int32_t)(((int64_t)n_tokens + c->options.block_len - 1) / c->options.block_len);
}

/* Of a sequence at its end; the last token needs no slot. */
static inline int64_t core_blocks_at_most(const struct core *c, int32_t n_prompt,
                                          int32_t max_tokens)
{
    return ((int64_t)n_prompt + max_tokens - 1 + c->options.block_len - 1) / c->options.block_len;
}

/* How many of its tokens a sequence computes in chunks and may share with others: those known when
 * it begins, or its prompt alone. */
static inline int32_t core_n_chunked(const struct core *c, const struct sequence *s)
{
    return c->options.replay && !PLANT(PLANT_REPLAY_IN_CHUNKS) ? s->request->n_prompt
                                                               : sequence_n_tokens(s);
}

static inline int32_t core_in_flight(const struct core *c)
{
    return (int32_t)(c->planned - c->committed);
}

static inline int32_t core_n_running(const struct core *c)
{
    return c->n_prefilling + c->n_decoding;
}

/* core.c */
void core_emit(struct core *c, const struct core_event *e);
void core_enqueue(struct core *c, struct sequence *s); /* WAITING */
void core_release(struct core *c, struct sequence *s); /* gives back its blocks and its slot */
/* Takes a running sequence from its list: nothing is planned for it any more. Its blocks return
 * at once, or where a step in flight has it, with that step. */
void core_halt(struct core *c, struct sequence *s, enum sequence_state state);
void core_wake(struct core *c, struct sequence *holder, bool all);
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
void core_stop_loading(struct core *c, struct sequence *s); /* leaves SEQ_LOADING */
void core_copy_down(struct core *c, struct step *st);
void core_commit_copies(struct core *c, const struct step_result *r);
const char *core_verify_tiers(const struct core *c); /* block_refs is set for the device */

/* drafts.c */
/* The next token of s can be sampled in this step: the host has said what it has to. */
bool core_may_sample(const struct core *c, const struct step *st, const struct sequence *s);
bool core_waits_for_masks(const struct core *c); /* some sequence does */
/* How many of its drafts s may have in the step, were there rows and blocks. */
int32_t core_n_drafts(const struct core *c, const struct step *st, const struct sequence *s);
/* The entry's last rows are sampled from: that of the last known token and of its drafts. */
void core_want_rows(struct step *st, struct step_entry *e, int32_t n_drafts);

/* core_cache.c */
int core_cache_answer(struct core *c, const struct inspect_query *q, const int32_t *prompt,
                      int32_t n_prompt, struct inspect_report *out);

/* Pinned blocks that a prompt begins with and would use. */
int32_t core_pinned_prefix(const struct core *c, const struct cache_namespace *ns,
                           const int32_t *prompt, int32_t n_prompt);

/* core_share.c */
/* Who goes when blocks run out; NULL: only one runs. */
struct sequence *core_victim(const struct core *c);
/* Where the client of s, which waits, has less than its share: makes one that has more give it a
 * slot, or n blocks. They come with the steps in flight. One slot at a time, for who began is
 * served, and then the next may be another's. */
void core_claim_slot(struct core *c, const struct sequence *s);
void core_claim_blocks(struct core *c, const struct sequence *s, int64_t n);
/* Whose slot s may claim; NULL: nobody's. */
struct sequence *core_slot_victim(const struct core *c, const struct sequence *s);
int32_t core_slot_share(const struct core *c, const struct sequence *s);

/* core_time.c */
void core_time_admitted(struct core *c, uint64_t client, uint64_t now_us);
/* Decodes of a step, and rows of prompts beside so many: INT32_MAX, or less so that it is short. */
int32_t core_time_decodes(const struct core *c, uint64_t now_us);
int32_t core_time_prompt_rows(const struct core *c, int32_t n_decodes, uint64_t now_us);
/* At the beginning of a plan; then how many rows s may still have, with some kept from decodes
 * while prompts wait, and what was planned for it. */
void core_time_begin(struct core *c, uint64_t now_us);
bool core_time_divides(const struct core *c); /* somebody may have to stand back */
bool core_time_stands_back(const struct core *c, const struct sequence *s);
int32_t core_rows_left(const struct core *c, const struct sequence *s, bool decode);
void core_rows_planned(struct core *c, const struct sequence *s, int32_t n, bool decode);
/* True where who others stand back for got nothing: then all may have what is left. */
bool core_time_lift(struct core *c);
void core_time_end(struct core *c, struct step *st);
/* The first of its client's begins. */
void core_time_newcomer(struct core *c, const struct sequence *s, uint64_t now_us);

/* core_schedule.c */
/* Blocks that s, which waits, still has to take to begin, and those that it may have. */
void core_needs(struct core *c, const struct sequence *s, int32_t *needed, int32_t *available);
void core_chain_written(struct core *c, struct sequence *s); /* lists full blocks as ready */

#endif
