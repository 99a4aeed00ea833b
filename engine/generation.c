/* generation.c - see generation.h. */
#include "engine/generation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

struct choice {
    struct text_stream *stream;
    int32_t n_tokens;
    bool done;
    /* Gathered for the one event of a request that does not stream. */
    int32_t *ids;
    struct engine_logprobs *logprobs;
    size_t n_ids, cap_ids;
    char *text;
    size_t len, cap;
};

struct generation {
    uint64_t id;
    uint64_t arrival_us;
    bool stream;
    bool logprobs;
    bool lost;                     /* an event could not be made: ends as an error */
    struct engine_event *terminal; /* NULL once pushed */
    int32_t min_tokens;
    int32_t n;
    struct choice choices[];
};

bool generation_bytes(size_t *out, const struct engine_request *r)
{
    size_t choice = sizeof(struct choice) + text_stream_bytes(r->n_stops), bytes;

    if (!size_mul(&bytes, (size_t)r->n, choice) ||
        !size_add(&bytes, bytes, sizeof(struct generation) + sizeof(struct engine_event)) ||
        !size_add(&bytes, bytes, sizeof(struct err)))
        return false;
    *out = bytes;
    return true;
}

int generation_new(struct generation **out, const struct engine_request *r,
                   const struct tokenizer *tokenizer, uint64_t arrival_us)
{
    struct generation *g;
    int ret = -ENOMEM;

    must(r->n >= 1);
    g = calloc(1, sizeof(*g) + (size_t)r->n * sizeof(g->choices[0]));
    if (!g)
        return -ENOMEM;
    g->id = r->id;
    g->arrival_us = arrival_us;
    g->stream = r->stream;
    g->logprobs = r->sampling.n_logprobs >= 0;
    g->min_tokens = r->sampling.min_tokens;
    g->n = r->n;
    for (int32_t i = 0; i < g->n; i++) {
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
    for (int32_t i = 0; i < g->n; i++) {
        text_stream_free(g->choices[i].stream);
        free(g->choices[i].ids);
        free(g->choices[i].logprobs);
        free(g->choices[i].text);
    }
    free(g->terminal);
    free(g);
}

uint64_t generation_id(const struct generation *g)
{
    return g->id;
}

void generation_arm(struct generation *g, struct engine_event *terminal)
{
    must(!g->terminal);
    g->terminal = terminal;
}

static int gather_text(struct choice *c, struct text piece)
{
    if (piece.len > c->cap - c->len) {
        size_t need, cap;
        char *text;

        if (!size_add(&need, c->len, piece.len) || !size_mul(&cap, need, 2))
            return -ENOMEM;
        text = realloc(c->text, cap);
        if (!text)
            return -ENOMEM;
        c->text = text;
        c->cap = cap;
    }
    if (piece.len)
        memcpy(c->text + c->len, piece.data, piece.len);
    c->len += piece.len;
    return 0;
}

static int gather_token(struct choice *c, int32_t id, const struct engine_logprobs *lp)
{
    if (c->n_ids == c->cap_ids) {
        size_t cap = c->cap_ids ? c->cap_ids * 2 : 64;
        int32_t *ids = reallocarray(c->ids, cap, sizeof(*ids));

        if (!ids)
            return -ENOMEM;
        c->ids = ids;
        if (lp) {
            struct engine_logprobs *lps = reallocarray(c->logprobs, cap, sizeof(*lps));

            if (!lps)
                return -ENOMEM;
            c->logprobs = lps;
        }
        c->cap_ids = cap;
    }
    c->ids[c->n_ids] = id;
    if (lp)
        c->logprobs[c->n_ids] = *lp;
    c->n_ids++;
    return 0;
}

/* One event for what is new: at most one token, and a piece of text. */
static int tell_new(struct generation *g, const struct core_event *ev, bool token,
                    const struct engine_logprobs *lp, struct text piece, enum core_reason reason,
                    struct event_list *out)
{
    struct engine_event *d =
        engine_event_new(ENGINE_DELTA, g->id, token ? 1 : 0, lp != NULL, piece.len);

    if (!d)
        return -ENOMEM;
    d->choice = ev->choice;
    d->reason = reason;
    if (token)
        d->ids[0] = ev->token;
    if (token && lp)
        d->logprobs[0] = *lp;
    if (piece.len)
        memcpy(event_text_buffer(d), piece.data, piece.len);
    event_list_push(out, d);
    return 0;
}

/* One event for all that was gathered. */
static int tell_gathered(struct generation *g, int32_t choice, enum core_reason reason,
                         struct event_list *out)
{
    struct choice *c = &g->choices[choice];
    struct engine_event *d = engine_event_new(ENGINE_DELTA, g->id, c->n_ids, g->logprobs, c->len);

    if (!d)
        return -ENOMEM;
    d->choice = choice;
    d->reason = reason;
    if (c->n_ids)
        memcpy(d->ids, c->ids, c->n_ids * sizeof(*c->ids));
    if (c->n_ids && g->logprobs)
        memcpy(d->logprobs, c->logprobs, c->n_ids * sizeof(*c->logprobs));
    if (c->len)
        memcpy(event_text_buffer(d), c->text, c->len);
    event_list_push(out, d);
    return 0;
}

static void logprobs_of(struct engine_logprobs *lp, const struct core_event *ev)
{
    lp->logprob = ev->logprob;
    lp->n_top = ev->n_top;
    memcpy(lp->top_ids, ev->top_ids, sizeof(lp->top_ids));
    memcpy(lp->top_logprobs, ev->top_logprobs, sizeof(lp->top_logprobs));
}

/* Tells or gathers one token; 0, 1 when a stop string ended the choice, or -ENOMEM. */
static int add_token(struct generation *g, const struct core_event *ev, struct event_list *out)
{
    struct choice *c = &g->choices[ev->choice];
    struct engine_logprobs store, *lp = g->logprobs ? &store : NULL;
    enum core_reason reason = ev->reason;
    struct text piece = {0}, rest = {0};
    bool stopped = false;
    int r;

    must(!c->done);
    if (lp)
        logprobs_of(lp, ev);
    /* The id that ends a text is told, but is no part of the text. */
    if (reason != CORE_REASON_STOP) {
        text_stream_ignore_stops(c->stream, ++c->n_tokens <= g->min_tokens);
        r = text_stream_push(c->stream, ev->token, &piece);
        if (r < 0)
            return r;
        stopped = r == TEXT_STREAM_STOP;
    }
    if (stopped)
        reason = CORE_REASON_STOP;
    c->done = reason != CORE_REASON_NONE;
    if (g->stream && !c->done)
        return tell_new(g, ev, true, lp, piece, reason, out);

    r = g->stream ? 0 : gather_token(c, ev->token, lp);
    /* The stream's pieces share a buffer: the first is put by before the rest comes out. */
    r = r < 0 ? r : gather_text(c, piece);
    if (r < 0 || !c->done)
        return r;
    if (!stopped) {
        r = text_stream_finish(c->stream, &rest);
        if (r == TEXT_STREAM_STOP) /* with its last bytes; the core has ended the choice already */
            reason = CORE_REASON_STOP;
        r = r < 0 ? r : gather_text(c, rest);
        if (r < 0)
            return r;
    }
    if (g->stream)
        r = tell_new(g, ev, true, lp, (struct text){c->text, c->len}, reason, out);
    else
        r = tell_gathered(g, ev->choice, reason, out);
    return r < 0 ? r : stopped;
}

int generation_token(struct generation *g, const struct core_event *ev, struct event_list *out)
{
    int r = add_token(g, ev, out);

    if (r < 0) {
        g->choices[ev->choice].done = true;
        g->lost = true;
        return GENERATION_LOST;
    }
    return r ? GENERATION_STOP : GENERATION_OK;
}

void generation_choice_done(struct generation *g, const struct core_event *ev,
                            struct event_list *out)
{
    struct choice *c = &g->choices[ev->choice];
    enum core_reason reason = ev->reason;
    struct text rest;
    int r;

    if (c->done) /* a stop string of ours ended it, and was told */
        return;
    c->done = true;
    r = text_stream_finish(c->stream, &rest);
    if (r == TEXT_STREAM_STOP)
        reason = CORE_REASON_STOP;
    if (r >= 0 && g->stream)
        r = tell_new(g, ev, false, NULL, rest, reason, out);
    else if (r >= 0)
        r = gather_text(c, rest) < 0 ? -ENOMEM : tell_gathered(g, ev->choice, reason, out);
    if (r < 0)
        g->lost = true;
}

void generation_finish(struct generation *g, const struct core_usage *usage, struct event_list *out)
{
    if (g->lost) {
        generation_fail(g, "out of memory", out);
        return;
    }
    must(g->terminal);
    g->terminal->type = ENGINE_DONE;
    g->terminal->usage = *usage;
    g->terminal->usage.arrival_us = g->arrival_us;
    event_list_push(out, g->terminal);
    g->terminal = NULL;
}

void generation_fail(struct generation *g, const char *text, struct event_list *out)
{
    must(g->terminal);
    g->terminal->type = ENGINE_ERROR;
    g->terminal->error = ENGINE_E_INTERNAL;
    err_set(g->terminal->message, 0, "%s", text);
    event_list_push(out, g->terminal);
    g->terminal = NULL;
}
