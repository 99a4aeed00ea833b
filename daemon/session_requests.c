/* session_requests.c - what clients have under way: from the check that there is room for it, by
 * the engine, to the terminal event. */
#include "daemon/session_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

_Static_assert(OPTIONS_MAX_CHOICES <= 64, "choices are bits of pending.told");

/* Bytes of text that are counted as a token before it is known how many there are. */
enum { BYTES_A_TOKEN = 4 };

void pending_cancel(struct sessions *s, struct pending *p)
{
    engine_cancel(s->engine, p->id);
}

/* The request is no longer among those without an answer. */
static void leave_queue(struct pending *p)
{
    if (p->queued_tokens)
        account_sub(p->account, ACCOUNT_QUEUED_TOKENS, p->queued_tokens);
    p->queued_tokens = 0;
}

/* Takes the first of what is held off the account, and frees it. */
static void drop_held(struct pending *p)
{
    size_t bytes = held_bytes(p->held);

    account_sub(p->account, ACCOUNT_OUTPUT_BYTES, bytes);
    p->session->held_bytes -= bytes;
    held_pop(&p->held);
}

static void free_pending(struct pending *p)
{
    while (p->held)
        drop_held(p);
    leave_queue(p);
    account_sub(p->account, ACCOUNT_QUESTIONS, p->question);
    account_sub(p->account, ACCOUNT_REQUESTS, 1);
    account_give_back_bytes(p->account, p->engine_bytes);
    account_unref(p->account);
    free(p);
}

void pending_forget(struct sessions *s, struct pending *p)
{
    must(id_map_take(&s->requests, p->id) == p);
    if (p->session)
        must(id_map_take(&p->session->requests, p->client_id) == p);
    free_pending(p);
}

void session_abandon_requests(struct session *s)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at))) {
        while (p->held)
            drop_held(p);
        p->session = NULL;
        pending_cancel(s->shared, p);
    }
    id_map_deinit(&s->requests);
    s->requests = (struct id_map){0};
}

/* ---- room */

static int refuse_state(const struct sessions *all, bool new_work, struct refusal *e)
{
    if (all->closed)
        return refusal_set(e, CODE(UNAVAILABLE), "the daemon is ending");
    switch (all->facts.state) {
    case NVLLM__V1__STATE__STATE_READY:
        return 0;
    case NVLLM__V1__STATE__STATE_DRAINING:
        return new_work ? refusal_set(e, CODE(UNAVAILABLE),
                                      "the daemon is draining: it takes no new requests")
                        : 0;
    case NVLLM__V1__STATE__STATE_FAILED:
        return refusal_set(e, CODE(UNAVAILABLE),
                           "the engine has failed, the daemon is about to end");
    default:
        return refusal_set(e, CODE(UNAVAILABLE), "the model is being loaded");
    }
}

static const enum limit byte_limits[] = {LIMIT_REQUEST_BYTES, LIMIT_REQUEST_BYTES_PER_UID};

/* Is there room for a message and what the engine makes of it: of a small one with many choices and
 * stops much. */
static int refuse_bytes(const struct session *s, size_t message, size_t engine, struct refusal *e)
{
    const struct options *o = s->shared->options;
    const struct account *sums[] = {&s->shared->accounts.total, s->account};
    size_t bytes;

    if (!size_add(&bytes, message, engine))
        bytes = SIZE_MAX;
    for (int i = 0; i < 2; i++) {
        uint64_t used = atomic_load(&sums[i]->request_bytes);
        uint64_t most = limit_value(o, byte_limits[i]);

        if (bytes <= most && used <= most - bytes)
            continue;
        limit_refuse(e, o, byte_limits[i], "", bytes > UINT64_MAX - used ? bytes : used + bytes);
        if (bytes > most)
            e->code = CODE(TOO_LONG); /* waiting would not help */
        return -EINVAL;
    }
    return 0;
}

int session_refuse(const struct session *s, bool new_work, uint64_t queued_tokens,
                   struct refusal *e)
{
    const struct sessions *all = s->shared;
    const struct options *o = all->options;
    const struct account *sums[] = {&all->accounts.total, s->account};
    static const enum limit limits[][2] = {
        {LIMIT_REQUESTS, LIMIT_QUEUED_TOKENS},
        {LIMIT_REQUESTS_PER_UID, LIMIT_QUEUED_TOKENS_PER_UID},
    };
    uint64_t reserve = s->admin ? (uint64_t)o->admin_requests : 0, n;
    int r = refuse_state(all, new_work, e);

