/* session_ops.c - the table of operations: who may call each, and what runs it. Users may inspect
 * and change their own objects; what concerns all is for admins. A pinned prefix takes blocks from
 * all. */
#include <errno.h>
#include <inttypes.h>

#include "daemon/log.h"
#include "daemon/server_private.h"

static int cancel(struct session_call *c, struct refusal *e)
{
    const Nvllm__V1__Cancel *m = c->frame->cancel;
    Nvllm__V1__Cancelled answer = NVLLM__V1__CANCELLED__INIT;
    struct pending *p = NULL;

    if (!m->has_request)
        p = id_map_get(&c->session->requests, m->target);
    else if (session_find(c->session, &p, m->request, c->operation->name, e) < 0)
        return -EINVAL;
    answer.has_found = true;
    answer.found = p && !p->reading; /* a reload cannot be cancelled */
    if (answer.found)
        engine_cancel(p->server->parts.engine, p->id);
    return reply_put(c->session->connection, c->frame->id, EVENT(CANCELLED), &answer);
}

static int get_status(struct session_call *c, struct refusal *e)
{
    struct server *s = c->session->server;

    (void)e;
    s->facts.uptime_ms = server_now_us() / 1000 - s->start_ms;
    return inspection_put_status(c);
}

/* ---- what changes the daemon */

static int changed(const struct session_call *c)
{
    const struct server *s = c->session->server;
    Nvllm__V1__Changed m = NVLLM__V1__CHANGED__INIT;

    m.has_state = true;
    m.state = s->facts.state;
    m.log_level = reply_text(log_level_name((enum log_level)s->parts.options->log_level));
    return reply_put(c->session->connection, c->frame->id, EVENT(CHANGED), &m);
}

static int drain(struct session_call *c, struct refusal *e)
{
    const Nvllm__V1__Drain *m = c->frame->drain;
    struct server *s = c->session->server;

    (void)e;
    server_drain(s, m->has_timeout_ms ? m->timeout_ms
                                      : (uint64_t)s->parts.options->drain_timeout_s * 1000);
    return changed(c);
}

static int resume(struct session_call *c, struct refusal *e)
{
    return server_resume(c->session->server) == 0
               ? changed(c)
               : refusal_set(e, CODE(UNAVAILABLE),
                             "the daemon is ending, that cannot be taken back");
}

/* Answered once the options are read. */
static int reload(struct session_call *c, struct refusal *e)
{
    struct session *s = c->session;
    const struct options *o = s->server->parts.options;
    struct pending *p;
    uint64_t number;
    struct err why;

    if (s->requests.n >= (size_t)o->max_requests_per_connection)
        return limit_refuse(e, o, LIMIT_REQUESTS_PER_CONNECTION, "", s->requests.n + 1);
    if (server_reload(s->server, &number, &why) < 0)
        return refusal_set(e, CODE(UNAVAILABLE), "%s; nothing was changed", why.text);
    p = pending_new(s, c->frame->id, 0, NULL);
    if (!p)
        return -ENOMEM;
    p->reading = number;
    return 0;
}

static int set_log_level(struct session_call *c, struct refusal *e)
{
    const char *level = c->frame->set_log_level->level;
    struct options *o = c->session->server->parts.options;
    struct err why;

    if (options_set(o, "daemon.log_level", level ? level : "", &why) < 0)
        return refusal_of_field(e, CODE(INVALID), "level", "%s", why.text);
    log_set_level((enum log_level)o->log_level);
    return changed(c);
}

static int shut_down(struct session_call *c, struct refusal *e)
{
    (void)e;
    server_shutdown(c->session->server);
    return changed(c);
}

/* ---- the table */

static const struct operation table[] = {
    {OP(HELLO), "hello", false, NULL}, /* the first frame: see session.c */
    {OP(GENERATE), "generate", false, session_start},
    {OP(CANCEL), "cancel", false, cancel},
    {OP(TOKENIZE), "tokenize", false, session_start},
    {OP(DETOKENIZE), "detokenize", false, session_start},
    {OP(RENDER), "render", false, session_start},
    {OP(GET_STATUS), "get_status", false, get_status},
    {OP(LIST_REQUESTS), "list_requests", false, session_inspect},
    {OP(GET_BLOCKS), "get_blocks", false, session_inspect},
    {OP(SHOW_CACHE), "show_cache", false, session_inspect},
    {OP(CLEAR_CACHE), "clear_cache", false, session_inspect},
    {OP(PIN_CACHE), "pin_cache", true, session_inspect},
    {OP(EXPLAIN), "explain", false, session_inspect},
    {OP(DRAIN), "drain", true, drain},
    {OP(RESUME), "resume", true, resume},
    {OP(RELOAD), "reload", true, reload},
    {OP(SET_LOG_LEVEL), "set_log_level", true, set_log_level},
    {OP(SHUTDOWN), "shutdown", true, shut_down},
};

const struct operation *operation_of(Nvllm__V1__ClientFrame__OpCase op)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (table[i].op == op)
            return &table[i];
    return NULL;
}

static int run(struct session_call *c, struct refusal *e)
{
    const struct session *s = c->session;

    if (!c->operation)
        return refusal_set(e, CODE(UNSUPPORTED), "this daemon does not know the operation");
    if (c->operation->for_admins && !s->admin)
        /* without the operation's name, which differs from nvllmctl's command */
        return refusal_set(e, CODE(DENIED),
                           "only admins may do that: root, the daemon's user, members of "
                           "daemon.admin_group, and who comes by daemon.admin_socket");
    if (c->operation->for_admins)
        log_event(LOG_LEVEL_INFO, "admin_operation", "op=%s uid=%u pid=%d", c->operation->name,
                  (unsigned)s->account->uid, (int)s->pid);
    return c->operation->run(c, e);
}

void session_operate(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u)
{
    struct session_call c = {s, f, u, operation_of(f->op_case)};
    const uint64_t id = f->id; /* the frame may be freed */
    struct refusal e;
    int r = run(&c, &e);

    if (r == -ENOMEM)
        refusal_set(&e, CODE(INTERNAL), "out of memory");
    if (r < 0)
        r = reply_error(s->connection, id, &e);
    session_check_put(s, r);
    unpacked_free(c.message);
}
