/* history.h - the lines of earlier chats, in a file of the user's own: a JSON string a line.
 *
 * It is a convenience: what fails here is no reason for a chat to fail. */
#ifndef NVLLM_CLIENT_CTL_HISTORY_H
#define NVLLM_CLIENT_CTL_HISTORY_H

enum { HISTORY_LINES = 1000 };

/* $XDG_STATE_HOME/nvllm/chat_history, malloc'd, whose folders are made; NULL: there is no home. */
char *history_find(void);

/* Calls enter() for the newest lines, oldest first. A file that has grown is cut to them. */
void history_load(const char *path, void (*enter)(void *arg, const char *line), void *arg);

void history_add(const char *path, const char *line);

#endif
