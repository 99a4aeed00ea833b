/* event.c - see event.h. Frames of the daemon are untrusted input: related counts are compared,
 * numbers outside their enum become its unknown value, and absent texts become empty. */
#include "client/lib/event.h"

#include <stdlib.h>
#include <string.h>

#include "client/lib/error.h"
#include "client/lib/report.h"

static struct nvllm_text text_of(protobuf_c_boolean has, ProtobufCBinaryData b)
{
    if (!has || b.len == 0)
        return (struct nvllm_text){"", 0};
    return (struct nvllm_text){(const char *)b.data, b.len};
}

static int read_logprobs(struct event *e, const Nvllm__V1__Delta *in, const char **why)
{
    struct nvllm_logprobs *rows;

    if (in->n_logprobs == 0)
        return EVENT_OK;
    if (in->n_logprobs != in->n_token_ids) {
        *why = "a delta with another number of logprobs than of tokens";
        return EVENT_E_INVALID;
    }
    rows = unpacked_alloc(e->memory, in->n_logprobs, sizeof(*rows));
    if (!rows)
        return EVENT_E_NOMEM;
    for (size_t i = 0; i < in->n_logprobs; i++) {
        const Nvllm__V1__TokenLogprobs *row = in->logprobs[i];

        if (row->n_top_ids != row->n_top_logprobs || row->n_top_ids > UINT32_MAX) {
            *why = "logprobs with another number of values than of ids";
            return EVENT_E_INVALID;
        }
        rows[i] = (struct nvllm_logprobs){
            .logprob = row->logprob,
            .n_top = (uint32_t)row->n_top_ids,
            .top_ids = row->top_ids,
            .top_logprobs = row->top_logprobs,
        };
    }
    e->delta.logprobs = rows;
    return EVENT_OK;
}

static enum nvllm_finish finish_of(int wire)
{
    return wire >= NVLLM_FINISH_NONE && wire <= NVLLM_FINISH_ERROR ? (enum nvllm_finish)wire
                                                                   : NVLLM_FINISH_ERROR;
}

static int read_delta(struct event *e, const Nvllm__V1__Delta *in, const struct pending_entry *of,
                      const char **why)
{
    if (in->choice >= of->n_choices) {
        *why = "a delta for a choice that was not asked for";
        return EVENT_E_INVALID;
    }
    e->delta.choice = in->choice;
    e->delta.text = text_of(in->has_text, in->text);
    e->delta.token_ids = in->token_ids;
    e->delta.n_tokens = in->n_token_ids;
    e->delta.finish = finish_of(in->has_finish_reason ? (int)in->finish_reason : 0);
    e->public.type = NVLLM_EVENT_DELTA;
    e->public.delta = &e->delta;
    e->terminal = false;
    return read_logprobs(e, in, why);
}

static void read_done(struct event *e, const Nvllm__V1__Done *in)
{
    if (in->usage) {
        e->done.prompt_tokens = in->usage->prompt_tokens;
        e->done.cached_tokens = in->usage->cached_tokens;
        e->done.completion_tokens = in->usage->completion_tokens;
        e->done.preemptions = in->usage->preemptions;
    }
    if (in->timing) {
        e->done.queue_ms = in->timing->queue_ms;
        e->done.ttft_ms = in->timing->ttft_ms;
        e->done.total_ms = in->timing->total_ms;
    }
    e->public.type = NVLLM_EVENT_DONE;
    e->public.done = &e->done;
}

static int read_tokens(struct event *e, const Nvllm__V1__Tokens *in, const char **why)
{
    struct nvllm_text *texts;

    if (in->n_ids != in->n_tokens) {
        *why = "another number of token ids than of tokens";
        return EVENT_E_INVALID;
    }
    e->public.type = NVLLM_EVENT_TOKENS;
    e->public.tokens = &e->tokens;
    e->tokens.n_tokens = in->n_ids;
    e->tokens.ids = in->ids;
    if (in->n_ids == 0)
        return EVENT_OK;
    texts = unpacked_alloc(e->memory, in->n_tokens, sizeof(*texts));
    if (!texts)
        return EVENT_E_NOMEM;
    for (size_t i = 0; i < in->n_tokens; i++)
        texts[i] = text_of(true, in->tokens[i]);
    e->tokens.tokens = texts;
    return EVENT_OK;
}

