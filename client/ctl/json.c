/* json.c - see json.h. */
#include "client/ctl/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <unistd.h>

#include "client/ctl/show.h"
#include "client/lib/clock.h"
#include "proto/report_fields.h"
#include "proto/utf8.h"

enum { MAX_CHOICES = 1 << 16 }; /* the daemon allows fewer */

json_t *ctl_json_parse(const char *data, size_t n, struct nvllm_error *err)
{
    json_error_t where;
    json_t *value =
        json_loadb(data, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);

    if (!value && where.line > 1)
        ctl_invalid(err, "not JSON: %s (line %d, column %d)", where.text, where.line, where.column);
    else if (!value)
        ctl_invalid(err, "not JSON: %s (column %d)", where.text, where.column);
    return value;
}

json_t *ctl_json_text(struct nvllm_text text)
{
    json_t *value = json_stringn(text.data ? text.data : "", text.len);
    struct text_buffer clean = {0};

    if (value)
        return value;
    for (size_t i = 0; i < text.len;) {
        int step = utf8_step(text.data + i, text.len - i);

        if (step > 0)
            text_buffer_add(&clean, text.data + i, (size_t)step);
        else
            text_buffer_add(&clean, "\xef\xbf\xbd", 3);
        i += (size_t)abs(step);
    }
    value = json_stringn(clean.data, clean.len);
    text_buffer_deinit(&clean);
    return value;
}

/* A number; null for infinities and NaN. */
static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

struct nvllm_text ctl_json_string(const json_t *value)
{
    return (struct nvllm_text){json_string_value(value), json_string_length(value)};
}

json_t *ctl_json_ids(const int32_t *ids, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    return array;
}

json_t *ctl_json_error(const struct nvllm_error *err)
{
    json_t *e = json_pack("{ssso}", "code", nvllm_code_name(err->code), "message",
                          ctl_json_text(nvllm_str(err->message)));

    if (err->field[0])
        json_object_set_new(e, "field", ctl_json_text(nvllm_str(err->field)));
    if (err->limit[0])
        json_object_update_new(e, json_pack("{sssI}", "limit", err->limit, "limit_value",
                                            (json_int_t)err->limit_value));
    return e;
}

int ctl_json_print(int fd, json_t *value)
{
    /* Nine digits distinguish any two floats. */
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    size_t n;

    json_decref(value);
    if (!text)
        ctl_no_memory();
    n = strlen(text);
    text[n] = '\n'; /* in place of the NUL: each line is one write */
    ctl_write(fd, text, n + 1);
    free(text);
    return EXIT_OK;
}

void ctl_json_show(const json_t *value)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY);

    if (!text)
        ctl_no_memory();
    ctl_write_text(nvllm_str(text));
    ctl_write(STDOUT_FILENO, "\n", 1);
    free(text);
}

/* ---- results */

void ctl_result_init(struct ctl_result *r, const struct nvllm_request *request)
{
    int64_t n = request->n > 0 ? request->n : 1;

    *r = (struct ctl_result){
        .cancel_end = -1,
        .n_choices = n < MAX_CHOICES ? (uint32_t)n : MAX_CHOICES,
    };
    r->choices = ctl_alloc(r->n_choices, sizeof(*r->choices));
    for (uint32_t i = 0; i < r->n_choices; i++) {
        r->choices[i].object = json_pack("{sns[]sn}", "text", "token_ids", "finish_reason");
        if (request->logprobs >= 0)
            json_object_update_new(r->choices[i].object,
                                   json_pack("{s[]s[]}", "logprobs", "token_logprobs"));
    }
}

void ctl_result_deinit(struct ctl_result *r)
{
    for (uint32_t i = 0; r->choices && i < r->n_choices; i++) {
        text_buffer_deinit(&r->choices[i].text);
        text_buffer_deinit(&r->choices[i].reasoning);
        json_decref(r->choices[i].tool_calls);
        json_decref(r->choices[i].object);
    }
    free(r->choices);
    r->choices = NULL;
}

static void add_logprobs(json_t *choice, const struct nvllm_logprobs *row)
{
    json_t *best = json_array();

    for (uint32_t i = 0; i < row->n_top; i++)
        json_array_append_new(best, json_pack("[io]", (int)row->top_ids[i],
                                              number_or_null(row->top_logprobs[i])));
    json_array_append_new(json_object_get(choice, "logprobs"), best);
    json_array_append_new(json_object_get(choice, "token_logprobs"), number_or_null(row->logprob));
}

