/* replies.c - see replies.h. Messages lie on the stack and point into the event. */
#include "daemon/replies.h"

#include <errno.h>
#include <stdlib.h>

#include "proto/unpack.h"
#include "proto/utf8.h"

static ProtobufCBinaryData binary(struct text t)
{
    return (ProtobufCBinaryData){t.len, (uint8_t *)(uintptr_t)t.data};
}

void reply_fill_call(Nvllm__V1__ToolCall *out, const struct chat_tool_call *call)
{
    nvllm__v1__tool_call__init(out);
    out->has_name = out->has_arguments = true;
    out->name = binary(call->name);
    out->arguments = binary(call->arguments_json);
    out->has_id = call->id.len > 0;
    out->id = binary(call->id);
}

int reply_put(struct connection *c, uint64_t id, Nvllm__V1__ServerFrame__EventCase event,
              void *message)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;

    f.has_id = true;
    f.id = id;
    f.event_case = event;
    f.status = message; /* whichever it is: the oneof is a union of pointers */
    return connection_put(c, &f.base, NULL, 0);
}

int reply_prepare(struct engine_packed *out, Nvllm__V1__ServerFrame__EventCase event, void *message,
                  size_t most_bytes)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;

    f.event_case = event;
    f.status = message; /* as in reply_put() */
    return frame_body_pack(&out->data, &out->bytes, &f.base, most_bytes);
}

static const Nvllm__V1__FinishReason finish_reasons[] = {
    [CORE_REASON_NONE] = NVLLM__V1__FINISH_REASON__FINISH_NONE,
    [CORE_REASON_STOP] = NVLLM__V1__FINISH_REASON__FINISH_STOP,
    [CORE_REASON_LENGTH] = NVLLM__V1__FINISH_REASON__FINISH_LENGTH,
    [CORE_REASON_CANCELLED] = NVLLM__V1__FINISH_REASON__FINISH_CANCELLED,
    [CORE_REASON_DEADLINE] = NVLLM__V1__FINISH_REASON__FINISH_DEADLINE,
    [CORE_REASON_NUMERICS] = NVLLM__V1__FINISH_REASON__FINISH_ERROR,
    [CORE_REASON_NO_MEMORY] = NVLLM__V1__FINISH_REASON__FINISH_ERROR,
};

static int put_tool_calls(struct unpacked *u, Nvllm__V1__Delta *d, const struct engine_event *ev)
{
    Nvllm__V1__ToolCall *calls = unpacked_list(u, &d->tool_calls, ev->n_calls, sizeof(*calls));

    if (!calls)
        return -ENOMEM;
    d->n_tool_calls = ev->n_calls;
    for (size_t i = 0; i < ev->n_calls; i++)
        reply_fill_call(&calls[i], &ev->calls[i]);
    return 0;
}

Nvllm__V1__FinishReason reply_finish(enum core_reason reason)
{
    return finish_reasons[reason];
}

int reply_delta(struct connection *c, uint64_t id, const struct engine_event *ev)
{
    const size_t n = ev->logprobs ? ev->n_ids : 0;
    struct unpacked *u = n || ev->n_calls ? unpacked_new() : NULL;
    Nvllm__V1__Delta d = NVLLM__V1__DELTA__INIT;
    Nvllm__V1__TokenLogprobs *logprobs = unpacked_list(u, &d.logprobs, n, sizeof(*logprobs));
    int r = n && !logprobs ? -ENOMEM : 0;

    if (r == 0 && ev->n_calls)
        r = put_tool_calls(u, &d, ev);

    d.has_choice = true;
    d.choice = (uint32_t)ev->choice;
    d.has_text = ev->text.len > 0;
    d.text = binary(ev->text);
    d.has_reasoning = ev->reasoning.len > 0;
    d.reasoning = binary(ev->reasoning);
    d.n_token_ids = ev->n_ids;
    d.token_ids = ev->ids;
    d.has_finish_reason = ev->reason != CORE_REASON_NONE;
    d.finish_reason = finish_reasons[ev->reason];
    d.n_logprobs = n;
    for (size_t i = 0; r == 0 && i < n; i++) {
        const struct token_logprobs *from = &ev->logprobs[i];

        nvllm__v1__token_logprobs__init(&logprobs[i]);
        logprobs[i].has_logprob = true;
        logprobs[i].logprob = from->logprob;
        logprobs[i].n_top_ids = logprobs[i].n_top_logprobs = (size_t)from->n_top;
        logprobs[i].top_ids = (int32_t *)(uintptr_t)from->top_ids;
        logprobs[i].top_logprobs = (float *)(uintptr_t)from->top_logprobs;
    }
    if (r == 0)
        r = reply_put(c, id, EVENT(DELTA), &d);
    unpacked_free(u);
    return r;
}

static double ms_between(uint64_t from_us, uint64_t to_us)
{
    return to_us > from_us ? (double)(to_us - from_us) / 1000 : 0;
}

static void fill_usage(Nvllm__V1__Usage *u, Nvllm__V1__Timing *t, const struct core_usage *usage)
{
    nvllm__v1__usage__init(u);
    nvllm__v1__timing__init(t);
    u->has_prompt_tokens = u->has_cached_tokens = true;
    u->has_completion_tokens = u->has_preemptions = true;
    u->prompt_tokens = (uint32_t)usage->prompt_tokens;
    u->cached_tokens = (uint32_t)usage->cached_tokens;
    u->completion_tokens = (uint32_t)usage->completion_tokens;
    u->preemptions = (uint32_t)usage->preemptions;
    t->has_queue_ms = t->has_total_ms = true;
    t->has_ttft_ms = usage->first_us != 0;
    t->queue_ms = ms_between(usage->arrival_us, usage->start_us ? usage->start_us : usage->end_us);
    t->ttft_ms = ms_between(usage->arrival_us, usage->first_us);
    t->total_ms = ms_between(usage->arrival_us, usage->end_us);
}

