/* answer.c - see answer.h. */
#include "client/openai/answer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "client/openai/held.h"
#include "client/openai/render.h"

enum { MAX_CHOICES = 1024 }; /* of all prompts; nvllmd has a lower limit for each */

/* A request of nvllmd. */
struct part {
    struct upstream_request upstream; /* first, so that one is the other */
    struct answer *answer;
    uint32_t first; /* of its choices */
    bool open;      /* its last event has not come */
};

struct choice {
    struct render_choice c;
    struct buf json; /* the whole of it, without stream */
};

struct answer {
    TAILQ_ENTRY(answer) link;
    struct gateway *gateway;
    struct http_conn *conn; /* NULL: the client has its answer, or has gone */
    struct part *parts;     /* [n_parts] */
    struct choice *choices; /* [n_choices] */
    size_t n_parts, n_open;
    uint32_t n_choices;
    struct render how;
    bool include_usage;
    bool begun;            /* the stream has */
    struct nvllm_done sum; /* of the parts */
    struct buf head;       /* of each object: {"id": …, "choices":[ */
    struct held_list held; /* deltas with tokens whose text is not known yet */
};

/* ---- the end */

static void free_answer(struct answer *a)
{
    TAILQ_REMOVE(&a->gateway->answers, a, link);
    held_drop(&a->held);
    for (uint32_t i = 0; i < a->n_choices; i++)
        buf_deinit(&a->choices[i].json);
    buf_deinit(&a->head);
    free(a->choices);
    free(a->parts);
    free(a);
}

static void cancel_parts(struct answer *a)
{
    for (size_t i = 0; i < a->n_parts; i++)
        if (a->parts[i].open)
            upstream_cancel(a->gateway->upstream, &a->parts[i].upstream);
}

static void on_gone(void *owner)
{
    struct answer *a = owner;

    a->conn = NULL;
    cancel_parts(a);
    if (a->n_open == 0)
        free_answer(a);
}

static void fail(struct answer *a, const struct api_error *e)
{
    if (!a->conn)
        return;
    if (a->begun) {
        struct buf *out = http_stream(a->conn);

        buf_lit(out, "data: ");
        api_put_error(out, e);
        buf_lit(out, "\n\n");
        http_stream_end(a->conn);
    } else {
        api_reply_error(a->conn, e);
    }
    a->conn = NULL;
    cancel_parts(a);
}

static void end_stream(struct answer *a)
{
    struct buf *out = http_stream(a->conn);

    if (a->include_usage) {
        buf_lit(out, "data: ");
        buf_add(out, a->head.data, a->head.len);
        buf_lit(out, "],\"usage\":");
        render_usage(out, &a->sum);
        buf_lit(out, "}\n\n");
    }
    buf_lit(out, "data: [DONE]\n\n");
    http_stream_end(a->conn);
}

static void reply(struct answer *a)
{
    struct buf out = {0};
    bool complete = true;
    struct api_error e;

    buf_add(&out, a->head.data, a->head.len);
    for (uint32_t i = 0; i < a->n_choices; i++) {
        complete = complete && a->choices[i].c.begun;
        if (i > 0)
            buf_lit(&out, ",");
        buf_add(&out, a->choices[i].json.data, a->choices[i].json.len);
        out.failed = out.failed || a->choices[i].json.failed;
        buf_deinit(&a->choices[i].json);
    }
    buf_lit(&out, "],\"usage\":");
    render_usage(&out, &a->sum);
    buf_lit(&out, "}");
    if (!complete) {
        api_fail(&e, 500, "protocol", "", "nvllmd has left out an answer.");
        api_reply_error(a->conn, &e);
    } else if (out.failed || a->head.failed) {
        api_fail(&e, 503, "out_of_memory", "", "There is no memory for the answer.");
        api_reply_error(a->conn, &e);
    } else {
        http_reply(a->conn, 200, "", out.data, out.len);
    }
    buf_deinit(&out);
}

/* Sends the end once all has come; frees the answer once nobody waits for it. */
static void settle(struct answer *a)
{
    if (a->n_open > 0)
        return;
    if (a->conn && STAILQ_EMPTY(&a->held)) {
        if (a->begun)
            end_stream(a);
        else
            reply(a);
        a->conn = NULL;
    }
    if (!a->conn)
        free_answer(a);
}

/* ---- events */

