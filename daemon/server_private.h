/* server_private.h - what server.c (the loop and its life) and server_control.c (states, the end,
 * and what admins steer) share. Nobody else includes it. */
#ifndef NVLLM_DAEMON_SERVER_PRIVATE_H
#define NVLLM_DAEMON_SERVER_PRIVATE_H

#include <event2/event.h>

#include "daemon/server.h"
#include "daemon/session.h"

enum phase { PHASE_SERVING, PHASE_DRAINING, PHASE_CANCELLING, PHASE_FLUSHING };

enum server_event {
    EVENT_CLIENTS, /* somebody connects */
    EVENT_ADMINS,  /* likewise, by their own socket */
    EVENT_ENGINE,
    EVENT_SIGTERM,
    EVENT_SIGINT,
    EVENT_SIGHUP,
    EVENT_ACCEPT_PAUSE,
    EVENT_PHASE,  /* the next step of the end is due */
    EVENT_DRAIN,  /* the time of a drain is over */
    EVENT_RELOAD, /* SIGHUP has come a moment ago */
    EVENT_REREAD, /* the options have been read anew */
    EVENT_STATUS,
    EVENT_SOCKETS, /* time to look after the sockets' files */
    EVENT_WATCHDOG,
    N_SERVER_EVENTS,
};

/* What is run for an event of the loop; what it has put is written afterwards. */
struct server_hook {
    struct server *server;
    void (*run)(struct server *s);
};

struct server {
    struct server_parts parts;
    struct event_base *base;
    struct server_hook hooks[N_SERVER_EVENTS];
    struct event *events[N_SERVER_EVENTS];
    struct timeval watchdog_every;
    struct sessions sessions;
    enum phase phase;
    enum server_end end;
    bool ready;   /* the engine is */
    bool failed;  /* likewise */
    bool drained; /* by an admin; can be taken back */
    struct reload *reload;
    uint64_t reading; /* the last one begun */
    bool read_again;  /* asked for while one was under way: it may have seen less */
    int last_percent;
    uint64_t accept_logged_ms, socket_logged_ms;
};

void server_after(struct server *s, enum server_event timer, uint64_t ms);

/* A status line soon, one a second while there are requests, and none while nothing happens. */
void server_status_soon(struct server *s);
void server_tell_status(struct server *s);

/* The state that clients are told follows from the rest. */
void server_update_state(struct server *s);

void server_engine_failed(struct server *s);
void server_stop_listening(struct server *s);

/* Run for events. */
void server_on_signal(struct server *s, int number);
void server_on_hangup(struct server *s);
void server_on_phase(struct server *s);
void server_on_drain(struct server *s);
void server_on_reload(struct server *s);
void server_on_reread(struct server *s);
void server_on_status(struct server *s);

extern const struct session_control server_control;

#endif
