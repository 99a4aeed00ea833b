/* transcript.h - what a model was told and what it said in a conversation, as exact token ids.
 *
 * A transcript is prompts and answers by turns, each a piece. Of an answer the ids are those that
 * were sampled, whatever the tokenizer would make of their text.
 *
 * The next prompt of the conversation is its chat template's rendering of all messages. It keeps
 * the longest beginning of the transcript that the rendering agrees with, and only what the
 * rendering has behind that is encoded:
 *
 *   - a prompt is kept if the rendering has its text at that place, and the template wrote the same
 *     parts of it, so that it would be encoded alike; else nothing from its beginning on is kept;
 *   - an answer's ids are kept one by one, as long as the rendering has their bytes at that place;
 *     nothing behind the first that it does not have is kept.
 *
 * So a template that repeats what was said keeps every id, and one that rewrites it, for instance
 * drops the reasoning of earlier turns, cuts at the first change. A prompt that is cut is encoded
 * again from its beginning: words come out whole, and the prefix cache finds what has the same ids
 * as before.
 *
 * Of a prompt's text only the length and a 128-bit hash are stored. Texts with the same hash that
 * a user went to make would deceive that user's own conversation alone. */
#ifndef NVLLM_ENGINE_TEXT_TRANSCRIPT_H
#define NVLLM_ENGINE_TEXT_TRANSCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

#include "engine/text/jinja.h"
#include "engine/text/tokenizer.h"

struct transcript_piece {
    size_t n_ids;
    bool sampled;       /* an answer; what follows is of a prompt */
    uint64_t n_bytes;   /* of its text */
    XXH128_hash_t hash; /* of its text, and of which parts of it are the template's */
};

/* A zeroed struct is empty. The ids are those of all pieces, one behind the other. */
struct transcript {
    struct token_list ids;
    struct transcript_piece *pieces; /* [n_pieces] none without ids */
    size_t n_pieces, cap;
};

void transcript_deinit(struct transcript *t);

/* Copies the first n ids, as transcript_cut() leaves them. -ENOMEM. */
int transcript_copy(struct transcript *out, const struct transcript *from, size_t n);

/* Bytes of memory that its contents take. */
size_t transcript_bytes(const struct transcript *t);

/* Drops all but the first n ids; within a prompt all of that. */
void transcript_cut(struct transcript *t, size_t n);

/* A prompt that goes on with a transcript. */
struct transcript_prompt {
    const struct transcript *said; /* must not change meanwhile */
    size_t n_kept;                 /* of its ids, with which the prompt begins */
    struct token_list rest;        /* the ids behind them */
    uint64_t rest_bytes;
    XXH128_hash_t rest_hash;
};

void transcript_prompt_deinit(struct transcript_prompt *p);

/* Makes the prompt of a rendering, where said is set and all else is zero. -ENOMEM, -E2BIG as
 * tokenizer_encode(). Any thread. */
int transcript_prompt(struct transcript_prompt *p, const struct tokenizer *tokenizer,
                      const struct jinja_text *rendering);

/* Replaces the transcript by what the prompt has kept of it, the prompt's rest and the answer. The
 * prompt is of this transcript, and not to be used again. -ENOMEM: nothing has changed. */
int transcript_add(struct transcript *t, const struct transcript_prompt *p, const int32_t *answer,
                   size_t n_answer);

#endif
