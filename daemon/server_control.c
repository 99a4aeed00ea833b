/* server_control.c - the daemon's states, its shutdown, and admins' operations.
 *
 * Shutdown has phases: draining (accepted requests go on until daemon.drain_timeout_s), cancelling
 * (the engine has a few seconds to end the rest), flushing (clients read their last answers); then
 * the loop ends. A failed engine goes straight to flushing. An admin's drain only refuses new
 * requests, and resume ends it. */
#include "daemon/server_private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <systemd/sd-daemon.h>

#include "daemon/log.h"
#include "daemon/service.h"

enum {
    CANCEL_S = 5,     /* for the engine to end cancelled requests */
    FLUSH_S = 2,      /* for clients to read their last answers */
    STATUS_MS = 1000, /* between status lines */
    RELOAD_MS = 100,  /* SIGHUPs within are one reload */
};

void server_after(struct server *s, enum server_event timer, uint64_t ms)
{
    struct timeval tv = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};

    evtimer_add(s->events[timer], &tv);
}

/* ---- states */

void server_update_state(struct server *s)
{
    Nvllm__V1__State *state = &s->sessions.facts.state;

    if (s->failed)
        *state = NVLLM__V1__STATE__STATE_FAILED;
    else if (s->phase != PHASE_SERVING)
        *state = NVLLM__V1__STATE__STATE_DRAINING;
    else if (!s->ready)
        *state = NVLLM__V1__STATE__STATE_LOADING;
    else
        *state = s->drained ? NVLLM__V1__STATE__STATE_DRAINING : NVLLM__V1__STATE__STATE_READY;
}

void server_tell_status(struct server *s)
{
    struct engine_status status;

    engine_status(s->parts.engine, &status);
    if (s->failed)
        return; /* service_failed has told */
    if (s->phase != PHASE_SERVING)
        service_status("Shutting down: %zu requests to end", sessions_n_requests(&s->sessions));
    else if (!s->ready)
        service_status("Loading %s: %d%%", s->parts.model, (int)(status.progress * 100));
    else if (s->drained)
        service_status("Draining: %zu requests to end; resume takes it back",
                       sessions_n_requests(&s->sessions));
    else
        service_status("Serving %s on %s: %d running, %d waiting", s->parts.model, s->parts.backend,
                       status.core.requests_running,
                       status.core.requests_waiting + (int)status.n_encoding);
}

/* Repeats while there are requests: they may wait or be preempted without an event. */
void server_on_status(struct server *s)
{
    server_tell_status(s);
    if (sessions_n_requests(&s->sessions) > 0)
        server_status_soon(s);
}

void server_status_soon(struct server *s)
{
    if (!evtimer_pending(s->events[EVENT_STATUS], NULL))
        server_after(s, EVENT_STATUS, STATUS_MS);
}

/* ---- shutdown */

void server_stop_listening(struct server *s)
{
    event_del(s->events[EVENT_CLIENTS]);
    if (s->events[EVENT_ADMINS])
        event_del(s->events[EVENT_ADMINS]);
    evtimer_del(s->events[EVENT_ACCEPT_PAUSE]);
    evtimer_del(s->events[EVENT_SOCKETS]);
    listener_stop(s->parts.listener);
    if (s->parts.admin_listener)
        listener_stop(s->parts.admin_listener);
}

static void begin_flush(struct server *s)
{
    if (s->phase == PHASE_FLUSHING)
        return;
    s->phase = PHASE_FLUSHING;
    sessions_end_all(&s->sessions);
    server_after(s, EVENT_PHASE, FLUSH_S * 1000);
}

static void begin_cancel(struct server *s)
{
    log_event(LOG_LEVEL_WARNING, "cancelling", "requests=%zu", sessions_n_requests(&s->sessions));
    s->phase = PHASE_CANCELLING;
    sessions_close(&s->sessions);
    sessions_cancel_all(&s->sessions);
    server_after(s, EVENT_PHASE, CANCEL_S * 1000);
}

