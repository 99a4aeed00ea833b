/* lookup.h - what may come next in a sequence's text, by what came next before.
 *
 * An index of one text says where its last LOOKUP_MATCH tokens occurred before: what followed there
 * is the prediction. Where they occurred several times, the last one counts. It goes on behind that
 * place until it was wrong, so a copied passage is looked up once; and past one wrong token behind
 * a long one, as where a name or a number was replaced. The caller may predict by other means.
 * Either way each prediction is compared with the token that came, and acceptance says how often it
 * was right lately: without a step in which it was tried.
 *
 * The text itself is the sequence's. Plain data, 8 to 128 KiB of each running sequence; owned by
 * the engine thread. */
#ifndef NVLLM_ENGINE_CORE_LOOKUP_H
#define NVLLM_ENGINE_CORE_LOOKUP_H

#include <stddef.h>
#include <stdint.h>

#include "engine/core/core.h"

struct sequence;

/* With 2 too much matches by accident, and behind an edit of a copied passage as many tokens go by
 * without a prediction. */
enum { LOOKUP_MATCH = 3 };

struct lookup {
    double acceptance; /* rate at which predicted tokens are right */
    int32_t n_indexed; /* tokens of the text that the index has */
    int32_t at;        /* where the text is likely to go on as it did; 0: nowhere */
    int32_t n_copied;  /* tokens before that which were the same */
    int32_t predicted[CORE_MAX_DRAFTS];
    int32_t n_predicted; /* of the tokens that come next */
    uint32_t n_last;     /* a power of two */
    int32_t last[];      /* [n_last] by hash of a match: where what followed begins; 0: none */
};

/* Counts one prediction in an acceptance rate, in which it weighs an eighth. */
static inline void acceptance_update(double *rate, bool right)
{
    *rate += 0.125 * (right - *rate);
}

struct lookup *lookup_new(int32_t n_prompt, int32_t max_tokens); /* NULL: no memory */

/* A token has been added to the text. At most 4096 tokens are indexed at a time, so behind a long
 * prompt predictions begin some tokens late. */
void lookup_add_token(struct lookup *l, const struct sequence *s);

/* Predicts what follows at `at`, if that is anywhere; a text that runs in a circle goes on so. */
void lookup_predict(struct lookup *l, const struct sequence *s);

#endif
