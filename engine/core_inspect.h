/* core_inspect.h - the core's answers to inspect.h's questions. Engine thread only.
 *
 * What is told is bounded by the question's limit; what it costs, by what there is: REQUESTS and
 * EXPLAIN_REQUEST sort the requests, BLOCKS looks at each block that a sequence holds and with a
 * map at each of the pool, CACHE and CACHE_CLEAR at each block of the pool, PIN and EXPLAIN_PROMPT
 * at each of the prompt. Figures stand in tests/unit/test_core_inspect.c. */
#ifndef NVLLM_CORE_INSPECT_H
#define NVLLM_CORE_INSPECT_H

#include "engine/inspect.h"

/* 0 with *out, or -ENOMEM. */
int core_inspect(struct inspect_report **out, struct core *c, const struct inspect_query *q,
                 uint64_t now_us);

#endif
