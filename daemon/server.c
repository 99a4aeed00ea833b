/* server.c - see server.h.
 *
 * The end comes in steps: DRAINING (no new requests; those accepted go on until
 * daemon.drain_timeout_s), then cancelling (each is told, the engine has a few seconds), then
 * flushing (clients read what there is), then the loop breaks. A failed engine goes straight to
 * flushing. */
#include "daemon/server.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <event2/event.h>

#include "daemon/log.h"
#include "daemon/service.h"
#include "daemon/session.h"

enum {
    ACCEPT_BATCH = 64,     /* clients a wake-up, others get their turn between */
    ACCEPT_PAUSE_MS = 250, /* when descriptors or memory have run out */
    CANCEL_S = 5,          /* for the engine to let go of what was cancelled */
    FLUSH_S = 2,           /* for clients to read their last answers */
    STATUS_MS = 1000,      /* between two status lines */
};

enum phase { PHASE_SERVING, PHASE_DRAINING, PHASE_CANCELLING, PHASE_FLUSHING };

struct server {
    struct server_parts parts;
    struct event_base *base;
    struct event *acceptable, *engine_events, *sigterm, *sigint, *sighup;
    struct event *accept_pause, *phase_timer, *status_timer, *watchdog;
    struct timeval watchdog_every;
    struct sessions sessions;
    enum phase phase;
    enum server_end end;
    int last_percent;
    uint64_t accept_logged_ms;
};

static void after(struct event *timer, int ms)
{
    struct timeval tv = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

    evtimer_add(timer, &tv);
}

/* ---- status line */

static void tell_status(struct server *s)
{
    struct engine_status status;

    engine_status(s->parts.engine, &status);
    switch (s->sessions.facts.state) {
    case NVLLM__V1__STATE__STATE_LOADING:
        service_status("Loading %s: %d%%", s->parts.model, (int)(status.progress * 100));
        break;
    case NVLLM__V1__STATE__STATE_READY:
        service_status("Serving %s on %s: %d running, %d waiting", s->parts.model, s->parts.backend,
                       status.core.requests_running,
                       status.core.requests_waiting + (int)status.n_encoding);
        break;
    case NVLLM__V1__STATE__STATE_DRAINING:
        service_status("Shutting down: %zu requests to end", sessions_n_requests(&s->sessions));
        break;
    default:
        break; /* the failure was told */
    }
}

static void on_status_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    tell_status(arg);
}

/* Something may have changed: one line soon, and none while nothing happens. */
static void status_soon(struct server *s)
{
    if (!evtimer_pending(s->status_timer, NULL))
        after(s->status_timer, STATUS_MS);
}

/* ---- the end */

static void stop_listening(struct server *s)
{
    event_del(s->acceptable);
    evtimer_del(s->accept_pause);
    listener_stop(s->parts.listener);
}

static void begin_flush(struct server *s)
{
    if (s->phase == PHASE_FLUSHING)
        return;
    s->phase = PHASE_FLUSHING;
    sessions_end_all(&s->sessions);
    after(s->phase_timer, FLUSH_S * 1000);
}

static void begin_cancel(struct server *s)
{
    log_event(LOG_LEVEL_WARNING, "cancelling", "requests=%zu", sessions_n_requests(&s->sessions));
    s->phase = PHASE_CANCELLING;
    sessions_cancel_all(&s->sessions);
    after(s->phase_timer, CANCEL_S * 1000);
}

static void on_phase_timer(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;

    (void)fd;
    (void)what;
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
        sessions_fail_all(&s->sessions, NVLLM__V1__ERROR_CODE__ERROR_CANCELLED,
                          "the daemon is shutting down");
        break;
    case PHASE_FLUSHING:
        event_base_loopbreak(s->base);
        break;
    }
    sessions_settle(&s->sessions);
}

static void on_stop_signal(evutil_socket_t number, short what, void *arg)
{
    struct server *s = arg;

    (void)what;
    if (s->phase == PHASE_SERVING) {
        log_event(LOG_LEVEL_INFO, "draining", "signal=%d requests=%zu timeout_s=%d", (int)number,
                  sessions_n_requests(&s->sessions), (int)s->parts.options->drain_timeout_s);
        service_stopping();
        if (s->sessions.facts.state == NVLLM__V1__STATE__STATE_LOADING)
            s->end = SERVER_STUCK;
        s->sessions.facts.state = NVLLM__V1__STATE__STATE_DRAINING;
        s->phase = PHASE_DRAINING;
        stop_listening(s);
        after(s->phase_timer, (int)s->parts.options->drain_timeout_s * 1000);
    } else if (s->phase == PHASE_DRAINING) {
        begin_cancel(s);
    }
    tell_status(s);
    sessions_settle(&s->sessions);
}