    if (r < 0)
        return r;
    if (s->requests.n >= (size_t)o->max_requests_per_connection)
        return limit_refuse(e, o, LIMIT_REQUESTS_PER_CONNECTION, "", s->requests.n + 1);
    for (int i = 0; i < 2; i++) {
        n = sums[i]->amounts[ACCOUNT_REQUESTS] + 1;
        if (n > limit_value(o, limits[i][0]) + reserve)
            return limit_refuse(e, o, limits[i][0], "", n);
        if (s->admin && !new_work)
            continue; /* who looks what fills the memory must not be kept out by it */
        n = sums[i]->amounts[ACCOUNT_QUEUED_TOKENS] + queued_tokens;
        if (queued_tokens && n > limit_value(o, limits[i][1])) {
            limit_refuse(e, o, limits[i][1], "", n);
            if (queued_tokens > e->limit_value)
                e->code = CODE(TOO_LONG); /* waiting would not help */
            return -EINVAL;
        }
        n = atomic_load(&sums[i]->request_bytes);
        if (n >= limit_value(o, byte_limits[i]))
            return limit_refuse(e, o, byte_limits[i], "", n);
    }
    return 0;
}

struct pending *session_enter(struct session *s, uint64_t client_id, int32_t n,
                              uint64_t queued_tokens)
{
    struct sessions *all = s->shared;
    struct pending *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    *p = (struct pending){.id = ++all->last_id,
                          .client_id = client_id,
                          .session = s,
                          .account = s->account,
                          .pid = s->pid,
                          .n = n,
                          .queued_tokens = queued_tokens};
    if (id_map_put(&all->requests, p->id, p) < 0)
        goto fail;
    if (id_map_put(&s->requests, client_id, p) < 0) {
        id_map_take(&all->requests, p->id);
        goto fail;
    }
    account_ref(p->account);
    account_add(p->account, ACCOUNT_REQUESTS, 1);
    account_add(p->account, ACCOUNT_QUEUED_TOKENS, queued_tokens);
    return p;
fail:
    free(p);
    return NULL;
}

/* ---- from the client */

/* Takes the request over once it is known to be sound: on the accounts, into the tables. */
static struct pending *take_over(struct session *s, const Nvllm__V1__ClientFrame *f,
                                 struct unpacked *u, int32_t n, uint64_t queued_tokens,
                                 struct request_owner **owner)
{
    *owner = request_owner_new(u, s->account);
    return *owner ? session_enter(s, f->id, n, queued_tokens) : NULL;
}

uint64_t session_tokens(size_t n_bytes)
{
    return n_bytes / BYTES_A_TOKEN + 1;
}

static uint64_t tokens_of_request(const struct engine_request *r)
{
    switch (r->input) {
    case ENGINE_PROMPT:
        return session_tokens(r->prompt.len);
    case ENGINE_PROMPT_IDS:
        return r->n_prompt_ids;
    case ENGINE_CHAT:
        return session_tokens(chat_bytes(r->chat));
    }
    return 0;
}

static int start_generate(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                          struct request_owner **owner, struct refusal *e)
{
    struct sessions *all = s->shared;
    struct engine_request r;
    struct pending *p;
    int ret = request_generate(&r, f->generate, u, &all->rules, s->admin, session_now_us(), e);

    if (ret < 0 || (ret = session_refuse(s, true, tokens_of_request(&r), e)) < 0 ||
        (ret = refuse_bytes(s, unpacked_bytes(u), engine_request_bytes(&r), e)) < 0)
        return ret;
    p = take_over(s, f, u, r.n, tokens_of_request(&r), owner);
    if (!p)
        return -ENOMEM;
    p->engine_bytes = engine_request_bytes(&r);
    account_take_bytes(p->account, p->engine_bytes);
    r.id = p->id;
    r.client = s->account->uid;
    r.owner = *owner;
    r.release = request_owner_release;
    ret = engine_generate(all->engine, &r);
    if (ret < 0)
        pending_forget(all, p);
    return ret;
}

static int start_tokenize(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                          struct request_owner **owner, struct refusal *e)
{
    struct sessions *all = s->shared;
    struct pending *p;
    struct text text;
    int r = request_tokenize(&text, f->tokenize, &all->rules, e);

    if (r < 0 || (r = session_refuse(s, true, session_tokens(text.len), e)) < 0)
        return r;
    p = take_over(s, f, u, 0, session_tokens(text.len), owner);
    if (!p)
        return -ENOMEM;
    r = engine_tokenize(all->engine, p->id, s->account->uid, text,
                        f->tokenize->has_special && f->tokenize->special, *owner,
                        request_owner_release);
    if (r < 0)
        pending_forget(all, p);
    return r;
}

