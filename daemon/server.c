/* server.c - see server.h: the loop and its life. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "daemon/log.h"
#include "daemon/server_private.h"
#include "engine/util/clock.h"
#include "engine/util/must.h"

enum {
    ACCEPT_BATCH = 64,     /* clients a wake-up, so that other events come between */
    ACCEPT_PAUSE_MS = 250, /* after descriptors or memory have run out */
    SOCKETS_MS = 1000,     /* until sockets whose files have changed, or are lost, are checked */
    RELOAD_MS = 200,       /* for options that are being read at the end */
    OWN_DESCRIPTORS = 256,
    WATCHDOG_US = 30000000, /* as the unit's WatchdogSec=, where systemd does not watch */
    MAX_STALLED_CHECKS = 2, /* in a row that find the engine where it was */
};

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    const struct server_hook *hook = arg;

    (void)fd;
    (void)what;
    hook->run(hook->server);
    clients_settle(hook->server);
}

void server_after(struct server *s, enum server_event timer, uint64_t ms)
{
    struct timeval tv = {.tv_sec = (time_t)(ms / 1000), .tv_usec = (suseconds_t)(ms % 1000 * 1000)};

    evtimer_add(s->events[timer], &tv);
}

/* ---- engine */

/* The files of chat sessions, which are those of the model. */
static void open_store(struct server *s)
{
    struct event **ev = &s->events[EVENT_STORE];

    chat_open_store(s);
    if (!s->store)
        return;
    s->hooks[EVENT_STORE] = (struct server_hook){s, chat_on_store};
    *ev = event_new(s->base, chat_session_store_fd(s->store), EV_READ | EV_PERSIST, on_event,
                    &s->hooks[EVENT_STORE]);
    if (*ev && event_add(*ev, NULL) == 0)
        return;
    log_text(LOG_LEVEL_WARNING, "sessions_in_memory", "out of memory", "%s", "");
    chat_session_store_close(s->store);
    s->store = NULL;
}

static void engine_ready(struct server *s)
{
    const struct model *model = engine_model(s->parts.engine);
    struct engine_status status;

    engine_status(s->parts.engine, &status);
    s->rules.defaults = model_defaults(model);
    s->rules.vocab_size = model_config(model)->vocab_size;
    s->rules.max_seq_len = status.max_seq_len;
    s->rules.options = s->parts.options;
    open_store(s);
    s->ready = true;
    log_text(LOG_LEVEL_INFO, "ready", status.backend.devices[0].name,
             "model=%s backend=%s tensor_parallel=%d processes=%d blocks=%d block_len=%d "
             "block_bytes=%llu max_seq_len=%d weights=%s kv_dtype=%s",
             s->parts.model, s->parts.backend, status.backend.tp_size,
             status.backend.n_processes > 1 ? status.backend.n_processes : 1,
             status.backend.tiers[TIER_DEVICE].n_blocks, status.block_len,
             (unsigned long long)status.backend.block_bytes, status.max_seq_len, status.weights,
             status.kv_dtype);
    if (!engine_chat_template(s->parts.engine))
        log_event(LOG_LEVEL_WARNING, "no_chat_template", "model=%s", s->parts.model);
    sd_notify(0, "READY=1");
    server_tell_status(s);
}

static void tell_sleep(struct server *s)
{
    const enum sleep_level level = engine_asleep(s->parts.engine);

    if (level == s->asleep)
        return;
    s->asleep = level;
    log_event(LOG_LEVEL_INFO, s->asleep ? "asleep" : "awake", "level=%s",
              s->asleep == SLEEP_ALL       ? "all"
              : s->asleep == SLEEP_WEIGHTS ? "weights"
                                           : "none");
    server_tell_status(s);
}

