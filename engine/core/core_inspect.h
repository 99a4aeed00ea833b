/* core_inspect.h - the core's answers to the queries of inspect.h. Engine thread only.
 *
 * The size of a report is bounded by the query's limit; its cost is not: REQUESTS and
 * EXPLAIN_REQUEST sort all requests, BLOCKS visits each block that a sequence holds (with a map,
 * each block), CACHE and CACHE_CLEAR each block, PIN and EXPLAIN_PROMPT each block of the prompt.
 * tests/unit/test_core_inspect.c has figures. */
#ifndef NVLLM_ENGINE_CORE_CORE_INSPECT_H
#define NVLLM_ENGINE_CORE_CORE_INSPECT_H

#include "engine/inspect.h"

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

/* Blocks that may be pinned: half of the pool. A pin is also refused if an admitted request could
 * then never run; later requests that do not fit beside it are refused. */
int32_t core_pin_limit(const struct core *c);

#endif
