/* limits.c - see limits.h. */
#include "daemon/limits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define AT(member) offsetof(struct options, member)
#define CODE(name) NVLLM__V1__ERROR_CODE__ERROR_##name

enum {
    SOON_MS = 100,   /* requests end all the time */
    LATER_MS = 1000, /* connections last longer */
};

static const struct row {
    const char *option;
    size_t offset;
    Nvllm__V1__ErrorCode code;
    uint32_t retry_after_ms;
    const char *what; /* the unit */
} table[N_LIMITS] = {
    [LIMIT_FRAME_BYTES] = {"limits.frame_bytes", AT(max_frame_bytes), CODE(PROTOCOL), 0, "bytes"},
    [LIMIT_PROMPT_BYTES] = {"limits.prompt_bytes", AT(max_prompt_bytes), CODE(TOO_LONG), 0,
                            "bytes"},
    [LIMIT_PROMPT_TOKENS] = {"limits.prompt_tokens", AT(max_prompt_tokens), CODE(TOO_LONG), 0,
                             "tokens"},
    [LIMIT_TOKENIZE_BYTES] = {"limits.tokenize_bytes", AT(max_tokenize_bytes), CODE(TOO_LONG), 0,
                              "bytes"},
    [LIMIT_MAX_TOKENS] = {"limits.max_tokens", AT(max_max_tokens), CODE(TOO_LONG), 0, "tokens"},
    [LIMIT_CHOICES] = {"limits.choices", AT(max_choices), CODE(INVALID), 0, "choices"},
    [LIMIT_LOGPROBS] = {"limits.logprobs", AT(max_logprobs), CODE(INVALID), 0, "alternatives"},
    [LIMIT_STOPS] = {"limits.stops", AT(max_stops), CODE(INVALID), 0, "strings"},
    [LIMIT_STOP_BYTES] = {"limits.stop_bytes", AT(max_stop_bytes), CODE(INVALID), 0, "bytes"},
    [LIMIT_STOP_TOKEN_IDS] = {"limits.stop_token_ids", AT(max_stop_token_ids), CODE(INVALID), 0,
                              "ids"},
    [LIMIT_LOGIT_BIAS] = {"limits.logit_bias", AT(max_logit_bias), CODE(INVALID), 0, "entries"},
    [LIMIT_SALT_BYTES] = {"limits.salt_bytes", AT(max_salt_bytes), CODE(INVALID), 0, "bytes"},
    [LIMIT_CONNECTIONS] = {"limits.connections", AT(max_connections), CODE(BUSY), LATER_MS,
                           "connections"},
    [LIMIT_CONNECTIONS_PER_UID] = {"limits.connections_per_uid", AT(max_connections_per_uid),
                                   CODE(BUSY), LATER_MS, "connections of this user"},
    [LIMIT_REQUESTS] = {"limits.requests", AT(max_requests), CODE(BUSY), SOON_MS,
                        "requests under way"},
    [LIMIT_REQUESTS_PER_UID] = {"limits.requests_per_uid", AT(max_requests_per_uid), CODE(BUSY),
                                SOON_MS, "requests of this user under way"},
    [LIMIT_REQUESTS_PER_CONNECTION] = {"limits.requests_per_connection",
                                       AT(max_requests_per_connection), CODE(BUSY), SOON_MS,
                                       "requests of this connection under way"},
    [LIMIT_INSPECTS_PER_UID] = {"limits.questions_per_uid", AT(max_questions_per_uid), CODE(BUSY),
                                SOON_MS, "inspect requests of this user under way"},
    [LIMIT_QUEUED_TOKENS] = {"limits.queued_tokens", AT(max_queued_tokens), CODE(BUSY), SOON_MS,
                             "tokens of prompts that wait"},
    [LIMIT_QUEUED_TOKENS_PER_UID] = {"limits.queued_tokens_per_uid", AT(max_queued_tokens_per_uid),
                                     CODE(BUSY), SOON_MS,
                                     "tokens of prompts of this user that wait"},
    [LIMIT_REQUEST_BYTES] = {"limits.request_bytes", AT(max_request_bytes), CODE(BUSY), SOON_MS,
                             "bytes of requests under way"},
    [LIMIT_REQUEST_BYTES_PER_UID] = {"limits.request_bytes_per_uid", AT(max_request_bytes_per_uid),
                                     CODE(BUSY), SOON_MS,
                                     "bytes of requests of this user under way"},
    [LIMIT_BUFFER_BYTES] = {"limits.buffer_bytes", AT(max_buffer_bytes), CODE(BUSY), LATER_MS,
                            "bytes of all connections' buffers"},
    [LIMIT_BUFFER_BYTES_PER_UID] = {"limits.buffer_bytes_per_uid", AT(max_buffer_bytes_per_uid),
                                    CODE(BUSY), LATER_MS, "bytes of this user's buffers"},
    [LIMIT_OUTPUT_PAUSE_BYTES] = {"limits.output_pause_bytes", AT(output_pause_bytes), CODE(BUSY),
                                  LATER_MS, "bytes of answers unread"},
    [LIMIT_OUTPUT_BYTES] = {"limits.output_bytes", AT(max_output_bytes), CODE(BUSY), LATER_MS,
                            "bytes of answers unread"},
    [LIMIT_SLOW_READER_S] = {"limits.slow_reader_s", AT(slow_reader_s), CODE(BUSY), LATER_MS,
                             "seconds"},
    [LIMIT_HELLO_TIMEOUT_S] = {"limits.hello_timeout_s", AT(hello_timeout_s), CODE(PROTOCOL), 0,
                               "seconds"},
    [LIMIT_FRAME_TIMEOUT_S] = {"limits.frame_timeout_s", AT(frame_timeout_s), CODE(PROTOCOL), 0,
                               "seconds"},
};

