/* reload.c - reads the options again without blocking the loop, and takes over what may change. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/server_private.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

enum {
    HANGUP_MS = 100, /* SIGHUPs within are one reload */
    END_MS = 200,    /* for a reading in progress at the end */
};

/* ---- the reading */

int reading_init(struct reading *r)
{
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return r->fd < 0 ? -errno : 0;
}

static void *reread(void *server)
{
    const uint64_t one = 1;
    struct server *s = server;
    struct reading *r = &s->reading;

    r->r = s->parts.reread(s->parts.reread_arg, &r->options, &r->why);
    must(write(r->fd, &one, sizeof(one)) == sizeof(one));
    return NULL;
}

/* True once for each reading that is done. */
static bool reading_done(struct reading *r)
{
    uint64_t count;

    if (read(r->fd, &count, sizeof(count)) != sizeof(count))
        return false;
    pthread_join(r->thread, NULL); /* it is about to end */
    r->under_way = false;
    return true;
}

bool reading_end(struct reading *r)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};

    if (!r->under_way)
        return true;
    if (poll(&p, 1, END_MS) != 1 || !reading_done(r))
        return false;
    if (r->r == 0)
        options_deinit(&r->options);
    return true;
}

int server_reload(struct server *s, uint64_t *number, struct err *e)
{
    struct reading *reading = &s->reading;
    int r;

    if (s->phase != PHASE_SERVING)
        return err_set(e, -EBUSY, "the daemon is ending");
    if (reading->under_way) {
        reading->again = true;
        *number = reading->number + 1;
        return 0;
    }
    r = thread_start(&reading->thread, NULL, reread, s);
    if (r < 0)
        return err_set(e, r, "no thread can be started: %s", strerror(-r));
    reading->under_way = true;
    *number = ++reading->number;
    return 0;
}

/* ---- its result */

static struct pending *waiting_for(const struct server *s, uint64_t number)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at)))
        if (p->reading && p->reading <= number)
            return p;
    return NULL;
}

/* Answers the reloads that wait for this reading or an earlier one: with the change, or with why
 * nothing has changed where that is NULL. */
static void answer(struct server *s, uint64_t number, const struct options_change *change,
                   const struct refusal *why)
{
    Nvllm__V1__Reloaded m = NVLLM__V1__RELOADED__INIT;
    struct pending *p;

    if (change) {
        m.n_changed = (size_t)change->n_changed;
        m.changed = (char **)(uintptr_t)change->changed; /* packing only reads */
        m.n_needs_restart = (size_t)change->n_needs_restart;
        m.needs_restart = (char **)(uintptr_t)change->needs_restart;
    }
    while ((p = waiting_for(s, number))) {
        struct session *one = p->session;
        int r = CONNECTION_OK;

        if (one)
            r = change ? reply_put(one->connection, p->client_id, EVENT(RELOADED), &m)
                       : reply_error(one->connection, p->client_id, why);
        pending_forget(p);
        if (one)
            session_check_put(one, r);
    }
}

static void refuse(struct server *s, uint64_t number, Nvllm__V1__ErrorCode code, const char *why)
{
    struct refusal e;

    refusal_set(&e, code, "%s; nothing was changed", why);
    answer(s, number, NULL, &e);
}

void server_refuse_reloads(struct server *s, Nvllm__V1__ErrorCode code, const char *why)
{
    refuse(s, s->reading.number + 1, code, why);
}

static void log_keys(const char *event, const char *const *keys, int n)
{
    for (int i = 0; i < n; i++)
        log_event(LOG_LEVEL_INFO, event, "option=%s", keys[i]);
}

static void take_over(struct server *s, struct options *fresh)
{
    struct options *running = s->parts.options;
    struct options_change change;

    options_take(running, fresh, &change);
    log_set_level((enum log_level)running->log_level);
    server_raise_descriptors(running);
    sessions_limits_changed(s);
    log_event(LOG_LEVEL_INFO, "reloaded", "changed=%d needs_restart=%d", change.n_changed,
              change.n_needs_restart);
    log_keys("option_changed", change.changed, change.n_changed);
    log_keys("option_needs_restart", change.needs_restart, change.n_needs_restart);
    answer(s, s->reading.number, &change, NULL);
}

void server_on_reread(struct server *s)
{
    struct reading *r = &s->reading;

    if (!reading_done(r))
        return;
    if (s->phase != PHASE_SERVING) { /* the reloads have been answered */
        if (r->r == 0)
            options_deinit(&r->options);
        return;
    }
    if (r->r == 0 &&
        engine_set_shares(s->parts.engine, r->options.shares.list, r->options.shares.n) < 0) {
        r->r = err_set(&r->why, -ENOMEM, "out of memory");
        options_deinit(&r->options);
    }
    if (r->r == 0) {
        take_over(s, &r->options);
        options_deinit(&r->options);
    } else {
        log_text(LOG_LEVEL_WARNING, "reload_refused", r->why.text, "%s", "");
        refuse(s, r->number, CODE(INVALID), r->why.text);
    }
    if (r->again)
        server_on_reload(s);
    r->again = false;
}

/* Reloads for SIGHUP, or for a reload that came during a reading. */
void server_on_reload(struct server *s)
{
    uint64_t number;
    struct err why;

    if (server_reload(s, &number, &why) == 0)
        return;
    log_text(LOG_LEVEL_WARNING, "reload_refused", why.text, "%s", "");
    server_refuse_reloads(s, CODE(UNAVAILABLE), why.text);
}

void server_on_hangup(struct server *s)
{
    if (!evtimer_pending(s->events[EVENT_RELOAD], NULL))
        server_after(s, EVENT_RELOAD, HANGUP_MS);
}
