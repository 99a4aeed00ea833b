/* event.c - see event.h. Frames of the daemon are untrusted input: related counts are compared,
 * numbers outside their enum become its unknown value, and absent texts become empty.
 *
 * Reports become assignments by the rows of proto/report_fields.h. */
#include "client/lib/event.h"

#include <errno.h>
#include <string.h>

#include "client/lib/error.h"
#include "proto/report_fields.h"

static const char *string_of(const char *s)
{
    return s ? s : "";
}

/* A number of an enum that counts from 0, the unknown one, to max. */
static int enum_of(int wire, int max)
{
    return wire >= 0 && wire <= max ? wire : 0;
}

enum nvllm_state event_read_state(int wire_state)
{
    return (enum nvllm_state)enum_of(wire_state, NVLLM_STATE_FAILED);
}

static struct nvllm_text text_of(ProtobufCBinaryData b)
{
    return (struct nvllm_text){b.len ? (const char *)b.data : "", b.len};
}

static enum nvllm_code read_logprobs(struct event *e, const Nvllm__V1__Delta *in,
                                     struct nvllm_error *err)
{
    struct nvllm_logprobs *rows;

    if (in->n_logprobs == 0)
        return NVLLM_OK;
    if (in->n_logprobs != in->n_token_ids)
        return error_protocol(err, "a delta whose numbers of logprobs and tokens differ");
    rows = unpacked_alloc(e->memory, in->n_logprobs, sizeof(*rows));
    if (!rows)
        return NVLLM_E_NOMEM;
    for (size_t i = 0; i < in->n_logprobs; i++) {
        const Nvllm__V1__TokenLogprobs *row = in->logprobs[i];

        if (row->n_top_ids != row->n_top_logprobs || row->n_top_ids > UINT32_MAX)
            return error_protocol(err, "logprobs whose numbers of values and ids differ");
        rows[i] = (struct nvllm_logprobs){
            .logprob = row->logprob,
            .n_top = (uint32_t)row->n_top_ids,
            .top_ids = row->top_ids,
            .top_logprobs = row->top_logprobs,
        };
    }
    e->delta.logprobs = rows;
    return NVLLM_OK;
}

static enum nvllm_code read_tool_calls(struct unpacked *memory, const struct nvllm_tool_call **out,
                                       Nvllm__V1__ToolCall **in, size_t n)
{
    struct nvllm_tool_call *calls;

    if (n == 0)
        return NVLLM_OK;
    calls = unpacked_alloc(memory, n, sizeof(*calls));
    if (!calls)
        return NVLLM_E_NOMEM;
    for (size_t i = 0; i < n; i++)
        calls[i] = (struct nvllm_tool_call){
            .name = text_of(in[i]->name),
            .arguments = text_of(in[i]->arguments),
            .id = text_of(in[i]->id),
        };
    *out = calls;
    return NVLLM_OK;
}

