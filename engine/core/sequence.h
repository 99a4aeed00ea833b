/* sequence.h - one request and the timelines of its choices.
 *
 * Plain data that the files of the core share and change, with the functions that need nothing
 * else. */
#ifndef NVLLM_ENGINE_CORE_SEQUENCE_H
#define NVLLM_ENGINE_CORE_SEQUENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/core/fair.h"
#include "engine/core/lookup.h"
#include "engine/util/heap.h"
#include "engine/core/prefix_cache.h"

enum sequence_state {
    SEQ_WAITING,        /* in the queue */
    SEQ_WAITING_PREFIX, /* until another sequence has computed what both begin with */
    SEQ_LOADING,        /* waits until its prefix is copied to the device */
    SEQ_PREFILL,        /* runs; known tokens are left to be planned */
    SEQ_DECODE,         /* runs; its next input is what it sampled last */
    SEQ_PREEMPTED,      /* its blocks return and it waits again once its last step is committed */
    SEQ_ENDED,
};

enum { ALL_BLOCKS = INT32_MAX };

struct sequence {
    struct request *request;
    int32_t choice;
    enum sequence_state state;
    uint64_t order;        /* of arrival among all sequences: also its rank among the running */
    struct list link;      /* in the queue, the waiters of another, or one of the core's lists */
    struct list waiters;   /* sequences that wait for what this one computes */
    int32_t prefix_blocks; /* WAITING_PREFIX: until so many are written, or ALL_BLOCKS: its end */
    int32_t n_lacking;     /* WAITING: blocks it needs, where it did not fit; else 0 */
    int32_t n_passed;      /* admitted past it since it was first skipped */
    uint64_t retry_step;   /* WAITING: its prefix is looked up again by this step */

    int32_t *generated; /* [cap_generated] */
    int32_t n_generated, cap_generated;
    int32_t n_preempted;
    uint64_t committed_us; /* when its last token was committed; 0: it has none */
    int32_t n_charged;     /* positions charged to the user */
    int32_t n_loads;       /* copies that it has begun since it ran last */
    int32_t n_loading;     /* in SEQ_LOADING: blocks that it will have; 0: it waits for room */
    uint64_t waits_for;    /* the last node that it waits for; 0: for room */

    /* What the host has set for the tokens after generated. */
    int32_t drafts[CORE_MAX_DRAFTS];
    int32_t n_drafts;
    bool wants_model_drafts; /* the draft model is to be asked for the next tokens */
    bool by_model;           /* the drafts are the draft model's */
    double model_acceptance; /* rate at which the model's drafts are accepted */
    int32_t n_modelled;      /* tokens of the text that the model has read */
    struct lookup *lookup;   /* while it runs, from its next token on; NULL: none */
    bool waits;              /* has drafts or is to have some: one step in flight at a time */
    const uint32_t *masks;   /* [n_masks, mask_words] of the next token to be reported, and of
                              * those after its drafts: the caller's; NULL: not set yet */
    int32_t n_masks;

    /* While it has a slot: running, or draining. */
    int32_t slot;   /* sampler state and row of tables; -1: none */
    int32_t *table; /* block ids */
    int32_t n_table;
    int32_t n_planned;   /* positions of steps planned so far */
    int32_t n_written;   /* positions of steps committed */
    int32_t n_sampling;  /* steps in flight that sample from it, or end its sums: 0 .. 2 */
    uint64_t chain;      /* of its listed blocks; 0: no more are listed */
    int32_t n_taken;     /* blocks of the table that it allocated, while it runs */
    int32_t n_chained;   /* blocks at the start of the table that are written and listed */
    int32_t n_returning; /* draining: blocks that its end frees */
    uint64_t last_step;  /* the last one it takes part in */
    bool loaded;         /* a step has set its sampler state */
    struct list in_plan; /* among those of its user, in the step being planned, or none */
    int32_t last_row;    /* its place in batch.rows of last_step, where it has one */

    struct sampling sampling; /* seed + choice; the arrays are the request's */
};

struct request {
    uint64_t id;
    struct list in_core;          /* link in core.all */
    struct heap_node by_deadline; /* while deadline_us > 0 */
    uint64_t deadline_us;
    enum core_priority priority;
    uint64_t client_id;
    struct fair_user *user;
    struct cache_namespace *ns;
    enum tier home; /* of all blocks in its tables: the device, or offloaded the host tier */
    int32_t n_prompt;
    int32_t max_tokens;
    int32_t n;
    bool masks;
    enum core_pooling pooling;
    int32_t n_alive; /* choices that have not ended */
    int32_t n_running;
    int32_t n_draining;      /* choices with blocks or rows in steps in flight and not running */
    enum core_reason reason; /* of choice 0 */
    struct core_usage usage;
    int32_t *prompt; /* [n_prompt] */
    struct logit_bias *bias;
    int32_t *stop_ids;
    struct sequence choices[]; /* [n] */
};

/* for each sequence of a list, from which it may be removed */
#define SEQUENCE_EACH(s, head) LIST_EACH (struct sequence, s, link, head)

static inline struct sequence *sequence_of(const struct list *link)
{
    return CONTAINER_OF(link, struct sequence, link);
}

static inline int32_t sequence_n_tokens(const struct sequence *s)
{
    return s->request->n_prompt + s->n_generated;
}

static inline int32_t sequence_token(const struct sequence *s, int32_t i)
{
    const int32_t n_prompt = s->request->n_prompt;

    return i < n_prompt ? s->request->prompt[i] : s->generated[i - n_prompt];
}

static inline bool sequence_runs(const struct sequence *s)
{
    return s->state == SEQ_PREFILL || s->state == SEQ_DECODE;
}

/* Choices of a request begin with the first: the others find what it computed. */
static inline bool sequence_waits_for_first(const struct sequence *s)
{
    const struct sequence *first = &s->request->choices[0];

    return s != first && first->state < SEQ_PREFILL && first->n_preempted == 0;
}

/* Adds a sampled token; room for more is made as they come. False: no memory, nothing was added. */
bool sequence_append(struct sequence *s, int32_t id);

/* Copies the known tokens [from, from + n). */
void sequence_copy_tokens(const struct sequence *s, int32_t from, int32_t n, int32_t *out);

/* The known tokens [from, from + n) in place, or copied to scratch [n] where they lie in two. */
const int32_t *sequence_tokens(const struct sequence *s, int32_t from, int32_t n, int32_t *scratch);

/* Copies what r points to; choices are numbered from order on. NULL: no memory. */
struct request *request_new(const struct core_request *r, uint64_t order, uint64_t now_us);
void request_free(struct request *q);

#endif
