/* text_stream.h - the text of one generated sequence as it grows: never half a character, and
 * nothing that may still become a stop string.
 *
 * One stream belongs to one thread. */
#ifndef NVLLM_ENGINE_TEXT_TEXT_STREAM_H
#define NVLLM_ENGINE_TEXT_TEXT_STREAM_H

#include <stdbool.h>

#include "engine/util/text.h"
#include "engine/text/tokenizer.h"

struct text_stream;

enum {
    TEXT_STREAM_MAX_STOPS = 16,
    TEXT_STREAM_MAX_STOP_BYTES = 256, /* of one stop string */
};

enum {
    TEXT_STREAM_OK,
    TEXT_STREAM_STOP, /* a stop string is complete: the text before it is out, the rest is dropped
                       */
};

/* Stops are copied. Special tokens (tokenizer_is_special) have no text here. skip_special false
 * keeps them. -EINVAL for a stop that is empty, too long or no UTF-8, -ENOMEM. */
int text_stream_new(struct text_stream **out, const struct tokenizer *t, const struct text *stops,
                    int n_stops, bool skip_special);
void text_stream_free(struct text_stream *s);
size_t text_stream_bytes(int n_stops); /* what one takes, before any text */

/* While on, a stop string that is completed is text as any other. */
void text_stream_ignore_stops(struct text_stream *s, bool on);

/* Adds one token. The stop whose last byte comes first counts, of several that end there the
 * longest: so what comes out does not depend on how the text was cut into tokens. *piece is the
 * text that is now certain, maybe empty; it holds until the next call. Returns TEXT_STREAM_OK,
 * TEXT_STREAM_STOP or -ENOMEM. After STOP nothing may be pushed. */
int text_stream_push(struct text_stream *s, int32_t id, struct text *piece);

/* The end of the sequence: what was held back comes out, half a character as U+FFFD. Returns
 * TEXT_STREAM_OK, or STOP if that very U+FFFD completes a stop. */
int text_stream_finish(struct text_stream *s, struct text *piece);

#endif
