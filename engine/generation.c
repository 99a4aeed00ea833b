/* generation.c - the answer to one generate request as it grows: its choices' text streams, the
 * parts of their text and, for a request that does not stream, all that each has so far.
 *
 * Turns core events into engine events. Engine thread only. */
#include "engine/engine_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

enum { CHARGED_TOKENS = 64 };

struct buffer {
    void *data;
    size_t n, cap; /* entries */
};

struct call { /* bytes of it in call_text, where its id follows */
    size_t name, arguments;
};

enum { CALL_ID_BYTES = sizeof("call_") - 1 + 16 };

struct choice {
    struct text_stream *stream;
    struct answer_parser answer;
    bool done;
    size_t n_tokens;    /* sampled */
    struct buffer held; /* text of which the parser is not certain */
    /* What the next delta will hold: the whole answer of a request that does not stream. */
    struct buffer ids, logprobs, text, reasoning, calls, call_text;
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
                   const struct tokenizer *tokenizer, const struct answer_parser *answer)
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
        g->choices[i].answer = *answer;
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
        struct choice *c = &g->choices[i];

        text_stream_free(c->stream);
        free(c->held.data);
        free(c->ids.data);
        free(c->logprobs.data);
        free(c->text.data);
        free(c->reasoning.data);
        free(c->calls.data);
        free(c->call_text.data);
    }
    free(g);
}

int generation_error(const struct generation *g)
{
    return g->error;
}

bool generation_is_over(const struct generation *g, int32_t choice)
{
    return g->choices[choice].done;
}

