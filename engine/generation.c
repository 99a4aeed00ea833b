/* generation.c - the answer to one generate request as it grows: its choices' text streams and, for
 * a request that does not stream, each choice's tokens and text.
 *
 * Turns core events into engine events. Engine thread only. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

enum { CHARGED_TOKENS = 64 };

struct buffer {
    void *data;
    size_t n, cap; /* entries */
};

struct choice {
    struct text_stream *stream;
    bool done;
    size_t n_tokens; /* sampled */
    /* What the next delta will hold: the whole answer of a request that does not stream. */
    struct buffer ids, logprobs, text;
};

struct generation {
    const struct engine_request *request;
    bool logprobs;
    int error;
    struct choice choices[]; /* [request->n] */
};

uint64_t generation_bytes(const struct engine_request *r)
{
    return sizeof(struct generation) +
           (uint64_t)r->n * (sizeof(struct choice) + text_stream_bytes(r->n_stops));
}

int generation_new(struct generation **out, const struct engine_request *r,
                   const struct tokenizer *tokenizer)
{
    struct generation *g;
    int ret = -ENOMEM;

    must(r->n >= 1);
    g = calloc(1, sizeof(*g) + (size_t)r->n * sizeof(g->choices[0]));
    if (!g)
        return -ENOMEM;
    g->request = r;
    g->logprobs = r->sampling.n_logprobs >= 0;
    for (int32_t i = 0; i < r->n; i++) {
        ret = text_stream_new(&g->choices[i].stream, tokenizer, r->stops, r->n_stops,
                              !r->keep_special);
        if (ret < 0)
            goto fail;
    }
    *out = g;
    return 0;
fail:
    generation_free(g);
    return ret;
}

void generation_free(struct generation *g)
{
    if (!g)
        return;
    for (int32_t i = 0; i < g->request->n; i++) {
        text_stream_free(g->choices[i].stream);
        free(g->choices[i].ids.data);
        free(g->choices[i].logprobs.data);
        free(g->choices[i].text.data);
    }
    free(g);
}

int generation_error(const struct generation *g)
{
    return g->error;
}

static int charge(const struct generation *g, size_t bytes)
{
    const struct engine_request *r = g->request;

    return r->charge && !r->charge(r->owner, bytes) ? -EDQUOT : 0;
}

/* Appends n entries of a size; memory is charged before it is taken. */
static int append(const struct generation *g, struct buffer *b, const void *entries, size_t n,
                  size_t size)
{
    if (n == 0)
        return 0;
    if (n > b->cap - b->n) {
        size_t cap, bytes;
        void *grown;
        int r;

        if (!size_add(&cap, b->n, n) || !size_mul(&cap, cap, 2) || !size_mul(&bytes, cap, size))
            return -ENOMEM;
        r = charge(g, bytes - b->cap * size);
        if (r < 0)
            return r;
        grown = realloc(b->data, bytes);
        if (!grown)
            return -ENOMEM;
        b->data = grown;
        b->cap = cap;
    }
    memcpy((char *)b->data + b->n * size, entries, n * size);
    b->n += n;
    return 0;
}

static int append_text(const struct generation *g, struct choice *c, struct text piece)
{
    return append(g, &c->text, piece.data, piece.len, 1);
}

static int append_token(const struct generation *g, struct choice *c, const struct core_event *ev)
{
    int r = 0;

    /* The core keeps the ids too, in an array whose capacity doubles. */
    if (c->n_tokens++ % CHARGED_TOKENS == 0)
        r = charge(g, 2 * CHARGED_TOKENS * sizeof(ev->token));
    if (r == 0)
        r = append(g, &c->ids, &ev->token, 1, sizeof(ev->token));
    if (r < 0 || !g->logprobs)
        return r;
    return append(g, &c->logprobs, &ev->logprobs, 1, sizeof(ev->logprobs));
}