static void engine_changed(struct server *s)
{
    struct engine_status status;

    switch (engine_state(s->parts.engine)) {
    case ENGINE_LOADING:
        engine_status(s->parts.engine, &status);
        if ((int)(status.progress * 100) != s->last_percent) {
            s->last_percent = (int)(status.progress * 100);
            sd_notify(0, "EXTEND_TIMEOUT_USEC=60000000"); /* loading goes on */
        }
        server_status_soon(s);
        break;
    case ENGINE_READY:
        if (!s->ready)
            engine_ready(s);
        tell_sleep(s);
        break;
    case ENGINE_FAILED:
        engine_status(s->parts.engine, &status);
        if (s->end != SERVER_FAILED)
            server_engine_failed(s, status.failure_code, status.failure.text);
        break;
    }
}

static void on_engine(struct server *s)
{
    struct engine_event *list = engine_take(s->parts.engine);

    for (struct engine_event *ev = list; ev; ev = ev->next)
        requests_event(s, ev);
    engine_changed(s);
    if (s->ready && s->end != SERVER_FAILED)
        server_status_soon(s);
    clients_settle(s);
    engine_events_free(list); /* once the tokens are written */
}

/* ---- clients */

static bool is_open(const struct server *s, int which)
{
    const struct listener *l = s->parts.listeners[which];

    return l && listener_fd(l) >= 0;
}

/* Accepts some of the clients that wait at a socket. */
static void accept_some(struct server *s, int which)
{
    for (int i = 0; i < ACCEPT_BATCH; i++) {
        int client = accept4(listener_fd(s->parts.listeners[which]), NULL, NULL,
                             SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (client >= 0) {
            clients_accept(s, client, which == FOR_ADMINS);
            continue;
        }
        if (errno == EINTR || errno == ECONNABORTED)
            continue;
        if (errno != EAGAIN) {
            /* The client stays in the queue and the socket readable: try again later. */
            if (log_due(&s->accepts_paused, 1000))
                log_text(LOG_LEVEL_WARNING, "accept_paused", strerror(errno),
                         "connections=%" PRIu64, server_connections(s));
            event_del(s->events[EVENT_CLIENTS + which]);
            server_after(s, EVENT_SOCKETS, ACCEPT_PAUSE_MS);
        }
        break;
    }
}

/* At whichever socket they wait. */
static void on_clients(struct server *s)
{
    for (int i = 0; i < N_LISTENERS; i++)
        if (is_open(s, i))
            accept_some(s, i);
}

/* Makes a socket's file again where it was removed or replaced. Connected clients stay. The event
 * is reused, so that this cannot fail for want of memory. */
static void mend(struct server *s, int which)
{
    struct listener *l = s->parts.listeners[which];
    struct event *ev = s->events[EVENT_CLIENTS + which];
    struct err e;

    accept_some(s, which); /* clients that still wait there */
    event_del(ev);
    if (listener_mend(l, &e) < 0) {
        if (log_due(&s->sockets_lost, 60 * 1000))
            log_text(LOG_LEVEL_ERROR, "socket_lost", e.text, "%s", "");
        return;
    }
    must(event_assign(ev, s->base, listener_fd(l), EV_READ | EV_PERSIST, on_event,
                      &s->hooks[EVENT_CLIENTS + which]) == 0); /* the flags are sound */
    log_event(LOG_LEVEL_WARNING, "socket_renewed", "socket=%s", listener_path(l));
}

/* Listens again where a socket was lost, or accepting was paused. */
static void on_sockets(struct server *s)
{
    for (int i = 0; i < N_LISTENERS; i++) {
        const struct listener *l = s->parts.listeners[i];

        if (!is_open(s, i))
            continue;
        if (!listener_intact(l))
            mend(s, i);
        if (!listener_watch(l, s->inotify_fd) || !listener_intact(l))
            server_after(s, EVENT_SOCKETS, SOCKETS_MS);
        if (event_add(s->events[EVENT_CLIENTS + i], NULL) < 0 &&
            log_due(&s->sockets_lost, 60 * 1000))
            log_event(LOG_LEVEL_ERROR, "socket_not_watched", "socket=%s", listener_path(l));
    }
}

/* Whoever removes a socket may go on to remove its folder, which must be empty for that. */
static void on_inotify(struct server *s)
{
    char changes[4096];

    while (read(s->inotify_fd, changes, sizeof(changes)) > 0)
        ;
    server_after(s, EVENT_SOCKETS, SOCKETS_MS);
}

/* ---- life */

void server_hold_signals(int how)
{
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(how, &signals, NULL);
}

void server_raise_descriptors(const struct options *o)
{
    rlim_t wanted = (rlim_t)(o->max_connections + o->admin_connections) + OWN_DESCRIPTORS;
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= wanted)
        return;
    l.rlim_cur = l.rlim_max < wanted ? l.rlim_max : wanted;
    if (setrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur < wanted)
        log_event(LOG_LEVEL_WARNING, "few_descriptors", "limit=%llu wanted=%llu",
                  (unsigned long long)l.rlim_cur, (unsigned long long)wanted);
}

