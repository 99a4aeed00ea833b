/* chat_operations.c - the protocol's operations on sessions (chat_session.h), their turns among the
 * requests, and their files.
 *
 * With a store, whatever changes a session is answered once its file has been written: what a
 * client has been told outlives a crash. A file that cannot be written is logged, and the session
 * is held all the same. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/chat_session_file.h"
#include "daemon/server_private.h"
#include "engine/util/must.h"

enum { LOG_EVERY_MS = 60 * 1000 };

/* Of the clock, since 1970: unlike clock_us() it goes on after a restart. */
static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* ---- names */

/* One of the caller's by a field's name. */
static int find(struct chat_session **out, const struct client *client, const char *field,
                const char *name, struct refusal *e)
{
    *out = name ? chat_session_find(client->account, name) : NULL;
    if (*out)
        return 0;
    if (!name)
        return refusal_of_field(e, CODE(INVALID), field, "is missing");
    return refusal_of_field(e, CODE(INVALID), field,
                            "this user has no session \"%.64s\"; list_sessions lists "
                            "this user's sessions",
                            name);
}

/* The same where nothing may be in progress. */
static int find_idle(struct chat_session **out, const struct client *client, const char *name,
                     struct refusal *e)
{
    int r = find(out, client, "name", name, e);

    if (r == 0 && (*out)->busy)
        return refusal_of_field(e, CODE(BUSY), "name", "a turn of \"%s\" is in progress", name);
    return r;
}

/* A name for a new one. */
static int check_new(const struct client *client, const char *field, const char *name,
                     struct refusal *e)
{
    if (!name || !chat_session_name_valid(name))
        return refusal_of_field(e, CODE(INVALID), field,
                                "must be 1 to %d letters, digits, \"_\", \"-\" and \".\", and "
                                "begin with a letter or digit",
                                CHAT_SESSION_NAME);
    if (chat_session_find(client->account, name))
        return refusal_of_field(e, CODE(INVALID), field, "there is a session \"%s\" already", name);
    return 0;
}

static int find_turn(uint32_t *turns, const struct conversation *talk, bool given, uint32_t wanted,
                     struct refusal *e)
{
    *turns = given ? wanted : (uint32_t)talk->n_turns;
    if (*turns <= talk->n_turns)
        return 0;
    return refusal_of_field(e, CODE(INVALID), "turns", "%" PRIu32 " is more than it has, %zu",
                            *turns, talk->n_turns);
}

/* ---- answers */

static void warn(struct server *s, const char *text)
{
    if (log_due(&s->sessions_unsaved, LOG_EVERY_MS))
        log_text(LOG_LEVEL_WARNING, "session_not_saved", text, "%s", "");
}

/* Whether the limits allow the copy of a session that waits for its file to be written. */
static int refuse_copy(const struct client *client, uint64_t bytes, struct refusal *e)
{
    return client->server->store
               ? client_refuse(client, &(struct demand){.new_work = true, .engine_bytes = bytes}, e)
               : 0;
}

/* Asks for a session's file to be written, or removed; then the request is answered, which is
 * charged for the copy until then. False: there is no store, or no memory. */
static bool save(struct pending *p, const struct chat_session *c, bool removed)
{
    struct server *s = p->server;
    uint8_t *data = NULL;
    size_t bytes = 0;
    int r;

    if (!s->store)
        return false;
    r = removed ? 0 : chat_session_pack(&data, &bytes, c, s->model);
    if (r == 0)
        r = chat_session_store_put(s->store, c->account->uid, c->name, data, bytes, p->id);
    if (r < 0) {
        free(data);
        warn(s, strerror(-r));
        return false;
    }
    account_add(p->account, ACCOUNT_REQUEST_BYTES, bytes);
    p->engine_bytes += bytes;
    return true;
}

/* Answers an operation with what the session is. */
static int answer_now(const struct client_call *call, const struct chat_session *c)
{
    Nvllm__V1__SessionInfo m;

    inspection_fill_session(&m, c);
    return reply_put(call->client->connection, call->frame->id, EVENT(SESSION_INFO), &m);
}

/* The same once that is saved. */
static int answer(struct client_call *call, const struct chat_session *c, bool removed)
{
    struct client *client = call->client;
    Nvllm__V1__SessionInfo m;
    struct pending *p;

    if (!client->server->store)
        return answer_now(call, c);
    inspection_fill_session(&m, c);
    p = pending_new(client, call->frame->id, &(struct demand){0}, NULL);
    if (!p)
        return -ENOMEM;
    if (reply_prepare(&p->answer, EVENT(SESSION_INFO), &m, SIZE_MAX) == 0 && save(p, c, removed))
        return 0;
    pending_forget(p);
    return answer_now(call, c);
}

