/* generation.c - see generation.h. */
#include "engine/generation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

enum { FIRST_TOKENS = 64 };

struct choice {
    struct text_stream *stream;
    bool done;
    size_t n_tokens, cap; /* sampled; charged for */
    /* The whole answer of a request that does not stream. */
    int32_t *ids;                     /* [cap] */
    struct engine_logprobs *logprobs; /* [cap] */
    char *text;
    size_t len, cap_text;
};

struct generation {
    const struct engine_request *request;
    bool logprobs;
    int error;
    struct choice choices[]; /* [request->n] */
};

bool generation_bytes(size_t *out, const struct engine_request *r)
{
    size_t choice = sizeof(struct choice) + text_stream_bytes(r->n_stops), bytes;

    if (!size_mul(&bytes, (size_t)r->n, choice) ||
        !size_add(&bytes, bytes, sizeof(struct generation)))
        return false;
    *out = bytes;
    return true;
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
        free(g->choices[i].ids);
        free(g->choices[i].logprobs);
        free(g->choices[i].text);
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

static int gather_text(const struct generation *g, struct choice *c, struct text piece)
{
    if (piece.len > c->cap_text - c->len) {
        size_t need, cap;
        char *text;
        int r;

        if (!size_add(&need, c->len, piece.len) || !size_mul(&cap, need, 2))
            return -ENOMEM;
        r = charge(g, cap - c->cap_text);
        if (r < 0)
            return r;
        text = realloc(c->text, cap);
        if (!text)
            return -ENOMEM;
        c->text = text;
        c->cap_text = cap;
    }
    if (piece.len)
        memcpy(c->text + c->len, piece.data, piece.len);
    c->len += piece.len;
    return 0;
}

/* Charges for another token, and makes room for it unless the request streams. The core keeps the
 * ids too, in an array that grows alike. */
static int make_room(const struct generation *g, struct choice *c)
{
    const bool gather = !g->request->stream;
    size_t each = sizeof(int32_t), cap = c->cap ? c->cap * 2 : FIRST_TOKENS;
    int r;

    if (c->n_tokens < c->cap)
        return 0;
    if (gather)
        each += sizeof(*c->ids) + (g->logprobs ? sizeof(*c->logprobs) : 0);
    r = charge(g, (cap - c->cap) * each);
    if (r < 0)
        return r;
    if (gather) {
        int32_t *ids = reallocarray(c->ids, cap, sizeof(*ids));

        if (!ids)
            return -ENOMEM;
        c->ids = ids;
    }
    if (gather && g->logprobs) {
        struct engine_logprobs *lps = reallocarray(c->logprobs, cap, sizeof(*lps));

        if (!lps)
            return -ENOMEM;
        c->logprobs = lps;
    }
    c->cap = cap;
    return 0;
}

/* Pushes a delta of at most one token, and a piece of text. */
static int tell_new(struct generation *g, const struct core_event *ev, bool token,
                    const struct engine_logprobs *lp, struct text piece, enum core_reason reason,
                    struct event_list *out)
{
    struct engine_event *d =
        engine_event_new(ENGINE_DELTA, g->request->id, token ? 1 : 0, lp != NULL, piece.len);

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

/* Pushes the whole answer of a choice as one delta. */
static int tell_gathered(struct generation *g, int32_t choice, enum core_reason reason,
                         struct event_list *out)
{
    struct choice *c = &g->choices[choice];
    struct engine_event *d =
        engine_event_new(ENGINE_DELTA, g->request->id, c->n_tokens, g->logprobs, c->len);

    if (!d)
        return -ENOMEM;
    d->choice = choice;
    d->reason = reason;
    if (c->n_tokens)
        memcpy(d->ids, c->ids, c->n_tokens * sizeof(*c->ids));
    if (c->n_tokens && g->logprobs)
        memcpy(d->logprobs, c->logprobs, c->n_tokens * sizeof(*c->logprobs));
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

/* Adds one token: 0, 1 where a stop string ended the choice, -ENOMEM or -EDQUOT. */
static int add_token(struct generation *g, const struct core_event *ev, struct event_list *out)
{
    struct choice *c = &g->choices[ev->choice];
    struct engine_logprobs store, *lp = g->logprobs ? &store : NULL;
    enum core_reason reason = ev->reason;
    struct text piece = {0}, rest = {0};
    bool stopped = false;
    int r;

    must(!c->done);
    r = make_room(g, c);
    if (r < 0)
        return r;
    if (lp)
        logprobs_of(lp, ev);
    /* A stop id is reported as a token but is not part of the text. */
    if (reason != CORE_REASON_STOP) {
        text_stream_ignore_stops(c->stream, c->n_tokens < (size_t)g->request->sampling.min_tokens);
        r = text_stream_push(c->stream, ev->token, &piece);
        if (r < 0)
            return r;
        stopped = r == TEXT_STREAM_STOP;
    }
    if (!g->request->stream) {
        c->ids[c->n_tokens] = ev->token;
        if (lp)
            c->logprobs[c->n_tokens] = *lp;
    }
    c->n_tokens++;
    if (stopped)
        reason = CORE_REASON_STOP;
    c->done = reason != CORE_REASON_NONE;
    if (g->request->stream && !c->done)
        return tell_new(g, ev, true, lp, piece, reason, out);

    /* The stream reuses its buffer: the first piece is copied before the rest comes out. */
    r = gather_text(g, c, piece);
    if (r < 0 || !c->done)
        return r;
    if (!stopped) {
        r = text_stream_finish(c->stream, &rest);
        if (r == TEXT_STREAM_STOP) /* in its last bytes; the core has ended the choice */
            reason = CORE_REASON_STOP;
        r = r < 0 ? r : gather_text(g, c, rest);
        if (r < 0)
            return r;
    }
    if (g->request->stream)
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
        g->error = r;
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

    if (c->done) /* a stop string has ended it */
        return;
    c->done = true;
    if (reason == CORE_REASON_NO_MEMORY) {
        g->error = -ENOMEM;
        return;
    }
    r = text_stream_finish(c->stream, &rest);
    if (r == TEXT_STREAM_STOP)
        reason = CORE_REASON_STOP;
    if (r >= 0 && g->request->stream) {
        r = tell_new(g, ev, false, NULL, rest, reason, out);
    } else if (r >= 0) {
        r = gather_text(g, c, rest);
        r = r < 0 ? r : tell_gathered(g, ev->choice, reason, out);
    }
    if (r < 0)
        g->error = r;
}
