/* chat_session.c - see chat_session.h. */
#include "daemon/chat_session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"
#include "proto/unpack.h"

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

bool chat_session_name_valid(const char *name)
{
    size_t n = 0;

    for (; name[n]; n++)
        if (n == CHAT_SESSION_NAME || !(is_word(name[n]) || (n > 0 && strchr("_-.", name[n]))))
            return false;
    return n > 0;
}

struct chat_session *chat_session_find(const struct account *account, const char *name)
{
    LIST_EACH (struct chat_session, c, link, &account->sessions)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

static bool is_older(const struct list *a, const struct list *b)
{
    return CONTAINER_OF(a, const struct chat_session, link)->used_us <
           CONTAINER_OF(b, const struct chat_session, link)->used_us;
}

static void charge(struct chat_session *c)
{
    const uint64_t bytes = sizeof(*c) + conversation_bytes(c->talk);

    account_add(c->account, ACCOUNT_SESSION_BYTES, bytes);
    account_sub(c->account, ACCOUNT_SESSION_BYTES, c->bytes);
    c->bytes = bytes;
}

int chat_session_new(struct chat_session **out, struct accounts *accounts, uid_t uid,
                     const char *name, struct conversation *talk, uint64_t now_us)
{
    struct chat_session *c = calloc(1, sizeof(*c));

    must(chat_session_name_valid(name));
    if (!c)
        return -ENOMEM;
    c->account = account_get(accounts, uid);
    if (!c->account) {
        free(c);
        return -ENOMEM;
    }
    must(!chat_session_find(c->account, name));
    list_init(&c->link);
    memcpy(c->name, name, strlen(name) + 1);
    c->talk = talk;
    c->created_us = c->used_us = now_us;
    list_insert(&c->account->sessions, &c->link, is_older);
    account_add(c->account, ACCOUNT_SESSIONS, 1);
    charge(c);
    *out = c;
    return 0;
}

void chat_session_free(struct chat_session *c)
{
    must(!c->busy);
    list_remove(&c->link);
    account_sub(c->account, ACCOUNT_SESSIONS, 1);
    account_sub(c->account, ACCOUNT_SESSION_BYTES, c->bytes);
    account_unref(c->account);
    conversation_free(c->talk);
    free(c);
}

/* The order is that of the changes, whatever the clock does meanwhile. */
void chat_session_changed(struct chat_session *c, uint64_t now_us)
{
    const struct chat_session *last =
        CONTAINER_OF(c->account->sessions.prev, struct chat_session, link);

    c->used_us = now_us > last->used_us ? now_us : last->used_us;
    list_remove(&c->link);
    list_append(&c->account->sessions, &c->link);
    charge(c);
}

int chat_session_check(const struct account *account, const struct options *o, uint64_t sessions,
                       uint64_t bytes, struct refusal *e)
{
    const uint64_t held = account->amounts[ACCOUNT_SESSIONS] + sessions;
    const uint64_t own = account->amounts[ACCOUNT_SESSION_BYTES] + bytes;
    const uint64_t all = account->all->total.amounts[ACCOUNT_SESSION_BYTES] + bytes;

    if (sessions && held > limit_value(o, LIMIT_SESSIONS_PER_UID))
        return limit_refuse_text(e, o, LIMIT_SESSIONS_PER_UID,
                                 "this user has %" PRIu64 " of %" PRIu64 " sessions: delete one",
                                 held - sessions, limit_value(o, LIMIT_SESSIONS_PER_UID));
    if (own > limit_value(o, LIMIT_SESSION_BYTES_PER_UID))
        return limit_refuse_text(e, o, LIMIT_SESSION_BYTES_PER_UID,
                                 "this user's sessions would take %" PRIu64
                                 " bytes: delete or rewind one",
                                 own);
    if (all > limit_value(o, LIMIT_SESSION_BYTES))
        return limit_refuse_text(e, o, LIMIT_SESSION_BYTES,
                                 "the sessions of all users would take %" PRIu64
                                 " bytes: delete or rewind one",
                                 all);
    return 0;
}

void chat_sessions_deinit(struct accounts *accounts)
{
    struct account *account;
    size_t at = 0;

    while ((account = id_map_next(&accounts->by_uid, &at))) {
        account_ref(account);
        must(!list_empty(&account->sessions)); /* nothing else refers to it any more */
        LIST_EACH (struct chat_session, c, link, &account->sessions)
            chat_session_free(c);
        account_unref(account);
        at = 0; /* the map has changed */
    }
}

/* ---- turns */

/* The messages of the session and those to append, as one chat, with what the turn says of calls.
 */
static int join(struct chat_turn *t, const struct chat *held, const struct chat *added)
{
    const size_t n = held->n_messages + added->n_messages;

    t->messages = calloc(n, sizeof(*t->messages));
    if (!t->messages)
        return -ENOMEM;
    if (held->n_messages)
        memcpy(t->messages, held->messages, held->n_messages * sizeof(*t->messages));
    if (added->n_messages)
        memcpy(t->messages + held->n_messages, added->messages,
               added->n_messages * sizeof(*t->messages));
    t->chat = *held;
    t->chat.messages = t->messages;
    t->chat.n_messages = n;
    t->chat.n_tools = added->no_tools ? 0 : held->n_tools;
    t->chat.must_call = added->must_call;
    t->chat.called_tool = added->called_tool;
    t->chat.one_call = added->one_call;
    t->n_added = added->n_messages;
    return 0;
}

/* Whether it may have a turn with these messages now. */
static int check_turn(const struct chat_session *c, const struct chat *added,
                      const struct options *o, struct refusal *e)
{
    const struct chat *held = &c->talk->chat;
    const size_t bytes = chat_bytes(held) + chat_bytes(added);
    const struct text last =
        held->n_messages ? held->messages[held->n_messages - 1].role : (struct text){NULL, 0};

    if (c->busy)
        return refusal_of_field(e, CODE(BUSY), "session",
                                "a turn of \"%s\" is in progress: one at a time", c->name);
    if (added->n_messages == 0 && (last.len == 0 || memcmp(last.data, "assistant", last.len) == 0))
        return refusal_of_field(e, CODE(INVALID), "chat.messages",
                                "is empty, and the session has no message to answer");
    if (added->must_call && held->n_tools == 0)
        return refusal_of_field(e, CODE(INVALID), "chat.tool_choice",
                                "a call is required, but the session has no tools");
    if (bytes > limit_value(o, LIMIT_PROMPT_BYTES))
        return limit_refuse(e, o, LIMIT_PROMPT_BYTES, "session", bytes);
    return chat_session_check(c->account, o, 0,
                              conversation_message_bytes(added->messages, added->n_messages), e);
}

int chat_turn_begin(struct chat_turn **out, struct chat_session *c, struct engine_request *r,
                    const struct options *o, struct refusal *e)
{
    const uint64_t most = limit_value(o, LIMIT_SESSION_TOKENS);
    struct chat_turn *t;
    int ret = check_turn(c, r->chat, o, e);

    if (ret < 0)
        return ret;
    t = calloc(1, sizeof(*t));
    if (!t || join(t, &c->talk->chat, r->chat) < 0) {
        free(t);
        return -ENOMEM;
    }
    t->of = c;
    t->bytes = conversation_message_bytes(r->chat->messages, r->chat->n_messages);
    account_add(c->account, ACCOUNT_SESSION_BYTES, t->bytes);
    t->prompt.said = &c->talk->transcript;
    c->busy = true;
    r->chat = &t->chat;
    r->turn = &t->prompt;
    if (most && (r->prompt_tokens_limit == 0 || most < (uint64_t)r->prompt_tokens_limit))
        r->prompt_tokens_limit = (int32_t)most;
    *out = t;
    return 0;
}

static bool add_text(struct text_part *part, struct text more)
{
    if (more.len == 0)
        return true;
    if (!array_reserve(&part->data, &part->cap, part->n + more.len, 1))
        return false;
    memcpy(part->data + part->n, more.data, more.len);
    part->n += more.len;
    return true;
}

static bool keep_text(struct chat_turn *t, struct text *text)
{
    char *copy = unpacked_alloc(t->memory, text->len, 1);

    if (copy && text->len)
        memcpy(copy, text->data, text->len);
    text->data = copy;
    return copy;
}

static bool add_calls(struct chat_turn *t, const struct engine_event *ev)
{
    if (ev->n_calls == 0)
        return true;
    if (!t->memory)
        t->memory = unpacked_new();
    if (!t->memory ||
        !array_reserve(&t->calls, &t->calls_cap, t->n_calls + ev->n_calls, sizeof(*t->calls)))
        return false;
    for (size_t i = 0; i < ev->n_calls; i++) {
        struct chat_tool_call call = ev->calls[i];

        if (!keep_text(t, &call.name) || !keep_text(t, &call.arguments_json) ||
            !keep_text(t, &call.id))
            return false;
        t->calls[t->n_calls++] = call;
    }
    return true;
}

void chat_turn_take(struct chat_turn *t, const struct engine_event *delta)
{
    struct token_list *ids = &t->ids;

    t->reason = delta->reason;
    if (t->lost)
        return;
    t->lost = !array_reserve(&ids->ids, &ids->cap, ids->n + delta->n_ids, sizeof(*ids->ids)) ||
              !add_text(&t->text, delta->text) || !add_text(&t->reasoning, delta->reasoning) ||
              !add_calls(t, delta);
    if (t->lost)
        return;
    if (delta->n_ids)
        memcpy(ids->ids + ids->n, delta->ids, delta->n_ids * sizeof(*ids->ids));
    ids->n += delta->n_ids;
}

static void leave(struct chat_turn *t)
{
    account_sub(t->of->account, ACCOUNT_SESSION_BYTES, t->bytes);
    t->of->busy = false;
    t->of = NULL;
}

int chat_turn_end(struct chat_turn *t, bool keep, uint64_t now_us)
{
    const struct chat_message answer = {
        .role = {"assistant", strlen("assistant")},
        .has_content = true,
        .content = {t->text.data, t->text.n},
        .has_reasoning = t->reasoning.n > 0,
        .reasoning = {t->reasoning.data, t->reasoning.n},
        .tool_calls = t->calls,
        .n_tool_calls = t->n_calls,
    };
    struct chat_session *c = t->of;
    int r;

    leave(t);
    if (!keep || t->ids.n == 0 || t->reason == CORE_REASON_NUMERICS ||
        t->reason == CORE_REASON_NO_MEMORY)
        return 0;
    r = t->lost ? -ENOMEM
                : conversation_add(c->talk, t->messages + t->chat.n_messages - t->n_added,
                                   t->n_added, &answer, &t->prompt, t->ids.ids, t->ids.n);
    if (r < 0)
        return r;
    chat_session_changed(c, now_us);
    return 1;
}

void chat_turn_free(struct chat_turn *t)
{
    if (!t)
        return;
    if (t->of)
        leave(t);
    transcript_prompt_deinit(&t->prompt);
    free(t->messages);
    free(t->ids.ids);
    free(t->text.data);
    free(t->reasoning.data);
    free(t->calls);
    unpacked_free(t->memory);
    free(t);
}
