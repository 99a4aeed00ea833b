/* tokenizer_impl.h - struct tokenizer, which tokenizer_json.c fills and tokenizer.c reads, and how
 * text is changed and split before byte-pair merging. */
#ifndef NVLLM_ENGINE_TEXT_TOKENIZER_IMPL_H
#define NVLLM_ENGINE_TEXT_TOKENIZER_IMPL_H

#include <jansson.h>

#include "engine/text/bpe.h"
#include "engine/text/nfc.h"
#include "engine/text/tokenizer.h"

enum {
    TOKENIZER_MAX_ID = 1 << 24,     /* ids are below this */
    TOKENIZER_MAX_FILE = 256 << 20, /* bytes of tokenizer.json */
    TOKENIZER_MAX_SPECIAL = 512,    /* bytes of one added token: bounds matching */
    TOKENIZER_MAX_AFFIX = 4,        /* tokens before a text, or after it */
    TOKENIZER_ADDED = 1,            /* token.flags */
    TOKENIZER_SPECIAL = 2,
};

struct token {
    uint32_t at, len; /* in bytes */
    uint8_t flags;
};

/* An added token as it is matched: if normalized, its normal form in the text's. With lstrip and
 * rstrip it takes the white space before and after it; with single_word it does not match as a
 * part of a word. */
struct added {
    uint32_t at, len; /* in bytes */
    int32_t id;
    bool normalized, lstrip, rstrip, single_word;
};

/* Tokens that the post-processor puts before a text, or after it. */
struct affix {
    int32_t ids[TOKENIZER_MAX_AFFIX]; /* [n] */
    size_t n;
};

enum normalizer {
    NORMALIZE_NONE,
    NORMALIZE_NFC,
    /* SentencePiece's: a space is U+2581 in files and so the same as it; here it is a space. */
    NORMALIZE_SPACES,
};

/* A space before the text, or before each piece of it between added tokens. */
enum space_prefix {
    PREFIX_NEVER,
    PREFIX_FIRST,   /* unless there is one */
    PREFIX_EACH,    /* the same of each piece */
    PREFIX_ANOTHER, /* of each piece, whatever it begins with */
};

enum pretokenizer {
    PRETOKENIZE_NONE,
    PRETOKENIZE_GPT2,
    PRETOKENIZE_QWEN2,
    PRETOKENIZE_LLAMA3,
    PRETOKENIZE_TEKKEN,
    N_PRETOKENIZERS,
};

struct tokenizer {
    int32_t n_ids;
    struct token *tokens; /* [n_ids]; len 0: no token has this id */
    char *bytes;          /* of all tokens, decoded, and of added ones as matched */
    size_t n_bytes;
    enum normalizer normalizer;
    enum space_prefix space_prefix;
    enum pretokenizer pretokenizer;
    bool by_character; /* symbols are characters, or their bytes where there is no such token */
    bool whole_words;  /* a word that is a token is not made of merges: ignore_merges */
    bool strip_space;  /* decoding leaves out a space at the beginning */
    int32_t byte_ids[256];
    struct bpe bpe;
    uint32_t
        *by_bytes; /* [by_bytes_mask + 1] 1 + id of the vocabulary's tokens, by hash; 0: free */
    uint32_t by_bytes_mask;
    struct added *added; /* in the order of their bytes */
    size_t n_added, n_normalized;
    uint32_t added_from[257]; /* those that begin with byte c: added_from[c] .. added_from[c + 1] */
    struct affix begin, end;  /* of a text */
    struct nfc nfc;
};

/* Reads all of a file but its tokens. -ENOTSUP: a part is not supported, -ENOMEM. */
int tokenizer_read_parts(struct tokenizer *t, const json_t *root, struct err *e);

/* The slot of by_bytes that has the token of these bytes, or a free one: there always is. */
uint32_t tokenizer_slot(const struct tokenizer *t, const char *bytes, size_t len);

/* What is before a piece of text. */
enum piece_place {
    PIECE_FIRST, /* nothing */
    PIECE_NEXT,  /* an added token */
    PIECE_ON,    /* text that it goes on with */
};

/* Normalizes a piece of text, which is not empty, as nfc_normalize() does. */
int tokenizer_normalize(const struct tokenizer *t, enum piece_place place, struct text source,
                        struct text_range *ranges, size_t n_ranges, struct nfc_text *out);

/* The patterns by which pretokenize.c splits text, as tokenizer.json spells them; NULL for none. */
extern const char *const pretokenize_patterns[N_PRETOKENIZERS];

bool pretokenize_is_space(uint32_t cp); /* \s */
bool pretokenize_is_word(uint32_t cp);  /* \w */

/* The length of the first piece of p[0..n), n > 0: valid UTF-8, up to the end of the text. */
size_t pretokenize_next(enum pretokenizer kind, const char *p, size_t n);

#endif
