/* tokenizer.h - text to token ids and back: byte-level BPE, or SentencePiece's with bytes for
 * unknown characters, as described by tokenizer.json.
 *
 * Immutable after load; any number of threads may call every function. Encoding takes time linear
 * in the text, n log n in the longest word. */
#ifndef NVLLM_ENGINE_TEXT_TOKENIZER_H
#define NVLLM_ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"
#include "engine/util/text.h"

struct tokenizer;

/* Loads folder/tokenizer.json. Unknown parts are refused by name (-ENOTSUP). */
int tokenizer_load(struct tokenizer **out, const char *folder, struct err *e);
/* The same from the text of the file. */
int tokenizer_parse(struct tokenizer **out, const char *json, size_t len, struct err *e);
void tokenizer_free(struct tokenizer *t);

enum { TOKENIZER_MAX_BYTES = 1 << 30 }; /* of one text */

/* An array of ids that grows; zero-initialise, free ids with free(). */
struct token_list {
    int32_t *ids;
    size_t n, cap;
};

/* Appends the ids of text. A special token is matched only inside one of the ranges, which are
 * ascending and disjoint; without ranges none is. Invalid UTF-8 is encoded as U+FFFD, as the
 * reference does. -ENOMEM, -E2BIG. */
int tokenizer_encode(const struct tokenizer *t, struct text text, const struct text_range *ranges,
                     size_t n_ranges, struct token_list *out);

/* The same of a text that goes on behind an id: SentencePiece puts no space before it as before the
 * beginning of one. */
int tokenizer_encode_after(const struct tokenizer *t, int32_t id, struct text text,
                           const struct text_range *ranges, size_t n_ranges,
                           struct token_list *out);

/* Encodes with special tokens matched everywhere (special) or nowhere. */
int tokenizer_encode_all(const struct tokenizer *t, struct text text, bool special,
                         struct token_list *out);

/* The tokens with which the model expects a prompt to begin, as the file's post-processor has them:
 * encoding does not add them. Their number. */
size_t tokenizer_begin(const struct tokenizer *t, const int32_t **ids);
/* The same for the tokens that end a complete text, as embedders expect them. */
size_t tokenizer_end(const struct tokenizer *t, const int32_t **ids);

/* The bytes of an id, not NUL-terminated: maybe part of a character, empty for padding ids, and
 * (NULL, 0) for an id outside the vocabulary. */
struct text tokenizer_token_bytes(const struct tokenizer *t, int32_t id);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id); /* "special": true in the file */
int32_t tokenizer_n_ids(const struct tokenizer *t);               /* 1 + the largest id */
/* -EINVAL, naming the token, if an id is not below the model's vocab_size: the model has no
 * embedding for it. */
int tokenizer_check_vocab(const struct tokenizer *t, int32_t vocab_size, struct err *e);

/* The text of ids, *out malloc'ed and NUL-terminated; invalid UTF-8 becomes U+FFFD, and a space
 * with which SentencePiece begins a text is left out. skip_special omits special tokens. -EINVAL
 * for a negative id, -ENOMEM. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **out, size_t *out_len);

#endif
