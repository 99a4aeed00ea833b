/* inspect.h - queries about requests, blocks and cache, and the commands that run between steps:
 * clear, pin, sleep, wake, trace; with their answers. Plain data.
 *
 * A viewer sees what belongs to its own client, or everything; sums over all clients are visible to
 * everybody. A cache that all clients share belongs to none of them: a viewer who may not see all
 * sees none of its prefixes and changes nothing.
 *
 * CLEAR forgets a client's prefixes under every salt, pinned ones too: blocks in use stay until
 * released but are not found again, the others are free at once.
 *
 * PIN keeps a prompt's full blocks in the cache until they are unpinned or cleared. Those that are
 * missing are computed first, by a request with the same id, client and share as any other; the
 * answer comes when all are resident, and a cancel ends the wait. Pins may take half of the pool,
 * but nothing that an admitted request needs to finish; later requests must fit beside them. UNPIN
 * takes the same prompt; prompts with a common prefix are pinned independently.
 *
 * SLEEP gives memory back while no request is in progress: that of the weights and workspaces, and
 * with SLEEP_ALL that of the device's blocks too, which are first copied to the tier below as far
 * as it has room; the rest is forgotten. While anything is pinned the blocks stay. WAKE takes the
 * memory again, as the first request does.
 *
 * TRACE records what requests and steps do until its time is over or it is cancelled, one trace at
 * a time. The records come as events before the report. */
#ifndef NVLLM_ENGINE_INSPECT_H
#define NVLLM_ENGINE_INSPECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/core/core.h"
#include "engine/util/text.h"

enum inspect_kind {
    INSPECT_REQUESTS,
    INSPECT_BLOCKS,
    INSPECT_CACHE,
    INSPECT_CACHE_CLEAR,
    INSPECT_CACHE_PIN, /* or unpin */
    INSPECT_EXPLAIN_REQUEST,
    INSPECT_EXPLAIN_PROMPT,
    INSPECT_SLEEP,
    INSPECT_WAKE,
    INSPECT_TRACE,
};

/* Whether the request's input is a prompt. */
static inline bool inspect_has_prompt(enum inspect_kind kind)
{
    return kind == INSPECT_CACHE_PIN || kind == INSPECT_EXPLAIN_PROMPT;
}

enum sleep_level { SLEEP_NONE, SLEEP_WEIGHTS, SLEEP_ALL }; /* the protocol's numbers */

enum { INSPECT_MAX_ENTRIES = 10000, INSPECT_HEAD_IDS = 32, INSPECT_OTHER_IDS = 8 };

struct inspect_query {
    enum inspect_kind kind;
    uint64_t viewer;
    bool all;               /* the viewer may see and change what belongs to any client */
    int32_t limit;          /* entries, 1 .. INSPECT_MAX_ENTRIES */
    bool map;               /* BLOCKS */
    uint64_t request;       /* EXPLAIN_REQUEST: its id */
    bool unpin;             /* CACHE_PIN */
    bool clear_all;         /* CACHE_CLEAR: the caches of all clients, else of client */
    enum sleep_level level; /* SLEEP */
    uint32_t duration_ms;   /* TRACE */
    uint64_t client;        /* CACHE_CLEAR, CACHE_PIN, EXPLAIN_PROMPT: whose cache */
    struct text cache_salt;
};

/* This enum and inspect_why have the numbers of the protocol. */
enum inspect_state {
    INSPECT_ENCODING = 1, /* being rendered or tokenized */
    INSPECT_WAITING,
    INSPECT_WAITING_PREFIX,
    INSPECT_PREFILL,
    INSPECT_DECODE,
    INSPECT_PREEMPTED,
    INSPECT_ENDING, /* the engine forgets an ended request: it never reports this */
};

