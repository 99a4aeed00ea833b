/* core.h - the pure heart of the engine: sequences, blocks, prefix cache and schedule.
 *
 * Makes no system call, reads no clock, takes no lock, uses no global: time comes in as an
 * argument, so that a seed replays a run. Owned by the engine thread. A step goes
 *
 *     core_next(&batch) -> backend submit -> … -> backend wait -> core_commit(result)
 *
 * with up to BACKEND_IN_FLIGHT steps between next and commit, committed in order. What
 * happens to requests comes out as events, taken after each call with core_events().
 *
 * Invariants, checked in tests by tests/sim/core_verify.c: refs of a block = number of tables and
 * of copies under way that hold it, and one more if it is pinned; free + cached + used = all; a
 * block is found in the prefix cache only once the step that wrote it has been committed; a block
 * that a step in flight reads or writes is neither freed nor given to another; exactly one
 * CORE_FINISHED a request; without requests only pinned blocks are in use, and each accepted
 * request fits beside the pins; if something fits, something runs; every request ends. */
#ifndef NVLLM_ENGINE_CORE_CORE_H
#define NVLLM_ENGINE_CORE_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"
#include "engine/util/text.h"

struct core;

enum core_priority { CORE_LOW, CORE_NORMAL, CORE_HIGH, CORE_N_PRIORITIES };

struct core_options {
    int32_t n_blocks;
    int32_t block_len;        /* power of two, 16 .. 4096 */
    int32_t max_batch_tokens; /* rows of a step; decodes alternate if below max_seqs */
    int32_t max_seqs;         /* running sequences */
    int32_t max_seq_len;      /* tokens of a sequence: the model's length */
    int32_t max_preemptions;  /* a sequence preempted this often is its class's last victim */
    bool prefix_cache;        /* false: blocks are shared inside one request only (n > 1) */
    bool share_all;           /* cache.scope = all: one namespace for all clients */
    bool replay; /* sampled tokens are recomputed one a step, and only blocks of prompts are found
                  * in the cache: so preemptions and hits change no sequence's numbers, although
                  * chunks and decodes round differently */
    bool speculate;     /* the core proposes drafts by itself, see speculation.c */
    int32_t draft_seqs; /* sequences that a draft model can draft for at a time; 0: there is none */
    int32_t draft_len;  /* with draft_seqs: the longest text that the draft model takes, drafts
                         * included; its blocks hold one of these, or several shorter ones */
    bool offload;       /* requests too large for the device have their blocks in the host tier */
    int32_t tier_blocks[N_TIERS]; /* of the tiers below the device, 0: none; [TIER_DEVICE] unused */
    bool restores;                /* core_restore() is called: until core_restored() nothing goes to
                                   * disk */
    int32_t mask_words;           /* (vocab_size + 31) / 32; 0: no request may have masks */
    const uint8_t *cache_secret;  /* [PREFIX_CACHE_SECRET], copied; NULL, for tests: zeros */
};

/* Which hidden states are summed for a request without an answer. */
enum core_pooling {
    CORE_POOL_NONE,
    CORE_POOL_LAST, /* of the prompt's last token */
    CORE_POOL_ALL,  /* the sum of all; so all are computed, whatever the cache has */
};

struct core_request {
    uint64_t id;     /* chosen by the caller, never used twice */
    uint64_t client; /* whose share and whose cache: the uid */
    enum core_priority priority;
    int32_t n_prompt;                /* >= 1 */
    int32_t max_tokens;              /* >= 1 */
    int32_t n;                       /* choices, >= 1: choice i samples with seed + i */
    const int32_t *prompt;           /* [n_prompt]; copied */
    const struct sampling *sampling; /* copied, with its arrays */
    struct text cache_salt;          /* narrows the namespace; copied */
    uint64_t arrival_us;             /* on the clock of now_us, not after it; 0: now */
    uint64_t deadline_us;            /* on the same clock; 0: none */
    bool masks;                      /* core_set_mask() is called for each token */
    enum core_pooling pooling;       /* not NONE: max_tokens and n are 1, and nothing is sampled */
};

