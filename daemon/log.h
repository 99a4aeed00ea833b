/* log.h - one line a thing that happened: event=… key=value … to stderr, with the priority that
 * the journal reads where stderr is the journal.
 *
 * Never the text of a prompt or an answer. Control characters, and bytes that are no UTF-8, come
 * out as '?'. Nobody waits for who reads the log: lines that find no room are dropped, and how many
 * is said by the next that does. Any thread. */
#ifndef NVLLM_DAEMON_LOG_H
#define NVLLM_DAEMON_LOG_H

#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Lines over this level are dropped. Called once, before threads start. */
void log_init(enum log_level level);

void log_set_level(enum log_level level);
const char *log_level_name(enum log_level level);

/* fmt gives further key=value pairs, whose values hold no blanks, or is "". */
__attribute__((format(printf, 3, 4))) void log_event(enum log_level level, const char *event,
                                                     const char *fmt, ...);

/* As log_event, with text="…" at the end, quotes in it escaped. */
__attribute__((format(printf, 4, 5))) void log_text(enum log_level level, const char *event,
                                                    const char *text, const char *fmt, ...);

/* True at most once in interval_ms for a *last of the caller's: for lines that a peer can cause. */
int log_due(uint64_t *last_ms, uint64_t interval_ms);

#endif
