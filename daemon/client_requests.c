/* client_requests.c - requests for the engine: limits, start, events, end. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/server_private.h"
#include "engine/util/clock.h"
#include "engine/util/must.h"

/* ---- the record */

static void free_message(struct pending *p)
{
    if (p->message)
        account_sub(p->account, ACCOUNT_REQUEST_BYTES, unpacked_bytes(p->message));
    unpacked_free(p->message);
    p->message = NULL;
}

/* engine_request.release */
static void release(void *owner)
{
    struct pending *p = owner;

    if (!p->turn)
        free_message(p);
}

/* engine_request.charge */
static bool charge(void *owner, size_t bytes)
{
    struct pending *p = owner;
    const struct account *own = p->account, *total = &own->all->total;

    account_add(p->account, ACCOUNT_REQUEST_BYTES, bytes);
    p->engine_bytes += bytes;
    if (own->amounts[ACCOUNT_REQUEST_BYTES] > p->server->limit_request_bytes_per_uid)
        p->exceeded = LIMIT_REQUEST_BYTES_PER_UID;
    else if (total->amounts[ACCOUNT_REQUEST_BYTES] > p->server->limit_request_bytes)
        p->exceeded = LIMIT_REQUEST_BYTES;
    else
        return true;
    return false;
}

struct pending *pending_new(struct client *client, uint64_t client_id, const struct demand *d,
                            struct unpacked *message)
{
    struct server *server = client->server;
    struct pending *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    *p = (struct pending){.id = ++server->last_id,
                          .client_id = client_id,
                          .server = server,
                          .client = client,
                          .account = client->account,
                          .pid = client->pid,
                          .inspect = d->inspect,
                          .queued_tokens = d->tokens,
                          .message = message,
                          .engine_bytes = d->engine_bytes};
    if (id_map_put(&server->requests, p->id, p) < 0 ||
        id_map_put(&client->requests, client_id, p) < 0) {
        id_map_take(&server->requests, p->id);
        free(p);
        return NULL;
    }
    account_ref(p->account);
    account_add(p->account, ACCOUNT_REQUESTS, 1);
    account_add(p->account, ACCOUNT_INSPECTS, d->inspect);
    account_add(p->account, ACCOUNT_QUEUED_TOKENS, d->tokens);
    account_add(p->account, ACCOUNT_REQUEST_BYTES, d->message_bytes + d->engine_bytes);
    server_watch(server);
    return p;
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
    chat_turn_free(p->turn);
    free_message(p);
    free(p->answer.data);
    account_sub(p->account, ACCOUNT_REQUEST_BYTES, p->engine_bytes);
    account_unref(p->account);
    free(p);
}

void pending_forget(struct pending *p)
{
    must(id_map_take(&p->server->requests, p->id) == p);
    if (p->client)
        must(id_map_take(&p->client->requests, p->client_id) == p);
    free_pending(p);
}

void client_abandon(struct client *client)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&client->requests, &at))) {
        p->client = NULL;
        engine_cancel(client->server->parts.engine, p->id);
    }
    id_map_deinit(&client->requests);
}

/* Finds a request by the daemon's number: 0, with *out NULL where there is none, or -EINVAL where
 * it is another user's and the client no admin. */
static int find_request(const struct client *client, struct pending **out, uint64_t number,
                        const char *operation, struct refusal *e)
{
    struct pending *p = id_map_get(&client->server->requests, number);

    if (p && !client->admin && p->account != client->account)
        return refusal_of_field(e, CODE(DENIED), "request",
                                "%" PRIu64 " is another user's: only administrators may %s it",
                                number, operation);
    *out = p;
    return 0;
}

/* ---- limits */