enum {
    CORE_OK,
    CORE_IDLE,         /* core_next: no request */
    CORE_WAIT,         /* core_next: nothing can run until a step in flight is committed */
    CORE_E_TOO_LONG,   /* core_admit: prompt + max_tokens is over max_seq_len */
    CORE_E_NEVER_FITS, /* core_admit: it would need more blocks than core_room() */
};

enum core_reason {
    CORE_REASON_NONE,
    CORE_REASON_STOP,   /* a stop id was sampled, or core_stop() was called */
    CORE_REASON_LENGTH, /* max_tokens; with pooling the end of the prompt */
    CORE_REASON_CANCELLED,
    CORE_REASON_DEADLINE,
    CORE_REASON_NUMERICS, /* NaN or Inf logits */
    CORE_REASON_NO_MEMORY,
};

struct core_usage {
    int32_t prompt_tokens;
    int32_t cached_tokens; /* prompt tokens that the first choice to run found in the cache */
    int32_t completion_tokens;
    int32_t preemptions;
    int32_t draft_tokens, accepted_tokens; /* drafts computed, and those reported as tokens */
    int32_t model_draft_tokens, model_accepted_tokens; /* of these, by the draft model */
    uint64_t arrival_us; /* the core_request's, or that of core_admit */
    uint64_t queued_us;  /* core_admit; 0: never admitted */
    uint64_t start_us;   /* first slot taken; 0: never ran */
    uint64_t first_us;   /* first token committed; 0: none */
    uint64_t end_us;
};

enum core_event_type {
    CORE_TOKEN,       /* one token of one choice; a stop id is reported too, with reason set */
    CORE_SUM,         /* of hidden states of a request with pooling; with the last one a reason */
    CORE_CHOICE_DONE, /* a choice ended without a new token: cancel, deadline, numerics, stop */
    CORE_FINISHED,    /* the request's one terminal event; its id is forgotten */
};

struct core_event {
    uint64_t request;
    enum core_event_type type;
    int32_t choice;
    int32_t token;    /* CORE_TOKEN */
    uint64_t last_us; /* TOKEN: when the choice's token before was committed; 0: there is none */
    enum core_reason reason;        /* TOKEN: NONE unless it is the choice's last; CHOICE_DONE: why;
                                     * FINISHED: of choice 0 */
    struct token_logprobs logprobs; /* with n_logprobs >= 0 */
    const float *sum; /* SUM: [sum_dim], the committed result's: valid until the next core_commit */
    int32_t sum_dim;
    int32_t position;        /* SUM: of the first token. Sums follow one another; where this is 0,
                              * they begin anew */
    struct core_usage usage; /* FINISHED */
};

struct core_stats {
    int32_t blocks_total, blocks_used, blocks_cached, blocks_free;
    int32_t blocks_pinned; /* of the used ones: held by pins, and maybe by sequences too */
    struct core_tier {
        int32_t total, cached;   /* blocks, and those that hold a copy */
        uint64_t stored, loaded; /* copied down to the tier, up from it */
    } tiers[N_TIERS];            /* [TIER_DEVICE] unused */
    int32_t seqs_running, seqs_waiting;
    int32_t requests_running, requests_waiting; /* running: at least one choice runs */
    int32_t clients;                            /* that have requests */
    int64_t queued_tokens; /* known tokens of all waiting sequences, cached ones included */
    uint64_t queried_tokens,
        hit_tokens; /* prompt tokens looked up in and found in the prefix cache */
    uint64_t preemptions;
    uint64_t steps;
    uint64_t prompt_tokens, output_tokens;  /* computed (recomputed ones included), committed */
    uint64_t draft_tokens, accepted_tokens; /* of all requests */
    uint64_t model_draft_tokens, model_accepted_tokens;
};

int core_new(struct core **out, const struct core_options *options); /* -ENOMEM, -EINVAL */
void core_free(struct core *c);

/* Blocks that a request may come to hold: every unpinned block of the pool, and the pinned blocks
 * of its own prefix; if it needs more, the blocks that the host tier has in excess of the device.
 */
int32_t core_room(const struct core *c, const struct core_request *r);

/* Sets the shares of users that do not have the usual one, see fair.h. Takes over the array. */
struct fair_share;
void core_set_shares(struct core *c, struct fair_share *shares, int32_t n);

