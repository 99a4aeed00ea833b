/* core_inspect.h - the core's answers to inspect.h's questions. Engine thread only.
 *
 * What is told is bounded by the question's limit; what it costs, by what there is: REQUESTS and
 * EXPLAIN_REQUEST sort the requests, BLOCKS looks at each block that a sequence holds and with a
 * map at each of the pool, CACHE and CACHE_CLEAR at each block of the pool, PIN and EXPLAIN_PROMPT
 * at each of the prompt. Figures stand in tests/unit/test_core_inspect.c. */
#ifndef NVLLM_ENGINE_CORE_CORE_INSPECT_H
#define NVLLM_ENGINE_CORE_CORE_INSPECT_H

#include "engine/inspect.h"

enum {
    CORE_INSPECT_OK,
    CORE_INSPECT_DENIED,    /* the viewer may not see or change that */
    CORE_INSPECT_NO_CACHE,  /* PIN: there is no prefix cache */
    CORE_INSPECT_SHORT,     /* PIN: the prompt has not one full block */
    CORE_INSPECT_PIN_LIMIT, /* PIN: more than core_pin_limit() blocks would be pinned */
    CORE_INSPECT_PIN_BUSY,  /* PIN: a request under way needs these blocks for itself */
    CORE_INSPECT_ABSENT,    /* PIN: not all of the prompt's full blocks are cached: compute them,
                               then ask again */
};

/* CORE_INSPECT_OK with *out, another code, or -ENOMEM. prompt [n_prompt]: what the question's
 * prompt is as tokens, where it has one. */
int core_inspect(struct inspect_report **out, struct core *c, const struct inspect_query *q,
                 const int32_t *prompt, int32_t n_prompt, uint64_t now_us);

/* Blocks that may be pinned: half of the pool. A pin is refused too where a request that was
 * admitted could then never run; later ones are refused that would not fit beside it. */
int32_t core_pin_limit(const struct core *c);

#endif