void event_read_error(struct nvllm_error *out, const Nvllm__V1__Error *in)
{
    int code = in->has_code ? (int)in->code : 0;

    memset(out, 0, sizeof(*out));
    out->code = code >= NVLLM_E_INVALID && code <= NVLLM_E_UNSUPPORTED ? (enum nvllm_code)code
                                                                       : NVLLM_E_INTERNAL;
    out->retryable = in->retryable;
    out->retry_after_ms = in->retry_after_ms;
    error_copy_text(out->message, sizeof(out->message), in->message);
    error_copy_text(out->field, sizeof(out->field), in->field);
    error_copy_text(out->limit, sizeof(out->limit), in->limit);
    out->limit_value = in->limit_value;
    if (out->message[0] == '\0')
        error_copy_text(out->message, sizeof(out->message), nvllm_code_name(out->code));
}

/* Whether an event fits the request that it is for. */
static bool belongs(Nvllm__V1__ServerFrame__EventCase event, int answer)
{
    return (int)event == answer || event == ANSWER(ERROR) ||
           (event == ANSWER(DONE) && answer == ANSWER(DELTA));
}

/* e->error is filled. */
static void set_error(struct event *e)
{
    e->is_error = e->terminal = true;
    e->public.type = NVLLM_EVENT_ERROR;
    e->public.error = e->error;
}

static int read_event(struct event *e, const Nvllm__V1__ServerFrame *frame,
                      const struct pending_entry *of, const char **why)
{
    e->terminal = true;
    switch (frame->event_case) {
    case NVLLM__V1__SERVER_FRAME__EVENT_DELTA:
        return read_delta(e, frame->delta, of, why);
    case NVLLM__V1__SERVER_FRAME__EVENT_DONE:
        read_done(e, frame->done);
        return EVENT_OK;
    case NVLLM__V1__SERVER_FRAME__EVENT_TOKENS:
        return read_tokens(e, frame->tokens, why);
    case NVLLM__V1__SERVER_FRAME__EVENT_TEXT:
        e->text = text_of(frame->text->has_text, frame->text->text);
        e->public.type = NVLLM_EVENT_TEXT;
        e->public.text = &e->text;
        return EVENT_OK;
    case NVLLM__V1__SERVER_FRAME__EVENT_ERROR:
        e->error = unpacked_alloc(e->memory, 1, sizeof(*e->error));
        if (!e->error)
            return EVENT_E_NOMEM;
        event_read_error(e->error, frame->error);
        set_error(e);
        return EVENT_OK;
    default:
        return report_read(e, frame);
    }
}

int event_new(struct event **out, struct unpacked *memory, const struct pending_entry *of,
              const char **why)
{
    const Nvllm__V1__ServerFrame *frame = (const Nvllm__V1__ServerFrame *)unpacked_message(memory);
    struct event *e;
    int rc;

    if (frame->event_case == NVLLM__V1__SERVER_FRAME__EVENT__NOT_SET)
        return EVENT_UNKNOWN;
    if (!belongs(frame->event_case, of->answer)) {
        *why = "an answer of another kind than the request";
        return EVENT_E_INVALID;
    }
    e = unpacked_alloc(memory, 1, sizeof(*e));
    if (!e)
        return EVENT_E_NOMEM;
    e->memory = memory;
    e->open = of->open;
    e->public.id = of->id;
    rc = read_event(e, frame, of, why);
    if (rc == EVENT_OK)
        *out = e;
    return rc;
}

void event_free(struct event *e)
{
    if (!e)
        return;
    if (e->memory)
        unpacked_free(e->memory);
    else
        free(e);
}

size_t event_bytes(const struct event *e)
{
    return e->memory ? unpacked_bytes(e->memory) : e->heap_bytes;
}

struct event *event_failure(uint64_t id, enum nvllm_code code, const char *message)
{
    size_t bytes = sizeof(struct event) + sizeof(struct nvllm_error);
    struct event *e = calloc(1, bytes);

    if (!e)
        return NULL;
    e->heap_bytes = bytes;
    e->open = true;
    e->public.id = id;
    e->error = (struct nvllm_error *)(e + 1);
    error_set(e->error, code, 0, "%s", message);
    set_error(e);
    return e;
}