int32_t generation_n_tokens(const struct generation *g)
{
    size_t n = 0;

    for (int32_t i = 0; i < g->request->n; i++)
        n += g->choices[i].n_tokens;
    return (int32_t)n;
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

static int append_text(const struct generation *g, struct buffer *b, struct text piece)
{
    return append(g, b, piece.data, piece.len, 1);
}

/* Tool calls get ids, by which later messages name them: at random, because those of several
 * answers, and of several runs of the daemon, meet in one conversation. */
static int append_call_id(const struct generation *g, struct choice *c)
{
    char id[CALL_ID_BYTES + 1];
    uint64_t number;

    if (getrandom(&number, sizeof(number), 0) != sizeof(number))
        return -ENOMEM; /* does not happen to 8 bytes once the kernel has entropy */
    snprintf(id, sizeof(id), "call_%016" PRIx64, number);
    return append_text(g, &c->call_text, (struct text){id, CALL_ID_BYTES});
}

/* Appends a tool call, or what is none as content: its braces match, but it is not JSON, or has no
 * name. */
static int append_call(const struct generation *g, struct choice *c, struct text json,
                       struct text source)
{
    struct text arguments;
    struct call call;
    char *name;
    int r = answer_read_call(json, &name, &call.name, &arguments);

    if (r == -EINVAL) {
        answer_parser_reject(&c->answer);
        return append_text(g, &c->text, source);
    }
    if (r < 0)
        return r;
    call.arguments = arguments.len;
    r = append_text(g, &c->call_text, (struct text){name, call.name});
    if (r == 0)
        r = append_text(g, &c->call_text, arguments);
    if (r == 0)
        r = append_call_id(g, c);
    if (r == 0)
        r = append(g, &c->calls, &call, 1, sizeof(call));
    free(name);
    return r;
}

/* Adds text to the parts that it belongs to. */
static int add_text(const struct generation *g, struct choice *c, struct text piece, bool end)
{
    struct answer_part part;
    struct text held;
    int r;

    if (!c->answer.format.reasoning && !c->answer.format.tool_calls)
        return append_text(g, &c->text, piece);
    r = append_text(g, &c->held, piece);
    held = (struct text){c->held.data, c->held.n};
    while (r == 0 && (part = answer_parser_next(&c->answer, held, end)).used) {
        if (part.kind == ANSWER_REASONING)
            r = append_text(g, &c->reasoning, part.text);
        else if (part.kind == ANSWER_CONTENT)
            r = append_text(g, &c->text, part.text);
        else if (part.kind == ANSWER_TOOL_CALL)
            r = append_call(g, c, part.text, (struct text){held.data, part.used});
        held.data += part.used;
        held.len -= part.used;
    }
    if (held.len && held.len < c->held.n)
        memmove(c->held.data, held.data, held.len);
    c->held.n = held.len;
    return r;
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
static void *move_out(struct buffer *b, size_t size, char **at)
{
    char *copy = *at;

    if (b->n)
        memcpy(copy, b->data, b->n * size);
    *at += b->n * size;
    b->n = 0;
    return copy;
}

static struct text move_text(struct buffer *b, char **at)
{
    const size_t n = b->n;

    return (struct text){move_out(b, 1, at), n};
}

/* Copies the texts of tool calls to *at, one behind the other. */
static void move_calls(struct choice *c, struct chat_tool_call *out, char **at)
{
    const struct call *calls = c->calls.data;
    const char *text = move_text(&c->call_text, at).data;

    for (size_t i = 0; i < c->calls.n; i++) {
        out[i] = (struct chat_tool_call){
            .name = {text, calls[i].name},
            .arguments_json = {text + calls[i].name, calls[i].arguments},
            .id = {text + calls[i].name + calls[i].arguments, CALL_ID_BYTES},
        };
        text += calls[i].name + calls[i].arguments + CALL_ID_BYTES;
    }
    c->calls.n = 0;
}

/* Pushes what the choice has gathered as one delta, in one allocation. */
static int tell(struct generation *g, int32_t choice, enum core_reason reason,
                struct event_list *out)
{
    struct choice *c = &g->choices[choice];
    /* No term is more than a buffer's capacity, which has been charged. */
    const size_t bytes = sizeof(struct engine_event) + c->calls.n * sizeof(struct chat_tool_call) +
                         c->logprobs.n * sizeof(struct token_logprobs) +
                         c->ids.n * sizeof(int32_t) + c->text.n + c->reasoning.n + c->call_text.n;
    struct engine_event *d = malloc(bytes);
    char *at = (char *)(d + 1);

    if (!d)
        return -ENOMEM;
    *d = (struct engine_event){.type = ENGINE_DELTA,
                               .request = g->request->id,
                               .choice = choice,
                               .reason = reason,
                               .calls = (struct chat_tool_call *)(void *)at,
                               .n_calls = c->calls.n,
                               .n_ids = c->ids.n,
                               .bytes = bytes};
    at += d->n_calls * sizeof(*d->calls);
    if (c->logprobs.n)
        d->logprobs = move_out(&c->logprobs, sizeof(*d->logprobs), &at);
    d->ids = move_out(&c->ids, sizeof(*d->ids), &at);
    d->text = move_text(&c->text, &at);
    d->reasoning = move_text(&c->reasoning, &at);
    move_calls(c, d->calls, &at);
    event_list_push(out, d);
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
        r = add_text(g, c, rest, true);
    return r < 0 ? r : tell(g, choice, reason, out);
}

/* As generation_token, with -ENOMEM or -EDQUOT. */
static int add_token(struct generation *g, const struct core_event *ev, bool over,
                     struct event_list *out)
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
            r = add_text(g, c, piece, stopped);
        if (r < 0)
            return r;
    }
    c->done = stopped || over || ev->reason != CORE_REASON_NONE;
    if (stopped)
        r = tell(g, ev->choice, CORE_REASON_STOP, out);
    else if (c->done)
        r = end_choice(g, ev->choice, over ? CORE_REASON_STOP : ev->reason, out);
    else if (g->request->stream)
        r = tell(g, ev->choice, CORE_REASON_NONE, out);
    return r < 0 ? r : stopped || over;
}

void generation_fail(struct generation *g, int32_t choice, int error)
{
    g->choices[choice].done = true;
    g->error = error;
}

int generation_token(struct generation *g, const struct core_event *ev, bool over,
                     struct event_list *out)
{
    int r = add_token(g, ev, over, out);

    if (r < 0)
        generation_fail(g, ev->choice, r);
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
