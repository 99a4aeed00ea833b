/* text_stream.h - the text of a sequence while it is generated: whole characters only, and nothing
 * that may still become a stop string.
 *
 * A stream belongs to one thread. */
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
    TEXT_STREAM_STOP, /* a stop string is complete; it and what follows are dropped */
};

/* Stops are copied. skip_special omits the text of special tokens (tokenizer_is_special). -EINVAL
 * for a stop that is empty, too long or not UTF-8, -ENOMEM. */
int text_stream_new(struct text_stream **out, const struct tokenizer *t, const struct text *stops,
                    int n_stops, bool skip_special);
void text_stream_free(struct text_stream *s);
size_t text_stream_bytes(int n_stops); /* of a stream without text */

/* While on, a stop string that is completed is text as any other. */
void text_stream_ignore_stops(struct text_stream *s, bool on);

/* Adds a token. The stop that ends first counts, of several that end there the longest, so the
 * text does not depend on how it is cut into tokens. *piece is the text that is certain now, maybe
 * empty, valid until the next call. Returns TEXT_STREAM_OK, TEXT_STREAM_STOP, after which nothing
 * may be pushed, or -ENOMEM. */
int text_stream_push(struct text_stream *s, int32_t id, struct text *piece);

/* Ends the sequence: *piece is the text held back, with an incomplete character as U+FFFD. Returns
 * TEXT_STREAM_OK, TEXT_STREAM_STOP if that U+FFFD completes a stop, or -ENOMEM. */
int text_stream_finish(struct text_stream *s, struct text *piece);

#endif