/* Each eighth of WatchdogSec=; where systemd does not watch, only while there are requests. One
 * check is not enough: the whole process may have been stopped since the last. */
static void on_watchdog(struct server *s)
{
    struct engine_status status;

    engine_status(s->parts.engine, &status);
    s->stalled_checks = status.beat && status.beat == s->engine_beat ? s->stalled_checks + 1 : 0;
    s->engine_beat = status.beat;
    if (s->ready && s->end != SERVER_FAILED && s->stalled_checks >= MAX_STALLED_CHECKS)
        server_engine_failed(s, -ETIMEDOUT, "the engine has stalled");
    if (s->systemd_watchdog)
        sd_notify(0, "WATCHDOG=1");
    if (s->systemd_watchdog || s->requests.n > 0)
        server_watch(s);
}

void server_watch(struct server *s)
{
    if (!evtimer_pending(s->events[EVENT_WATCHDOG], NULL))
        server_after(s, EVENT_WATCHDOG, s->watchdog_us / 8000);
}

static void on_sigterm(struct server *s)
{
    server_signalled(s, SIGTERM);
}

static void on_sigint(struct server *s)
{
    server_signalled(s, SIGINT);
}

static int make_events(struct server *s)
{
    struct listener *const *listeners = s->parts.listeners;
    const struct {
        evutil_socket_t fd;
        short what;
        void (*run)(struct server *s);
    } wanted[N_SERVER_EVENTS] = {
        [EVENT_CLIENTS] = {listener_fd(listeners[FOR_CLIENTS]), EV_READ | EV_PERSIST, on_clients},
        [EVENT_ADMINS] = {listeners[FOR_ADMINS] ? listener_fd(listeners[FOR_ADMINS]) : -1,
                          EV_READ | EV_PERSIST, listeners[FOR_ADMINS] ? on_clients : NULL},
        [EVENT_ENGINE] = {engine_event_fd(s->parts.engine), EV_READ | EV_PERSIST, on_engine},
        [EVENT_SIGTERM] = {SIGTERM, EV_SIGNAL | EV_PERSIST, on_sigterm},
        [EVENT_SIGINT] = {SIGINT, EV_SIGNAL | EV_PERSIST, on_sigint},
        [EVENT_SIGHUP] = {SIGHUP, EV_SIGNAL | EV_PERSIST, server_on_hangup},
        [EVENT_PHASE] = {-1, 0, server_on_phase},
        [EVENT_DRAIN] = {-1, 0, server_on_drain},
        [EVENT_RELOAD] = {-1, 0, server_on_reload},
        [EVENT_RELOADED] = {s->reload.fd, EV_READ | EV_PERSIST, server_on_reloaded},
        [EVENT_STATUS] = {-1, 0, server_on_status},
        [EVENT_SOCKETS] = {-1, 0, on_sockets},
        [EVENT_INOTIFY] = {s->inotify_fd, EV_READ | EV_PERSIST,
                           s->inotify_fd >= 0 ? on_inotify : NULL},
        [EVENT_WATCHDOG] = {-1, 0, on_watchdog},
    };

    for (int i = 0; i < N_SERVER_EVENTS; i++) {
        if (!wanted[i].run)
            continue;
        s->hooks[i] = (struct server_hook){s, wanted[i].run};
        s->events[i] = event_new(s->base, wanted[i].fd, wanted[i].what, on_event, &s->hooks[i]);
        if (!s->events[i] || (wanted[i].what && event_add(s->events[i], NULL) < 0))
            return -ENOMEM;
    }
    return 0;
}