static void on_hangup(evutil_socket_t number, short what, void *arg)
{
    (void)number;
    (void)what;
    (void)arg;
    log_event(LOG_LEVEL_WARNING, "reload_ignored", "signal=SIGHUP");
}

/* At the end of each wake-up: whether the next step of the end is due. */
static void on_settled(void *arg)
{
    struct server *s = arg;
    bool ending = s->phase == PHASE_DRAINING || s->phase == PHASE_CANCELLING;

    if (ending && sessions_n_requests(&s->sessions) == 0) {
        begin_flush(s);
        connections_flush(&s->sessions.connections);
    }
    /* Clients freed meanwhile are seen at the next wake-up, at the latest at the timer's. */
    if (s->phase == PHASE_FLUSHING &&
        s->sessions.facts.connections == s->sessions.connections.n_gone)
        event_base_loopbreak(s->base);
}

/* ---- engine */

static void engine_failed(struct server *s)
{
    struct engine_status status;

    engine_status(s->parts.engine, &status);
    log_text(LOG_LEVEL_ERROR, "engine_failed", status.failure.text, "requests=%zu",
             sessions_n_requests(&s->sessions));
    service_failed(status.failure.text);
    s->sessions.facts.state = NVLLM__V1__STATE__STATE_FAILED;
    s->end = SERVER_FAILED;
    stop_listening(s);
    sessions_fail_all(&s->sessions, NVLLM__V1__ERROR_CODE__ERROR_INTERNAL, status.failure.text);
    begin_flush(s);
}

static void engine_ready(struct server *s)
{
    struct engine_status status;

    sessions_ready(&s->sessions);
    engine_status(s->parts.engine, &status);
    log_text(LOG_LEVEL_INFO, "ready", status.backend.device,
             "model=%s backend=%s blocks=%d block_len=%d block_bytes=%llu max_seq_len=%d",
             s->parts.model, s->parts.backend, status.backend.n_blocks, status.block_len,
             (unsigned long long)status.backend.block_bytes, status.max_seq_len);
    if (!engine_chat_template(s->parts.engine))
        log_event(LOG_LEVEL_WARNING, "no_chat_template", "model=%s", s->parts.model);
    service_ready();
    tell_status(s);
}

static void engine_changed(struct server *s)
{
    struct engine_status status;

    switch (engine_state(s->parts.engine)) {
    case ENGINE_LOADING:
        engine_status(s->parts.engine, &status);
        if ((int)(status.progress * 20) != s->last_percent) {
            s->last_percent = (int)(status.progress * 20); /* every 5 % */
            service_extend_start();
        }
        status_soon(s);
        break;
    case ENGINE_READY:
        if (s->sessions.facts.state == NVLLM__V1__STATE__STATE_LOADING)
            engine_ready(s);
        break;
    case ENGINE_FAILED:
        if (s->sessions.facts.state != NVLLM__V1__STATE__STATE_FAILED)
            engine_failed(s);
        break;
    }
}

static void on_engine(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    struct engine_event *list = engine_take(s->parts.engine);

    (void)fd;
    (void)what;
    for (const struct engine_event *ev = list; ev; ev = ev->next)
        if (ev->type != ENGINE_STATE)
            sessions_event(&s->sessions, ev);
    engine_events_free(list);
    /* The state is looked at anyway: its event is a hint, and may be lost for want of memory. */
    engine_changed(s);
    if (s->sessions.facts.state == NVLLM__V1__STATE__STATE_READY ||
        s->sessions.facts.state == NVLLM__V1__STATE__STATE_DRAINING)
        status_soon(s);
    sessions_settle(&s->sessions);
}

/* ---- clients */

static void on_accept_pause(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;

    (void)fd;
    (void)what;
    event_add(s->acceptable, NULL);
}

