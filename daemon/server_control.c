/* server_control.c - the daemon's states, its shutdown, and the operations that change it.
 *
 * Shutdown has phases: draining (accepted requests go on until daemon.drain_timeout_s), cancelling
 * (the engine has a few seconds to end the rest), flushing (clients read their last answers); then
 * the loop ends. A failed engine goes straight to flushing. An admin's drain only refuses new
 * requests, and resume ends it. A reload reads the options on a thread of its own. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "daemon/log.h"
#include "daemon/server_private.h"
#include "engine/util/clock.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

enum {
    CANCEL_S = 5,     /* for the engine to end cancelled requests */
    FLUSH_S = 2,      /* for clients to read their last answers */
    STATUS_MS = 1000, /* between status lines */
    HANGUP_MS = 100,  /* SIGHUPs within are one reload */
};

/* ---- states */

/* The line that `systemctl status` shows; sent when it differs from the last. */
__attribute__((format(printf, 1, 2))) static void tell(const char *fmt, ...)
{
    static char last[512];
    char text[sizeof(last)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++)
        if (*p == '\n')
            *p = ' '; /* a newline would begin another assignment */
    if (strcmp(text, last) == 0)
        return;
    memcpy(last, text, sizeof(text));
    sd_notifyf(0, "STATUS=%s", text);
}

void server_tell_failure(int code, const char *why)
{
    sd_notifyf(0, "ERRNO=%d", -code);
    tell("Failed: %s", why);
}

void server_tell_status(const struct server *s)
{
    struct engine_status status;

    metrics_set_state(s->metrics, server_state(s));
    engine_status(s->parts.engine, &status);
    if (s->end == SERVER_FAILED)
        return; /* server_tell_failure has told */
    if (s->phase != PHASE_SERVING)
        tell("Shutting down: %zu requests left", s->requests.n);
    else if (!s->ready)
        tell("Loading %s: %d%%", s->parts.model, (int)(status.progress * 100));
    else if (s->drained)
        tell("Draining: %zu requests left; “nvllmctl resume” reverts it", s->requests.n);
    else if (status.asleep)
        tell("Asleep: %s will be loaded again for the next request", s->parts.model);
    else
        tell("Serving %s on %s%s: %d running, %d waiting", s->parts.model, s->parts.backend,
             status.backend.n_processes > 1 ? ", first of a cluster" : "",
             status.core.requests_running, status.core.requests_waiting + (int)status.n_encoding);
}

Nvllm__V1__State server_state(const struct server *s)
{
    if (s->end == SERVER_FAILED)
        return NVLLM__V1__STATE__STATE_FAILED;
    if (s->phase != PHASE_SERVING || (s->ready && s->drained))
        return NVLLM__V1__STATE__STATE_DRAINING;
    return s->ready ? NVLLM__V1__STATE__STATE_READY : NVLLM__V1__STATE__STATE_LOADING;
}

/* Repeats while there are requests: they may wait or be preempted without an event. */
void server_on_status(struct server *s)
{
    server_tell_status(s);
    if (s->requests.n > 0)
        server_status_soon(s);
}

void server_status_soon(struct server *s)
{
    if (!evtimer_pending(s->events[EVENT_STATUS], NULL))
        server_after(s, EVENT_STATUS, STATUS_MS);
}

/* ---- reload */

/* Answers the requests that wait for this reload or an earlier one: with the change, or with why
 * nothing has changed where that is NULL. */
