/* text_stream.c - see text_stream.h.
 *
 * The bytes of tokens become characters, which go through one Knuth-Morris-Pratt matcher for each
 * stop string. The longest partial match is held back. Time is linear in the text. */
#include "engine/text/text_stream.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/array.h"
#include "engine/util/must.h"
#include "engine/text/utf8.h"

struct stop {
    uint16_t len;
    uint16_t state;                               /* bytes that match at the end of the text */
    uint16_t shorter[TEXT_STREAM_MAX_STOP_BYTES]; /* [i] the state to try after state i + 1 */
    char text[TEXT_STREAM_MAX_STOP_BYTES];
};

struct text_stream {
    const struct tokenizer *t;
    bool skip_special;
    bool ignore_stops;
    bool stopped;
    char partial[4]; /* an incomplete character */
    size_t n_partial;
    char *buf; /* [0, out) is what the last call returned, [out, len) is held back */
    size_t out, len, cap;
    int n_stops;
    struct stop stops[]; /* [n_stops] */
};

static void stop_init(struct stop *s, struct text text)
{
    uint16_t k = 0;

    memcpy(s->text, text.data, text.len);
    s->len = (uint16_t)text.len;
    s->shorter[0] = 0;
    for (uint16_t i = 1; i < s->len; i++) {
        while (k && s->text[i] != s->text[k])
            k = s->shorter[k - 1];
        if (s->text[i] == s->text[k])
            k++;
        s->shorter[i] = k;
    }
}

/* True if byte completes the stop. */
static bool stop_advance(struct stop *s, char byte)
{
    while (s->state && s->text[s->state] != byte)
        s->state = s->shorter[s->state - 1];
    if (s->text[s->state] == byte)
        s->state++;
    if (s->state < s->len)
        return false;
    s->state = s->shorter[s->len - 1]; /* the next one, where this is ignored, may overlap it */
    return true;
}

size_t text_stream_bytes(int n_stops)
{
    must(n_stops >= 0 && n_stops <= TEXT_STREAM_MAX_STOPS);
    return sizeof(struct text_stream) + (size_t)n_stops * sizeof(struct stop);
}

int text_stream_new(struct text_stream **out, const struct tokenizer *t, const struct text *stops,
                    int n_stops, bool skip_special)
{
    struct text_stream *s;

    if (n_stops < 0 || n_stops > TEXT_STREAM_MAX_STOPS)
        return -EINVAL;
    for (int i = 0; i < n_stops; i++)
        if (!stops[i].len || stops[i].len > TEXT_STREAM_MAX_STOP_BYTES || !utf8_is_valid(stops[i]))
            return -EINVAL;
    s = calloc(1, text_stream_bytes(n_stops));
    if (!s)
        return -ENOMEM;
    s->t = t;
    s->skip_special = skip_special;
    s->n_stops = n_stops;
    for (int i = 0; i < n_stops; i++)
        stop_init(&s->stops[i], stops[i]);
    *out = s;
    return 0;
}

void text_stream_free(struct text_stream *s)
{
    if (!s)
        return;
    free(s->buf);
    free(s);
}

/* Removes what was returned and makes room for the characters of n more bytes. */
static int begin(struct text_stream *s, size_t n)
{
    size_t held = s->len - s->out;
    if (held)
        memmove(s->buf, s->buf + s->out, held);
    s->out = 0;
    s->len = held;
    return array_reserve(&s->buf, &s->cap, held + 3 * (n + sizeof(s->partial)), 1) ? 0 : -ENOMEM;
}

/* Appends valid text. The first byte that completes a stop removes the longest that it completes
 * and ends the text. */
static bool feed(struct text_stream *s, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t longest = 0;

        s->buf[s->len++] = p[i];
        for (int k = 0; k < s->n_stops; k++)
            if (stop_advance(&s->stops[k], p[i]) && !s->ignore_stops && s->stops[k].len > longest)
                longest = s->stops[k].len;
        if (longest) {
            s->len -= longest;
            return true;
        }
    }
    return false;
}

/* Feeds whole characters and keeps an incomplete one. True at a stop. */
static bool feed_bytes(struct text_stream *s, const char *p, size_t n)
{
    for (size_t i = 0; i < n;) {
        char joined[sizeof(s->partial)];
        const char *at = p + i;
        size_t have = s->n_partial, left = n - i, len;
        uint32_t cp;

        if (have) {
            size_t more = left < sizeof(joined) - have ? left : sizeof(joined) - have;

            memcpy(joined, s->partial, have);
            memcpy(joined + have, at, more);
            at = joined;
            left = have + more;
        }
        len = utf8_read(at, left, &cp);
        if (!len) { /* fewer than four bytes, the last ones */
            memcpy(s->partial, at, left);
            s->n_partial = left;
            return false;
        }
        /* Invalid bytes are never shorter than what was kept, which is a valid beginning. */
        must(len >= have);
        s->n_partial = 0;
        if (cp == UTF8_BROKEN ? feed(s, UTF8_REPLACEMENT_BYTES, 3) : feed(s, at, len))
            return true;
        i += len - have;
    }
    return false;
}

static int end(struct text_stream *s, bool stopped, bool all, struct text *piece)
{
    size_t keep = 0;

    s->stopped = stopped;
    for (int k = 0; k < s->n_stops && !stopped && !all; k++)
        if (s->stops[k].state > keep)
            keep = s->stops[k].state;
    s->out = s->len - keep;
    *piece = (struct text){s->buf, s->out};
    return stopped ? TEXT_STREAM_STOP : TEXT_STREAM_OK;
}

void text_stream_ignore_stops(struct text_stream *s, bool on)
{
    s->ignore_stops = on;
}

int text_stream_push(struct text_stream *s, int32_t id, struct text *piece)
{
    struct text bytes = {0};

    must(!s->stopped);
    if (!s->skip_special || !tokenizer_is_special(s->t, id))
        bytes = tokenizer_token_bytes(s->t, id);
    if (begin(s, bytes.len))
        return -ENOMEM;
    return end(s, feed_bytes(s, bytes.data, bytes.len), false, piece);
}

int text_stream_finish(struct text_stream *s, struct text *piece)
{
    bool stopped = false;

    must(!s->stopped);
    if (begin(s, 0))
        return -ENOMEM;
    if (s->n_partial)
        stopped = feed(s, UTF8_REPLACEMENT_BYTES, 3);
    s->n_partial = 0;
    return end(s, stopped, true, piece);
}
