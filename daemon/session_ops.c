/* session_ops.c - cancel, inspection and control. Rights that depend on the operation alone have
 * been checked; those that depend on a request's owner are checked here. */
#include "daemon/session_private.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/reports.h"
#include "daemon/request_inspect.h"
#include "daemon/server.h"

/* ---- requests by their number */

/* Finds a request by number: 0, with *out NULL where there is none, or -EINVAL with *e where the
 * client has no right to it. */
static int find_request(const struct session *s, struct pending **out, uint64_t number,
                        const struct rights_row *row, struct refusal *e)
{
    struct pending *p = id_map_get(&s->shared->requests, number);

    if (p && !rights_allow(row->right, s->admin, p->account == s->account))
        return refusal_of_field(e, CODE(DENIED), "request",
                                "%" PRIu64 " is another user's; %s is for its user and for admins",
                                number, row->name);
    *out = p;
    return 0;
}

static void take_cancel(struct session *s, const Nvllm__V1__ClientFrame *f)
{
    const Nvllm__V1__Cancel *m = f->cancel;
    struct pending *p = NULL;
    struct refusal e;

    if (!m->has_request) {
        p = id_map_get(&s->requests, m->target);
    } else if (find_request(s, &p, m->request, rights_row(f->op_case), &e) < 0) {
        session_answer_error(s, f->id, &e);
        return;
    }
    if (p && p->reading)
        p = NULL; /* a reload cannot be cancelled */
    if (p)
        pending_cancel(s->shared, p);
    session_check_put(s, reply_cancelled(s->connection, f->id, p != NULL));
}

/* ---- looking in */

/* The resources that an inspect request needs: a prompt is encoded. */
static struct demand demand_of(const struct inspect_query *q, const struct engine_request *request,
                               const struct unpacked *u)
{
    const bool has_prompt = q->kind == INSPECT_CACHE_PIN || q->kind == INSPECT_EXPLAIN_PROMPT;

    return (struct demand){
        .new_work = q->kind == INSPECT_CACHE_PIN && !q->unpin, /* absent blocks are computed */
        .tokens = has_prompt ? request_tokens(request) : 0,
        .bytes = unpacked_bytes(u),
    };
}

/* Checks an inspect request: limits, fields, and the owner of what it is about. */
static int check_inspect(struct session *s, struct inspect_query *q, struct engine_request *request,
                         const Nvllm__V1__ClientFrame *f, struct unpacked *u, struct refusal *e)
{
    const struct request_viewer viewer = {.client = s->account->uid, .all = s->admin};
    const struct sessions *all = s->shared;
    const uint64_t n = s->account->amounts[ACCOUNT_INSPECTS] + 1;
    struct demand d = {0};
    struct pending *about = NULL;
    int r = session_refuse(s, &d, e);

    if (r == 0 && f->op_case != OP(PIN_CACHE) &&
        n > limit_value(all->options, LIMIT_INSPECTS_PER_UID))
        r = limit_refuse(e, all->options, LIMIT_INSPECTS_PER_UID, "", n);
    if (r < 0 || (r = request_inspect(q, request, f, u, &all->rules, &viewer, e)) < 0)
        return r;
    if (q->kind == INSPECT_EXPLAIN_REQUEST) {
        r = find_request(s, &about, q->request, rights_row(f->op_case), e);
        if (r < 0)
            return r;
        if (!about)
            return refusal_of_field(e, CODE(INVALID), "request", "%" PRIu64 " is not under way",
                                    q->request);
    }
    d = demand_of(q, request, u);
    return session_refuse(s, &d, e);
}

static int start_inspect(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                         bool *taken, struct refusal *e)
{
    struct sessions *all = s->shared;
    struct engine_request request;
    struct inspect_query q;
    struct pending *p;
    int r = check_inspect(s, &q, &request, f, u, e);

    if (r < 0)
        return r;
    p = session_enter(s, f->id, demand_of(&q, &request, u).tokens, u);
    if (!p)
        return -ENOMEM;
    *taken = true;
    p->inspect = f->op_case != OP(PIN_CACHE); /* a pin is work, for admins only */
    account_add(p->account, ACCOUNT_INSPECTS, p->inspect);
    request.id = p->id;
    request.owner = p;
    request.release = pending_release;
    r = engine_inspect(all->engine, &request, &q);
    if (r < 0)
        pending_forget(all, p);
    return r;
}

static int32_t pid_of(void *ctx, uint64_t request)
{
    const struct sessions *s = ctx;
    const struct pending *p = id_map_get(&s->requests, request);

    return p ? p->pid : 0;
}