/* Copies entries to *at, which moves behind them. */
static void *move_out(const struct buffer *b, size_t size, char **at)
{
    char *copy = *at;

    if (b->n)
        memcpy(copy, b->data, b->n * size);
    *at += b->n * size;
    return copy;
}

/* Pushes what the choice has gathered as one delta, in one allocation. */
static int tell(struct generation *g, int32_t choice, enum core_reason reason,
                struct event_list *out)
{
    struct choice *c = &g->choices[choice];
    const size_t bytes = sizeof(struct engine_event) +
                         c->logprobs.n * sizeof(struct token_logprobs) +
                         c->ids.n * sizeof(int32_t) + c->text.n; /* less than the buffers have */
    struct engine_event *d = malloc(bytes);
    char *at = (char *)(d + 1);

    if (!d)
        return -ENOMEM;
    *d = (struct engine_event){.type = ENGINE_DELTA,
                               .request = g->request->id,
                               .choice = choice,
                               .reason = reason,
                               .n_ids = c->ids.n,
                               .bytes = bytes};
    if (c->logprobs.n)
        d->logprobs = move_out(&c->logprobs, sizeof(*d->logprobs), &at);
    d->ids = move_out(&c->ids, sizeof(*d->ids), &at);
    d->text = (struct text){move_out(&c->text, 1, &at), c->text.n};
    event_list_push(out, d);
    c->ids.n = c->logprobs.n = c->text.n = 0;
    return 0;
}

static int end_choice(struct generation *g, int32_t choice, enum core_reason reason,
                      struct event_list *out)
{
    struct choice *c = &g->choices[choice];
    struct text rest;
    int r = text_stream_finish(c->stream, &rest);

    if (r == TEXT_STREAM_STOP) /* in its last bytes; the core has ended the choice */
        reason = CORE_REASON_STOP;
    if (r >= 0)
        r = append_text(g, c, rest);
    return r < 0 ? r : tell(g, choice, reason, out);
}

/* As generation_token, with -ENOMEM or -EDQUOT. */
static int add_token(struct generation *g, const struct core_event *ev, struct event_list *out)
{
    struct choice *c = &g->choices[ev->choice];
    const bool held_back = c->n_tokens < (size_t)g->request->sampling.min_tokens;
    struct text piece = {0};
    bool stopped = false;
    int r;

    must(!c->done);
    r = append_token(g, c, ev);
    if (r < 0)
        return r;
    /* A stop id is reported as a token but is not part of the text. */
    if (ev->reason != CORE_REASON_STOP) {
        text_stream_ignore_stops(c->stream, held_back);
        r = text_stream_push(c->stream, ev->token, &piece);
        stopped = r == TEXT_STREAM_STOP;
        if (r >= 0)
            r = append_text(g, c, piece);
        if (r < 0)
            return r;
    }
    c->done = stopped || ev->reason != CORE_REASON_NONE;
    if (stopped)
        r = tell(g, ev->choice, CORE_REASON_STOP, out);
    else if (c->done)
        r = end_choice(g, ev->choice, ev->reason, out);
    else if (g->request->stream)
        r = tell(g, ev->choice, CORE_REASON_NONE, out);
    return r < 0 ? r : stopped;
}

int generation_token(struct generation *g, const struct core_event *ev, struct event_list *out)
{
    int r = add_token(g, ev, out);

    if (r < 0) {
        g->choices[ev->choice].done = true;
        g->error = r;
    }
    return r;
}

void generation_choice_done(struct generation *g, const struct core_event *ev,
                            struct event_list *out)
{
    struct choice *c = &g->choices[ev->choice];
    int r = -ENOMEM;

    if (c->done) /* a stop string has ended it */
        return;
    c->done = true;
    if (ev->reason != CORE_REASON_NO_MEMORY)
        r = end_choice(g, ev->choice, ev->reason, out);
    if (r < 0)
        g->error = r;
}
