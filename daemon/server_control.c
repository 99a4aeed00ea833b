/* server_control.c - the daemon's states and its shutdown.
 *
 * Shutdown has phases: draining (accepted requests go on until daemon.drain_timeout_s), cancelling
 * (the engine has a few seconds to end the rest), flushing (clients read their last answers); then
 * the loop ends. A failed engine goes straight to flushing. An admin's drain only refuses new
 * requests, and resume ends it. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <systemd/sd-daemon.h>

#include "daemon/log.h"
#include "daemon/server_private.h"

enum {
    CANCEL_S = 5,     /* for the engine to end cancelled requests */
    FLUSH_S = 2,      /* for clients to read their last answers */
    STATUS_MS = 1000, /* between status lines */
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

void server_tell_failure(const char *why)
{
    tell("Failed: %s", why);
}

static void tell_status(const struct server *s)
{
    struct engine_status status;

    engine_status(s->parts.engine, &status);
    if (s->failed)
        return; /* server_tell_failure has told */
    if (s->phase != PHASE_SERVING)
        tell("Shutting down: %zu requests to end", s->requests.n);
    else if (!s->ready)
        tell("Loading %s: %d%%", s->parts.model, (int)(status.progress * 100));
    else if (s->drained)
        tell("Draining: %zu requests to end; resume takes it back", s->requests.n);
    else
        tell("Serving %s on %s: %d running, %d waiting", s->parts.model, s->parts.backend,
             status.core.requests_running, status.core.requests_waiting + (int)status.n_encoding);
}

void server_update_state(struct server *s)
{
    Nvllm__V1__State *state = &s->facts.state;

    if (s->failed)
        *state = NVLLM__V1__STATE__STATE_FAILED;
    else if (s->phase != PHASE_SERVING)
        *state = NVLLM__V1__STATE__STATE_DRAINING;
    else if (!s->ready)
        *state = NVLLM__V1__STATE__STATE_LOADING;
    else
        *state = s->drained ? NVLLM__V1__STATE__STATE_DRAINING : NVLLM__V1__STATE__STATE_READY;
    tell_status(s);
}

/* Repeats while there are requests: they may wait or be preempted without an event. */
void server_on_status(struct server *s)
{
    tell_status(s);
    if (s->requests.n > 0)
        server_status_soon(s);
}

void server_status_soon(struct server *s)
{
    if (!evtimer_pending(s->events[EVENT_STATUS], NULL))
        server_after(s, EVENT_STATUS, STATUS_MS);
}

/* ---- shutdown */

static void stop_listening(struct server *s)
{
    for (int i = 0; i < N_LISTENERS; i++) {
        if (!s->parts.listeners[i])
            continue;
        event_del(s->events[EVENT_CLIENTS + i]);
        listener_stop(s->parts.listeners[i]);
    }
    evtimer_del(s->events[EVENT_SOCKETS]);
}

static void begin_flush(struct server *s)
{
    if (s->phase == PHASE_FLUSHING)
        return;
    s->phase = PHASE_FLUSHING;
    sessions_end_all(s);
    server_after(s, EVENT_PHASE, FLUSH_S * 1000);
}

static void begin_cancel(struct server *s)
{
    log_event(LOG_LEVEL_WARNING, "cancelling", "requests=%zu", s->requests.n);
    s->phase = PHASE_CANCELLING;
    s->closed = true;
    requests_cancel_all(s);
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
        log_event(LOG_LEVEL_ERROR, "engine_stuck", "requests=%zu", s->requests.n);
        s->end = SERVER_STUCK;
        refusal_set(&e, CODE(CANCELLED), "the daemon is shutting down");
        requests_fail_all(s, &e);
        begin_flush(s);
        break;
    case PHASE_FLUSHING:
        event_base_loopbreak(s->base);
        break;
    }
}

static void begin_end(struct server *s)
{
    sd_notify(0, "STOPPING=1");
    if (!s->ready)
        s->end = SERVER_STUCK;
    s->phase = PHASE_DRAINING;
    server_update_state(s);
    evtimer_del(s->events[EVENT_DRAIN]);
    stop_listening(s);
    /* A reading may take long: reloads that wait for one, or for the next, end now. */
    server_refuse_reloads(s, CODE(UNAVAILABLE), "the daemon is ending");
    server_after(s, EVENT_PHASE, (uint64_t)s->parts.options->drain_timeout_s * 1000);
}

void server_signalled(struct server *s, int number)
{
    if (s->phase == PHASE_SERVING) {
        log_event(LOG_LEVEL_INFO, "draining", "signal=%d requests=%zu timeout_s=%d", number,
                  s->requests.n, (int)s->parts.options->drain_timeout_s);
        begin_end(s);
    } else if (s->phase == PHASE_DRAINING) {
        begin_cancel(s);
        tell_status(s);
    }
}

void server_settled(struct server *s)
{
    bool ending = s->phase == PHASE_DRAINING || s->phase == PHASE_CANCELLING;

    /* A client that keeps inspecting must not keep the daemon alive. */
    if (ending && s->requests.n == s->accounts.total.amounts[ACCOUNT_INSPECTS])
        s->closed = true;
    if (ending && s->requests.n == 0) {
        begin_flush(s);
        connections_flush(&s->connections);
    }
    /* Connections freed since are seen at the next wake-up, the timer's at the latest. */
    if (s->phase == PHASE_FLUSHING && s->facts.connections == s->connections.n_gone)
        event_base_loopbreak(s->base);
}

void server_engine_failed(struct server *s)
{
    struct engine_status status;
    struct refusal e;

    engine_status(s->parts.engine, &status);
    log_text(LOG_LEVEL_ERROR, "engine_failed", status.failure.text, "requests=%zu", s->requests.n);
    server_tell_failure(status.failure.text);
    s->failed = true;
    s->end = SERVER_FAILED;
    server_update_state(s);
    stop_listening(s);
    refusal_set(&e, CODE(INTERNAL), "%s", status.failure.text);
    requests_fail_all(s, &e);
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
}

void server_on_drain(struct server *s)
{
    log_event(LOG_LEVEL_INFO, "drain_over", "requests=%zu", s->requests.n);
    requests_cancel_all(s);
    server_status_soon(s);
}

int server_resume(struct server *s)
{
    if (s->phase != PHASE_SERVING)
        return -EBUSY;
    s->drained = false;
    evtimer_del(s->events[EVENT_DRAIN]);
    server_update_state(s);
    return 0;
}

void server_shutdown(struct server *s)
{
    if (s->phase == PHASE_SERVING)
        begin_end(s);
}