/* Bytes that a request with n choices takes before its first token, the last events of its choices
 * included. n_bias, n_stop_ids: entries of its sampling. */
uint64_t core_request_bytes(int32_t n, int32_t n_bias, int32_t n_stop_ids);

/* Whether core_admit() would refuse it for its lengths: CORE_OK or CORE_E_… */
int core_fits(const struct core *c, const struct core_request *r);

/* CORE_OK, CORE_E_…, or -ENOMEM. Blocks are not reserved here. */
int core_admit(struct core *c, const struct core_request *r, uint64_t now_us);

/* Ends a request: CORE_CHOICE_DONE for each choice that has not ended and CORE_FINISHED come at
 * once, its blocks return when no step in flight uses them. Unknown ids are ignored. */
void core_cancel(struct core *c, uint64_t id, enum core_reason reason, uint64_t now_us);

/* Ends one choice because its text is complete (a stop string). */
void core_stop(struct core *c, uint64_t id, int32_t choice, uint64_t now_us);

/* Proposes draft tokens [n] for a choice. They are verified in the step of the next token, and
 * those that equal what is sampled are reported with it: drafts never change the output. Returns
 * how many are kept (at most CORE_MAX_DRAFTS; 0 where sampling needs history). While the next token
 * is in flight none are kept, but n > 0 holds the step after it back. Drafts for which that step
 * has no rows are dropped. */
enum { CORE_MAX_DRAFTS = 15 }; /* a device takes little longer for 16 rows than for 8 */
int32_t core_draft(struct core *c, uint64_t id, int32_t choice, const int32_t *tokens, int32_t n);

/* With options.speculate: the drafts [most <= CORE_MAX_DRAFTS] that the core would propose now for
 * a choice of a request with masks, whose drafts are left to the caller. Returns how many. */
int32_t core_propose(struct core *c, uint64_t id, int32_t choice, int32_t *tokens, int32_t most);
/* How many drafts would pay now if all were accepted, as those that a response format forces are.
 * Of both functions the result is at most 1 while the next token is being sampled, when
 * core_draft() would keep none. */
int32_t core_n_forced_drafts(struct core *c, uint64_t id, int32_t choice, int32_t most);

/* With options.draft_seqs: asks for the draft model's tokens that come next in a choice, which has
 * no row in flight. Valid until the next call of any other core function. */
struct core_draft_request {
    uint64_t request;
    int32_t choice;
    int32_t n_drafts; /* at most CORE_MAX_DRAFTS */
    int32_t n_tokens; /* of the text so far */
    uint32_t counter; /* of the next token, as in a batch_row */
    const struct sampling *sampling;
    const struct sequence *sequence;
};
/* The draft requests [draft_seqs] that there are now; returns how many. With a step in flight the
 * caller commits it and calls again; without, it calls core_set_model_drafts() for each before
 * core_next(). */
int32_t core_draft_requests(const struct core *c, struct core_draft_request *out);
/* Copies the tokens [from, n_tokens) of the text. */
void core_draft_request_tokens(const struct core_draft_request *r, int32_t from, int32_t *out);
/* Answers a draft request, as core_draft(), with the model's drafts, maybe none. n_read: how many
 * tokens of the text the model has read by now; -1: it cannot read it. */
int32_t core_set_model_drafts(struct core *c, uint64_t id, int32_t choice, const int32_t *tokens,
                              int32_t n, int32_t n_read);

/* Sets which tokens may come next in a choice of a request with masks: masks [n][mask_words] as in
 * backend.h, the first for the next token, the others for those after its drafts. The first is due
 * when core_masks() is called for the step that samples the token; drafts are planned only as far
 * as masks are there. The memory is the caller's and must stay until the choice's next token is
 * reported, or it ends. False: an unknown choice, or its next token is being sampled and has masks.
 */
bool core_set_mask(struct core *c, uint64_t id, int32_t choice, const uint32_t *masks, int32_t n);
/* Making the masks of one choice and token took us microseconds, or so long that there are none:
 * its client is charged for what that delays, or for all of it when it leaves. */
void core_add_mask_time(struct core *c, uint64_t id, uint64_t us);

/* The masks of the oldest step in flight, as mask() of backend.h takes them; valid until the next
 * call of any core function. NULL: it has none. */