int session_report(struct sessions *s, struct pending *p, const struct inspect_report *r)
{
    const struct report_owners owners = {.pid_of = pid_of, .ctx = s};
    struct engine_status status;
    struct refusal e;

    if (r->kind == INSPECT_EXPLAIN_REQUEST && !r->found) {
        refusal_of_field(&e, CODE(INVALID), "request", "it has ended");
        return reply_error(p->session->connection, p->client_id, &e);
    }
    engine_status(s->engine, &status);
    return report_put(p->session->connection, p->client_id, r, &status, &owners);
}

/* ---- what changes the daemon */

static void answer_changed(struct session *s, uint64_t id)
{
    session_check_put(s,
                      reply_changed(s->connection, id, s->shared->facts.state,
                                    log_level_name((enum log_level)s->shared->options->log_level)));
}

static void log_operation(const struct session *s, const char *what)
{
    log_event(LOG_LEVEL_INFO, "admin_operation", "op=%s uid=%u pid=%d", what,
              (unsigned)s->account->uid, (int)s->pid);
}

static void take_drain(struct session *s, const Nvllm__V1__ClientFrame *f)
{
    const Nvllm__V1__Drain *m = f->drain;
    uint64_t timeout_ms = (uint64_t)s->shared->options->drain_timeout_s * 1000;

    if (m->has_timeout_ms)
        timeout_ms = m->timeout_ms;
    server_drain(s->shared->server, timeout_ms);
    answer_changed(s, f->id);
}

static void take_resume(struct session *s, const Nvllm__V1__ClientFrame *f)
{
    struct refusal e;

    if (server_resume(s->shared->server) == 0) {
        answer_changed(s, f->id);
        return;
    }
    refusal_set(&e, CODE(UNAVAILABLE), "the daemon is ending, that cannot be taken back");
    session_answer_error(s, f->id, &e);
}

/* sessions_reloaded answers. */
static void take_reload(struct session *s, const Nvllm__V1__ClientFrame *f)
{
    const struct options *o = s->shared->options;
    struct pending *p = NULL;
    uint64_t reading;
    struct refusal e;
    struct err why;

    if (s->requests.n >= (size_t)o->max_requests_per_connection)
        limit_refuse(&e, o, LIMIT_REQUESTS_PER_CONNECTION, "", s->requests.n + 1);
    else if (server_reload(s->shared->server, &reading, &why) < 0)
        refusal_set(&e, CODE(UNAVAILABLE), "%s; nothing was changed", why.text);
    else if (!(p = session_enter(s, f->id, 0, NULL)))
        refusal_set(&e, CODE(INTERNAL), "out of memory");
    if (p)
        p->reading = reading;
    else
        session_answer_error(s, f->id, &e);
}

static struct pending *waits_for_reading(const struct sessions *s, uint64_t reading)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at)))
        if (p->reading && p->reading <= reading)
            return p;
    return NULL;
}

void sessions_reloaded(struct sessions *s, uint64_t reading, const struct options_change *change,
                       const struct refusal *why)
{
    struct pending *p;

    while ((p = waits_for_reading(s, reading))) {
        struct session *one = p->session;
        int r = CONNECTION_OK;

        if (one && change)
            r = reply_reloaded(one->connection, p->client_id, change);
        else if (one)
            r = reply_error(one->connection, p->client_id, why);
        pending_forget(s, p);
        if (one)
            session_check_put(one, r);
    }
}

static void take_log_level(struct session *s, const Nvllm__V1__ClientFrame *f)
{
    const char *level = f->set_log_level->level;
    struct refusal e;
    struct err why;

    if (options_set(s->shared->options, "daemon.log_level", level ? level : "", &why) < 0) {
        refusal_of_field(&e, CODE(INVALID), "level", "%s", why.text);
        session_answer_error(s, f->id, &e);
        return;
    }
    log_set_level((enum log_level)s->shared->options->log_level);
    answer_changed(s, f->id);
}

bool session_operate(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u)
{
    const struct rights_row *row = rights_row(f->op_case);

    if (row->right == RIGHT_ADMIN)
        log_operation(s, row->name);
    switch (f->op_case) {
    case OP(CANCEL):
        take_cancel(s, f);
        break;
    case OP(DRAIN):
        take_drain(s, f);
        break;
    case OP(RESUME):
        take_resume(s, f);
        break;
    case OP(RELOAD):
        take_reload(s, f);
        break;
    case OP(SET_LOG_LEVEL):
        take_log_level(s, f);
        break;
    case OP(SHUTDOWN):
        server_shutdown(s->shared->server);
        answer_changed(s, f->id);
        break;
    default:
        return session_begin(s, f, u, start_inspect);
    }
    return false;
}
