/* tokenizer.h - text to token ids and back: byte-level BPE as tokenizer.json describes it.
 *
 * Immutable after load; every function may be called from any number of threads. Encoding takes
 * linear time in the text (n log n in one unbroken word). */
#ifndef NVLLM_ENGINE_TEXT_TOKENIZER_H
#define NVLLM_ENGINE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"
#include "engine/util/text.h"

struct tokenizer;

/* Loads folder/tokenizer.json. Parts that are not known are refused by name (-ENOTSUP). */
int tokenizer_load(struct tokenizer **out, const char *folder, struct err *e);
/* The same from the file's text: json[0..len). */
int tokenizer_parse(struct tokenizer **out, const char *json, size_t len, struct err *e);
void tokenizer_free(struct tokenizer *t);

/* Bytes [start, end) of a text in which special (added) tokens may be matched. */
struct text_range {
    size_t start, end;
};

enum { TOKENIZER_MAX_BYTES = 1 << 30 }; /* of one text */

/* A grown array of ids; zero-initialise, free ids with free(). */
struct token_list {
    int32_t *ids;
    size_t n, cap;
};

/* Appends the ids of text. A special token is matched only where it lies wholly inside one of the
 * ranges, which are ascending and disjoint; n_ranges 0 matches none. Invalid UTF-8 is encoded as
 * U+FFFD is, as the reference does. -ENOMEM, -E2BIG. */
int tokenizer_encode(const struct tokenizer *t, struct text text, const struct text_range *ranges,
                     size_t n_ranges, struct token_list *out);

/* Encodes with special tokens matched everywhere (special) or nowhere. */
int tokenizer_encode_all(const struct tokenizer *t, struct text text, bool special,
                         struct token_list *out);

/* The bytes of one id: not NUL-terminated, may be part of a character, empty for padding ids.
 * An id outside the vocabulary is (NULL, 0). */
struct text tokenizer_token_bytes(const struct tokenizer *t, int32_t id);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id); /* "special": true in the file */
int32_t tokenizer_n_ids(const struct tokenizer *t);               /* 1 + the largest id */
/* -EINVAL with a text that names the token where an id is not below a model's vocab_size: a text
 * could then become an id that the model has no embedding for. */
int tokenizer_check_vocab(const struct tokenizer *t, int32_t vocab_size, struct err *e);
/* The id of a special (added) token by its text, or -1. */
int32_t tokenizer_special_id(const struct tokenizer *t, const char *content);

/* All the text of ids; bytes that are no UTF-8 become U+FFFD, one for each maximal broken piece.
 * skip_special leaves out ids for which tokenizer_is_special. *out is malloc'd and NUL-terminated.
 * -EINVAL for a negative id, -ENOMEM. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special,
                     char **out, size_t *out_len);

#endif