void server_on_phase(struct server *s)
{
    struct refusal e;

    switch (s->phase) {
    case PHASE_SERVING:
        break;
    case PHASE_DRAINING:
        begin_cancel(s);
        break;
    case PHASE_CANCELLING:
        log_event(LOG_LEVEL_ERROR, "engine_stuck", "requests=%zu",
                  sessions_n_requests(&s->sessions));
        s->end = SERVER_STUCK;
        refusal_set(&e, NVLLM__V1__ERROR_CODE__ERROR_CANCELLED, "the daemon is shutting down");
        sessions_fail_all(&s->sessions, &e);
        begin_flush(s);
        break;
    case PHASE_FLUSHING:
        event_base_loopbreak(s->base);
        break;
    }
}

static void begin_end(struct server *s)
{
    struct refusal e;

    sd_notify(0, "STOPPING=1");
    if (!s->ready)
        s->end = SERVER_STUCK;
    s->phase = PHASE_DRAINING;
    server_update_state(s);
    evtimer_del(s->events[EVENT_DRAIN]);
    server_stop_listening(s);
    /* A reading may take long: reloads that wait for one, or for the next, end now. */
    refusal_set(&e, NVLLM__V1__ERROR_CODE__ERROR_UNAVAILABLE,
                "the daemon is ending; nothing was changed");
    sessions_reloaded(&s->sessions, s->reading + 1, NULL, &e);
    server_after(s, EVENT_PHASE, (uint64_t)s->parts.options->drain_timeout_s * 1000);
    server_tell_status(s);
}

void server_on_signal(struct server *s, int number)
{
    if (s->phase == PHASE_SERVING) {
        log_event(LOG_LEVEL_INFO, "draining", "signal=%d requests=%zu timeout_s=%d", number,
                  sessions_n_requests(&s->sessions), (int)s->parts.options->drain_timeout_s);
        begin_end(s);
    } else if (s->phase == PHASE_DRAINING) {
        begin_cancel(s);
        server_tell_status(s);
    }
}

void server_settled(struct server *s)
{
    bool ending = s->phase == PHASE_DRAINING || s->phase == PHASE_CANCELLING;

    /* A client that keeps inspecting must not keep the daemon alive. */
    if (ending && sessions_n_requests(&s->sessions) == sessions_n_inspects(&s->sessions))
        sessions_close(&s->sessions);
    if (ending && sessions_n_requests(&s->sessions) == 0) {
        begin_flush(s);
        connections_flush(&s->sessions.connections);
    }
    /* Connections freed since are seen at the next wake-up, the timer's at the latest. */
    if (s->phase == PHASE_FLUSHING &&
        s->sessions.facts.connections == s->sessions.connections.n_gone)
        event_base_loopbreak(s->base);
}

void server_engine_failed(struct server *s)
{
    struct engine_status status;
    struct refusal e;

    engine_status(s->parts.engine, &status);
    log_text(LOG_LEVEL_ERROR, "engine_failed", status.failure.text, "requests=%zu",
             sessions_n_requests(&s->sessions));
    service_failed(status.failure.text);
    s->failed = true;
    s->end = SERVER_FAILED;
    server_update_state(s);
    server_stop_listening(s);
    refusal_set(&e, NVLLM__V1__ERROR_CODE__ERROR_INTERNAL, "%s", status.failure.text);
    sessions_fail_all(&s->sessions, &e);
    begin_flush(s);
}

/* ---- admins' operations */

void server_drain(struct server *s, uint64_t timeout_ms)
{
    if (s->phase != PHASE_SERVING)
        return; /* the daemon is shutting down */
    s->drained = true;
    server_update_state(s);
    server_after(s, EVENT_DRAIN, timeout_ms);
    server_tell_status(s);
}

void server_on_drain(struct server *s)
{
    log_event(LOG_LEVEL_INFO, "drain_over", "requests=%zu", sessions_n_requests(&s->sessions));
    sessions_cancel_all(&s->sessions);
    server_status_soon(s);
}

