/* chat_session_store.h - the files of chat sessions, in a folder for the sessions of one model
 * below the daemon's state folder.
 *
 * A file is written under another name, synced and renamed: after a crash it is as it was before or
 * after. A thread writes and removes, in the order in which it is asked; all else is the loop's.
 * One store at a time uses a folder. */
#ifndef NVLLM_DAEMON_CHAT_SESSION_STORE_H
#define NVLLM_DAEMON_CHAT_SESSION_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/chat_session.h"
#include "engine/util/err.h"

struct chat_session_store;

/* Opens or makes folder/sessions-MODEL. Negative errno with the path. */
int chat_session_store_open(struct chat_session_store **out, const char *folder,
                            XXH128_hash_t model, struct err *e);

/* Writes and removes what it was asked to, and closes. Takes NULL. */
void chat_session_store_close(struct chat_session_store *s);

/* A user's session's file; out has CHAT_SESSION_FILE_NAME bytes. */
enum { CHAT_SESSION_FILE_NAME = CHAT_SESSION_NAME + sizeof("4294967295-") };
void chat_session_file_name(char *out, uid_t uid, const char *name);

/* Calls each with the name and the bytes of every file, before anything is written. 0, or a
 * negative errno with *e why the file is refused. warn is told, and a file that is wrong, not
 * merely unreadable now, is renamed to damaged-…. */
void chat_session_store_read(struct chat_session_store *s,
                             int (*each)(void *ctx, const char *file, const uint8_t *data,
                                         size_t bytes, struct err *e),
                             void *ctx, void (*warn)(const char *text));

/* Asks for the file of a user's session to be replaced, by data of malloc() that the store frees,
 * or with data NULL removed. id comes out of chat_session_store_take(). -ENOMEM: data is still the
 * caller's. */
int chat_session_store_put(struct chat_session_store *s, uid_t uid, const char *name, uint8_t *data,
                           size_t bytes, uint64_t id);

int chat_session_store_fd(const struct chat_session_store *s); /* readable: there is something */

/* The next one that is done: false where there is none. *r is 0, or a negative errno with *e. */
bool chat_session_store_take(struct chat_session_store *s, uint64_t *id, int *r, struct err *e);

#endif
