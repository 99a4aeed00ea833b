/* sim_oracle.h - what every request must be told, known without the core.
 *
 * Each event is compared with it as it comes; each function returns NULL or what was wrong. */
#ifndef NVLLM_TESTS_SIM_SIM_ORACLE_H
#define NVLLM_TESTS_SIM_SIM_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/core/core.h"
#include "tests/sim/sim_backend.h"

enum { ORACLE_MAX_STOPS = 4, ORACLE_MASK_WORDS = 3 };

struct oracle_choice {
    uint64_t hash; /* of prompt and tokens told */
    int32_t n_told;
    int32_t n_computed; /* positions that a step was the first to compute */
    uint64_t last_row;  /* its client's decodes when it had a row last */
    int32_t n_passed;   /* requests admitted past it while it waits */
    bool done;
    enum core_reason reason;
    enum core_reason asked; /* core_stop is being called */
    int32_t *told;          /* [max_tokens] */
    uint64_t due_step;      /* that carries drafts; after it so many tokens are told */
    int32_t due;
    uint32_t masks[(1 + CORE_MAX_DRAFTS) * ORACLE_MASK_WORDS]; /* that the core reads */
};

struct oracle_request {
    uint64_t id;
    uint64_t client;
    uint64_t namespace_key;
    int32_t salt;
    bool drafts, masks;
    enum core_pooling pooling;
    int32_t n_summed; /* tokens whose hidden states it has been told */
    bool cleared;     /* its cache was cleared while it lived: what it found may be gone */
    uint64_t deadline_us;
    int32_t n_prompt, max_tokens, n;
    int32_t *prompt;
    enum core_reason asked; /* cancel or deadline is being called */
    bool finished;
    int32_t n_done;
    struct core_usage usage; /* once finished */
    struct sampling sampling;
    int32_t stop_ids[ORACLE_MAX_STOPS];
    struct oracle_choice *choices; /* [n] */
};

/* Which prefixes were asked for in which namespace, in whole blocks: what a cache may know. */
struct oracle_prefixes;

struct oracle_prefixes *oracle_prefixes_new(int32_t block_len); /* the only one, empty */

struct oracle_request *oracle_request_new(const struct core_request *r, uint64_t namespace_key);
void oracle_request_free(struct oracle_request *q);

/* The request was admitted: its prompt's blocks may be computed from now on. */
void oracle_admitted(struct oracle_prefixes *p, const struct oracle_request *q);

/* Its cache is cleared: what it computes from now on, maybe all of it again, goes under a new key.
 */
void oracle_cleared(struct oracle_prefixes *p, struct oracle_request *q, uint64_t namespace_key);

/* What the choice is told in that place of its text after a prefix. */
int32_t oracle_next(const struct oracle_request *q, int32_t choice, uint64_t prefix, int32_t place,
                    const struct sim_backend_options *o);

/* The mask after a prefix, of a request with masks. */
void oracle_mask(uint32_t mask[ORACLE_MASK_WORDS], uint64_t prefix,
                 const struct sim_backend_options *o);

const char *oracle_event(struct oracle_request *q, const struct core_event *e,
                         const struct sim_backend_options *o, struct oracle_prefixes *p,
                         bool prefix_cache);

#endif
