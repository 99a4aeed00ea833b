/* error.c - fills struct nvllm_error, and names the enums. */
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

void error_copy_text(char *buf, size_t cap, const char *text)
{
    size_t n = text ? strnlen(text, cap) : 0;

    if (n == cap)
        for (n--; n > cap - 4 && (text[n] & 0xc0) == 0x80; n--)
            ; /* not inside a character, which has up to 4 bytes */
    memcpy(buf, n ? text : "", n);
    buf[n] = '\0';
    utf8_clean(buf);
}

enum nvllm_code error_fill(struct nvllm_error *e, enum nvllm_code code, const char *field,
                           int sys_errno, const char *fmt, ...)
{
    char text[sizeof(e->message) + 4]; /* so that a cut shows */
    va_list args;

    if (!e)
        return code;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    memset(e, 0, sizeof(*e));
    e->code = code;
    e->retryable = is_retryable(code);
    e->sys_errno = sys_errno;
    error_copy_text(e->message, sizeof(e->message), text);
    error_copy_text(e->field, sizeof(e->field), field);
    return code;
}

enum nvllm_code error_copy(struct nvllm_error *e, const struct nvllm_error *from)
{
    if (e && from->code != NVLLM_OK)
        *e = *from;
    return from->code;
}

enum nvllm_code error_protocol(struct nvllm_error *e, const char *what)
{
    return error_set(e, NVLLM_E_PROTOCOL, 0,
                     "the program at the socket violates nvllmd's protocol: it sent %s", what);
}

/* ---- stable names of the enums */

#define NAMES(function, type, unknown, ...)                                                        \
    const char *function(type value)                                                               \
    {                                                                                              \
        static const char *const names[] = {__VA_ARGS__};                                          \
                                                                                                   \
        return (unsigned)value < sizeof(names) / sizeof(names[0]) && names[value] ? names[value]   \
                                                                                  : unknown;       \
    }

NAMES(
    nvllm_code_name, enum nvllm_code,
    "unknown", [NVLLM_OK] = "ok", [NVLLM_E_INVALID] = "invalid", [NVLLM_E_TOO_LONG] = "too_long",
    [NVLLM_E_UNAVAILABLE] = "unavailable", [NVLLM_E_BUSY] = "busy", [NVLLM_E_DEADLINE] = "deadline",
    [NVLLM_E_CANCELLED] = "cancelled", [NVLLM_E_DENIED] = "denied", [NVLLM_E_PROTOCOL] = "protocol",
    [NVLLM_E_INTERNAL] = "internal", [NVLLM_E_UNSUPPORTED] = "unsupported",
    [NVLLM_E_NOT_RUNNING] = "not_running", [NVLLM_E_CONNECTION] = "connection",
    [NVLLM_E_TIMEOUT] = "timeout", [NVLLM_E_NOMEM] = "no_memory")

NAMES(nvllm_finish_name, enum nvllm_finish,
      "error", [NVLLM_FINISH_NONE] = "none", [NVLLM_FINISH_STOP] = "stop",
      [NVLLM_FINISH_LENGTH] = "length", [NVLLM_FINISH_CANCELLED] = "cancelled",
      [NVLLM_FINISH_DEADLINE] = "deadline", [NVLLM_FINISH_ERROR] = "error")

NAMES(nvllm_state_name, enum nvllm_state, "unknown", [NVLLM_STATE_UNKNOWN] = "unknown",
      [NVLLM_STATE_LOADING] = "loading", [NVLLM_STATE_READY] = "ready",
      [NVLLM_STATE_DRAINING] = "draining", [NVLLM_STATE_FAILED] = "failed")

NAMES(nvllm_priority_name, enum nvllm_priority, "normal", [NVLLM_PRIORITY_NORMAL] = "normal",
      [NVLLM_PRIORITY_LOW] = "low", [NVLLM_PRIORITY_HIGH] = "high")

NAMES(nvllm_request_state_name, enum nvllm_request_state,
      "unknown", [NVLLM_REQUEST_UNKNOWN] = "unknown", [NVLLM_REQUEST_ENCODING] = "encoding",
      [NVLLM_REQUEST_WAITING] = "waiting", [NVLLM_REQUEST_HELD] = "held",
      [NVLLM_REQUEST_PREFILL] = "prefill", [NVLLM_REQUEST_DECODE] = "decode",
      [NVLLM_REQUEST_PREEMPTED] = "preempted", [NVLLM_REQUEST_ENDING] = "ending")

NAMES(
    nvllm_wait_reason_name, enum nvllm_wait_reason,
    "unknown", [NVLLM_WAIT_UNKNOWN] = "unknown", [NVLLM_WAIT_NOT] = "not",
    [NVLLM_WAIT_ENCODING] = "encoding", [NVLLM_WAIT_SEQS] = "seqs", [NVLLM_WAIT_BLOCKS] = "blocks",
    [NVLLM_WAIT_PREFIX] = "prefix", [NVLLM_WAIT_SHARE] = "share", [NVLLM_WAIT_STEP] = "step",
    [NVLLM_WAIT_LOADING] = "loading", [NVLLM_WAIT_OFFLOADED] = "offloaded")

NAMES(nvllm_sleep_level_name, enum nvllm_sleep_level, "unknown", [NVLLM_SLEEP_NONE] = "none",
      [NVLLM_SLEEP_WEIGHTS] = "weights", [NVLLM_SLEEP_ALL] = "all")

NAMES(nvllm_engine_part_name, enum nvllm_engine_part,
      "unknown", [NVLLM_PART_UNKNOWN] = "unknown", [NVLLM_PART_SCHEDULE] = "schedule",
      [NVLLM_PART_SUBMIT] = "submit", [NVLLM_PART_WAIT] = "wait", [NVLLM_PART_COMMIT] = "commit",
      [NVLLM_PART_PUBLISH] = "publish", [NVLLM_PART_OTHER] = "other", [NVLLM_PART_DRAFT] = "draft")

struct nvllm_text nvllm_str(const char *s)
{
    return (struct nvllm_text){s, s ? strlen(s) : 0};
}

const char *nvllm_client_version(void)
{
    return NVLLM_CLIENT_VERSION;
}