int server_new(struct server **out, const struct server_parts *parts, struct err *e)
{
    struct server *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return err_set(e, -ENOMEM, "server: out of memory");
    s->parts = *parts;
    s->start_ms = clock_us() / 1000;
    s->last_percent = s->reload.fd = -1;
    s->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    list_init(&s->clients);
    if (!(s->base = event_base_new()) || clients_init(s) < 0 ||
        (s->reload.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0 || make_events(s) < 0) {
        server_free(s);
        return err_set(e, -ENOMEM, "server: cannot set up its loop");
    }
    r = metrics_new(&s->metrics,
                    &(struct metrics_parts){.options = s->parts.options,
                                            .engine = s->parts.engine,
                                            .backend = s->parts.backend,
                                            .model = s->parts.model,
                                            .connections =
                                                &s->accounts.total.amounts[ACCOUNT_CONNECTIONS]},
                    e);
    if (r < 0) {
        server_free(s);
        return r;
    }
    *out = s;
    return 0;
}

void server_free(struct server *s)
{
    if (!s)
        return;
    metrics_free(s->metrics);
    if (s->events[EVENT_STORE]) /* clients_deinit() closes its descriptor */
        event_del(s->events[EVENT_STORE]);
    clients_deinit(s);
    for (int i = 0; i < N_SERVER_EVENTS; i++)
        if (s->events[i])
            event_free(s->events[i]);
    if (s->base)
        event_base_free(s->base);
    if (s->reload.fd >= 0)
        close(s->reload.fd);
    if (s->inotify_fd >= 0)
        close(s->inotify_fd);
    free(s);
}

enum server_end server_run(struct server *s)
{
    struct pollfd reload = {.fd = s->reload.fd, .events = POLLIN};
    struct err why;
    int code;

    s->watchdog_us = WATCHDOG_US;
    s->systemd_watchdog = sd_watchdog_enabled(0, &s->watchdog_us) > 0;
    if (s->systemd_watchdog)
        server_watch(s);
    on_sockets(s);
    for (int i = 0; i < N_LISTENERS; i++)
        if (s->parts.listeners[i])
            log_event(LOG_LEVEL_INFO, "listening", "socket=%s%s",
                      listener_path(s->parts.listeners[i]), i == FOR_ADMINS ? " for=admins" : "");
    server_tell_status(s);
    server_hold_signals(SIG_UNBLOCK);
    if (event_base_dispatch(s->base) < 0) { /* clients see their connections close */
        code = -errno;
        err_set(&why, code, "the event loop failed: %s", strerror(-code));
        log_text(LOG_LEVEL_ERROR, "loop_failed", why.text, "requests=%zu", s->requests.n);
        server_tell_failure(code, why.text);
        s->end = SERVER_FAILED;
    }
    server_hold_signals(SIG_BLOCK);
    event_del(s->events[EVENT_ENGINE]); /* the engine, which is freed first, owns its descriptor */
    if (!metrics_stop(s->metrics) && s->end == SERVER_ENDED) /* its thread asks the engine */
        s->end = SERVER_STUCK;
    log_event(LOG_LEVEL_INFO, "ended", "connections=%" PRIu64 " requests=%zu",
              server_connections(s), s->requests.n);
    if (s->end == SERVER_ENDED && s->reload.under_way) {
        if (poll(&reload, 1, RELOAD_MS) == 1)
            server_on_reloaded(s);
        else
            s->end = SERVER_STUCK;
    }
    return s->end;
}