static void on_acceptable(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;

    (void)what;
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        int client = accept4(fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (client >= 0) {
            sessions_accept(&s->sessions, client);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno != EAGAIN) {
            /* The client stays in the queue, so the socket stays readable: look again later. */
            if (log_due(&s->accept_logged_ms, 1000))
                log_text(LOG_LEVEL_WARNING, "accept_paused", strerror(errno), "connections=%u",
                         s->sessions.facts.connections);
            event_del(s->acceptable);
            after(s->accept_pause, ACCEPT_PAUSE_MS);
        }
        break;
    }
    sessions_settle(&s->sessions);
}

/* ---- life */

static void on_watchdog(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;

    (void)fd;
    (void)what;
    service_alive();
    evtimer_add(s->watchdog, &s->watchdog_every);
}

static int make_events(struct server *s)
{
    const struct {
        struct event **event;
        evutil_socket_t fd;
        short what;
        event_callback_fn callback;
    } wanted[] = {
        {&s->acceptable, listener_fd(s->parts.listener), EV_READ | EV_PERSIST, on_acceptable},
        {&s->engine_events, engine_event_fd(s->parts.engine), EV_READ | EV_PERSIST, on_engine},
        {&s->sigterm, SIGTERM, EV_SIGNAL | EV_PERSIST, on_stop_signal},
        {&s->sigint, SIGINT, EV_SIGNAL | EV_PERSIST, on_stop_signal},
        {&s->sighup, SIGHUP, EV_SIGNAL | EV_PERSIST, on_hangup},
        {&s->accept_pause, -1, 0, on_accept_pause},
        {&s->phase_timer, -1, 0, on_phase_timer},
        {&s->status_timer, -1, 0, on_status_timer},
        {&s->watchdog, -1, 0, on_watchdog},
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        *wanted[i].event = event_new(s->base, wanted[i].fd, wanted[i].what, wanted[i].callback, s);
        if (!*wanted[i].event)
            return -ENOMEM;
        if (wanted[i].what && event_add(*wanted[i].event, NULL) < 0)
            return -ENOMEM;
    }
    return 0;
}

int server_new(struct server **out, const struct server_parts *parts, struct err *e)
{
    struct reply_facts facts = {
        .server = "nvllmd/" NVLLM_VERSION,
        .model = parts->model,
        .model_folder = parts->options->model_path,
        .backend = parts->backend,
    };
    struct server *s = calloc(1, sizeof(*s));

    if (!s)
        return err_set(e, -ENOMEM, "server: out of memory");
    s->parts = *parts;
    s->last_percent = -1;
    s->base = event_base_new();
    if (!s->base || make_events(s) < 0) {
        server_free(s);
        return err_set(e, -ENOMEM, "server: cannot set up its loop");
    }
    sessions_init(&s->sessions, s->base, parts->engine, parts->options, &facts);
    s->sessions.settled = on_settled;
    s->sessions.server = s;
    *out = s;
    return 0;
}

void server_free(struct server *s)
{
    struct event *events[9];

    if (!s)
        return;
    sessions_deinit(&s->sessions);
    events[0] = s->acceptable;
    events[1] = s->engine_events;
    events[2] = s->sigterm;
    events[3] = s->sigint;
    events[4] = s->sighup;
    events[5] = s->accept_pause;
    events[6] = s->phase_timer;
    events[7] = s->status_timer;
    events[8] = s->watchdog;
    for (size_t i = 0; i < sizeof(events) / sizeof(*events); i++)
        if (events[i])
            event_free(events[i]);
    if (s->base)
        event_base_free(s->base);
    free(s);
}

enum server_end server_run(struct server *s)
{
    uint64_t watchdog_us = service_watchdog_us();

    if (watchdog_us) {
        s->watchdog_every.tv_sec = (time_t)(watchdog_us / 2 / 1000000);
        s->watchdog_every.tv_usec = (suseconds_t)(watchdog_us / 2 % 1000000);
        evtimer_add(s->watchdog, &s->watchdog_every);
    }
    log_event(LOG_LEVEL_INFO, "listening", "socket=%s", listener_path(s->parts.listener));
    tell_status(s);
    event_base_dispatch(s->base);
    log_event(LOG_LEVEL_INFO, "ended", "connections=%u requests=%zu", s->sessions.facts.connections,
              sessions_n_requests(&s->sessions));
    return s->end;
}