static void answer_reloads(struct server *s, uint64_t number, const struct options_change *change,
                           const struct refusal *why)
{
    Nvllm__V1__Reloaded m = NVLLM__V1__RELOADED__INIT;
    struct pending *p;
    size_t at = 0;

    if (change) {
        m.n_changed = (size_t)change->n_changed;
        m.changed = (char **)(uintptr_t)change->changed; /* packing only reads */
        m.n_needs_restart = (size_t)change->n_needs_restart;
        m.needs_restart = (char **)(uintptr_t)change->needs_restart;
    }
    while ((p = id_map_next(&s->requests, &at))) {
        struct client *one = p->client;
        int r = CONNECTION_OK;

        if (!p->reload || p->reload > number)
            continue;
        if (one)
            r = change ? reply_put(one->connection, p->client_id, EVENT(RELOADED), &m)
                       : reply_error(one->connection, p->client_id, why);
        pending_forget(p);
        at = 0; /* the map has changed */
        if (one)
            client_check_put(one, r);
    }
}

static void *reread(void *server)
{
    const uint64_t one = 1;
    struct server *s = server;
    struct reload *r = &s->reload;

    r->r = s->parts.reread(s->parts.reread_arg, &r->options, &r->why);
    must(write(r->fd, &one, sizeof(one)) == sizeof(one));
    return NULL;
}

/* Starts a reload, or has another follow the one in progress. */
static int start_reload(struct server *s, struct err *e)
{
    struct reload *reload = &s->reload;
    int r;

    if (s->phase != PHASE_SERVING)
        return err_set(e, -EBUSY, "the daemon is shutting down");
    if (reload->under_way) {
        reload->again = true;
        return 0;
    }
    r = thread_start(&reload->thread, "reload", reread, s);
    if (r < 0)
        return err_set(e, r, "cannot start a thread: %s", strerror(-r));
    reload->under_way = true;
    reload->number++;
    if (s->ready) /* READY=1 follows, which must not end a start that goes on */
        sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, clock_us());
    return 0;
}

/* Refuses the requests that wait for this reload or an earlier one, and logs why. */
static void refuse_reloads(struct server *s, uint64_t number, Nvllm__V1__ErrorCode code,
                           const char *why)
{
    struct refusal e;

    log_text(LOG_LEVEL_WARNING, "reload_refused", why, "%s", "");
    refusal_set(&e, code, "%s; nothing was changed", why);
    answer_reloads(s, number, NULL, &e);
}

static void take_over(struct server *s, struct options *fresh)
{
    struct options *running = s->parts.options;
    struct options_change change;

    options_take(running, fresh, &change);
    engine_set_idle_sleep(s->parts.engine, (int32_t)running->idle_sleep_s);
    log_set_level((enum log_level)running->log_level);
    server_raise_descriptors(running);
    clients_limits_changed(s);
    log_event(LOG_LEVEL_INFO, "reloaded", "changed=%d needs_restart=%d", change.n_changed,
              change.n_needs_restart);
    for (int i = 0; i < change.n_changed; i++)
        log_event(LOG_LEVEL_INFO, "option_changed", "option=%s", change.changed[i]);
    for (int i = 0; i < change.n_needs_restart; i++)
        log_event(LOG_LEVEL_INFO, "option_needs_restart", "option=%s", change.needs_restart[i]);
    answer_reloads(s, s->reload.number, &change, NULL);
}

void server_on_reloaded(struct server *s)
{
    struct reload *r = &s->reload;
    struct shares *shares = &r->options.shares;
    uint64_t count;

    if (read(r->fd, &count, sizeof(count)) != sizeof(count))
        return;
    pthread_join(r->thread, NULL); /* it is about to end */
    r->under_way = false;
    if (s->ready && s->phase == PHASE_SERVING)
        sd_notify(0, "READY=1");
    if (s->phase != PHASE_SERVING) /* the requests have been answered */
        r->again = false;
    else if (r->r < 0)
        refuse_reloads(s, r->number, CODE(INVALID), r->why.text);
    else if (engine_set_shares(s->parts.engine, shares->list, shares->n) < 0)
        refuse_reloads(s, r->number, CODE(INVALID), "out of memory");
    else
        take_over(s, &r->options);
    if (r->r == 0)
        options_deinit(&r->options);
    if (r->again)
        server_on_reload(s);
    r->again = false;
}

