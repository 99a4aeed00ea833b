/* text_stream.c - see text_stream.h.
 *
 * The bytes of tokens become characters, which go through one Knuth-Morris-Pratt matcher for each
 * stop string. The longest partial match is held back. Time is linear in the text. */
#include "engine/text/text_stream.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
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
    char *bytes; /* [n_bytes] of tokens: between calls an incomplete character */
    size_t n_bytes, bytes_cap;
    char *buf; /* [0, out) is what the last call returned, [out, len) is held back */
    size_t out, len, cap;
    int n_stops;
    struct stop stops[]; /* [n_stops] */
};

static bool is_valid(struct text text)
{
    uint32_t cp = 0;

    for (size_t i = 0; i < text.len && cp != UTF8_BROKEN;)
        i += utf8_read(text.data + i, text.len - i, &cp);
    return cp != UTF8_BROKEN;
}

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
        if (!stops[i].len || stops[i].len > TEXT_STREAM_MAX_STOP_BYTES || !is_valid(stops[i]))
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
    free(s->bytes);
    free(s->buf);
    free(s);
}

/* Removes what was returned, takes the bytes of a token and makes room for their characters. */
static int begin(struct text_stream *s, struct text token)
{
    size_t held = s->len - s->out;

    if (held)
        memmove(s->buf, s->buf + s->out, held);
    s->out = 0;
    s->len = held;
    if (!array_reserve(&s->bytes, &s->bytes_cap, s->n_bytes + token.len, 1) ||
        !array_reserve(&s->buf, &s->cap, held + 3 * (s->n_bytes + token.len), 1))
        return -ENOMEM;
    if (token.len)
        memcpy(s->bytes + s->n_bytes, token.data, token.len);
    s->n_bytes += token.len;
    return 0;
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

/* Feeds the characters of s->bytes and, unless this is the end, keeps an incomplete one. True at a
 * stop. */
static bool feed_bytes(struct text_stream *s, bool all)
{
    size_t at = 0;

    while (at < s->n_bytes) {
        uint32_t cp;
        size_t left = s->n_bytes - at, len = utf8_read(s->bytes + at, left, &cp);

        if (!len && !all)
            break;
        if (cp == UTF8_BROKEN ? feed(s, UTF8_REPLACEMENT_BYTES, 3) : feed(s, s->bytes + at, len))
            return true;
        at += len ? len : left;
    }
    s->n_bytes -= at;
    if (at)
        memmove(s->bytes, s->bytes + at, s->n_bytes);
    return false;
}

/* A call with the bytes of a token, or of the end. */
static int push(struct text_stream *s, struct text token, bool all, struct text *piece)
{
    size_t keep = 0;

    must(!s->stopped);
    if (begin(s, token))
        return -ENOMEM;
    s->stopped = feed_bytes(s, all);
    for (int k = 0; k < s->n_stops && !s->stopped && !all; k++)
        if (s->stops[k].state > keep)
            keep = s->stops[k].state;
    s->out = s->len - keep;
    *piece = (struct text){s->buf, s->out};
    return s->stopped ? TEXT_STREAM_STOP : TEXT_STREAM_OK;
}

void text_stream_ignore_stops(struct text_stream *s, bool on)
{
    s->ignore_stops = on;
}

int text_stream_push(struct text_stream *s, int32_t id, struct text *piece)
{
    struct text bytes = {0};

    if (!s->skip_special || !tokenizer_is_special(s->t, id))
        bytes = tokenizer_token_bytes(s->t, id);
    return push(s, bytes, false, piece);
}

int text_stream_finish(struct text_stream *s, struct text *piece)
{
    return push(s, (struct text){0}, true, piece);
}