struct done {
    Nvllm__V1__Done message;
    Nvllm__V1__Usage usage;
    Nvllm__V1__Timing timing;
};

static void fill_done(struct done *d, const struct core_usage *usage)
{
    nvllm__v1__done__init(&d->message);
    fill_usage(&d->usage, &d->timing, usage);
    d->message.usage = &d->usage;
    d->message.timing = &d->timing;
}

int reply_done(struct connection *c, uint64_t id, const struct core_usage *usage)
{
    struct done d;

    fill_done(&d, usage);
    return reply_put(c, id, EVENT(DONE), &d.message);
}

int reply_prepare_done(struct engine_packed *out, const struct core_usage *usage)
{
    struct done d;

    fill_done(&d, usage);
    return reply_prepare(out, EVENT(DONE), &d.message, SIZE_MAX);
}

int reply_embedding(struct connection *c, uint64_t id, const struct engine_event *ev)
{
    Nvllm__V1__Embedding m = NVLLM__V1__EMBEDDING__INIT;
    Nvllm__V1__Usage u;
    Nvllm__V1__Timing t;

    fill_usage(&u, &t, &ev->usage);
    m.usage = &u;
    m.timing = &t;
    m.n_values = ev->n_embedding;
    m.values = ev->embedding;
    return reply_put(c, id, EVENT(EMBEDDING), &m);
}

int reply_pack(struct engine_packed *out, const struct engine_event *answer,
               const struct tokenizer *tokenizer, size_t most_bytes)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;
    Nvllm__V1__Tokens tokens = NVLLM__V1__TOKENS__INIT;
    Nvllm__V1__Text text = NVLLM__V1__TEXT__INIT;
    int r;

    if (answer->type == ENGINE_TOKENS) {
        f.event_case = EVENT(TOKENS);
        f.tokens = &tokens;
        tokens.n_ids = tokens.n_tokens = answer->n_ids;
        tokens.ids = answer->ids;
        tokens.tokens = calloc(answer->n_ids + 1, sizeof(*tokens.tokens));
        if (!tokens.tokens)
            return -ENOMEM;
        for (size_t i = 0; i < answer->n_ids; i++)
            tokens.tokens[i] = binary(tokenizer_token_bytes(tokenizer, answer->ids[i]));
    } else {
        f.event_case = EVENT(TEXT);
        f.text = &text;
        text.has_text = true;
        text.text = binary(answer->text);
    }
    r = frame_body_pack(&out->data, &out->bytes, &f.base, most_bytes);
    free(tokens.tokens);
    return r;
}

int reply_put_packed(struct connection *c, uint64_t id, struct engine_packed *packed)
{
    Nvllm__V1__ServerFrame head = NVLLM__V1__SERVER_FRAME__INIT;
    int r;

    head.has_id = true;
    head.id = id;
    r = connection_put(c, &head.base, packed->data, packed->bytes);
    if (r == CONNECTION_OK)
        *packed = (struct engine_packed){NULL, 0};
    return r;
}

const ProtobufCMessage *reply_error_frame(struct error_frame *f, const struct refusal *e)
{
    const bool unavailable = e->code == CODE(UNAVAILABLE);
    Nvllm__V1__Error *m = &f->error;

    f->refusal = *e;
    utf8_clean(f->refusal.message.text); /* it may quote the client, and be cut in a character */
    nvllm__v1__server_frame__init(&f->frame);
    nvllm__v1__error__init(m);
    f->frame.has_id = true;
    f->frame.event_case = EVENT(ERROR);
    f->frame.error = m;
    m->has_code = m->has_retryable = true;
    m->code = e->code;
    m->message = f->refusal.message.text;
    m->field = *e->field ? f->refusal.field : NULL;
    m->retryable = unavailable || e->code == CODE(BUSY);
    m->retry_after_ms = e->retry_after_ms || unavailable ? e->retry_after_ms : 100;
    m->has_retry_after_ms = m->retryable && m->retry_after_ms > 0;
    m->has_reconnect = m->reconnect = e->reconnect;
    m->limit = reply_text(e->limit);
    m->has_limit_value = e->limit != NULL;
    m->limit_value = e->limit_value;
    return &f->frame.base;
}

int reply_error(struct connection *c, uint64_t id, const struct refusal *e)
{
    struct error_frame f;

    (void)reply_error_frame(&f, e);
    f.frame.id = id;
    return connection_put(c, &f.frame.base, NULL, 0);
}

Nvllm__V1__ErrorCode reply_error_code(enum engine_error error)
{
    static const Nvllm__V1__ErrorCode codes[] = {
        [ENGINE_E_INVALID] = CODE(INVALID),         [ENGINE_E_TOO_LONG] = CODE(TOO_LONG),
        [ENGINE_E_PROMPT_LIMIT] = CODE(TOO_LONG),   [ENGINE_E_UNAVAILABLE] = CODE(UNAVAILABLE),
        [ENGINE_E_UNSUPPORTED] = CODE(UNSUPPORTED), [ENGINE_E_DENIED] = CODE(DENIED),
        [ENGINE_E_DEADLINE] = CODE(DEADLINE),       [ENGINE_E_CANCELLED] = CODE(CANCELLED),
        [ENGINE_E_ANSWER_LIMIT] = CODE(TOO_LONG),   [ENGINE_E_MEMORY_LIMIT] = CODE(BUSY),
        [ENGINE_E_INTERNAL] = CODE(INTERNAL),
    };

    return codes[error];
}