void chat_on_store(struct server *s)
{
    struct err why;
    uint64_t id;
    int r;

    while (chat_session_store_take(s->store, &id, &r, &why)) {
        struct pending *p = id_map_get(&s->requests, id);
        struct client *one = p ? p->client : NULL;
        int put = CONNECTION_OK;

        if (r < 0)
            warn(s, why.text);
        if (!p)
            continue;
        if (one)
            put = reply_put_packed(one->connection, p->client_id, &p->answer);
        pending_forget(p);
        if (one)
            client_check_put(one, put);
    }
}

/* ---- operations */

/* Enters a new one, which takes the conversation in any case. */
static int enter(struct client_call *call, const char *name, struct conversation *talk,
                 struct refusal *e)
{
    struct client *client = call->client;
    const uint64_t bytes = sizeof(struct chat_session) + conversation_bytes(talk);
    struct chat_session *c;
    int r = chat_session_check(client->account, client->server->parts.options, 1, bytes, e);

    if (r == 0)
        r = refuse_copy(client, bytes, e);
    if (r == 0)
        r = chat_session_new(&c, &client->server->accounts, client->account->uid, name, talk,
                             now_us());
    if (r < 0) {
        conversation_free(talk);
        return r;
    }
    r = answer(call, c, false);
    if (r == -ENOMEM) /* as if it had never been there */
        chat_session_free(c);
    return r;
}

int chat_create(struct client_call *call, struct refusal *e)
{
    static const struct chat none = {.messages = NULL};
    const Nvllm__V1__CreateSession *m = call->frame->create_session;
    const struct server *server = call->client->server;
    const struct chat *chat = &none;
    struct conversation *talk;
    int r = client_refuse(call->client, &(struct demand){.new_work = true}, e);

    if (r == 0)
        r = check_new(call->client, "name", m->name, e);
    if (r == 0 && m->chat)
        r = request_chat(&chat, m->chat, call->message, &server->rules, e);
    if (r == 0 && chat_bytes(chat) > limit_value(server->parts.options, LIMIT_PROMPT_BYTES))
        r = limit_refuse(e, server->parts.options, LIMIT_PROMPT_BYTES, "chat", chat_bytes(chat));
    if (r == 0)
        r = conversation_new(&talk, chat);
    return r < 0 ? r : enter(call, m->name, talk, e);
}

int chat_fork(struct client_call *call, struct refusal *e)
{
    const Nvllm__V1__ForkSession *m = call->frame->fork_session;
    struct chat_session *from;
    struct conversation *talk;
    uint32_t turns = 0;
    int r = client_refuse(call->client, &(struct demand){.new_work = true}, e);

    if (r == 0)
        r = find(&from, call->client, "name", m->name, e);
    if (r == 0)
        r = check_new(call->client, "new_name", m->new_name, e);
    if (r == 0)
        r = find_turn(&turns, from->talk, m->has_turns, m->turns, e);
    if (r == 0) /* before memory is taken */
        r = chat_session_check(call->client->account, call->client->server->parts.options, 1,
                               conversation_fork_bytes(from->talk, turns), e);
    if (r == 0)
        r = conversation_fork(&talk, from->talk, turns);
    return r < 0 ? r : enter(call, m->new_name, talk, e);
}

int chat_rewind(struct client_call *call, struct refusal *e)
{
    const Nvllm__V1__RewindSession *m = call->frame->rewind_session;
    struct chat_session *c;
    uint32_t turns = 0;
    int r = client_refuse(call->client, &(struct demand){.new_work = true}, e);

    if (r == 0)
        r = find_idle(&c, call->client, m->name, e);
    if (r == 0 && !m->has_turns)
        r = refusal_of_field(e, CODE(INVALID), "turns", "is missing");
    if (r == 0)
        r = find_turn(&turns, c->talk, true, m->turns, e);
    if (r == 0 && turns == c->talk->n_turns)
        return answer_now(call, c);
    if (r == 0)
        r = refuse_copy(call->client, conversation_fork_bytes(c->talk, turns), e);
    if (r < 0)
        return r;
    conversation_rewind(c->talk, turns);
    chat_session_changed(c, now_us());
    return answer(call, c, false);
}