static enum nvllm_code read_delta(struct event *e, const Nvllm__V1__Delta *in,
                                  const struct pending *of, struct nvllm_error *err)
{
    if (in->choice >= of->n_choices)
        return error_protocol(err, "a delta for a choice that was not asked for");
    e->delta.choice = in->choice;
    e->delta.text = text_of(in->text);
    e->delta.token_ids = in->token_ids;
    e->delta.n_tokens = in->n_token_ids;
    e->delta.finish = (int)in->finish_reason >= 0 && (int)in->finish_reason <= NVLLM_FINISH_ERROR
                          ? (enum nvllm_finish)in->finish_reason
                          : NVLLM_FINISH_ERROR;
    e->public.type = NVLLM_EVENT_DELTA;
    e->public.delta = &e->delta;
    e->delta.reasoning = text_of(in->reasoning);
    if (read_tool_calls(e->memory, &e->delta.tool_calls, in->tool_calls, in->n_tool_calls))
        return NVLLM_E_NOMEM;
    e->delta.n_tool_calls = in->n_tool_calls;
    return read_logprobs(e, in, err);
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

static void read_embedding(struct event *e, const Nvllm__V1__Embedding *in)
{
    e->embedding.values = in->values;
    e->embedding.n_values = in->n_values;
    if (in->usage) {
        e->embedding.prompt_tokens = in->usage->prompt_tokens;
        e->embedding.cached_tokens = in->usage->cached_tokens;
    }
    if (in->timing) {
        e->embedding.queue_ms = in->timing->queue_ms;
        e->embedding.total_ms = in->timing->total_ms;
    }
    e->public.type = NVLLM_EVENT_EMBEDDING;
    e->public.embedding = &e->embedding;
}

static enum nvllm_code read_tokens(struct event *e, const Nvllm__V1__Tokens *in,
                                   struct nvllm_error *err)
{
    struct nvllm_text *texts;

    if (in->n_ids != in->n_tokens)
        return error_protocol(err, "different numbers of token ids and tokens");
    e->public.type = NVLLM_EVENT_TOKENS;
    e->public.tokens = &e->tokens;
    e->tokens.n_tokens = in->n_ids;
    e->tokens.ids = in->ids;
    if (in->n_ids == 0)
        return NVLLM_OK;
    texts = unpacked_alloc(e->memory, in->n_tokens, sizeof(*texts));
    if (!texts)
        return NVLLM_E_NOMEM;
    for (size_t i = 0; i < in->n_tokens; i++)
        texts[i] = text_of(in->tokens[i]);
    e->tokens.tokens = texts;
    return NVLLM_OK;
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

/* ---- rows as assignments from *in to *out */

#define READ(kind, field, source, member, key) READ_##kind(field, member)
#define READ_VALUE(field, member)              out->member = in->field;
#define READ_COUNT                             READ_VALUE
#define READ_INT                               READ_VALUE
#define READ_REAL                              READ_VALUE
#define READ_MS                                READ_VALUE
#define READ_FLAG                              READ_VALUE
#define READ_TEXT(field, member)               out->member = string_of(in->field);
#define READ_TOKEN(field, member)              out->member = in->has_##field ? in->field : -1;
#define READ_ENUM(field, member, max)          out->member = enum_of((int)in->field, max);
#define READ_STATE(field, member)              READ_ENUM(field, member, NVLLM_STATE_FAILED)
#define READ_REQUEST_STATE(field, member)      READ_ENUM(field, member, NVLLM_REQUEST_ENDING)
#define READ_PRIORITY(field, member)           READ_ENUM(field, member, NVLLM_PRIORITY_HIGH)
#define READ_WAIT_REASON(field, member)        READ_ENUM(field, member, NVLLM_WAIT_OFFLOADED)
#define READ_SLEEP_LEVEL(field, member)        READ_ENUM(field, member, NVLLM_SLEEP_ALL)
#define READ_IDS(field, member)                                                                    \
    out->member = in->field;                                                                       \
    out->n_##member = in->n_##field;
#define READ_BYTES(field, member) out->member = text_of(in->field);
#define READ_GROUP(field, member)                                                                  \
    if (in->field)                                                                                 \
        read_##member(memory, out, in->field);
#define READ_FLAT READ_GROUP
#define READ_LIST(field, member)                                                                   \
    if (in->n_##field > 0) {                                                                       \
        struct nvllm_##member *list =                                                              \
            unpacked_list(memory, &out->field, in->n_##field, sizeof(*list));                      \
                                                                                                   \
        if (!list)                                                                                 \
            return NVLLM_E_NOMEM;                                                                  \
        for (size_t i = 0; i < in->n_##field; i++)                                                 \
            read_##member(memory, &list[i], in->field[i]);                                         \
        out->n_##field = in->n_##field;                                                            \
    }

/* Defines read_name(): NVLLM_OK, or NVLLM_E_NOMEM where the rows have a list. */
#define READER(name, type, message, FIELDS)                                                        \
    static enum nvllm_code read_##name(struct unpacked *memory, struct type *out,                  \
                                       const Nvllm__V1__##message *in)                             \
    {                                                                                              \
        (void)memory;                                                                              \
        FIELDS(READ)                                                                               \
        return NVLLM_OK;                                                                           \
    }

REPORT_ROWS(READER)

static enum nvllm_code read_explanation(struct unpacked *memory, struct nvllm_explanation *out,
                                        const Nvllm__V1__Explanation *in)
{
    struct nvllm_request_info *info;

    read_why_waiting(memory, out, in);
    read_why_cached(memory, out, in);
    if (!in->has_same_tokens)
        out->same_tokens = out->cached_tokens;
    if (!in->info)
        return NVLLM_OK;
    info = unpacked_alloc(memory, 1, sizeof(*info));
    if (!info)
        return NVLLM_E_NOMEM;
    out->info = info;
    return read_request_info(memory, info, in->info);
}

/* ---- sessions */

static struct nvllm_text given_text(protobuf_c_boolean has, ProtobufCBinaryData b)
{
    return has ? text_of(b) : (struct nvllm_text){NULL, 0};
}

static enum nvllm_code read_texts(struct unpacked *memory, const struct nvllm_text **out,
                                  const ProtobufCBinaryData *in, size_t n)
{
    struct nvllm_text *texts = unpacked_alloc(memory, n, sizeof(*texts));

    for (size_t i = 0; texts && i < n; i++)
        texts[i] = text_of(in[i]);
    *out = texts;
    return texts ? NVLLM_OK : NVLLM_E_NOMEM;
}

static enum nvllm_code read_messages(struct unpacked *memory, struct nvllm_chat *out,
                                     const Nvllm__V1__Chat *in)
{
    struct nvllm_message *messages = unpacked_alloc(memory, in->n_messages, sizeof(*messages));

    if (!messages)
        return NVLLM_E_NOMEM;
    for (size_t i = 0; i < in->n_messages; i++) {
        const Nvllm__V1__Message *m = in->messages[i];

        messages[i] = (struct nvllm_message){
            .role = string_of(m->role),
            .content = given_text(m->has_content, m->content),
            .reasoning_content = given_text(m->has_reasoning_content, m->reasoning_content),
            .n_tool_calls = m->n_tool_calls,
            .name = given_text(m->has_name, m->name),
            .tool_call_id = given_text(m->has_tool_call_id, m->tool_call_id),
        };
        if (read_tool_calls(memory, &messages[i].tool_calls, m->tool_calls, m->n_tool_calls))
            return NVLLM_E_NOMEM;
    }
    out->messages = messages;
    out->n_messages = in->n_messages;
    return NVLLM_OK;
}

static enum nvllm_code read_chat(struct unpacked *memory, struct nvllm_chat *out,
                                 const Nvllm__V1__Chat *in)
{
    nvllm_chat_init(out);
    out->n_tools = in->n_tools;
    out->n_documents = in->n_documents;
    out->chat_template_kwargs = given_text(in->has_chat_template_kwargs, in->chat_template_kwargs);
    if (in->has_enable_thinking)
        out->enable_thinking = in->enable_thinking ? NVLLM_ON : NVLLM_OFF;
    if (read_texts(memory, &out->tools, in->tools, in->n_tools) ||
        read_texts(memory, &out->documents, in->documents, in->n_documents))
        return NVLLM_E_NOMEM;
    return read_messages(memory, out, in);
}

static enum nvllm_code read_session(struct unpacked *memory, struct nvllm_session *out,
                                    const Nvllm__V1__SessionContents *in, struct nvllm_error *err)
{
    struct nvllm_session_info *info = unpacked_alloc(memory, 1, sizeof(*info));
    struct nvllm_chat *chat = unpacked_alloc(memory, 1, sizeof(*chat));

    if (!in->info || !in->chat)
        return error_protocol(err, "a session without its parts");
    if (!info || !chat)
        return NVLLM_E_NOMEM;
    out->info = info;
    out->chat = chat;
    out->turn_messages = in->turn_messages;
    out->n_turn_messages = in->n_turn_messages;
    out->token_ids = in->token_ids;
    out->n_token_ids = in->n_token_ids;
    (void)read_session_info(memory, info, in->info);
    for (size_t i = 0; i < in->n_turn_messages; i++)
        if (in->turn_messages[i] > in->chat->n_messages ||
            (i > 0 && in->turn_messages[i] < in->turn_messages[i - 1]))
            return error_protocol(err, "a session with turns that are not its messages'");
    return read_chat(memory, chat, in->chat);
}

/* ---- traces */

static enum nvllm_code read_trace(struct event *e, const Nvllm__V1__TraceChunk *in)
{
    struct nvllm_trace_record *list;

    e->public.type = NVLLM_EVENT_TRACE;
    e->public.trace = &e->trace;
    if (in->n_records == 0)
        return NVLLM_OK;
    list = unpacked_list(e->memory, &e->trace.records, in->n_records, sizeof(*list));
    if (!list)
        return NVLLM_E_NOMEM;
    for (size_t i = 0; i < in->n_records; i++) {
        const Nvllm__V1__TraceRecord *r = in->records[i];

        list[i] = (struct nvllm_trace_record){
            .kind = enum_of((int)r->kind, NVLLM_TRACE_PART),
            .at_us = r->at_us,
            .took_us = r->took_us,
            .request = r->request,
            .choice = r->choice,
            .finish = enum_of((int)r->finish_reason, NVLLM_FINISH_ERROR),
            .since = enum_of((int)r->since, NVLLM_TRACE_FIRST_TOKEN),
            .step = r->step,
            .decode_tokens = r->decode_tokens,
            .prompt_tokens = r->prompt_tokens,
            .sequences = r->sequences,
            .part = enum_of((int)r->part, NVLLM_PART_DRAFT),
        };
    }
    e->trace.n_records = in->n_records;
    return NVLLM_OK;
}

/* ---- events */

/* Whether an event fits the request that it is for. */
static bool belongs(Nvllm__V1__ServerFrame__EventCase event, int answer)
{
    return (int)event == answer || event == ANSWER(ERROR) ||
           (event == ANSWER(DONE) && answer == ANSWER(DELTA)) ||
           (event == ANSWER(TRACE_CHUNK) && answer == ANSWER(TRACED));
}

/* An empty event; NULL: no memory. */
static struct event *make(struct unpacked *memory, const struct pending *of)
{
    struct event *e = unpacked_alloc(memory, 1, sizeof(*e));

    if (e) {
        e->memory = memory;
        e->open = of->open;
        e->public.id = of->id;
        e->public.user_data = of->user_data;
    }
    return e;
}

/* The error of an event, to be filled; NULL: no memory. */
static struct nvllm_error *add_error(struct event *e)
{
    struct nvllm_error *error = unpacked_alloc(e->memory, 1, sizeof(*error));

    e->public.type = NVLLM_EVENT_ERROR;
    e->public.error = error;
    return error;
}

static enum nvllm_code read_event(struct event *e, const Nvllm__V1__ServerFrame *frame,
                                  const struct pending *of, struct nvllm_error *err)
{
    struct nvllm_error *error;

    switch (frame->event_case) {
    case ANSWER(DELTA):
        return read_delta(e, frame->delta, of, err);
    case ANSWER(DONE):
        read_done(e, frame->done);
        return NVLLM_OK;
    case ANSWER(EMBEDDING):
        read_embedding(e, frame->embedding);
        return NVLLM_OK;
    case ANSWER(TOKENS):
        return read_tokens(e, frame->tokens, err);
    case ANSWER(TEXT):
        e->text = text_of(frame->text->text);
        e->public.type = NVLLM_EVENT_TEXT;
        e->public.text = &e->text;
        return NVLLM_OK;
    case ANSWER(ERROR):
        error = add_error(e);
        if (!error)
            return NVLLM_E_NOMEM;
        event_read_error(error, frame->error);
        return NVLLM_OK;
    case ANSWER(STATUS):
        e->public.type = NVLLM_EVENT_STATUS;
        e->public.status = &e->status;
        return read_status(e->memory, &e->status, frame->status);
    case ANSWER(CANCELLED):
        e->found = frame->cancelled->found;
        return NVLLM_OK;
    case ANSWER(REQUEST_LIST):
        return read_request_list(e->memory, &e->requests, frame->request_list);
    case ANSWER(BLOCK_REPORT):
        return read_blocks(e->memory, &e->blocks, frame->block_report);
    case ANSWER(CACHE_REPORT):
        return read_cache(e->memory, &e->cache, frame->cache_report);
    case ANSWER(CACHE_CHANGED):
        return read_cache_change(e->memory, &e->cache_change, frame->cache_changed);
    case ANSWER(SLEPT):
        return read_sleep_change(e->memory, &e->sleep_change, frame->slept);
    case ANSWER(EXPLANATION):
        return read_explanation(e->memory, &e->explanation, frame->explanation);
    case ANSWER(TRACE_CHUNK):
        return read_trace(e, frame->trace_chunk);
    case ANSWER(TRACED):
        e->public.type = NVLLM_EVENT_TRACED;
        e->public.traced = &e->traced;
        e->traced = (struct nvllm_traced){frame->traced->took_us, frame->traced->dropped};
        return NVLLM_OK;
    case ANSWER(CHANGED):
        e->change.state = event_read_state((int)frame->changed->state);
        e->change.log_level = string_of(frame->changed->log_level);
        return NVLLM_OK;
    case ANSWER(RELOADED):
        e->reloaded = (struct nvllm_reloaded){
            .changed = (const char *const *)frame->reloaded->changed,
            .n_changed = frame->reloaded->n_changed,
            .needs_restart = (const char *const *)frame->reloaded->needs_restart,
            .n_needs_restart = frame->reloaded->n_needs_restart,
        };
        return NVLLM_OK;
    case ANSWER(SESSION_INFO):
        return read_session_info(e->memory, &e->session_info, frame->session_info);
    case ANSWER(SESSION_LIST):
        return read_session_list(e->memory, &e->sessions, frame->session_list);
    case ANSWER(SESSION_CONTENTS):
        return read_session(e->memory, &e->session, frame->session_contents, err);
    default:
        return NVLLM_OK;
    }
}

struct event *event_new(struct unpacked *memory, const struct pending *of, struct nvllm_error *err)
{
    const Nvllm__V1__ServerFrame *frame = (const Nvllm__V1__ServerFrame *)unpacked_message(memory);
    enum nvllm_code code;
    struct event *e;

    if (frame->event_case == NVLLM__V1__SERVER_FRAME__EVENT__NOT_SET)
        return NULL;
    if (!belongs(frame->event_case, of->answer)) {
        error_protocol(err, "an answer of the wrong kind");
        return NULL;
    }
    e = make(memory, of);
    code = e ? read_event(e, frame, of, err) : NVLLM_E_NOMEM;
    if (code == NVLLM_E_NOMEM)
        error_set(err, code, ENOMEM, "out of memory for an answer from the daemon");
    return code == NVLLM_OK ? e : NULL;
}

void event_free(struct event *e)
{
    if (e)
        unpacked_free(e->memory);
}

struct event *event_error(const struct pending *of, const struct nvllm_error *error)
{
    struct unpacked *memory = unpacked_new();
    struct event *e = make(memory, of);
    struct nvllm_error *own = e ? add_error(e) : NULL;

    if (!own) {
        unpacked_free(memory);
        return NULL;
    }
    *own = *error;
    return e;
}
