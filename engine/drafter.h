/* drafter.h - a second, smaller model of the same vocabulary that says what may come next in texts
 * of the first.
 *
 * It is a backend of its own, driven by the same contract, a few steps for each answer: the text as
 * far as it has not read it, then a draft a step, sampled with the seed and counter with which the
 * first model will sample in its place. So both choose alike where they think alike.
 *
 * Its KV pool holds one text of the greatest length, or several shorter ones. A text keeps its
 * blocks until others need them; the one not drafted for the longest time is read again then. A
 * prefix that two requests have in common is read for each.
 *
 * One thread, the engine's; no step is under way between two calls. */
#ifndef NVLLM_ENGINE_DRAFTER_H
#define NVLLM_ENGINE_DRAFTER_H

#include "engine/backend.h"
#include "engine/core/core.h"
#include "engine/text/tokenizer.h"

/* Texts at a time: with more a step of the first model pays by itself. */
enum { DRAFTER_SEQS = 16 };

struct drafter;

/* Loads the folder on the device of the first model, whose options are given, with max_seq_len set;
 * they were checked. Errors as from model_open() and a backend's open. */
int drafter_new(struct drafter **out, const char *folder, const struct backend_ops *ops,
                const struct backend_options *of_model, struct err *e);
void drafter_free(struct drafter *d); /* takes NULL */

/* Whether these options allow one: -ENOTSUP where several ranks share the model, -EINVAL without
 * speculation. */
int drafter_check_options(const struct backend_options *of_model, bool speculate, struct err *e);
/* Whether the folder's model can be one, and what the backend would refuse of it. */
int drafter_check_model(const char *folder, const struct backend_ops *ops,
                        const struct backend_options *of_model, struct err *e);
/* Whether each id means the same in the folder's tokenizer: else -EINVAL, naming one. */
int drafter_check_vocabulary(const char *folder, const struct tokenizer *tokenizer, struct err *e);

struct draft {
    int32_t n;
    int32_t tokens[CORE_MAX_DRAFTS];
    int32_t n_read; /* tokens of the text that it has read by now; -1: it cannot read it */
};

/* Answers n draft requests, at most DRAFTER_SEQS, with tokens below vocab_size: n_drafts of each,
 * or fewer. A text has none if it is too long for the model, or is not yet read to its end: each
 * call reads at most the rows of one step. Returns how many steps the model took, but 0 where it
 * had more to read than what it had just proposed; or a negative errno, after which only
 * drafter_free() may follow. */
int drafter_ask(struct drafter *d, const struct core_draft_request *requests, int32_t n,
                int32_t vocab_size, struct draft *out, struct err *e);

int32_t drafter_max_len(const struct drafter *d);  /* of a text with its drafts */
uint64_t drafter_bytes(const struct drafter *d);   /* that it has taken, of the ledger */
bool drafter_has_changed(const struct drafter *d); /* as model_has_changed() */

int drafter_idle(struct drafter *d, struct err *e); /* as idle() of its backend */

/* As sleep() and wake() of its backend; what it has read is forgotten. */
int drafter_sleep(struct drafter *d, struct err *e);
int drafter_wake(struct drafter *d, struct err *e);

#endif
