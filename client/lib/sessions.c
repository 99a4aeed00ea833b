/* sessions.c - the operations on sessions. */
#include "client/lib/client.h"
#include "client/lib/error.h"
#include "client/lib/pack.h"

static const struct nvllm_sessions_options default_sessions = {.size = sizeof(default_sessions)};
static const struct nvllm_delete_options default_delete = {.size = sizeof(default_delete)};

void nvllm_sessions_options_init_size(struct nvllm_sessions_options *options, size_t size)
{
    sized_give(options, size, &default_sessions, sizeof(default_sessions));
}

void nvllm_delete_options_init_size(struct nvllm_delete_options *options, size_t size)
{
    sized_give(options, size, &default_delete, sizeof(default_delete));
}

/* The text of a name, where a message has one; NULL with *err. */
static char *name_of(const char *name, const char *field, struct nvllm_error *err)
{
    if (!name)
        error_field(err, field, "%s is NULL", field);
    return (char *)name;
}

static enum nvllm_code call(struct nvllm_client *c, Nvllm__V1__ClientFrame__OpCase op_case,
                            void *op, int timeout_ms, const void *out, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;

    frame.op_case = op_case;
    frame.drain = op; /* whichever it is: the oneof is a union of pointers */
    return client_call(c, &frame, timeout_ms, (const void **)out, err);
}

enum nvllm_code nvllm_create_session(struct nvllm_client *c, const char *name,
                                     const struct nvllm_chat *given, int timeout_ms,
                                     const struct nvllm_session_info **info,
                                     struct nvllm_error *err)
{
    Nvllm__V1__CreateSession op = NVLLM__V1__CREATE_SESSION__INIT;
    struct unpacked *memory = unpacked_new();
    enum nvllm_code code = NVLLM_OK;
    Nvllm__V1__Chat chat;

    op.name = name_of(name, "name", err);
    if (!op.name)
        code = NVLLM_E_INVALID;
    if (code == NVLLM_OK && given) {
        code = pack_chat(memory, &chat, given, err);
        op.chat = &chat;
    }
    if (code == NVLLM_OK)
        code = call(c, OP(CREATE_SESSION), &op, timeout_ms, info, err);
    unpacked_free(memory);
    return code;
}

enum nvllm_code nvllm_fork_session(struct nvllm_client *c, const char *name, const char *new_name,
                                   int64_t turns, int timeout_ms,
                                   const struct nvllm_session_info **info, struct nvllm_error *err)
{
    Nvllm__V1__ForkSession op = NVLLM__V1__FORK_SESSION__INIT;
    enum nvllm_code code = pack_count(&op.has_turns, &op.turns, turns, "turns", err);

    op.name = name_of(name, "name", err);
    op.new_name = name_of(new_name, "new_name", err);
    if (!op.name || !op.new_name)
        return NVLLM_E_INVALID;
    return code == NVLLM_OK ? call(c, OP(FORK_SESSION), &op, timeout_ms, info, err) : code;
}

enum nvllm_code nvllm_rewind_session(struct nvllm_client *c, const char *name, uint32_t turns,
                                     int timeout_ms, const struct nvllm_session_info **info,
                                     struct nvllm_error *err)
{
    Nvllm__V1__RewindSession op = NVLLM__V1__REWIND_SESSION__INIT;

    op.name = name_of(name, "name", err);
    op.has_turns = true;
    op.turns = turns;
    return op.name ? call(c, OP(REWIND_SESSION), &op, timeout_ms, info, err) : NVLLM_E_INVALID;
}

enum nvllm_code nvllm_list_sessions(struct nvllm_client *c,
                                    const struct nvllm_sessions_options *options, int timeout_ms,
                                    const struct nvllm_session_list **list, struct nvllm_error *err)
{
    Nvllm__V1__ListSessions op = NVLLM__V1__LIST_SESSIONS__INIT;
    struct nvllm_sessions_options o = default_sessions;

    if (!sized_take(&o, sizeof(o), options))
        return error_field(err, "options", "initialise the options by their init function");
    op.has_limit = o.limit != 0;
    op.limit = o.limit;
    op.has_all = op.all = o.all;
    return call(c, OP(LIST_SESSIONS), &op, timeout_ms, list, err);
}

enum nvllm_code nvllm_show_session(struct nvllm_client *c, const char *name, bool ids,
                                   int timeout_ms, const struct nvllm_session **session,
                                   struct nvllm_error *err)
{
    Nvllm__V1__ShowSession op = NVLLM__V1__SHOW_SESSION__INIT;

    op.name = name_of(name, "name", err);
    op.has_ids = op.ids = ids;
    return op.name ? call(c, OP(SHOW_SESSION), &op, timeout_ms, session, err) : NVLLM_E_INVALID;
}

enum nvllm_code nvllm_delete_session(struct nvllm_client *c, const char *name,
                                     const struct nvllm_delete_options *options, int timeout_ms,
                                     const struct nvllm_session_info **info,
                                     struct nvllm_error *err)
{
    Nvllm__V1__DeleteSession op = NVLLM__V1__DELETE_SESSION__INIT;
    struct nvllm_delete_options o = default_delete;

    if (!sized_take(&o, sizeof(o), options))
        return error_field(err, "options", "initialise the options by their init function");
    op.name = name_of(name, "name", err);
    op.has_uid = o.has_uid;
    op.uid = o.uid;
    return op.name ? call(c, OP(DELETE_SESSION), &op, timeout_ms, info, err) : NVLLM_E_INVALID;
}
