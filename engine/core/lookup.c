/* lookup.c - see lookup.h. */
#include "engine/core/lookup.h"

#include <stdlib.h>
#include <string.h>

#include "engine/core/sequence.h"
#include "engine/util/min.h"

enum {
    INDEX_AT_ONCE = 4096,
    FEWEST = 2048,  /* entries of an index */
    MOST = 32768,   /* of longer texts what came last is found */
    ANSWER = 1024,  /* tokens of an answer that it has room for */
    LONG_COPY = 16, /* that goes on behind a wrong token */
};

static const double first_acceptance = 0.5;

struct lookup *lookup_new(int32_t n_prompt, int32_t max_tokens)
{
    const int64_t n_tokens = (int64_t)n_prompt + min_i32(max_tokens, ANSWER);
    uint32_t n = FEWEST;
    struct lookup *l;

    while (n < n_tokens && n < MOST)
        n *= 2;
    l = calloc(1, sizeof(*l) + n * sizeof(*l->last));
    if (!l)
        return NULL;
    l->acceptance = first_acceptance;
    l->n_last = n;
    return l;
}

/* The entry of the tokens before `end`. */
static int32_t *entry_of(struct lookup *l, const struct sequence *s, int32_t end)
{
    uint64_t hash = 0;

    for (int32_t i = end - LOOKUP_MATCH; i < end; i++)
        hash = (hash ^ (uint32_t)sequence_token(s, i)) * 0x9e3779b97f4a7c15u;
    return &l->last[(hash >> 32) & (l->n_last - 1)];
}

static bool matches(const struct sequence *s, int32_t at, int32_t end)
{
    for (int32_t i = 1; i <= LOOKUP_MATCH; i++)
        if (sequence_token(s, at - i) != sequence_token(s, end - i))
            return false;
    return true;
}

static void compare(struct lookup *l, int32_t token)
{
    const bool right = l->predicted[0] == token;

    acceptance_update(&l->acceptance, right);
    l->n_predicted = right ? l->n_predicted - 1 : 0;
    memmove(l->predicted, l->predicted + 1, sizeof(l->predicted) - sizeof(*l->predicted));
}

void lookup_add_token(struct lookup *l, const struct sequence *s)
{
    const int32_t n = sequence_n_tokens(s), token = sequence_token(s, n - 1);
    const int32_t stop = min_i32(n - 1, l->n_indexed + INDEX_AT_ONCE);
    bool copied;

    if (l->n_predicted > 0)
        compare(l, token);
    copied = l->at > 0 && sequence_token(s, l->at) == token;
    l->at = copied || (l->at > 0 && l->n_copied >= LONG_COPY) ? l->at + 1 : 0;
    l->n_copied = copied ? l->n_copied + 1 : 0;
    for (; l->n_indexed < stop; l->n_indexed++)
        if (l->n_indexed + 1 >= LOOKUP_MATCH)
            *entry_of(l, s, l->n_indexed + 1) = l->n_indexed + 1;
    if (l->n_indexed < n - 1 || n < LOOKUP_MATCH)
        return;
    if (!copied) {
        const int32_t at = *entry_of(l, s, n);

        l->at = at > 0 && matches(s, at, n) ? at : l->at;
    }
    *entry_of(l, s, n) = n;
    l->n_indexed = n;
}

void lookup_predict(struct lookup *l, const struct sequence *s)
{
    const int32_t n = sequence_n_tokens(s);

    l->n_predicted = 0;
    while (l->at > 0 && l->n_predicted < CORE_MAX_DRAFTS) {
        const int32_t i = l->at + l->n_predicted;

        l->predicted[l->n_predicted++] = i < n ? sequence_token(s, i) : l->predicted[i - n];
    }
}
