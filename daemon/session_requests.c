/* session_requests.c - requests for the engine: limits, start, events, end. */
#include "daemon/session_private.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

void pending_cancel(struct sessions *s, struct pending *p)
{
    engine_cancel(s->engine, p->id);
}

void pending_release(void *owner)
{
    struct pending *p = owner;

    unpacked_free(p->message);
    p->message = NULL;
    account_give_back_bytes(p->account, p->message_bytes);
    p->message_bytes = 0;
}

/* engine_request.charge */
static bool charge(void *owner, size_t bytes)
{
    struct pending *p = owner;
    const struct account *total = &p->account->all->total;

    account_take_bytes(p->account, bytes);
    p->engine_bytes += bytes;
    if (atomic_load(&p->account->request_bytes) >
        atomic_load(&p->shared->most_request_bytes_per_uid))
        p->exceeded = LIMIT_REQUEST_BYTES_PER_UID;
    else if (atomic_load(&total->request_bytes) > atomic_load(&p->shared->most_request_bytes))
        p->exceeded = LIMIT_REQUEST_BYTES;
    else
        return true;
    return false;
}

/* The prompt is no longer queued. */
static void leave_queue(struct pending *p)
{
    account_sub(p->account, ACCOUNT_QUEUED_TOKENS, p->queued_tokens);
    p->queued_tokens = 0;
}

static void free_pending(struct pending *p)
{
    leave_queue(p);
    account_sub(p->account, ACCOUNT_INSPECTS, p->inspect);
    account_sub(p->account, ACCOUNT_REQUESTS, 1);
    pending_release(p);
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

static void forget_clients(struct session *s)
{
    id_map_deinit(&s->requests);
    s->requests = (struct id_map){0};
}

void session_abandon_requests(struct session *s)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at))) {
        p->session = NULL;
        pending_cancel(s->shared, p);
    }
    forget_clients(s);
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

/* Refuses what is over a limit: for good where the request alone is over it. */
static int over(struct refusal *e, const struct options *o, enum limit l, uint64_t used,
                uint64_t asked)
{
    limit_refuse(e, o, l, "", asked > UINT64_MAX - used ? asked : used + asked);
    if (asked > e->limit_value)
        e->code = CODE(TOO_LONG); /* waiting would not help */
    return -EINVAL;
}

int session_refuse(const struct session *s, const struct demand *d, struct refusal *e)
{
    const struct sessions *all = s->shared;
    const struct options *o = all->options;
    const struct account *sums[] = {&all->accounts.total, s->account};
    static const struct {
        enum limit requests, tokens, bytes;
    } limits[] = {
        {LIMIT_REQUESTS, LIMIT_QUEUED_TOKENS, LIMIT_REQUEST_BYTES},
        {LIMIT_REQUESTS_PER_UID, LIMIT_QUEUED_TOKENS_PER_UID, LIMIT_REQUEST_BYTES_PER_UID},
    };
    uint64_t reserve = s->admin ? (uint64_t)o->admin_requests : 0, n, most;
    int r = refuse_state(all, d->new_work, e);

    if (r < 0)
        return r;
    if (s->requests.n >= (size_t)o->max_requests_per_connection)
        return limit_refuse(e, o, LIMIT_REQUESTS_PER_CONNECTION, "", s->requests.n + 1);
    for (int i = 0; i < 2; i++) {
        n = sums[i]->amounts[ACCOUNT_REQUESTS] + 1;
        if (n > limit_value(o, limits[i].requests) + reserve)
            return limit_refuse(e, o, limits[i].requests, "", n);
        if (s->admin && !d->new_work)
            continue; /* full queues must not keep an admin from looking */
        n = sums[i]->amounts[ACCOUNT_QUEUED_TOKENS];
        if (d->tokens && n + d->tokens > limit_value(o, limits[i].tokens))
            return over(e, o, limits[i].tokens, n, d->tokens);
        n = atomic_load(&sums[i]->request_bytes);
        most = limit_value(o, limits[i].bytes);
        if (n >= most || d->bytes > most - n)
            return over(e, o, limits[i].bytes, n, d->bytes);
    }
    return 0;
}

struct pending *session_enter(struct session *s, uint64_t client_id, uint64_t queued_tokens,
                              struct unpacked *message)
{
    struct sessions *all = s->shared;
    struct pending *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    *p = (struct pending){.id = ++all->last_id,
                          .client_id = client_id,
                          .shared = all,
                          .session = s,
                          .account = s->account,
                          .pid = s->pid,
                          .queued_tokens = queued_tokens,
                          .message = message,
                          .message_bytes = message ? unpacked_bytes(message) : 0};
    if (id_map_put(&all->requests, p->id, p) < 0)
        goto fail;
    if (id_map_put(&s->requests, client_id, p) < 0) {
        id_map_take(&all->requests, p->id);
        goto fail;
    }
    account_ref(p->account);
    account_add(p->account, ACCOUNT_REQUESTS, 1);
    account_add(p->account, ACCOUNT_QUEUED_TOKENS, queued_tokens);
    account_take_bytes(p->account, p->message_bytes);
    return p;
fail:
    free(p);
    return NULL;
}

/* ---- from the client */

