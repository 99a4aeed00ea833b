/* workload.h - what a benchmark asks for: how long prompts and answers are, and of which
 * tokens.
 *
 * Everything follows from the seed: two runs ask for the same. */
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
    int64_t at_us;      /* since the start; -1: at any time */
    const int32_t *ids; /* [prompt_tokens]; NULL: drawn when they are needed */
};

struct workload {
    struct workload_item *items; /* [n_items]; NULL: drawn from the ranges without end */
    size_t n_items, at;
    struct workload_range prompt, output; /* of what is drawn */
    struct random random;
    int32_t *memory; /* ids of items */
    int32_t *tokens; /* [n_tokens] ordinary ones of the model */
    size_t n_tokens;
    int32_t *ids; /* of the item drawn last */
    size_t n_ids;
};

/* Before anything else. */
void workload_init(struct workload *w, uint64_t seed);
void workload_deinit(struct workload *w);

/* nano-vLLM's published benchmark: 256 prompts of 100 to 1024 tokens, answers likewise. */
void workload_nano_vllm(struct workload *w);

/* Lines of {"prompt_tokens", "output_tokens"} and, if the requests have a time, "at_ms". EXIT_OK,
 * or the exit code after a message. */
int workload_read(struct workload *w, const char *path);

/* Finds out which tokens are ordinary: not special, and such that the model has. EXIT_OK, or the
 * exit code after a message. */
int workload_find_tokens(struct workload *w, const struct ctl *ctl, struct nvllm_client *client);

/* The next item; false when the items are at their end. again: begin anew then. */
bool workload_next(struct workload *w, struct workload_item *item, bool again);

/* Its prompt, good until the next call. */
const int32_t *workload_ids(struct workload *w, const struct workload_item *item);

#endif
