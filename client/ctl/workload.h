/* workload.h - the requests of a benchmark: the lengths of prompts and answers, and the tokens.
 *
 * All of it follows from the seed: two runs send the same requests. */
#ifndef NVLLM_CLIENT_CTL_WORKLOAD_H
#define NVLLM_CLIENT_CTL_WORKLOAD_H

#include "client/ctl/ctl.h"
#include "client/ctl/random.h"

enum { WORKLOAD_MAX_TOKENS = 1 << 20 };

struct workload_range {
    uint32_t min, max;
};

struct workload_item {
    uint32_t prompt_tokens, output_tokens;
    int64_t at_us;      /* from the start; -1: at any time */
    const int32_t *ids; /* [prompt_tokens]; NULL: drawn when needed */
};

struct workload {
    struct workload_item *items; /* [n_items]; NULL: drawn from the ranges, without end */
    size_t n_items, at;
    struct workload_range prompt, output; /* of what is drawn */
    struct random random;
    int32_t *memory; /* ids of items */
    int32_t *tokens; /* [n_tokens] ordinary tokens of the model */
    size_t n_tokens;
    int32_t *ids; /* of the item drawn last */
    size_t n_ids;
};

/* Before anything else. */
void workload_init(struct workload *w, uint64_t seed);
void workload_deinit(struct workload *w);

/* nano-vLLM's published benchmark: 256 prompts of 100 to 1024 tokens, and answers likewise. */
void workload_nano_vllm(struct workload *w);

/* Reads lines of {"prompt_tokens", "output_tokens"}, with "at_ms" if requests have a start time.
 * Ends the program with a message if that fails. */
void workload_read(struct workload *w, const char *path);

/* Finds the ordinary tokens of the model: known, and not special. Ends the program with a message
 * if that fails. */
void workload_find_tokens(struct workload *w, struct ctl *ctl);

/* The next item; false at the end, unless it starts again. */
bool workload_next(struct workload *w, struct workload_item *item, bool again);

/* Its prompt, valid until the next call. */
const int32_t *workload_ids(struct workload *w, const struct workload_item *item);

#endif