static json_t *tool_call_json(const struct nvllm_tool_call *call)
{
    return json_pack("{sosss{soso}}", "id", ctl_json_text(call->id), "type", "function", "function",
                     "name", ctl_json_text(call->name), "arguments",
                     ctl_json_text(call->arguments));
}

static void add_text(json_t *o, const char *name, struct nvllm_text text)
{
    if (text.data)
        json_object_set_new(o, name, ctl_json_text(text));
}

json_t *ctl_json_messages(const struct nvllm_chat *chat)
{
    json_t *array = json_array();

    for (size_t i = 0; i < chat->n_messages; i++) {
        const struct nvllm_message *m = &chat->messages[i];
        json_t *o = json_pack("{ss}", "role", m->role), *calls = json_array();

        add_text(o, "content", m->content);
        add_text(o, "reasoning_content", m->reasoning_content);
        add_text(o, "name", m->name);
        add_text(o, "tool_call_id", m->tool_call_id);
        for (size_t k = 0; k < m->n_tool_calls; k++)
            json_array_append_new(calls, tool_call_json(&m->tool_calls[k]));
        if (m->n_tool_calls > 0)
            json_object_set(o, "tool_calls", calls);
        json_decref(calls);
        json_array_append_new(array, o);
    }
    return array;
}

void ctl_result_add(struct ctl_result *r, const struct nvllm_delta *delta)
{
    struct ctl_choice *c;
    json_t *ids;

    if (delta->choice >= r->n_choices)
        return;
    c = &r->choices[delta->choice];
    text_buffer_add(&c->text, delta->text.data, delta->text.len);
    text_buffer_add(&c->reasoning, delta->reasoning.data, delta->reasoning.len);
    if (delta->n_tool_calls > 0 && !c->tool_calls)
        c->tool_calls = json_array();
    for (size_t i = 0; i < delta->n_tool_calls; i++)
        json_array_append_new(c->tool_calls, tool_call_json(&delta->tool_calls[i]));
    ids = json_object_get(c->object, "token_ids");
    for (size_t i = 0; i < delta->n_tokens; i++) {
        json_array_append_new(ids, json_integer(delta->token_ids[i]));
        if (delta->logprobs)
            add_logprobs(c->object, &delta->logprobs[i]);
    }
    if (delta->finish != NVLLM_FINISH_NONE)
        c->finish = delta->finish;
}

enum nvllm_finish ctl_result_end(struct ctl_result *r, enum nvllm_finish finish)
{
    enum nvllm_finish worst = NVLLM_FINISH_NONE;

    for (uint32_t i = 0; i < r->n_choices; i++) {
        if (r->choices[i].finish == NVLLM_FINISH_NONE)
            r->choices[i].finish = finish;
        if (r->choices[i].finish > worst)
            worst = r->choices[i].finish;
    }
    return worst;
}

/* Ctrl-C in an interactive program ends the answer alone, and a second one the wait for its end. */
static void check_cancel(struct ctl_result *r, struct ctl *ctl)
{
    r->n_interrupts += ctl_forget_interrupt();
    if (r->cancel_end < 0 && (r->n_interrupts > 0 || ctl_interrupted() || ctl_left_ms(ctl) == 0)) {
        r->cancel_end = ctl_cancel_end(ctl);
        nvllm_cancel(ctl->client, r->id, NULL);
    }
}

/* The next event of the request. */
static enum nvllm_code next_event(struct ctl_result *r, struct ctl *ctl,
                                  const struct nvllm_event **event, struct nvllm_error *err)
{
    enum nvllm_code code;

    do {
        int64_t end;

        check_cancel(r, ctl); /* each time: a fast daemon may always have another event */
        end = r->cancel_end >= 0 ? r->cancel_end : ctl->deadline;
        if (r->n_interrupts > 1 || (r->cancel_end >= 0 && clock_left_ms(end) == 0))
            return NVLLM_E_TIMEOUT;
        code = ctl_next(ctl, -1, clock_left_ms(end), event, err);
    } while (code == NVLLM_E_TIMEOUT || (code == NVLLM_OK && (*event)->id != r->id));
    return code;
}

