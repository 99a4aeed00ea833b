/* server_private.h - shared by server.c (the loop) and server_control.c (states, shutdown, admins'
 * operations). Nobody else includes it. */
#ifndef NVLLM_DAEMON_SERVER_PRIVATE_H
#define NVLLM_DAEMON_SERVER_PRIVATE_H

#include <event2/event.h>

#include "daemon/server.h"
#include "daemon/session.h"

enum phase { PHASE_SERVING, PHASE_DRAINING, PHASE_CANCELLING, PHASE_FLUSHING };

enum server_event {
    EVENT_CLIENTS, /* a client connects */
    EVENT_ADMINS,  /* likewise, at the admin socket */
    EVENT_ENGINE,
    EVENT_SIGTERM,
    EVENT_SIGINT,
    EVENT_SIGHUP,
    EVENT_ACCEPT_PAUSE,
    EVENT_PHASE,  /* the next phase of the shutdown is due */
    EVENT_DRAIN,  /* the timeout of an admin's drain */
    EVENT_RELOAD, /* a moment after SIGHUP */
    EVENT_REREAD, /* the options have been read */
    EVENT_STATUS,
    EVENT_SOCKETS, /* the sockets' files are to be checked */
    EVENT_WATCHDOG,
    N_SERVER_EVENTS,
};

/* Run for an event of the loop; buffered answers are written afterwards. */
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
    bool ready;   /* the engine is ready */
    bool failed;  /* the engine has failed */
    bool drained; /* by an admin, until resume */
    struct reload *reload;
    uint64_t reading; /* number of the last reading of the options */
    bool read_again;  /* a reload came during a reading, which may have missed changes */
    int last_percent;
    uint64_t accept_logged_ms, socket_logged_ms;
};

void server_after(struct server *s, enum server_event timer, uint64_t ms);

/* Schedules a status line: one a second while there are requests, none while idle. */
void server_status_soon(struct server *s);
void server_tell_status(struct server *s);

/* Derives the state that clients see. */
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

#endif
