/* nvllm_sessions.h - sessions: conversations that the daemon holds. nvllm_client.h includes it and
 * states the rules for both.
 *
 * A session holds its messages, and as exact token ids what the model was told and what it said: a
 * turn sends what is new, and finds the rest in the prefix cache. It outlives its client, and where
 * the daemon has cache.disk set, the daemon. A turn is a request with the session's name, whose
 * chat has the messages to append and nothing else: nvllm_request.session.
 *
 * Names are the user's own, of 1 to 64 letters, digits, "_", "-" and ".", with a letter or digit
 * first. Of two turns at the same time the second fails with NVLLM_E_BUSY, as does a change during
 * a turn. A turn that is cancelled, reaches its maximum or its deadline, or whose client goes away,
 * leaves what was generated until then; one that fails, or that has generated nothing, leaves the
 * session as it was.
 *
 * Each call waits for its answer. Results may be NULL where they are not wanted. */
#ifndef NVLLM_SESSIONS_H
#define NVLLM_SESSIONS_H

#include "nvllm_client.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Made by the library; grows at its end. */
struct nvllm_session_info {
    const char *name;
    uint32_t uid;        /* whose it is */
    uint32_t turns;      /* messages that were appended, with the answer to them */
    uint32_t messages;   /* of all turns, and before the first */
    uint32_t tokens;     /* with which the next prompt begins, if the chat template agrees */
    uint64_t bytes;      /* of the daemon's memory */
    uint64_t created_us; /* since 1970, UTC */
    uint64_t used_us;    /* when its last turn ended, or it was last changed */
    bool busy;           /* a turn is in progress */
};

/* chat, which may be NULL, is what each prompt has: messages before the first turn, such as a
 * system prompt, tools, documents, enable_thinking and chat_template_kwargs. NVLLM_E_INVALID where
 * there is one of that name. */
enum nvllm_code nvllm_create_session(struct nvllm_client *client, const char *name,
                                     const struct nvllm_chat *chat, int timeout_ms,
                                     const struct nvllm_session_info **info,
                                     struct nvllm_error *err);

/* Copies the first so many turns, or all where turns is negative, to a new session. */
enum nvllm_code nvllm_fork_session(struct nvllm_client *client, const char *name,
                                   const char *new_name, int64_t turns, int timeout_ms,
                                   const struct nvllm_session_info **info, struct nvllm_error *err);

/* Drops all but the first so many turns. */
enum nvllm_code nvllm_rewind_session(struct nvllm_client *client, const char *name, uint32_t turns,
                                     int timeout_ms, const struct nvllm_session_info **info,
                                     struct nvllm_error *err);

struct nvllm_session_list {
    const struct nvllm_session_info *const *sessions; /* [n_sessions] most recently used first */
    size_t n_sessions;
    uint32_t total; /* listed or not */
};

struct nvllm_sessions_options {
    size_t size;
    uint32_t limit; /* 0: as many as the daemon lists at a time */
    bool all;       /* false; those of all users, for admins */
};

void nvllm_sessions_options_init_size(struct nvllm_sessions_options *options, size_t size);
#define nvllm_sessions_options_init(options)                                                       \
    nvllm_sessions_options_init_size((options), sizeof(struct nvllm_sessions_options))

/* options may be NULL, here and below. */
enum nvllm_code nvllm_list_sessions(struct nvllm_client *client,
                                    const struct nvllm_sessions_options *options, int timeout_ms,
                                    const struct nvllm_session_list **list,
                                    struct nvllm_error *err);

/* Made by the library; grows at its end. */
struct nvllm_session {
    const struct nvllm_session_info *info;
    const struct nvllm_chat *chat; /* as it was created, with all messages */
    const uint32_t *turn_messages; /* [turns + 1] messages at the end of each; of the first, those
                                      before any turn */
    size_t n_turn_messages;
    const int32_t *token_ids; /* [n_token_ids] if they were asked for */
    size_t n_token_ids;
};

enum nvllm_code nvllm_show_session(struct nvllm_client *client, const char *name, bool ids,
                                   int timeout_ms, const struct nvllm_session **session,
                                   struct nvllm_error *err);

struct nvllm_delete_options {
    size_t size;
    bool has_uid; /* false: the caller's own session */
    uint32_t uid; /* whose it is; others' are for admins */
};

void nvllm_delete_options_init_size(struct nvllm_delete_options *options, size_t size);
#define nvllm_delete_options_init(options)                                                         \
    nvllm_delete_options_init_size((options), sizeof(struct nvllm_delete_options))

/* *info is what it was. */
enum nvllm_code nvllm_delete_session(struct nvllm_client *client, const char *name,
                                     const struct nvllm_delete_options *options, int timeout_ms,
                                     const struct nvllm_session_info **info,
                                     struct nvllm_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
