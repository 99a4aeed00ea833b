/* log.h - one line an event: event=… key=value … to stderr, or to the journal where stderr is that,
 * with a priority, a MESSAGE_ID and each pair as a field of its own.
 *
 * Never the text of a prompt or an answer. Control characters and invalid UTF-8 become '?'. A write
 * never blocks: lines without room are dropped, and the next line counts them. Any thread. */
#ifndef NVLLM_DAEMON_LOG_H
#define NVLLM_DAEMON_LOG_H

#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Lines over this level are dropped. Called once, before threads start. */
void log_init(enum log_level level);

void log_set_level(enum log_level level);
const char *log_level_name(enum log_level level);

/* event: one of log_ids.h, unless it is for debugging. fmt: further key=value pairs whose values
 * have no spaces, or "". At the end comes text="…", its quotes escaped, unless text is NULL. */
__attribute__((format(printf, 4, 5))) void log_text(enum log_level level, const char *event,
                                                    const char *text, const char *fmt, ...);

#define log_event(level, event, ...) log_text(level, event, NULL, __VA_ARGS__)

/* For lines that a client can cause: zeroed at first. */
struct log_rate {
    uint64_t last_ms; /* of the last line; 0: none */
    uint64_t n;       /* events since */
};

/* Counts an event. Where the last line is interval_ms old: how many there were since; else 0. */
uint64_t log_due(struct log_rate *r, uint64_t interval_ms);

#endif
