/* chat_session.h - sessions as clients know them: conversations that the daemon holds, by name.
 *
 * Each belongs to a user, whose account it is charged to and whose names are that user's own. A
 * turn is one generate request: while it is in progress its session refuses another turn and every
 * change, and stays as it was before. Loop thread only. */
#ifndef NVLLM_DAEMON_CHAT_SESSION_H
#define NVLLM_DAEMON_CHAT_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/accounts.h"
#include "daemon/limits.h"
#include "engine/engine.h"
#include "engine/text/conversation.h"
#include "engine/util/list.h"

enum { CHAT_SESSION_NAME = 64 }; /* bytes of a name at most */

struct chat_session {
    struct list link;        /* in account->sessions, the last used one last */
    struct account *account; /* a reference */
    struct conversation *talk;
    uint64_t bytes;               /* charged to the account */
    uint64_t created_us, used_us; /* since 1970; used: when it last changed */
    bool busy;                    /* a turn is in progress */
    char name[CHAT_SESSION_NAME + 1];
};

/* Whether it may be a session's name, and so be part of a file's. */
bool chat_session_name_valid(const char *name);

/* NULL: the user has none of that name. */
struct chat_session *chat_session_find(const struct account *account, const char *name);

/* Adds a session, which takes ownership of the conversation on success. The name is valid and not
 * used yet; created_us and used_us are now_us, of an earlier run too. Limits are not checked: see
 * chat_session_check(). -ENOMEM. */
int chat_session_new(struct chat_session **out, struct accounts *accounts, uid_t uid,
                     const char *name, struct conversation *talk, uint64_t now_us);
void chat_session_free(struct chat_session *c);

/* After each change: it is the last used one, and charged for what it takes. */
void chat_session_changed(struct chat_session *c, uint64_t now_us);

/* The limits, for so many more sessions and bytes of a user: 0, or -EINVAL with *e. */
int chat_session_check(const struct account *account, const struct options *o, uint64_t sessions,
                       uint64_t bytes, struct refusal *e);

/* Frees those of all users: before accounts_deinit(), with no turn in progress. */
void chat_sessions_deinit(struct accounts *accounts);

/* ---- turns */

/* A turn in progress. */
struct chat_turn {
    struct chat_session *of; /* NULL: it has ended */
    struct transcript_prompt prompt;
    struct chat chat; /* of all messages, the last n_added ones are the turn's own */
    struct chat_message *messages;
    size_t n_added;
    uint64_t bytes;        /* of these, charged to the account until the turn ends */
    struct token_list ids; /* of the answer so far, as are the next three */
    struct text_part {
        char *data;
        size_t n, cap;
    } text, reasoning;
    struct chat_tool_call *calls; /* [n_calls] */
    size_t n_calls, calls_cap;
    struct unpacked *memory; /* of the calls' texts */
    enum core_reason reason; /* why the answer has ended */
    bool lost;               /* there was no memory for all of it */
};

/* Begins a turn with r, whose chat is the messages to append: they stay until it ends. r then is
 * about the whole conversation. -EINVAL with *e, -ENOMEM. */
int chat_turn_begin(struct chat_turn **out, struct chat_session *c, struct engine_request *r,
                    const struct options *o, struct refusal *e);

/* Takes a delta of the answer. */
void chat_turn_take(struct chat_turn *t, const struct engine_event *delta);

/* Ends the turn. The messages and the answer, even a part of one, become part of the session, and
 * the result is 1; 0: there is nothing to keep, because no token was generated, the model has
 * computed no numbers, or `keep` is false; the session is as before. -ENOMEM: it is, too. */
int chat_turn_end(struct chat_turn *t, bool keep, uint64_t now_us);

void chat_turn_free(struct chat_turn *t); /* ends it without keeping anything; takes NULL */

#endif
