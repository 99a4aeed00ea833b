/* vocabulary.h - the texts of all tokens as a tree, and which tokens may come next at a place of a
 * grammar.
 *
 * Most tokens that may come stay inside the text that is being read: these follow from the lexer's
 * state alone and are kept for it. The others end that text and go on behind it: for these the tree
 * is walked from where the text can end. (The division is that of Dong et al., "XGrammar", 2024.)
 *
 * A vocabulary is immutable; any number of masks use it, each with its grammar, by one thread at a
 * time. */
#ifndef NVLLM_ENGINE_GRAMMAR_VOCABULARY_H
#define NVLLM_ENGINE_GRAMMAR_VOCABULARY_H

#include "engine/grammar/grammar.h"
#include "engine/text/tokenizer.h"

struct vocabulary;

/* vocab_size: of the model. Special tokens are no texts. NULL: no memory. */
struct vocabulary *vocabulary_new(const struct tokenizer *t, int32_t vocab_size);
void vocabulary_free(struct vocabulary *v);

struct masks; /* what is known of a grammar's states */

struct masks *masks_new(const struct vocabulary *v, struct grammar *g, size_t max_bytes);
void masks_free(struct masks *m);
size_t masks_bytes(const struct masks *m);

/* Makes the mask of a place; that of the grammar's start is kept, others for a while. -ENOMEM,
 * -E2BIG. */
int masks_prepare(struct masks *m, int32_t place);
/* Sets mask [(vocab_size + 31) / 32] to the tokens that may come at a place, and where the answer
 * may end also to the n_ends ids that end it. -ENOENT: there is none; -ENOMEM, -E2BIG. */
int masks_fill(struct masks *m, uint32_t *mask, int32_t place, const int32_t *ends, int32_t n_ends);

/* The place behind a token; GRAMMAR_DEAD for one that the mask does not have. */
int32_t masks_step(struct masks *m, int32_t place, int32_t token);

#endif