/* One request: sums over its choices, and the state of the choice that has got furthest. */
struct inspect_request {
    uint64_t id, client;
    enum inspect_state state;
    enum core_priority priority;
    int32_t place; /* in the queue, 1 is next; 0: does not wait */
    int32_t n;     /* choices */
    int32_t prompt_tokens, cached_tokens, computed_tokens, generated_tokens, max_tokens;
    int32_t blocks, shared; /* in use; of those, also by other requests */
    int32_t preemptions;
    int32_t draft_tokens, accepted_tokens;
    int32_t model_draft_tokens, model_accepted_tokens; /* of these */
    uint64_t arrival_us, start_us, first_us;           /* CLOCK_MONOTONIC; 0: not yet */
};

struct inspect_client_blocks {
    uint64_t client;
    int32_t used, requests;
};

struct inspect_prefix {
    uint64_t client;
    int32_t tokens, blocks;
    int32_t found_in[N_TIERS]; /* of these, those whose highest copy is there */
    uint64_t hits;
    uint64_t written_us, used_us;
    int32_t holders;
    bool pinned;
    int32_t n_head;
    int32_t head[INSPECT_HEAD_IDS]; /* empty unless the prefix is the viewer's */
};

enum inspect_why {
    INSPECT_WHY_RUNS = 1,
    INSPECT_WHY_ENCODING,
    INSPECT_WHY_SEQS,
    INSPECT_WHY_BLOCKS,
    INSPECT_WHY_PREFIX,
    INSPECT_WHY_SHARE,
    INSPECT_WHY_STEP,
    INSPECT_WHY_LOADING,
    INSPECT_WHY_OFFLOADED,
};

/* The answer, which owns its arrays. What its kind does not use is zero. */
struct inspect_report {
    enum inspect_kind kind;
    bool found; /* EXPLAIN_REQUEST: the request exists, and the viewer may see it */
    uint64_t now_us;
    int32_t total;                    /* entries, listed or cut off by the limit */
    struct inspect_request *requests; /* [n_requests] REQUESTS, BLOCKS, EXPLAIN_REQUEST */
    int32_t n_requests;
    struct inspect_client_blocks *clients; /* [n_clients] BLOCKS, only the viewer's unless all */
    int32_t n_clients;
    uint8_t *map; /* [n_map] BLOCKS, by block id: free, cached, used, shared or pinned as its first
                   * letter; unless all, 'o' for whatever belongs to others */
    int32_t n_map;
    int32_t pinned_blocks; /* CACHE: held by pins; BLOCKS: held by nothing else */
    struct core_stats stats;
    struct inspect_prefix *prefixes; /* [n_prefixes] CACHE, most recently used first */
    int32_t n_prefixes;
    uint64_t evictions;
    int32_t changed_blocks, changed_tokens; /* CLEAR: forgotten; PIN: of the prompt, all pinned or
                                             * unpinned now (0: there was no such pin) */
    enum inspect_why why;                   /* EXPLAIN_REQUEST */
    int32_t blocks_needed, blocks_available;
    int32_t prompt_tokens;     /* EXPLAIN_PROMPT, PIN */
    int32_t cached_tokens;     /* EXPLAIN_PROMPT: that a request would find; PIN: found */
    int32_t found_in[N_TIERS]; /* EXPLAIN_PROMPT: of these, tokens whose highest copy is there */
    bool compared;             /* EXPLAIN_PROMPT: with prompts that go on differently */
    int32_t same_tokens; /* in the longest prefix shared with a cached prompt; if not compared,
                          * cached_tokens */
    int32_t next_id;     /* the first token that differs; -1: none */
    int32_t n_other;
    int32_t other[INSPECT_OTHER_IDS]; /* tokens that cached prompts have in its place */
    enum sleep_level level;           /* SLEEP, WAKE: from now on */
    uint64_t freed_bytes;             /* SLEEP: given back by it */
    int32_t kept_tokens, lost_tokens; /* SLEEP: that the device held: found below, or forgotten */
    uint64_t took_us;                 /* SLEEP, WAKE, TRACE */
    uint64_t dropped;                 /* TRACE: records that there was no room for */
};

void inspect_report_free(struct inspect_report *r); /* takes NULL */

#endif