int chat_delete(struct client_call *call, struct refusal *e)
{
    const Nvllm__V1__DeleteSession *m = call->frame->delete_session;
    const struct client *client = call->client;
    const uint32_t uid = m->has_uid ? m->uid : client->account->uid;
    const struct account *whose = id_map_get(&client->server->accounts.by_uid, uid);
    struct chat_session *c;
    int r = client_refuse(client, &(struct demand){.new_work = true}, e);

    if (r < 0)
        return r;
    if (uid == client->account->uid) {
        r = find_idle(&c, client, m->name, e);
    } else if (!client->admin) {
        r = refusal_of_field(e, CODE(DENIED), "uid",
                             "only administrators may delete other users' sessions");
    } else {
        c = whose && m->name ? chat_session_find(whose, m->name) : NULL;
        if (!c)
            r = refusal_of_field(e, CODE(INVALID), "name",
                                 "the user %" PRIu32 " has no session \"%.64s\"", uid,
                                 m->name ? m->name : "");
        else if (c->busy)
            r = refusal_of_field(e, CODE(BUSY), "name", "a turn of \"%s\" is in progress", c->name);
    }
    if (r < 0)
        return r;
    r = answer(call, c, true);
    if (r != -ENOMEM)
        chat_session_free(c);
    return r;
}

/* Puts a user's sessions into an array, the last used one first; their number. */
static size_t collect(const struct chat_session **out, const struct account *account)
{
    size_t n = 0;

    for (const struct list *at = account->sessions.prev; at != &account->sessions; at = at->prev)
        out[n++] = CONTAINER_OF(at, const struct chat_session, link);
    return n;
}

static int by_use(const void *a, const void *b)
{
    const struct chat_session *const *x = a, *const *y = b;

    return ((*x)->used_us < (*y)->used_us) - ((*x)->used_us > (*y)->used_us);
}

/* Enters the first ones of an array into a list. */
static int fill_list(Nvllm__V1__SessionList *list, const struct chat_session *const *from, size_t n,
                     struct unpacked *u)
{
    Nvllm__V1__SessionInfo *infos = unpacked_list(u, &list->sessions, n, sizeof(*infos));

    if (!infos)
        return -ENOMEM;
    list->n_sessions = n;
    for (size_t i = 0; i < n; i++)
        inspection_fill_session(&infos[i], from[i]);
    return 0;
}

int chat_list(struct client_call *call, struct refusal *e)
{
    const Nvllm__V1__ListSessions *m = call->frame->list_sessions;
    const struct client *client = call->client;
    const struct accounts *accounts = &client->server->accounts;
    Nvllm__V1__SessionList list = NVLLM__V1__SESSION_LIST__INIT;
    const struct account *held = m->all ? &accounts->total : client->account, *one;
    const size_t limit =
        m->limit && m->limit < INSPECT_MAX_ENTRIES ? m->limit : INSPECT_MAX_ENTRIES;
    const struct chat_session **found;
    struct unpacked *u;
    size_t n = 0, at = 0;
    int r = client_refuse(client, &(struct demand){.inspect = true}, e);

    if (r == 0 && m->all && !client->admin)
        r = refusal_of_field(e, CODE(DENIED), "all",
                             "only administrators may list the sessions of all users");
    if (r < 0)
        return r;
    u = unpacked_new();
    found = unpacked_alloc(u, held->amounts[ACCOUNT_SESSIONS], sizeof(*found));
    if (!found) {
        unpacked_free(u);
        return -ENOMEM;
    }
    if (!m->all)
        n = collect(found, client->account);
    while (m->all && (one = id_map_next(&accounts->by_uid, &at)))
        n += collect(found + n, one);
    if (m->all)
        qsort(found, n, sizeof(*found), by_use);
    list.has_total = true;
    list.total = (uint32_t)n;
    r = fill_list(&list, found, n < limit ? n : limit, u);
    if (r == 0)
        r = reply_put(client->connection, call->frame->id, EVENT(SESSION_LIST), &list);
    unpacked_free(u);
    return r;
}

/* Its turns, for a message. */
static int fill_turns(Nvllm__V1__SessionContents *m, const struct conversation *talk,
                      struct unpacked *u)
{
    m->n_turn_messages = talk->n_turns + 1;
    m->turn_messages = unpacked_alloc(u, m->n_turn_messages, sizeof(*m->turn_messages));
    if (!m->turn_messages)
        return -ENOMEM;
    for (size_t i = 0; i < m->n_turn_messages; i++)
        m->turn_messages[i] = (uint32_t)talk->turns[i].n_messages;
    return 0;
}