static int start_detokenize(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                            struct request_owner **owner, struct refusal *e)
{
    struct sessions *all = s->shared;
    const Nvllm__V1__Detokenize *d = f->detokenize;
    struct pending *p;
    int r = request_detokenize(d, &all->rules, e);

    if (r < 0 || (r = session_refuse(s, true, d->n_ids, e)) < 0)
        return r;
    p = take_over(s, f, u, 0, d->n_ids, owner);
    if (!p)
        return -ENOMEM;
    r = engine_detokenize(all->engine, p->id, s->account->uid, d->ids, d->n_ids,
                          d->has_skip_special && d->skip_special, *owner, request_owner_release);
    if (r < 0)
        pending_forget(all, p);
    return r;
}

static int start_render(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                        struct request_owner **owner, struct refusal *e)
{
    struct sessions *all = s->shared;
    struct pending *p;
    struct chat *chat;
    int r;

    if (!f->render->chat)
        return refusal_of_field(e, CODE(INVALID), "chat", "is missing");
    r = request_chat(&chat, f->render->chat, u, &all->rules, e);
    if (r < 0 || (r = session_refuse(s, true, session_tokens(chat_bytes(chat)), e)) < 0)
        return r;
    p = take_over(s, f, u, 0, session_tokens(chat_bytes(chat)), owner);
    if (!p)
        return -ENOMEM;
    r = engine_render(all->engine, p->id, s->account->uid, chat, *owner, request_owner_release);
    if (r < 0)
        pending_forget(all, p);
    return r;
}

bool session_start(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u)
{
    struct refusal e = {.field = ""};
    struct request_owner *owner = NULL;
    int r = session_refuse(s, true, 0, &e); /* before anything is made of it */

    if (r == 0) {
        switch (f->op_case) {
        case OP(GENERATE):
            r = start_generate(s, f, u, &owner, &e);
            break;
        case OP(TOKENIZE):
            r = start_tokenize(s, f, u, &owner, &e);
            break;
        case OP(DETOKENIZE):
            r = start_detokenize(s, f, u, &owner, &e);
            break;
        default:
            r = start_render(s, f, u, &owner, &e);
            break;
        }
    }
    if (r == 0)
        return true;
    if (r == -ENOMEM)
        refusal_set(&e, CODE(INTERNAL), "out of memory");
    session_answer_error(s, f->id, &e);
    if (!owner)
        return false;
    request_owner_release(owner); /* and with it the message */
    return true;
}

/* ---- from the engine */

/* Puts all that is held for a request. */
static int put_held(struct pending *p)
{
    int r = CONNECTION_OK;

    while (p->held && r == CONNECTION_OK) {
        r = reply_delta(p->session->connection, p->client_id, held_delta(p->held));
        drop_held(p);
    }
    return r;
}

void session_put_held(struct session *s)
{
    struct pending *p;
    size_t at = 0;
    int r = CONNECTION_OK;

    while (r == CONNECTION_OK && s->held_bytes && !connection_paused(s->connection) &&
           (p = id_map_next(&s->requests, &at)))
        r = put_held(p);
    session_check_put(s, r);
}

/* A client that is paused has its tokens gathered: what it leaves unread would else be frames of
 * one token each. */
static int hold(struct sessions *s, struct pending *p, const struct engine_event *ev)
{
    struct session *one = p->session;
    size_t bytes = 0;
    int r = held_add(&p->held, ev, &bytes);

    account_add(p->account, ACCOUNT_OUTPUT_BYTES, bytes);
    one->held_bytes += bytes;
    if (r == 0 && connection_unread_bytes(one->connection) + one->held_bytes >
                      (size_t)s->options->max_output_bytes)
        return CONNECTION_E_SLOW;
    return r;
}

/* Choices that the engine has not told their end of learn it before the request's own. */
static int finish_choices(struct connection *c, struct pending *p, const struct engine_event *ev)
{
    struct engine_event last = {.type = ENGINE_DELTA};
    int r = CONNECTION_OK;

    last.reason = ev->reason != CORE_REASON_NONE ? ev->reason : CORE_REASON_CANCELLED;
    for (int32_t i = 0; i < p->n && r == CONNECTION_OK; i++) {
        if (p->told >> i & 1)
            continue;
        last.choice = i;
        r = reply_delta(c, p->client_id, &last);
    }
    return r;
}