/* A choice that has no proper end. */
static bool check_finish(struct answer *a, enum nvllm_finish finish)
{
    struct api_error e;

    if (finish == NVLLM_FINISH_DEADLINE)
        api_fail(&e, 504, "deadline", "", "The deadline of the request has passed.");
    else if (finish == NVLLM_FINISH_CANCELLED)
        api_fail(&e, 503, "cancelled", "", "The request was cancelled at the server.");
    else if (finish == NVLLM_FINISH_ERROR)
        api_fail(&e, 500, "model_error", "", "The model computed no valid numbers.");
    else
        return true;
    fail(a, &e);
    return false;
}

static void put_chunk(struct answer *a, struct choice *choice, const struct nvllm_delta *delta)
{
    struct buf *out;

    if (render_is_empty(&a->how, &choice->c, delta))
        return;
    if (!a->begun)
        http_stream_begin(a->conn);
    a->begun = true;
    out = http_stream(a->conn);
    buf_lit(out, "data: ");
    buf_add(out, a->head.data, a->head.len);
    render_choice(out, &a->how, &choice->c, delta);
    if (a->include_usage)
        buf_lit(out, "],\"usage\":null}\n\n");
    else
        buf_lit(out, "]}\n\n");
}

static void deliver(struct answer *a, uint32_t index, const struct nvllm_delta *delta)
{
    struct choice *choice = &a->choices[index];
    struct api_error e;

    if (!check_finish(a, delta->finish))
        return;
    if (a->how.stream) {
        put_chunk(a, choice, delta);
    } else if (choice->c.begun) {
        api_fail(&e, 500, "protocol", "", "nvllmd has sent one answer in several parts.");
        fail(a, &e);
    } else {
        render_choice(&choice->json, &a->how, &choice->c, delta);
        if (!http_is_over(a->gateway->http, choice->json.len))
            return;
        api_fail(&e, 503, "out_of_memory", "",
                 "There is no memory for an answer of this size: ask for a stream.");
        fail(a, &e);
    }
}

/* Delivers what has been held back, as far as its tokens are known. */
static void deliver_held(struct answer *a)
{
    enum tokens_found found = TOKENS_KNOWN;
    struct api_error e;
    struct held *held;

    while (a->conn && found == TOKENS_KNOWN && (held = STAILQ_FIRST(&a->held)) != NULL) {
        found = held_tokens(a->gateway->tokens, &held->delta);
        if (found == TOKENS_KNOWN) {
            deliver(a, held->delta.choice, &held->delta);
            held_drop_first(&a->held);
        }
    }
    if (found == TOKENS_FAILED) {
        api_fail(&e, 503, "unavailable", "", "nvllmd did not return the text of a token.");
        fail(a, &e);
    }
}

static void take_delta(struct answer *a, uint32_t index, const struct nvllm_delta *delta)
{
    struct api_error e;

    if (!a->how.tokens) {
        deliver(a, index, delta);
    } else if (STAILQ_EMPTY(&a->held) && held_tokens(a->how.tokens, delta) == TOKENS_KNOWN) {
        deliver(a, index, delta);
    } else if (held_add(&a->held, delta, index)) {
        deliver_held(a);
    } else {
        api_fail(&e, 503, "out_of_memory", "", "There is no memory for the answer.");
        fail(a, &e);
    }
}

static void take_done(struct answer *a, const struct nvllm_done *done)
{
    a->sum.prompt_tokens += done->prompt_tokens;
    a->sum.cached_tokens += done->cached_tokens;
    a->sum.completion_tokens += done->completion_tokens;
}

static void on_event(struct upstream_request *q, const struct nvllm_event *event)
{
    struct part *part = (struct part *)q;
    struct answer *a = part->answer;
    struct api_error e;

    if (event->type == NVLLM_EVENT_DELTA) {
        if (a->conn)
            take_delta(a, part->first + event->delta->choice, event->delta);
        return;
    }
    part->open = false;
    a->n_open--;
    a->gateway->n_requests--;
    if (event->type == NVLLM_EVENT_DONE) {
        take_done(a, event->done);
    } else {
        api_error_of(&e, event->error);
        fail(a, &e);
    }
    settle(a);
}

void answers_resume(struct gateway *gateway)
{
    struct answer *a, *next;

    for (a = TAILQ_FIRST(&gateway->answers); a; a = next) {
        next = TAILQ_NEXT(a, link);
        if (STAILQ_EMPTY(&a->held))
            continue;
        deliver_held(a);
        settle(a);
    }
}