/* Reloads for SIGHUP, or for what was asked for during a reload. */
void server_on_reload(struct server *s)
{
    struct err why;

    if (start_reload(s, &why) < 0)
        refuse_reloads(s, s->reload.number + 1, CODE(UNAVAILABLE), why.text);
}

void server_on_hangup(struct server *s)
{
    if (!evtimer_pending(s->events[EVENT_RELOAD], NULL))
        server_after(s, EVENT_RELOAD, HANGUP_MS);
}

/* ---- shutdown */

int server_refuse_exiting(struct refusal *e, const char *why)
{
    const int r = refusal_set(e, CODE(UNAVAILABLE), "%s", why);

    e->reconnect = true;
    return r;
}

/* New clients wait at a socket of systemd for the next daemon. With the daemon's own socket they
 * would find nobody, so they learn of the drain instead, until that is over. */
static void stop_listening(struct server *s, bool inherited_only)
{
    for (int i = 0; i < N_LISTENERS; i++) {
        struct listener *l = s->parts.listeners[i];

        if (!l || (inherited_only && !listener_inherited(l)))
            continue;
        event_del(s->events[EVENT_CLIENTS + i]);
        listener_stop(l);
    }
}

static void begin_flush(struct server *s)
{
    struct refusal why;

    if (s->phase == PHASE_FLUSHING)
        return;
    s->phase = PHASE_FLUSHING;
    stop_listening(s, false);
    server_refuse_exiting(&why, "nvllmd has shut down");
    clients_end_all(s, &why);
    server_after(s, EVENT_PHASE, FLUSH_S * 1000);
}

static void begin_cancel(struct server *s)
{
    struct refusal why;

    log_event(LOG_LEVEL_WARNING, "cancelling", "requests=%zu", s->requests.n);
    s->phase = PHASE_CANCELLING;
    s->closed = true;
    server_refuse_exiting(&why, "nvllmd has shut down before the answer was complete");
    requests_fail_all(s, &why);
    requests_cancel_all(s);
    server_after(s, EVENT_PHASE, CANCEL_S * 1000);
}

void server_on_phase(struct server *s)
{
    switch (s->phase) {
    case PHASE_SERVING:
        break;
    case PHASE_DRAINING:
        begin_cancel(s);
        break;
    case PHASE_CANCELLING:
        log_event(LOG_LEVEL_ERROR, "engine_stuck", "requests=%zu", s->requests.n);
        s->end = SERVER_STUCK;
        begin_flush(s);
        break;
    case PHASE_FLUSHING:
        event_base_loopbreak(s->base);
        break;
    }
}

/* A shutdown; number: of the signal that asks for it, 0: a client's operation does. */
static void begin_end(struct server *s, int number)
{
    struct refusal e;

    log_event(LOG_LEVEL_INFO, "draining", "signal=%d requests=%zu timeout_s=%d", number,
              s->requests.n, (int)s->parts.options->drain_timeout_s);
    sd_notify(0, "STOPPING=1");
    if (!s->ready)
        s->end = SERVER_STUCK;
    s->phase = PHASE_DRAINING;
    server_tell_status(s);
    evtimer_del(s->events[EVENT_DRAIN]);
    stop_listening(s, true);
    /* A reload may take long: requests that wait for it, or for the next, end now. */
    refusal_set(&e, CODE(UNAVAILABLE), "the daemon is shutting down; nothing was changed");
    answer_reloads(s, s->reload.number + 1, NULL, &e);
    server_after(s, EVENT_PHASE, (uint64_t)s->parts.options->drain_timeout_s * 1000);
}

void server_signalled(struct server *s, int number)
{
    if (s->phase == PHASE_SERVING) {
        begin_end(s, number);
    } else if (s->phase == PHASE_DRAINING) {
        begin_cancel(s);
        server_tell_status(s);
    }
}

