/* core_verify.h - the invariants of engine/core, checked from outside the code that keeps them.
 *
 * Each walks everything; NULL, or a static text that names the broken invariant. */
#ifndef NVLLM_TESTS_SIM_CORE_VERIFY_H
#define NVLLM_TESTS_SIM_CORE_VERIFY_H

#include "engine/core/core_impl.h"

const char *core_verify(const struct core *c);
const char *prefix_cache_verify(const struct prefix_cache *p);
/* refs [n_blocks]: the references that there should be. */
const char *blocks_verify(const struct blocks *b, const int32_t *refs);

/* There are requests, steps in flight or copies under way. */
static inline bool core_busy(const struct core *c)
{
    return c->n_requests > 0 || core_in_flight(c) > 0 || c->n_copies > 0;
}

#endif