int session_start(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                  bool *taken, struct refusal *e)
{
    struct sessions *all = s->shared;
    struct demand d = {.new_work = true};
    struct engine_request r;
    struct pending *p;
    size_t engine_bytes;
    int ret = session_refuse(s, &d, e); /* before it is parsed */

    if (ret < 0 || (ret = request_start(&r, f, u, &all->rules, s->admin, session_now_us(), e)) < 0)
        return ret;
    engine_bytes = r.kind == ENGINE_GENERATE ? engine_request_bytes(&r) : 0;
    d.tokens = request_tokens(&r);
    if (!size_add(&d.bytes, unpacked_bytes(u), engine_bytes))
        d.bytes = SIZE_MAX;
    ret = session_refuse(s, &d, e);
    if (ret < 0)
        return ret;
    p = session_enter(s, f->id, d.tokens, u);
    if (!p)
        return -ENOMEM;
    *taken = true;
    p->engine_bytes = engine_bytes;
    account_take_bytes(p->account, p->engine_bytes);
    r.id = p->id;
    r.client = s->account->uid;
    r.owner = p;
    r.release = pending_release;
    r.charge = charge;
    ret = engine_start(all->engine, &r);
    if (ret < 0)
        pending_forget(all, p);
    return ret;
}

bool session_begin(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                   session_starter start)
{
    const uint64_t id = f->id; /* the frame may be freed */
    struct refusal e = {.field = ""};
    bool taken = false;
    int r = start(s, f, u, &taken, &e);

    if (r == -ENOMEM)
        refusal_set(&e, CODE(INTERNAL), "out of memory");
    if (r < 0)
        session_answer_error(s, id, &e);
    return taken;
}

/* ---- from the engine */

/* The answer has grown over the limit of all requests, or of the user's. */
static void refuse_answer_memory(struct refusal *e, const struct options *o,
                                 const struct pending *p)
{
    limit_refuse_text(e, o, p->exceeded, "the answers under way take too much memory");
    if (p->engine_bytes > e->limit_value)
        e->code = CODE(TOO_LONG); /* it is over the limit alone: waiting would not help */
}

/* Sends an engine error as an error of the protocol. */
static int tell_error(struct sessions *s, struct pending *p, const struct engine_event *ev)
{
    struct refusal e;

    if (ev->error == ENGINE_E_PROMPT_LIMIT)
        limit_refuse(&e, s->options, LIMIT_PROMPT_TOKENS, ev->field,
                     (uint64_t)ev->usage.prompt_tokens);
    else if (ev->error == ENGINE_E_MEMORY_LIMIT)
        refuse_answer_memory(&e, s->options, p);
    else if (ev->field)
        refusal_of_field(&e, reply_error_code(ev->error), ev->field, "%s", "");
    else
        refusal_set(&e, reply_error_code(ev->error), "%s", "");
    if (!e.limit)
        e.message = *ev->message;
    return reply_error(p->session->connection, p->client_id, &e);
}

static int tell(struct sessions *s, struct pending *p, struct engine_event *ev)
{
    struct connection *c = p->session->connection;

    switch (ev->type) {
    case ENGINE_DELTA:
        return reply_delta(c, p->client_id, ev);
    case ENGINE_DONE:
        return reply_done(c, p->client_id, &ev->usage);
    case ENGINE_TOKENS:
    case ENGINE_TEXT:
        return reply_packed(c, p->client_id, ev);
    case ENGINE_ERROR:
        return ev->error == ENGINE_E_ANSWER_LIMIT ? CONNECTION_E_LARGE : tell_error(s, p, ev);
    case ENGINE_REPORT:
        return session_report(s, p, ev->report);
    case ENGINE_STATE:
        break;
    }
    return CONNECTION_OK;
}

/* An answer over limits.output_bytes ends its request, not the connection. */
static int refuse_answer(struct sessions *s, struct pending *p)
{
    struct refusal e;

    limit_refuse_text(&e, s->options, LIMIT_OUTPUT_BYTES,
                      "the answer is larger than the limit of %" PRId64 " bytes",
                      s->options->max_output_bytes);
    e.code = CODE(TOO_LONG); /* waiting would not help */
    e.retry_after_ms = 0;
    return reply_error(p->session->connection, p->client_id, &e);
}

/* Detaches a request from its client, which has its answer. */
static void disown(struct sessions *s, struct pending *p)
{
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

size_t sessions_n_inspects(const struct sessions *s)
{
    return (size_t)s->accounts.total.amounts[ACCOUNT_INSPECTS];
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

    while ((p = id_map_next(&s->requests, &at))) {
        if (p->session)
            (void)reply_error(p->session->connection, p->client_id, e);
        p->session = NULL;
    }
    for (struct list *l = s->all.next; l != &s->all; l = l->next)
        forget_clients(CONTAINER_OF(l, struct session, link));
}

void sessions_forget_requests(struct sessions *s)
{
    struct pending *p;
    size_t at = 0;

    for (struct list *l = s->all.next; l != &s->all; l = l->next)
        forget_clients(CONTAINER_OF(l, struct session, link));
    while ((p = id_map_next(&s->requests, &at)))
        free_pending(p);
    id_map_deinit(&s->requests);
    s->requests = (struct id_map){0};
}