/* What the engine could not do, as an error of the protocol. */
static int tell_error(struct sessions *s, struct pending *p, const struct engine_event *ev)
{
    struct refusal e;

    if (ev->error == ENGINE_E_PROMPT_LIMIT)
        limit_refuse(&e, s->options, LIMIT_PROMPT_TOKENS, ev->field,
                     (uint64_t)ev->usage.prompt_tokens);
    else if (ev->field)
        refusal_of_field(&e, reply_error_code(ev->error), ev->field, "%s", "");
    else
        refusal_set(&e, reply_error_code(ev->error), "%s", "");
    if (ev->error != ENGINE_E_PROMPT_LIMIT)
        e.message = *ev->message;
    return reply_error(p->session->connection, p->client_id, &e);
}

static int tell(struct sessions *s, struct pending *p, struct engine_event *ev)
{
    struct connection *c = p->session->connection;
    int r;

    switch (ev->type) {
    case ENGINE_DELTA:
        if (ev->reason != CORE_REASON_NONE)
            p->told |= UINT64_C(1) << ev->choice;
        if (connection_paused(c))
            return hold(s, p, ev);
        return reply_delta(c, p->client_id, ev);
    case ENGINE_DONE:
        r = put_held(p);
        if (r == CONNECTION_OK)
            r = finish_choices(c, p, ev);
        return r == CONNECTION_OK ? reply_done(c, p->client_id, &ev->usage) : r;
    case ENGINE_TOKENS:
    case ENGINE_TEXT:
        return reply_packed(c, p->client_id, ev);
    case ENGINE_ERROR:
        if (ev->error == ENGINE_E_ANSWER_LIMIT)
            return CONNECTION_E_LARGE;
        r = put_held(p);
        return r == CONNECTION_OK ? tell_error(s, p, ev) : r;
    case ENGINE_REPORT:
        return session_report(s, p, ev->report);
    case ENGINE_STATE:
        break;
    }
    return CONNECTION_OK;
}

/* An answer of more bytes than may be left unread ends its request, not the connection. */
static int refuse_answer(struct sessions *s, struct pending *p)
{
    struct refusal e;

    limit_refuse_text(&e, s->options, LIMIT_OUTPUT_BYTES,
                      "the answer is larger than the limit of %" PRId64 " bytes",
                      s->options->max_output_bytes);
    e.code = CODE(TOO_LONG); /* it would be no smaller later */
    e.retry_after_ms = 0;
    return reply_error(p->session->connection, p->client_id, &e);
}

/* Its client hears no more of a request that the engine is still at. */
static void disown(struct sessions *s, struct pending *p)
{
    while (p->held)
        drop_held(p);
    must(id_map_take(&p->session->requests, p->client_id) == p);
    p->session = NULL;
    pending_cancel(s, p);
}

void sessions_event(struct sessions *s, struct engine_event *ev)
{
    struct pending *p = id_map_get(&s->requests, ev->request);
    struct session *one;
    int r = CONNECTION_OK;

    if (!p)
        return;
    leave_queue(p);
    one = p->session;
    if (one)
        r = tell(s, p, ev);
    if (r == CONNECTION_E_LARGE) {
        r = refuse_answer(s, p);
        if (ev->type == ENGINE_DELTA)
            disown(s, p);
    }
    if (ev->type != ENGINE_DELTA)
        pending_forget(s, p);
    if (one)
        session_check_put(one, r); /* may abandon the rest of its requests */
}

size_t sessions_n_requests(const struct sessions *s)
{
    return s->requests.n;
}

size_t sessions_n_questions(const struct sessions *s)
{
    return (size_t)s->accounts.total.amounts[ACCOUNT_QUESTIONS];
}

void sessions_close(struct sessions *s)
{
    s->closed = true;
}

void sessions_cancel_all(struct sessions *s)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at)))
        pending_cancel(s, p);
}

void sessions_fail_all(struct sessions *s, const struct refusal *e)
{
    struct pending *p;
    size_t at = 0;

    for (struct list *l = s->all.next; l != &s->all; l = l->next) {
        struct session *one = CONTAINER_OF(l, struct session, link);

        id_map_deinit(&one->requests);
        one->requests = (struct id_map){0};
    }
    while ((p = id_map_next(&s->requests, &at))) {
        if (p->session)
            (void)reply_error(p->session->connection, p->client_id, e);
        free_pending(p);
    }
    id_map_deinit(&s->requests);
    s->requests = (struct id_map){0};
}