static int refuse_state(const struct server *s, bool new_work, struct refusal *e)
{
    if (s->closed || (new_work && s->phase != PHASE_SERVING))
        return server_refuse_exiting(e, "the daemon is shutting down");
    switch (server_state(s)) {
    case NVLLM__V1__STATE__STATE_READY:
        return 0;
    case NVLLM__V1__STATE__STATE_DRAINING:
        return new_work ? refusal_set(e, CODE(UNAVAILABLE),
                                      "the daemon is draining: no new requests until it is resumed")
                        : 0;
    case NVLLM__V1__STATE__STATE_FAILED:
        return server_refuse_exiting(e, "the engine has failed; the daemon is exiting");
    default:
        refusal_set(e, CODE(UNAVAILABLE), "the model is being loaded");
        e->retry_after_ms = 500;
        return -EINVAL;
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

int client_refuse(const struct client *client, const struct demand *d, struct refusal *e)
{
    const struct options *o = client->server->parts.options;
    const struct account *sums[] = {&client->server->accounts.total, client->account};
    static const struct {
        enum limit requests, tokens, bytes;
    } limits[] = {
        {LIMIT_REQUESTS, LIMIT_QUEUED_TOKENS, LIMIT_REQUEST_BYTES},
        {LIMIT_REQUESTS_PER_UID, LIMIT_QUEUED_TOKENS_PER_UID, LIMIT_REQUEST_BYTES_PER_UID},
    };
    const uint64_t bytes = d->message_bytes + d->engine_bytes;
    uint64_t reserve = client->admin ? (uint64_t)o->admin_requests : 0, n, most;
    int r = refuse_state(client->server, d->new_work, e);

    if (r < 0)
        return r;
    if (client->requests.n >= (size_t)o->max_requests_per_connection)
        return limit_refuse(e, o, LIMIT_REQUESTS_PER_CONNECTION, "", client->requests.n + 1);
    for (int i = 0; i < 2; i++) {
        n = sums[i]->amounts[ACCOUNT_REQUESTS] + 1;
        if (n > limit_value(o, limits[i].requests) + reserve)
            return limit_refuse(e, o, limits[i].requests, "", n);
        if (client->admin && !d->new_work)
            continue; /* full queues must not keep an admin from looking */
        n = sums[i]->amounts[ACCOUNT_QUEUED_TOKENS];
        if (d->tokens && n + d->tokens > limit_value(o, limits[i].tokens))
            return over(e, o, limits[i].tokens, n, d->tokens);
        n = sums[i]->amounts[ACCOUNT_REQUEST_BYTES];
        most = limit_value(o, limits[i].bytes);
        if (n >= most || bytes > most - n)
            return over(e, o, limits[i].bytes, n, bytes);
    }
    n = client->account->amounts[ACCOUNT_INSPECTS] + 1;
    if (d->inspect && n > limit_value(o, LIMIT_INSPECTS_PER_UID))
        return limit_refuse(e, o, LIMIT_INSPECTS_PER_UID, "", n);
    return 0;
}

/* ---- from the client */

/* Checks that the request to be explained is there, and may be looked at. */
static int check_about(const struct client_call *c, uint64_t number, struct refusal *e)
{
    struct pending *about = NULL;
    int r = find_request(c->client, &about, number, c->operation->name, e);

    return r < 0 || about ? r
                          : refusal_of_field(e, CODE(INVALID), "request",
                                             "%" PRIu64 " is not in progress", number);
}

/* Starts a request that the limits allow: it owns the message then. */
static int start(struct client_call *c, struct demand d, struct refusal *e)
{
    struct client *client = c->client;
    const struct request_origin origin = {client->account->uid, client->admin, clock_us()};
    struct chat_turn *turn = NULL;
    struct engine_request r;
    struct pending *p;
    int ret = client_refuse(client, &d, e); /* before it is parsed */

    if (ret == 0)
        ret = request_start(&r, c->frame, c->message, &client->server->rules, &origin, e);
    if (ret == 0 && r.query.kind == INSPECT_EXPLAIN_REQUEST)
        ret = check_about(c, r.query.request, e);
    if (ret < 0)
        return ret;
    if (c->frame->op_case == OP(GENERATE) && c->frame->generate->session)
        ret = chat_begin_turn(&turn, c, &r, e);
    if (ret < 0)
        return ret;
    d.tokens = request_tokens(&r); /* of a turn: of the whole conversation */
    d.message_bytes = unpacked_bytes(c->message);
    if (engine_computes(r.kind))
        d.engine_bytes = engine_request_bytes(client->server->parts.engine, &r);
    ret = client_refuse(client, &d, e);
    p = ret == 0 ? pending_new(client, c->frame->id, &d, c->message) : NULL;
    if (!p) {
        chat_turn_free(turn);
        return ret < 0 ? ret : -ENOMEM;
    }
    c->message = NULL;
    p->turn = turn;
    p->computes = engine_computes(r.kind);
    p->traces = r.kind == ENGINE_INSPECT && r.query.kind == INSPECT_TRACE;
    r.id = p->id;
    r.owner = p;
    r.release = release;
    r.charge = charge;
    ret = engine_start(client->server->parts.engine, &r);
    if (ret < 0)
        pending_forget(p);
    return ret;
}

int client_start(struct client_call *c, struct refusal *e)
{
    return start(c, (struct demand){.new_work = true}, e);
}

/* Absent blocks are computed. */
int client_pin(struct client_call *c, struct refusal *e)
{
    const Nvllm__V1__PinCache *m = c->frame->pin_cache;

    return start(c, (struct demand){.new_work = !m->has_unpin || !m->unpin}, e);
}

int client_inspect(struct client_call *c, struct refusal *e)
{
    return start(c, (struct demand){.inspect = true}, e);
}

/* ---- answered at once */

int client_cancel(struct client_call *c, struct refusal *e)
{
    const Nvllm__V1__Cancel *m = c->frame->cancel;
    Nvllm__V1__Cancelled answer = NVLLM__V1__CANCELLED__INIT;
    struct pending *p = NULL;

    if (!m->has_request)
        p = id_map_get(&c->client->requests, m->target);
    else if (find_request(c->client, &p, m->request, c->operation->name, e) < 0)
        return -EINVAL;
    answer.has_found = true;
    answer.found = p && !p->reload && !p->answer.data; /* neither a reload nor what is written */
    if (answer.found)
        engine_cancel(p->server->parts.engine, p->id);
    return reply_put(c->client->connection, c->frame->id, EVENT(CANCELLED), &answer);
}

/* ---- from the engine */

/* The lower one of the limits of a prompt. */
static enum limit prompt_limit(const struct pending *p)
{
    const struct options *o = p->server->parts.options;
    const uint64_t session = limit_value(o, LIMIT_SESSION_TOKENS);
    const uint64_t prompt = limit_value(o, LIMIT_PROMPT_TOKENS);

    return p->turn && session && (!prompt || session < prompt) ? LIMIT_SESSION_TOKENS
                                                               : LIMIT_PROMPT_TOKENS;
}

/* An engine error as an error of the protocol. */
static struct refusal refusal_of(const struct pending *p, const struct engine_event *ev)
{
    const struct options *o = p->server->parts.options;
    struct refusal e;

    if (ev->error == ENGINE_E_PROMPT_LIMIT)
        limit_refuse(&e, o, prompt_limit(p), ev->field, (uint64_t)ev->usage.prompt_tokens);
    else if (ev->error == ENGINE_E_MEMORY_LIMIT)
        limit_refuse_text(&e, o, p->exceeded, "the answers in progress take too much memory");
    else
        refusal_of_field(&e, reply_error_code(ev->error), ev->field ? ev->field : "", "%s", "");
    if (!e.limit)
        e.message = *ev->message;
    else if (ev->error == ENGINE_E_MEMORY_LIMIT && p->engine_bytes > e.limit_value)
        e.code = CODE(TOO_LONG); /* it is over the limit alone: waiting would not help */
    return e;
}

static int tell_error(const struct pending *p, const struct engine_event *ev)
{
    const struct refusal e = refusal_of(p, ev);

    return reply_error(p->client->connection, p->client_id, &e);
}

/* Counts how a generate or embed request ends, as its client is told: by why its first choice did,
 * or by its error. is_large: the answer is over the limit. */
static void count(struct pending *p, const struct engine_event *ev, bool is_large)
{
    if (is_large && p->computes) {
        metrics_count_error(p->server->metrics, CODE(TOO_LONG));
        p->computes = false; /* it has been counted */
    } else if (ev->type == ENGINE_DELTA && ev->choice == 0 && ev->reason != CORE_REASON_NONE)
        p->reason = ev->reason;
    else if (ev->type == ENGINE_DONE && p->computes)
        metrics_count_end(p->server->metrics, reply_finish(p->reason));
    else if (ev->type == ENGINE_EMBEDDING)
        metrics_count_end(p->server->metrics, reply_finish(CORE_REASON_STOP));
    else if (ev->type == ENGINE_ERROR && p->computes)
        metrics_count_error(p->server->metrics, refusal_of(p, ev).code);
}

static int tell(struct pending *p, struct engine_event *ev)
{
    struct connection *c = p->client->connection;

    switch (ev->type) {
    case ENGINE_DELTA:
        return reply_delta(c, p->client_id, ev);
    case ENGINE_DONE:
        return reply_done(c, p->client_id, &ev->usage);
    case ENGINE_EMBEDDING:
        return reply_embedding(c, p->client_id, ev);
    case ENGINE_TOKENS:
    case ENGINE_TEXT:
        return reply_put_packed(c, p->client_id, &ev->packed);
    case ENGINE_ERROR:
        return ev->error == ENGINE_E_ANSWER_LIMIT ? CONNECTION_E_LARGE : tell_error(p, ev);
    case ENGINE_REPORT:
        return inspection_put(p, ev->report);
    case ENGINE_TRACE:
        return trace_put(p, ev);
    }
    return CONNECTION_OK;
}

/* There was no memory to make an answer part of its session. */
static int tell_no_memory(const struct pending *p)
{
    struct refusal e;

    refusal_set(&e, CODE(INTERNAL), "out of memory: the session is as before the turn");
    return reply_error(p->client->connection, p->client_id, &e);
}

/* An answer over limits.output_bytes ends its request, not the connection. */
static int refuse_answer(const struct pending *p)
{
    const struct options *o = p->server->parts.options;
    struct refusal e;

    limit_refuse_text(&e, o, LIMIT_OUTPUT_BYTES,
                      "the answer is larger than the limit of %" PRId64 " bytes",
                      o->max_output_bytes);
    e.code = CODE(TOO_LONG); /* waiting would not help */
    e.retry_after_ms = 0;
    return reply_error(p->client->connection, p->client_id, &e);
}

void requests_event(struct server *s, struct engine_event *ev)
{
    const bool is_last = ev->type != ENGINE_DELTA && ev->type != ENGINE_TRACE;
    struct pending *p = id_map_get(&s->requests, ev->request);
    struct client *one;
    int r = CONNECTION_OK, saved = 0;

    if (!p)
        return;
    leave_queue(p);
    if (p->turn && ev->type == ENGINE_DELTA)
        chat_turn_take(p->turn, ev);
    else if (p->turn)
        saved = chat_end_turn(p, ev);
    one = p->client;
    if (one && saved < 0)
        r = tell_no_memory(p);
    else if (one && !saved)
        r = tell(p, ev);
    count(p, ev, r == CONNECTION_E_LARGE);
    if (r == CONNECTION_E_LARGE) {
        r = refuse_answer(p);
        if (!is_last) { /* the client has its answer, the engine goes on */
            must(id_map_take(&one->requests, p->client_id) == p);
            p->client = NULL;
            engine_cancel(s->parts.engine, p->id);
        }
    }
    if (is_last && saved <= 0)
        pending_forget(p);
    if (one)
        client_check_put(one, r); /* may abandon the rest of its requests */
}

void requests_cancel_all(struct server *s)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at)))
        engine_cancel(s->parts.engine, p->id);
}

void requests_end_traces(struct server *s)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at)))
        if (p->traces)
            engine_cancel(s->parts.engine, p->id);
}

void requests_fail_all(struct server *s, const struct refusal *e)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at))) {
        if (!p->client || p->answer.data)
            continue;
        (void)reply_error(p->client->connection, p->client_id, e);
        must(id_map_take(&p->client->requests, p->client_id) == p);
        p->client = NULL;
    }
}

void requests_deinit(struct server *s)
{
    struct pending *p;
    size_t at = 0;

    LIST_EACH (struct client, one, link, &s->clients)
        id_map_deinit(&one->requests);
    while ((p = id_map_next(&s->requests, &at)))
        free_pending(p);
    id_map_deinit(&s->requests);
}
