/* errors.c - errors as OpenAI's clients know them: a status, and {"error": {…}}. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/openai/gateway.h"

bool api_fail(struct api_error *e, int status, const char *code, const char *param, const char *fmt,
              ...)
{
    va_list args;

    *e = (struct api_error){.status = status, .code = code};
    snprintf(e->param, sizeof(e->param), "%s", param);
    va_start(args, fmt);
    vsnprintf(e->message, sizeof(e->message), fmt, args);
    va_end(args);
    return false;
}

/* Bytes before the client's name in nvllmd's name of a field: “sampling.top_p” is “top_p”. */
static size_t group_of(const char *field)
{
    static const char *const groups[] = {"sampling.", "chat."};

    for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
        if (strncmp(field, groups[i], strlen(groups[i])) == 0)
            return strlen(groups[i]);
    return 0;
}

/* A format may have come in any of several fields. */
static const char *param_of(const char *field)
{
    static const char format[] = "response_format";

    if (strncmp(field, format, strlen(format)) == 0)
        return format;
    return strncmp(field, "prompt_ids", 10) == 0 ? "prompt" : field + group_of(field);
}

void api_error_of(struct api_error *e, const struct nvllm_error *from)
{
    static const struct {
        enum nvllm_code code;
        int status;
        const char *name;
    } rows[] = {
        {NVLLM_E_INVALID, 400, "invalid_value"},
        {NVLLM_E_TOO_LONG, 400, "context_length_exceeded"},
        {NVLLM_E_UNAVAILABLE, 503, "unavailable"},
        {NVLLM_E_NOT_RUNNING, 503, "unavailable"},
        {NVLLM_E_CONNECTION, 503, "unavailable"},
        {NVLLM_E_BUSY, 429, "rate_limit_exceeded"},
        {NVLLM_E_DEADLINE, 504, "deadline"},
        {NVLLM_E_TIMEOUT, 504, "deadline"},
        {NVLLM_E_CANCELLED, 503, "cancelled"},
        {NVLLM_E_DENIED, 403, "denied"},
        {NVLLM_E_UNSUPPORTED, 501, "unsupported"},
    };
    const size_t n = strlen(from->field);
    const char *what = from->message;
    size_t i = 0;

    if (strncmp(what, from->field, n) == 0)
        what += group_of(from->field);

    while (i < sizeof(rows) / sizeof(rows[0]) && rows[i].code != from->code)
        i++;
    if (i == sizeof(rows) / sizeof(rows[0]))
        api_fail(e, 500, "internal", "", "%s", what);
    else
        api_fail(e, rows[i].status, rows[i].name, param_of(from->field), "%s", what);
    if (e->status == 429 || e->status == 503)
        e->retry_after_s = from->retry_after_ms > 1000 ? (from->retry_after_ms + 999) / 1000 : 1;
}

static const char *type_of(int status)
{
    return status == 401   ? "authentication_error"
           : status == 403 ? "permission_error"
           : status == 429 ? "rate_limit_error"
           : status >= 500 ? "server_error"
                           : "invalid_request_error";
}

void api_put_error(struct buf *out, const struct api_error *e)
{
    buf_lit(out, "{\"error\":{\"message\":");
    buf_json_string(out, e->message, strlen(e->message));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", type_of(e->status));
    if (e->param[0])
        buf_json_string(out, e->param, strlen(e->param));
    else
        buf_lit(out, "null");
    if (e->code)
        buf_printf(out, ",\"code\":\"%s\"}}", e->code);
    else
        buf_lit(out, ",\"code\":null}}");
}

void api_reply_error(struct http_conn *conn, const struct api_error *e)
{
    struct buf body = {0};
    char fields[200];
    int n = snprintf(fields, sizeof(fields), "%s", e->fields ? e->fields : "");

    if (e->retry_after_s > 0)
        snprintf(fields + n, sizeof(fields) - (size_t)n, "Retry-After: %" PRIu32 "\r\n",
                 e->retry_after_s);
    api_put_error(&body, e);
    http_reply(conn, e->status, fields, body.data, body.len);
    buf_deinit(&body);
}

void gateway_log(const char *event, const char *fmt, ...)
{
    char text[600];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    for (char *p = text; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f || *p == '"')
            *p = '\'';
    fprintf(stderr, "event=%s text=\"%s\"\n", event, text);
}
