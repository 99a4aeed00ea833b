/* embedder.h - how a model folder's embeddings are made of hidden states, as Sentence Transformers
 * writes it: modules.json, the configuration of its pooling module, and the prompts of
 * config_sentence_transformers.json.
 *
 * Immutable once read; any thread. */
#ifndef NVLLM_ENGINE_MODEL_EMBEDDER_H
#define NVLLM_ENGINE_MODEL_EMBEDDER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/util/err.h"
#include "engine/util/text.h"

enum pooling {
    POOLING_NONE, /* the model has no embeddings */
    POOLING_LAST, /* the hidden state of the last token, after the final norm */
    POOLING_MEAN, /* the mean of all tokens' */
    N_POOLINGS,
};

extern const char *const pooling_names[N_POOLINGS]; /* in reports: "last token" */

struct embedder {
    enum pooling pooling;
    bool normalize;             /* to length 1 */
    json_t *prompts;            /* object: texts that are put before a text, by name; NULL: none */
    const char *default_prompt; /* its name; NULL: none */
};

/* Reads a folder's files and notes what is wrong with each; a zeroed *out where there is no
 * modules.json. */
void embedder_read(struct embedder *out, int dir, int32_t hidden_dim, struct problems *p);
void embedder_deinit(struct embedder *e);

/* The prompt of a name; the default one, or an empty text, for a name that is NULL. False: there is
 * no such prompt. */
bool embedder_prompt(struct text *out, const struct embedder *e, const char *name);

#endif