const char *limit_option(enum limit l)
{
    return table[l].option;
}

uint64_t limit_value(const struct options *o, enum limit l)
{
    int64_t value;

    memcpy(&value, (const char *)o + table[l].offset, sizeof(value));
    return (uint64_t)value;
}

static void begin(struct refusal *e, const struct options *o, enum limit l)
{
    *e = (struct refusal){
        .code = table[l].code,
        .limit = table[l].option,
        .limit_value = limit_value(o, l),
        .retry_after_ms = table[l].retry_after_ms,
    };
}

static void name_field(struct refusal *e, const char *field)
{
    /* without the index of an entry */
    snprintf(e->field, sizeof(e->field), "%.*s", (int)strcspn(field, "["), field);
}

int limit_refuse(struct refusal *e, const struct options *o, enum limit l, const char *field,
                 uint64_t amount)
{
    const struct row *t = &table[l];

    begin(e, o, l);
    name_field(e, field);
    return err_set(&e->message, -EINVAL,
                   "%s%s%" PRIu64 " %s are over the limit of %" PRIu64 " (%s)", field,
                   *field ? ": " : "", amount, t->what, e->limit_value, t->option);
}

int limit_refuse_text(struct refusal *e, const struct options *o, enum limit l, const char *fmt,
                      ...)
{
    char text[sizeof(e->message.text) / 2];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    begin(e, o, l);
    return err_set(&e->message, -EINVAL, "%s (%s)", text, e->limit);
}

int refusal_set(struct refusal *e, Nvllm__V1__ErrorCode code, const char *fmt, ...)
{
    va_list ap;

    *e = (struct refusal){.code = code};
    va_start(ap, fmt);
    vsnprintf(e->message.text, sizeof(e->message.text), fmt, ap);
    va_end(ap);
    return -EINVAL;
}

int refusal_of_field(struct refusal *e, Nvllm__V1__ErrorCode code, const char *field,
                     const char *fmt, ...)
{
    char text[sizeof(e->message.text)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    *e = (struct refusal){.code = code};
    name_field(e, field);
    return err_set(&e->message, -EINVAL, "%s: %s", field, text);
}