void server_settled(struct server *s)
{
    bool ending = s->phase == PHASE_DRAINING || s->phase == PHASE_CANCELLING;

    /* A client that keeps inspecting must not keep the daemon alive. */
    if (ending && s->requests.n == s->accounts.total.amounts[ACCOUNT_INSPECTS]) {
        if (!s->closed)
            requests_end_traces(s);
        s->closed = true;
    }
    if (ending && s->requests.n == 0)
        begin_flush(s);
}

void server_engine_failed(struct server *s, int code, const char *why)
{
    struct refusal e;

    log_text(LOG_LEVEL_ERROR, "engine_failed", why, "requests=%zu", s->requests.n);
    server_tell_failure(code, why);
    s->end = SERVER_FAILED;
    metrics_set_state(s->metrics, server_state(s));
    refusal_set(&e, CODE(INTERNAL), "%s", why);
    requests_fail_all(s, &e);
    begin_flush(s);
}

/* ---- operations of admins */

static int changed(const struct client_call *c)
{
    const struct server *s = c->client->server;
    Nvllm__V1__Changed m = NVLLM__V1__CHANGED__INIT;

    m.has_state = true;
    m.state = server_state(s);
    m.log_level = reply_text(log_level_name((enum log_level)s->parts.options->log_level));
    return reply_put(c->client->connection, c->frame->id, EVENT(CHANGED), &m);
}

int control_drain(struct client_call *c, struct refusal *e)
{
    const Nvllm__V1__Drain *m = c->frame->drain;
    struct server *s = c->client->server;

    (void)e;
    if (s->phase == PHASE_SERVING) { /* else the daemon is shutting down */
        s->drained = true;
        server_tell_status(s);
        server_after(s, EVENT_DRAIN,
                     m->has_drain_timeout_ms ? m->drain_timeout_ms
                                             : (uint64_t)s->parts.options->drain_timeout_s * 1000);
    }
    return changed(c);
}

void server_on_drain(struct server *s)
{
    log_event(LOG_LEVEL_INFO, "drain_over", "requests=%zu", s->requests.n);
    requests_cancel_all(s);
    server_status_soon(s);
}

int control_resume(struct client_call *c, struct refusal *e)
{
    struct server *s = c->client->server;

    if (s->phase != PHASE_SERVING)
        return refusal_set(e, CODE(UNAVAILABLE),
                           "the daemon is shutting down and cannot be resumed");
    s->drained = false;
    evtimer_del(s->events[EVENT_DRAIN]);
    server_tell_status(s);
    return changed(c);
}

/* Answered once the options are read. */
int control_reload(struct client_call *c, struct refusal *e)
{
    struct client *client = c->client;
    const struct options *o = client->server->parts.options;
    const struct reload *reload = &client->server->reload;
    struct pending *p;
    struct err why;

    if (client->requests.n >= (size_t)o->max_requests_per_connection)
        return limit_refuse(e, o, LIMIT_REQUESTS_PER_CONNECTION, "", client->requests.n + 1);
    if (start_reload(client->server, &why) < 0)
        return refusal_set(e, CODE(UNAVAILABLE), "%s; nothing was changed", why.text);
    p = pending_new(client, c->frame->id, &(struct demand){0}, NULL);
    if (!p)
        return -ENOMEM;
    p->reload = reload->number + reload->again;
    return 0;
}

int control_log_level(struct client_call *c, struct refusal *e)
{
    const char *level = c->frame->set_log_level->level;
    struct options *o = c->client->server->parts.options;
    struct err why;

    if (options_set(o, "daemon.log_level", level ? level : "", &why) < 0)
        return refusal_of_field(e, CODE(INVALID), "level", "%s", why.text);
    log_set_level((enum log_level)o->log_level);
    return changed(c);
}

int control_shutdown(struct client_call *c, struct refusal *e)
{
    (void)e;
    if (c->client->server->phase == PHASE_SERVING)
        begin_end(c->client->server, 0);
    return changed(c);
}