static void show_text(struct ctl_result *r, struct nvllm_text text)
{
    if (text.len == 0)
        return;
    r->open = text.data[text.len - 1] != '\n';
    ctl_write_text(r->wrap ? wrap_add(r->wrap, text) : text);
}

static void end_line(struct ctl_result *r)
{
    if (r->open)
        show_text(r, nvllm_str("\n"));
}

static void show_rest(struct ctl_result *r)
{
    if (r->wrap)
        ctl_write_text(wrap_flush(r->wrap));
}

/* Reasoning is dim. */
static void set_reasons(struct ctl_result *r, bool reasons)
{
    const char *colour = show_colour(STDOUT_FILENO, reasons ? COLOUR_DIM : COLOUR_END);

    if (r->reasons == reasons)
        return;
    show_rest(r);
    ctl_write(STDOUT_FILENO, colour, strlen(colour));
    r->reasons = reasons;
}

static void show_delta(struct ctl_result *r, const struct nvllm_delta *delta)
{
    if (delta->reasoning.len > 0 && isatty(STDOUT_FILENO)) {
        set_reasons(r, true);
        show_text(r, delta->reasoning);
    }
    if (r->reasons && (delta->text.len > 0 || delta->n_tool_calls > 0)) {
        set_reasons(r, false);
        end_line(r);
        show_text(r, nvllm_str("\n"));
    }
    show_text(r, delta->text);
    for (size_t i = 0; i < delta->n_tool_calls; i++) {
        json_t *call = tool_call_json(&delta->tool_calls[i]);

        show_rest(r);
        end_line(r);
        ctl_json_show(call);
        json_decref(call);
    }
}

static enum nvllm_code run_to_end(struct ctl_result *r, struct ctl *ctl, bool streams,
                                  struct nvllm_error *err)
{
    const struct nvllm_event *event;
    enum nvllm_code code;

    while ((code = next_event(r, ctl, &event, err)) == NVLLM_OK) {
        if (event->error) {
            *err = *event->error;
            return err->code;
        }
        if (event->done) {
            r->done = *event->done;
            return NVLLM_OK;
        }
        ctl_result_add(r, event->delta);
        if (streams)
            show_delta(r, event->delta);
    }
    return code;
}

enum nvllm_code ctl_result_run(struct ctl_result *r, struct ctl *ctl,
                               const struct nvllm_request *request, bool streams,
                               struct nvllm_error *err)
{
    enum nvllm_code code;

    r->id = 0;
    code = nvllm_generate_start(ctl->client, &r->id, request, err);
    if (code == NVLLM_OK)
        code = run_to_end(r, ctl, streams, err);
    set_reasons(r, false);
    show_rest(r);
    return code;
}

json_t *ctl_json_embedding(const struct nvllm_embedding *y)
{
    json_t *values = json_array();

    for (size_t i = 0; i < y->n_values; i++)
        json_array_append_new(values, json_real((double)y->values[i]));
    return json_pack("{sos{sIsI}s{soso}}", "embedding", values, "usage", "prompt_tokens",
                     (json_int_t)y->prompt_tokens, "cached_tokens", (json_int_t)y->cached_tokens,
                     "timing", "queue_ms", number_or_null(y->queue_ms), "total_ms",
                     number_or_null(y->total_ms));
}

json_t *ctl_result_json(const struct ctl_result *r)
{
    json_t *choices = json_array(), *object;

    for (uint32_t i = 0; i < r->n_choices; i++) {
        const struct ctl_choice *c = &r->choices[i];

        json_object_set_new(c->object, "text",
                            ctl_json_text((struct nvllm_text){c->text.data, c->text.len}));
        if (c->reasoning.len > 0)
            json_object_set_new(c->object, "reasoning_content",
                                ctl_json_text(
                                    (struct nvllm_text){c->reasoning.data, c->reasoning.len}));
        if (c->tool_calls)
            json_object_set(c->object, "tool_calls", c->tool_calls);
        json_object_set_new(c->object, "finish_reason", json_string(nvllm_finish_name(c->finish)));
        json_array_append(choices, c->object);
    }
    object = json_copy(r->choices[0].object);
    json_object_update_new(object, json_pack("{s{sIsIsI}s{sososo}}", "usage", "prompt_tokens",
                                             (json_int_t)r->done.prompt_tokens, "cached_tokens",
                                             (json_int_t)r->done.cached_tokens, "completion_tokens",
                                             (json_int_t)r->done.completion_tokens, "timing",
                                             "queue_ms", number_or_null(r->done.queue_ms),
                                             "ttft_ms", number_or_null(r->done.ttft_ms), "total_ms",
                                             number_or_null(r->done.total_ms)));
    if (r->n_choices > 1)
        json_object_set(object, "choices", choices);
    json_decref(choices);
    return object;
}

