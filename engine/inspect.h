/* inspect.h - questions about what is under way and what is cached, and their answers; also the few
 * things that change the prefix cache by hand. What the daemon asks the engine and the engine the
 * core. Plain data.
 *
 * A viewer sees what is its own client's, or all. Sums over all are everybody's to know. Where all
 * clients share one cache it is nobody's own: who may not see all is told of no prefix in it, and
 * changes nothing.
 *
 * CLEAR forgets a client's prefixes under every salt, pinned ones too: what is written is not found
 * again, and what nobody uses is free at once.
 *
 * PIN keeps a prompt's full blocks in the cache until it is unpinned or cleared. What of them is
 * not there is computed first, by a request of the same id, client and share as any other: so the
 * answer comes when they are resident, and a cancel ends it. Pins may take half of the pool, and
 * none what a request under way needs to end; later requests must fit beside them. UNPIN wants the
 * same prompt; prompts that begin alike are pinned each for itself. */
#ifndef NVLLM_ENGINE_INSPECT_H
#define NVLLM_ENGINE_INSPECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/text/chat.h"
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
};

enum { INSPECT_MAX_ENTRIES = 10000, INSPECT_HEAD_IDS = 32, INSPECT_OTHER_IDS = 8 };

enum inspect_input { INSPECT_PROMPT, INSPECT_PROMPT_IDS, INSPECT_CHAT };

struct inspect_query {
    enum inspect_kind kind;
    uint64_t viewer;
    bool all;         /* the viewer may see and change everybody's */
    int32_t limit;    /* entries, 1 .. INSPECT_MAX_ENTRIES */
    bool map;         /* BLOCKS */
    uint64_t request; /* EXPLAIN_REQUEST: its id */
    bool unpin;       /* CACHE_PIN */
    bool clear_all;   /* CACHE_CLEAR: of all clients, else client's */
    uint64_t client;  /* CACHE_CLEAR, CACHE_PIN, EXPLAIN_PROMPT: whose cache */
    struct text cache_salt;
    enum inspect_input input; /* CACHE_PIN, EXPLAIN_PROMPT */
    struct text prompt;
    const int32_t *prompt_ids;
    size_t n_prompt_ids;
    const struct chat *chat;
    void *owner; /* of what the pointers name; NULL: nobody */
    void (*release)(void *owner);
};

/* Numbered as in the protocol, here and in inspect_why. */
enum inspect_state {
    INSPECT_ENCODING = 1, /* on its way to the schedule */
    INSPECT_WAITING,
    INSPECT_HELD,
    INSPECT_PREFILL,
    INSPECT_DECODE,
    INSPECT_PREEMPTED,
    INSPECT_ENDING, /* the daemon's to tell: the engine forgets what it has ended */
};

/* One request; of several choices the sums, and the state of the one that is furthest. */
struct inspect_request {
    uint64_t id, client;
    enum inspect_state state;
    enum core_priority priority;
    int32_t place; /* among the waiting, 1 is next; 0: does not wait */
    int32_t n;     /* choices */
    int32_t prompt_tokens, cached_tokens, computed_tokens, generated_tokens, max_tokens;
    int32_t blocks, shared; /* held; of those, held by others too */
    int32_t preemptions;
    uint64_t arrival_us, start_us, first_us; /* CLOCK_MONOTONIC; 0: not yet */
};

struct inspect_client_blocks {
    uint64_t client;
    int32_t used, requests;
    int32_t running;       /* sequences */
    int64_t queued_tokens; /* of sequences that wait */
};

struct inspect_prefix {
    uint64_t client;
    int32_t tokens, blocks;
    uint64_t hits;
    uint64_t written_us, used_us;
    int32_t holders;
    bool pinned;
    int32_t n_head;
    int32_t head[INSPECT_HEAD_IDS]; /* none where it is not the viewer's */
};

enum inspect_why {
    INSPECT_WHY_RUNS = 1,
    INSPECT_WHY_ENCODING,
    INSPECT_WHY_SEQS,
    INSPECT_WHY_BLOCKS,
    INSPECT_WHY_PREFIX,
    INSPECT_WHY_SHARE,
    INSPECT_WHY_STEP,
};

/* The answer; arrays belong to it. What a kind does not use is zero. */
struct inspect_report {
    enum inspect_kind kind;
    bool found; /* EXPLAIN_REQUEST: there is such a request, and the viewer may see it */
    uint64_t now_us;
    int32_t total;                    /* entries that there are, told or not */
    struct inspect_request *requests; /* [n_requests] REQUESTS, BLOCKS, EXPLAIN_REQUEST */
    int32_t n_requests;
    struct inspect_client_blocks *clients; /* [n_clients] BLOCKS, the viewer's alone unless all */
    int32_t n_clients;
    uint8_t *map; /* [n_map] BLOCKS, by block: 'f' 'c' 'u' 's' 'p', or unless all 'o' where it is
                   * another's, whatever that makes of it */
    int32_t n_map;
    int32_t pinned_blocks; /* CACHE: held by pins; BLOCKS: by pins alone */
    struct core_stats stats;
    struct inspect_prefix *prefixes; /* [n_prefixes] CACHE, used last first */
    int32_t n_prefixes;
    uint64_t evictions;
    int32_t changed_blocks, changed_tokens; /* CLEAR: forgotten; PIN: those of the prompt, all of
                                             * which are pinned now, or unpinned (0: no such pin) */
    enum inspect_why why;                   /* EXPLAIN_REQUEST */
    int32_t blocks_needed, blocks_available;
    int32_t prompt_tokens; /* EXPLAIN_PROMPT, PIN */
    int32_t cached_tokens; /* EXPLAIN_PROMPT: a generate would find; PIN: were there */
    bool compared;         /* EXPLAIN_PROMPT: the viewer may know of prompts that go on otherwise */
    int32_t same_tokens;   /* some cached prompt begins with as many; else cached_tokens */
    int32_t next_id;       /* the first that differs; -1: none */
    int32_t n_other;
    int32_t other[INSPECT_OTHER_IDS]; /* what cached prompts have there instead */
};

void inspect_report_free(struct inspect_report *r); /* takes NULL */

#endif
