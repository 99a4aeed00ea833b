/* bench.h - what nvllmctl bench stands on: random numbers, quantiles, and the requests to send. */
#ifndef NVLLM_CLIENT_CTL_BENCH_H
#define NVLLM_CLIENT_CTL_BENCH_H

#include <stdio.h>

#include "client/ctl/ctl.h"

/* ---- the numbers of Python's random module: MT19937, its seeding and randint(). Published
 * workloads are a few lines of Python and a seed; this draws the same numbers. */

enum { RANDOM_WORDS = 624 };

struct random {
    uint32_t words[RANDOM_WORDS];
    int next;
};

/* random.seed(seed) */
void random_seed(struct random *r, uint64_t seed);

/* random.getrandbits(32) */
uint32_t random_u32(struct random *r);

/* random.randint(min, max), both inclusive; min <= max */
uint32_t random_int(struct random *r, uint32_t min, uint32_t max);

/* in (0, 1]; not a function of Python */
double random_share(struct random *r);

/* ---- a histogram of times in constant memory: buckets are 0.6 % of their value wide */

enum { BUCKETS_A_DOUBLING = 128, QUANTILES_BUCKETS = 64 * BUCKETS_A_DOUBLING + 1 };

struct quantiles {
    uint64_t counts[QUANTILES_BUCKETS];
    uint64_t n;
    uint64_t min_ns, max_ns;
    double sum_ns;
};

void quantiles_add(struct quantiles *q, uint64_t ns);

/* The quantile of a share, in ms, to within 1 %; 0 if there are no values. */
double quantiles_ms(const struct quantiles *q, double share);
double quantiles_mean_ms(const struct quantiles *q);

/* One line per range of times: count and bar. */
void quantiles_draw(const struct quantiles *q, FILE *to, int width);

/* ---- a workload: lengths of prompts and answers, and tokens. All of it follows from the seed. */

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
    struct random random;                 /* seeded by the caller */
    int32_t *memory;                      /* ids of items */
    int32_t *tokens;                      /* [n_tokens] ordinary tokens of the model */
    size_t n_tokens;
    int32_t *ids; /* of the item drawn last */
    size_t n_ids;
};

void workload_deinit(struct workload *w);

/* nano-vLLM's published benchmark: 256 prompts of 100 to 1024 tokens, and answers likewise. */
void workload_nano_vllm(struct workload *w);

/* Reads lines of {"prompt_tokens", "output_tokens"}, with "at_ms" if requests have a start time.
 * Ends the program with a message if that fails. */
void workload_read(struct workload *w, const char *path);

/* Finds the model's ordinary tokens: known, not special. Ends the program if that fails. */
void workload_find_tokens(struct workload *w, struct ctl *ctl);

/* The next item; false at the end, unless it starts again. */
bool workload_next(struct workload *w, struct workload_item *item, bool again);

/* Its prompt, valid until the next call. */
const int32_t *workload_ids(struct workload *w, const struct workload_item *item);

/* ---- conversations: each prompt is all that was said before, and some tokens more */

struct conversation {
    int32_t *ids; /* [n] said so far */
    size_t n, cap;
    uint32_t turn, n_turns; /* turns that have ended, and all */
    bool asked;             /* a turn is in flight */
    int64_t due_ns;         /* of the next one */
};

struct conversations {
    struct conversation *list; /* [n] */
    size_t n, n_left;          /* n_left: that have turns left */
    double think_s;            /* between an answer and the next turn, on average */
};

void conversations_init(struct conversations *c, size_t n, uint32_t n_turns, double think_s);
void conversations_deinit(struct conversations *c);

/* The one whose turn has been due for the longest time; or NULL, and *soonest is lowered to when
 * the next one is. */
struct conversation *conversations_due(struct conversations *c, int64_t now, int64_t *soonest);

void conversation_add(struct conversation *v, const int32_t *ids, size_t n);

/* Its turn has ended; if not well, it has no more turns. */
void conversation_answered(struct conversations *c, struct conversation *v, bool well, int64_t now,
                           struct random *r);

#endif
