/* error.c - filling struct nvllm_error, and the stable words for the enums. */
#include "client/lib/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "proto/utf8.h"

static bool is_retryable(enum nvllm_code code)
{
    return code == NVLLM_E_UNAVAILABLE || code == NVLLM_E_BUSY || code == NVLLM_E_NOT_RUNNING ||
           code == NVLLM_E_CONNECTION || code == NVLLM_E_TIMEOUT;
}

/* A text that was cut may end in half a character: drops that. */
static void drop_half_character(char *buf, size_t len)
{
    size_t start = len;

    while (start > 0 && len - start < 3 && ((unsigned char)buf[start - 1] & 0xc0) == 0x80)
        start--;
    if (start > 0 && ((unsigned char)buf[start - 1] & 0xc0) == 0xc0)
        buf[start - 1] = '\0';
}

void error_copy_text(char *buf, size_t cap, const char *text)
{
    size_t len = text ? strnlen(text, cap) : 0;
    bool cut = len == cap;

    if (cut)
        len--;
    for (size_t i = 0; i < len; i++)
        buf[i] = (unsigned char)text[i] < 0x20 || text[i] == 0x7f ? '?' : text[i];
    buf[len] = '\0';
    if (cut)
        drop_half_character(buf, len);
    len = strlen(buf);
    /* Beyond ASCII: the terminal's second set of control characters, and what is no UTF-8. */
    for (size_t i = 0; i + 1 < len; i++)
        if ((unsigned char)buf[i] == 0xc2 && (unsigned char)buf[i + 1] < 0xa0)
            buf[i] = buf[i + 1] = '?';
    if (!utf8_valid(buf, len))
        for (size_t i = 0; i < len; i++)
            if ((unsigned char)buf[i] >= 0x80)
                buf[i] = '?';
}

__attribute__((format(printf, 4, 0))) static void set(struct nvllm_error *e, enum nvllm_code code,
                                                      int sys_errno, const char *fmt, va_list args)
{
    char text[sizeof(e->message) + 4]; /* so that a cut shows */

    memset(e, 0, sizeof(*e));
    e->code = code;
    e->retryable = is_retryable(code);
    e->sys_errno = sys_errno;
    vsnprintf(text, sizeof(text), fmt, args);
    error_copy_text(e->message, sizeof(e->message), text);
}

enum nvllm_code error_set(struct nvllm_error *e, enum nvllm_code code, int sys_errno,
                          const char *fmt, ...)
{
    va_list args;

    if (!e)
        return code;
    va_start(args, fmt);
    set(e, code, sys_errno, fmt, args);
    va_end(args);
    return code;
}

enum nvllm_code error_const(struct nvllm_error *e, enum nvllm_code code, const char *text)
{
    if (e) {
        memset(e, 0, sizeof(*e));
        e->code = code;
        e->retryable = is_retryable(code);
        memcpy(e->message, text, strnlen(text, sizeof(e->message) - 1));
    }
    return code;
}

enum nvllm_code error_field(struct nvllm_error *e, const char *field, const char *fmt, ...)
{
    va_list args;

    if (!e)
        return NVLLM_E_INVALID;
    va_start(args, fmt);
    set(e, NVLLM_E_INVALID, 0, fmt, args);
    va_end(args);
    error_copy_text(e->field, sizeof(e->field), field);
    return NVLLM_E_INVALID;
}

const char *nvllm_code_name(enum nvllm_code code)
{
    switch (code) {
    case NVLLM_OK:
        return "ok";
    case NVLLM_E_INVALID:
        return "invalid";
    case NVLLM_E_TOO_LONG:
        return "too_long";
    case NVLLM_E_UNAVAILABLE:
        return "unavailable";
    case NVLLM_E_BUSY:
        return "busy";
    case NVLLM_E_DEADLINE:
        return "deadline";
    case NVLLM_E_CANCELLED:
        return "cancelled";
    case NVLLM_E_DENIED:
        return "denied";
    case NVLLM_E_PROTOCOL:
        return "protocol";
    case NVLLM_E_INTERNAL:
        return "internal";
    case NVLLM_E_UNSUPPORTED:
        return "unsupported";
    case NVLLM_E_NOT_RUNNING:
        return "not_running";
    case NVLLM_E_CONNECTION:
        return "connection";
    case NVLLM_E_TIMEOUT:
        return "timeout";
    case NVLLM_E_NOMEM:
        return "no_memory";
    }
    return "unknown";
}

const char *nvllm_finish_name(enum nvllm_finish finish)
{
    switch (finish) {
    case NVLLM_FINISH_NONE:
        return "none";
    case NVLLM_FINISH_STOP:
        return "stop";
    case NVLLM_FINISH_LENGTH:
        return "length";
    case NVLLM_FINISH_CANCELLED:
        return "cancelled";
    case NVLLM_FINISH_DEADLINE:
        return "deadline";
    case NVLLM_FINISH_ERROR:
        return "error";
    }
    return "error";
}

const char *nvllm_state_name(enum nvllm_state state)
{
    switch (state) {
    case NVLLM_STATE_UNKNOWN:
        return "unknown";
    case NVLLM_STATE_LOADING:
        return "loading";
    case NVLLM_STATE_READY:
        return "ready";
    case NVLLM_STATE_DRAINING:
        return "draining";
    case NVLLM_STATE_FAILED:
        return "failed";
    }
    return "unknown";
}

const char *nvllm_priority_name(enum nvllm_priority priority)
{
    switch (priority) {
    case NVLLM_PRIORITY_NORMAL:
        return "normal";
    case NVLLM_PRIORITY_LOW:
        return "low";
    case NVLLM_PRIORITY_HIGH:
        return "high";
    }
    return "normal";
}

const char *nvllm_request_state_name(enum nvllm_request_state state)
{
    switch (state) {
    case NVLLM_REQUEST_UNKNOWN:
        return "unknown";
    case NVLLM_REQUEST_ENCODING:
        return "encoding";
    case NVLLM_REQUEST_WAITING:
        return "waiting";
    case NVLLM_REQUEST_HELD:
        return "held";
    case NVLLM_REQUEST_PREFILL:
        return "prefill";
    case NVLLM_REQUEST_DECODE:
        return "decode";
    case NVLLM_REQUEST_PREEMPTED:
        return "preempted";
    case NVLLM_REQUEST_ENDING:
        return "ending";
    }
    return "unknown";
}

const char *nvllm_wait_reason_name(enum nvllm_wait_reason reason)
{
    switch (reason) {
    case NVLLM_WAIT_UNKNOWN:
        return "unknown";
    case NVLLM_WAIT_NOT:
        return "not";
    case NVLLM_WAIT_ENCODING:
        return "encoding";
    case NVLLM_WAIT_SEQS:
        return "seqs";
    case NVLLM_WAIT_BLOCKS:
        return "blocks";
    case NVLLM_WAIT_PREFIX:
        return "prefix";
    case NVLLM_WAIT_SHARE:
        return "share";
    case NVLLM_WAIT_STEP:
        return "step";
    }
    return "unknown";
}

struct nvllm_text nvllm_str(const char *s)
{
    return (struct nvllm_text){s, s ? strlen(s) : 0};
}

const char *nvllm_client_version(void)
{
    return NVLLM_VERSION;
}