void answers_lose_held(struct gateway *gateway)
{
    struct answer *a, *next;
    struct api_error e;

    api_fail(&e, 503, "unavailable", "", "nvllmd exited before it returned the text of a token.");
    for (a = TAILQ_FIRST(&gateway->answers); a; a = next) {
        next = TAILQ_NEXT(a, link);
        if (STAILQ_EMPTY(&a->held))
            continue;
        fail(a, &e);
        settle(a);
    }
}

void answers_end(struct gateway *gateway, const struct api_error *why)
{
    struct answer *a, *next;

    for (a = TAILQ_FIRST(&gateway->answers); a; a = next) {
        next = TAILQ_NEXT(a, link);
        fail(a, why);
        settle(a);
    }
}

/* ---- the start */

/* {"id":"chatcmpl-…","object":"…","created":…,"model":"…","choices":[ */
static void put_head(struct answer *a, const char *model)
{
    const char *object = !a->how.is_chat ? "text_completion"
                         : a->how.stream ? "chat.completion.chunk"
                                         : "chat.completion";
    uint64_t id[2] = {0};

    (void)!getrandom(id, sizeof(id), 0); /* does not fail for so few bytes */
    buf_printf(&a->head, "{\"id\":\"%s-%016" PRIx64 "%016" PRIx64 "\",\"object\":\"%s\",",
               a->how.is_chat ? "chatcmpl" : "cmpl", id[0], id[1], object);
    buf_printf(&a->head, "\"created\":%lld,\"model\":", (long long)time(NULL));
    buf_json_string(&a->head, model, strlen(model));
    buf_lit(&a->head, ",\"choices\":[");
}

static struct answer *new_answer(const struct answer_options *o, const char *model)
{
    struct answer *a = calloc(1, sizeof(*a));

    if (!a)
        return NULL;
    a->parts = calloc(o->n_requests, sizeof(*a->parts));
    a->choices = calloc(o->n_requests * o->n, sizeof(*a->choices));
    if (!a->parts || !a->choices) {
        free(a->parts);
        free(a->choices);
        free(a);
        return NULL;
    }
    a->gateway = o->gateway;
    a->conn = o->conn;
    a->n_parts = o->n_requests;
    a->n_choices = (uint32_t)o->n_requests * o->n;
    a->how = (struct render){o->is_chat, o->stream, o->logprobs ? o->gateway->tokens : NULL};
    a->include_usage = o->include_usage;
    STAILQ_INIT(&a->held);
    for (uint32_t i = 0; i < a->n_choices; i++)
        a->choices[i].c.index = i;
    put_head(a, model);
    TAILQ_INSERT_TAIL(&o->gateway->answers, a, link);
    return a;
}

static bool admit(const struct answer_options *o, struct api_error *e)
{
    if (o->n == 0 || o->n > MAX_CHOICES / o->n_requests)
        return api_fail(e, 400, "invalid_value", "n",
                        "n must be from 1 to %d divided by the number of prompts.", MAX_CHOICES);
    return gateway_admits(o->gateway, o->n_requests, e);
}

void answer_start(const struct answer_options *o)
{
    struct nvllm_error err;
    struct api_error e;
    const char *model = upstream_model(o->gateway->upstream, &err);
    struct answer *a;

    if (!admit(o, &e)) {
        api_reply_error(o->conn, &e);
        return;
    }
    a = new_answer(o, model ? model : "");
    if (!a) {
        api_fail(&e, 503, "out_of_memory", "", "There is no memory for the answer.");
        api_reply_error(o->conn, &e);
        return;
    }
    http_watch(o->conn, on_gone, a);
    for (size_t i = 0; i < a->n_parts && a->conn; i++) {
        struct part *part = &a->parts[i];

        *part = (struct part){.upstream = {.event = on_event},
                              .answer = a,
                              .first = (uint32_t)i * o->n};
        part->open =
            upstream_generate(o->gateway->upstream, &part->upstream, &o->requests[i], &err);
        a->n_open += part->open;
        o->gateway->n_requests += part->open;
        if (!part->open) {
            api_error_of(&e, &err);
            fail(a, &e);
        }
    }
    if (a->n_open == 0)
        free_answer(a);
}
