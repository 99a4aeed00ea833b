/* tokenizer_impl.h - struct tokenizer, which tokenizer_json.c fills and tokenizer.c reads, and how
 * text is split before byte-pair merging. */
#ifndef NVLLM_ENGINE_TEXT_TOKENIZER_IMPL_H
#define NVLLM_ENGINE_TEXT_TOKENIZER_IMPL_H

#include "engine/text/bpe.h"
#include "engine/text/nfc.h"
#include "engine/text/tokenizer.h"

enum {
    TOKENIZER_MAX_ID = 1 << 24,     /* ids are below this */
    TOKENIZER_MAX_FILE = 256 << 20, /* bytes of tokenizer.json */
    TOKENIZER_MAX_SPECIAL = 512,    /* bytes of one added token: bounds matching */
    TOKENIZER_ADDED = 1,            /* token.flags */
    TOKENIZER_SPECIAL = 2,
};

struct token {
    uint32_t at, len; /* in bytes */
    uint8_t flags;
};

/* An added token as it is matched: if normalized, its normal form in the text's. */
struct added {
    uint32_t at, len; /* in bytes */
    int32_t id;
    bool normalized;
};

struct tokenizer {
    int32_t n_ids;
    struct token *tokens; /* [n_ids]; len 0: no token has this id */
    char *bytes;          /* of all tokens, decoded, and of added ones as matched */
    size_t n_bytes;
    struct bpe bpe;
    struct added *added; /* by first byte, the longest first */
    size_t n_added, n_normalized;
    uint32_t added_from[257]; /* those that begin with byte c: added_from[c] .. added_from[c + 1] */
    struct nfc nfc;
};

/* The pattern by which pretokenize.c splits text, as tokenizer.json spells it. */
extern const char pretokenize_qwen2_pattern[];

/* The length of the first piece of p[0..n), n > 0: valid UTF-8, up to the end of the text. */
size_t pretokenize_next(const char *p, size_t n);

#endif
