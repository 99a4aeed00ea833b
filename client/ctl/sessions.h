/* sessions.h - sessions, as “nvllmctl sessions” and “nvllmctl chat” need them. */
#ifndef NVLLM_CLIENT_CTL_SESSIONS_H
#define NVLLM_CLIENT_CTL_SESSIONS_H

#include <jansson.h>

#include "client/ctl/ctl.h"

/* Creates a session as the command's options say: --system, --think, --no-think and, where the
 * command has it, --tools. The error is in ctl->err. */
enum nvllm_code sessions_create(struct ctl *ctl, const char *name,
                                const struct nvllm_session_info **info);

/* Prints the messages from a turn on, a line each, of at most width columns; 0: all of each line.
 * Turn 0 is what comes before the first. */
void sessions_put_turns(FILE *to, const struct nvllm_session *s, uint32_t from, int width);

/* As “nvllmctl sessions show --json” prints it: its messages as render and batch read them. */
json_t *sessions_json(const struct nvllm_session *s);

#endif