const uint32_t *const *core_masks(struct core *c);

/* Ends the requests past their deadline. Returns when to call it again, or 0 for never. */
uint64_t core_expire(struct core *c, uint64_t now_us);

/* What steps cost and may take, from the next one on; nothing is known until it is called. */
struct step_cost;
void core_set_cost(struct core *c, const struct step_cost *cost);

/* Records in trace what happens to requests from now on, and first what has happened to those in
 * progress; NULL: stops. */
struct trace;
void core_set_trace(struct core *c, struct trace *trace);

/* Whether requests that come from now on may be offloaded; only with options.offload. */
void core_set_offload(struct core *c, bool may);

/* The next step. CORE_OK with *batch, valid until its commit; CORE_IDLE; CORE_WAIT. With several
 * tiers a step may have no rows, also when there is no request. */
int core_next(struct core *c, const struct batch **batch, uint64_t now_us);

/* Takes the result of the oldest step in flight. */
void core_commit(struct core *c, const struct step_result *result, uint64_t now_us);

/* Events since the last call, in order; they hold until the next call of any core function. */
const struct core_event *core_events(struct core *c, int32_t *n);

void core_stats(const struct core *c, struct core_stats *out);

/* ---- the disk tier outlives the process where somebody keeps records of it */

/* Makes the record of the block that a copy to disk writes, which the latest batch asks for; sum
 * and check are left to the caller. False: the block must not be found after a restart. */
struct node_record;
bool core_record(const struct core *c, uint32_t copy, struct node_record *out);
int32_t core_max_copies(const struct core *c); /* under way at a time; their ids are below it */
/* Whether a disk block can be found in the prefix cache, or a copy under way uses it. */
bool core_keeps(const struct core *c, int32_t block);

/* Lists a disk block of an earlier process by its record; the record of the node before it comes
 * first. False: the block cannot be found any more. After the last one core_restored(), once. */
bool core_restore(struct core *c, const struct node_record *r, int32_t block, uint64_t now_us);
void core_restored(struct core *c);

/* Has the blocks that are cached now copied down by one tier, and no others: call core_next() until
 * it returns CORE_IDLE, then core_store_all() again for the next tier. device_only: only blocks
 * that no lower tier has. Without memory for a list of them none are copied. core_store_end()
 * returns to copying down as usual. */
void core_store_all(struct core *c, bool device_only);
void core_store_end(struct core *c);

/* Cached device blocks that no tier below has. */
int32_t core_n_unstored(const struct core *c);
/* Forgets the blocks of the device tier, whose memory is given back; none may be in use, pinned or
 * being copied. Returns how many of them cannot be found any more. */
int32_t core_empty_device(struct core *c);

/* ---- inspection: the answers to the queries of inspect.h
 *
 * The query's limit bounds the size of a report, not its cost: REQUESTS and EXPLAIN_REQUEST sort
 * all requests; BLOCKS visits each block that is held (with a map, each block), CACHE and
 * CACHE_CLEAR each block, PIN and EXPLAIN_PROMPT each block of the prompt. */
struct inspect_report;
struct inspect_query;

enum {
    CORE_INSPECT_OK,
    CORE_INSPECT_DENIED,    /* the viewer may not see or change this */
    CORE_INSPECT_NO_CACHE,  /* PIN: there is no prefix cache */
    CORE_INSPECT_SHORT,     /* PIN: the prompt has no full block */
    CORE_INSPECT_PIN_LIMIT, /* PIN: more than core_pin_limit() blocks would be pinned */
    CORE_INSPECT_PIN_BUSY,  /* PIN: an admitted request may need these blocks */
    CORE_INSPECT_ABSENT,    /* PIN: some of the prompt's full blocks are not cached: compute them,
                             * then ask again */
};

/* CORE_INSPECT_OK with *out, another code, or -ENOMEM. prompt [n_prompt] has the tokens of the
 * query's prompt, if it has one. */
int core_inspect(struct inspect_report **out, struct core *c, const struct inspect_query *q,
                 const int32_t *prompt, int32_t n_prompt, uint64_t now_us);

/* Blocks that may be pinned: half of the pool. */
int32_t core_pin_limit(const struct core *c);

#endif