int server_resume(struct server *s)
{
    if (s->phase != PHASE_SERVING)
        return -EBUSY;
    s->drained = false;
    evtimer_del(s->events[EVENT_DRAIN]);
    server_update_state(s);
    server_tell_status(s);
    return 0;
}

void server_shutdown(struct server *s)
{
    if (s->phase == PHASE_SERVING)
        begin_end(s);
}

static void log_keys(const char *event, const char *const *keys, int n)
{
    for (int i = 0; i < n; i++)
        log_event(LOG_LEVEL_INFO, event, "option=%s", keys[i]);
}

/* During a reading it schedules another. */
int server_reload(struct server *s, uint64_t *reading, struct err *e)
{
    int r = 0;

    if (s->phase != PHASE_SERVING)
        return err_set(e, -EBUSY, "the daemon is ending");
    if (reload_under_way(s->reload)) {
        s->read_again = true;
        *reading = s->reading + 1;
        return 0;
    }
    r = reload_begin(s->reload);
    if (r < 0)
        return err_set(e, r, "no thread can be started: %s", strerror(-r));
    *reading = ++s->reading;
    return 0;
}

/* Takes over the options that were read, all or none: only the shares can fail. */
static int take_over(struct server *s, struct reload_result *got, struct options_change *out)
{
    if (got->r == 0 && engine_set_shares(s->parts.engine, got->shares.list, got->shares.n) < 0) {
        got->r = err_set(&got->why, -ENOMEM, "out of memory");
        options_deinit(&got->options);
    }
    if (got->r < 0) {
        log_text(LOG_LEVEL_WARNING, "reload_refused", got->why.text, "%s", "");
        return got->r;
    }
    options_take(s->parts.options, &got->options, out);
    options_deinit(&got->options);
    log_set_level((enum log_level)s->parts.options->log_level);
    server_raise_descriptors(s->parts.options);
    sessions_limits_changed(&s->sessions);
    log_event(LOG_LEVEL_INFO, "reloaded", "changed=%d needs_restart=%d", out->n_changed,
              out->n_needs_restart);
    log_keys("option_changed", out->changed, out->n_changed);
    log_keys("option_needs_restart", out->needs_restart, out->n_needs_restart);
    return 0;
}

/* Reloads for SIGHUP, or for a reload that came during a reading. */
void server_on_reload(struct server *s)
{
    struct refusal e;
    uint64_t reading;
    struct err why;

    if (server_reload(s, &reading, &why) == 0)
        return;
    log_text(LOG_LEVEL_WARNING, "reload_refused", why.text, "%s", "");
    refusal_set(&e, NVLLM__V1__ERROR_CODE__ERROR_UNAVAILABLE, "%s; nothing was changed", why.text);
    sessions_reloaded(&s->sessions, s->reading + 1, NULL, &e);
}

void server_on_reread(struct server *s)
{
    struct options_change change;
    struct reload_result got;
    struct refusal e;

    if (!reload_take(s->reload, &got))
        return;
    if (s->phase != PHASE_SERVING) { /* begin_end has answered the reloads */
        if (got.r == 0)
            options_deinit(&got.options);
        return;
    }
    if (take_over(s, &got, &change) < 0) {
        refusal_set(&e, NVLLM__V1__ERROR_CODE__ERROR_INVALID, "%s; nothing was changed",
                    got.why.text);
        sessions_reloaded(&s->sessions, s->reading, NULL, &e);
    } else {
        sessions_reloaded(&s->sessions, s->reading, &change, NULL);
    }
    if (s->read_again)
        server_on_reload(s);
    s->read_again = false;
}

void server_on_hangup(struct server *s)
{
    if (!evtimer_pending(s->events[EVENT_RELOAD], NULL))
        server_after(s, EVENT_RELOAD, RELOAD_MS);
}