/* ---- reports: the rows of proto/report_fields.h become members */

/* Up to INT64_MAX. */
static json_t *count_json(uint64_t n)
{
    return json_integer((json_int_t)MIN(n, INT64_MAX));
}

/* Rows as members of o, from *in. */

#define ADD(kind, field, source, member, key) ADD_##kind(member, key)
#define ADD_VALUE(key, value)                 json_object_set_new(o, #key, value);
#define ADD_COUNT(member, key)                ADD_VALUE(key, count_json(in->member))
#define ADD_INT(member, key)                  ADD_VALUE(key, json_integer(in->member))
#define ADD_REAL(member, key)                 ADD_VALUE(key, number_or_null(in->member))
#define ADD_MS(member, key)                   ADD_VALUE(key, json_real((double)in->member / 1000))
#define ADD_FLAG(member, key)                 ADD_VALUE(key, json_boolean(in->member))
#define ADD_TEXT(member, key)                 ADD_VALUE(key, ctl_json_text(nvllm_str(in->member)))
#define ADD_IDS(member, key)                  ADD_VALUE(key, ctl_json_ids(in->member, in->n_##member))
#define ADD_TOKEN(member, key)                                                                     \
    ADD_VALUE(key, in->member < 0 ? json_null() : json_integer(in->member))
#define ADD_STATE(member, key) ADD_VALUE(key, json_string(nvllm_state_name(in->member)))
#define ADD_REQUEST_STATE(member, key)                                                             \
    ADD_VALUE(key, json_string(nvllm_request_state_name(in->member)))
#define ADD_PRIORITY(member, key)    ADD_VALUE(key, json_string(nvllm_priority_name(in->member)))
#define ADD_WAIT_REASON(member, key) ADD_VALUE(key, json_string(nvllm_wait_reason_name(in->member)))
#define ADD_SLEEP_LEVEL(member, key) ADD_VALUE(key, json_string(nvllm_sleep_level_name(in->member)))
#define ADD_BYTES(member, key)                                                                     \
    {                                                                                              \
        if (in->member.len > 0)                                                                    \
            ADD_VALUE(key, ctl_json_text(in->member))                                              \
    }
#define ADD_FLAT(member, key)  add_##member(o, in);
#define ADD_GROUP(member, key) ADD_VALUE(key, add_##member(json_object(), in))
#define ADD_LIST(member, key)                                                                      \
    {                                                                                              \
        json_t *array = json_array();                                                              \
                                                                                                   \
        for (size_t i = 0; i < in->n_##key; i++)                                                   \
            json_array_append_new(array, add_##member(json_object(), in->key[i]));                 \
        json_object_set_new(o, #key, array);                                                       \
    }

/* Defines add_name(), which gives back the object. */
#define ADDER(name, type, message, FIELDS)                                                         \
    static json_t *add_##name(json_t *o, const struct type *in)                                    \
    {                                                                                              \
        FIELDS(ADD)                                                                                \
        return o;                                                                                  \
    }

REPORT_ROWS(ADDER)

/* Defines report_json_name(). */
#define REPORT(name)                                                                               \
    json_t *report_json_##name(const struct nvllm_##name *in)                                      \
    {                                                                                              \
        return add_##name(json_object(), in);                                                      \
    }

REPORT(status)
REPORT(request_list)
REPORT(blocks)
REPORT(cache)
REPORT(cache_change)
REPORT(sleep_change)
REPORT(session_info)
REPORT(session_list)

json_t *report_json_explanation(const struct nvllm_explanation *e)
{
    json_t *o = json_object();

    if (!e->info)
        return add_why_cached(o, e);
    json_object_set_new(o, "request", add_request_info(json_object(), e->info));
    return add_why_waiting(o, e);
}