int chat_show(struct client_call *call, struct refusal *e)
{
    const Nvllm__V1__ShowSession *m = call->frame->show_session;
    const struct client *client = call->client;
    const struct options *o = client->server->parts.options;
    Nvllm__V1__SessionContents contents = NVLLM__V1__SESSION_CONTENTS__INIT;
    Nvllm__V1__SessionInfo info;
    Nvllm__V1__Chat chat;
    struct chat_session *c;
    struct unpacked *u;
    int r = client_refuse(client, &(struct demand){.inspect = true}, e);

    if (r == 0)
        r = find(&c, client, "name", m->name, e);
    if (r < 0)
        return r;
    u = unpacked_new();
    inspection_fill_session(&info, c);
    contents.info = &info;
    contents.chat = &chat;
    r = u ? chat_session_fill_chat(&chat, &c->talk->chat, u) : -ENOMEM;
    if (r == 0)
        r = fill_turns(&contents, c->talk, u);
    if (r == 0 && m->ids) {
        contents.n_token_ids = c->talk->transcript.ids.n;
        contents.token_ids = c->talk->transcript.ids.ids;
    }
    if (r == 0)
        r = reply_put(client->connection, call->frame->id, EVENT(SESSION_CONTENTS), &contents);
    unpacked_free(u);
    if (r != CONNECTION_E_LARGE)
        return r;
    limit_refuse_text(e, o, LIMIT_OUTPUT_BYTES, "the session takes more than %" PRId64 " bytes",
                      o->max_output_bytes);
    e->code = CODE(TOO_LONG); /* waiting would not help */
    e->retry_after_ms = 0;
    return -EINVAL;
}

/* ---- turns */

int chat_begin_turn(struct chat_turn **out, const struct client_call *call,
                    struct engine_request *r, struct refusal *e)
{
    const struct client *client = call->client;
    struct chat_session *c;
    int ret = find(&c, client, "session", call->frame->generate->session, e);

    return ret < 0 ? ret : chat_turn_begin(out, c, r, client->server->parts.options, e);
}

/* What a daemon that shuts down has cut off is not kept: the client asks the next one again. */
int chat_end_turn(struct pending *p, const struct engine_event *ev)
{
    struct server *s = p->server;
    struct chat_turn *t = p->turn;
    const struct chat_session *c = t->of;
    const bool cut_off = s->closed && !p->client;
    int r = chat_turn_end(t, ev->type == ENGINE_DONE && !cut_off, now_us());

    if (r <= 0)
        return r;
    return s->store && reply_prepare_done(&p->answer, &ev->usage) == 0 && save(p, c, false);
}

/* ---- files */

static void warn_of_file(const char *text)
{
    log_text(LOG_LEVEL_WARNING, "session_file", text, "%s", "");
}

/* chat_session_store_read(): a session of an earlier daemon. */
static int take_file(void *server, const char *file, const uint8_t *data, size_t bytes,
                     struct err *e)
{
    struct server *s = server;
    char wanted[CHAT_SESSION_FILE_NAME];
    struct chat_session_record record;
    struct chat_session *c;
    int r = chat_session_unpack(&record, data, bytes, s->model, &s->rules, e);

    if (r < 0)
        return r;
    chat_session_file_name(wanted, record.uid, record.name);
    if (strcmp(file, wanted) != 0)
        r = err_set(e, -EBADMSG, "it was written as %s", wanted);
    else
        r = chat_session_new(&c, &s->accounts, record.uid, record.name, record.talk,
                             record.used_us);
    if (r < 0)
        conversation_free(record.talk);
    else
        c->created_us = record.created_us;
    return r;
}

void chat_open_store(struct server *s)
{
    struct err e;

    if (!s->parts.session_folder)
        return;
    if (model_fingerprint(engine_model(s->parts.engine), MODEL_OF_FILES, &s->model, &e) < 0 ||
        chat_session_store_open(&s->store, s->parts.session_folder, s->model, &e) < 0) {
        log_text(LOG_LEVEL_WARNING, "sessions_in_memory", e.text, "%s", "");
        return;
    }
    chat_session_store_read(s->store, take_file, s, warn_of_file);
    log_event(LOG_LEVEL_INFO, "sessions_read", "sessions=%" PRIu64,
              (uint64_t)s->accounts.total.amounts[ACCOUNT_SESSIONS]);
}
