/* http.c - see http.h: the server, and what wakes it.
 *
 * A socket is watched once, for edges of all kinds, so that neither waiting for an answer nor
 * writing one asks the kernel for anything else. */
#include <errno.h>
#include <event2/listener.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/openai/http_impl.h"

enum {
    BACKLOG = 512,
    PAUSE_S = 1, /* of accepting, where descriptors have run out */
};

/* ---- flushing */

static void flush_conn(struct http_conn *c)
{
    conn_write(c);
    if (c->dead || conn_unsent(c) > 0 || c->phase == PHASE_ANSWER)
        return;
    if (c->phase == PHASE_IDLE && (!c->keep_alive || c->http->stopping))
        conn_finish(c);
    event_active(c->event, EV_READ, 0); /* what has come meanwhile, after others had their turn */
}

void http_flush(struct http *h)
{
    struct http_conn *c;

    while ((c = TAILQ_FIRST(&h->dirty)) != NULL) {
        TAILQ_REMOVE(&h->dirty, c, dirty);
        c->is_dirty = false;
        flush_conn(c);
        if (!c->dead)
            continue;
        if (c->gone)
            c->gone(c->owner);
        conn_free(c);
    }
}

/* ---- events */

static void on_event(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    struct http *h = c->http;

    (void)fd;
    if (what & (EV_READ | EV_CLOSED))
        c->readable = true;
    if (what & EV_WRITE)
        c->blocked = false;
    if (what & EV_CLOSED)
        c->closed = true;
    if ((what & EV_WRITE) && conn_unsent(c) > 0)
        conn_touch(c);
    conn_advance(c);
    conn_read(c);
    if (c->phase == PHASE_ANSWER && (c->closed || ((what & EV_READ) && !conn_is_there(c))))
        conn_kill(c);
    http_flush(h);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;
    struct http *h = c->http;

    (void)fd;
    (void)what;
    if (conn_unsent(c) == 0 && (c->phase == PHASE_HEAD || c->phase == PHASE_BODY))
        conn_refuse(c, 408, "The request did not arrive in time.");
    else
        conn_kill(c);
    http_flush(h);
}

/* ---- accepting */

/* Ends the connection that has been idle for longest; false: none is. */
static bool evict_idle(struct http *h)
{
    struct http_conn *c;

    TAILQ_FOREACH (c, &h->idle, link)
        if (conn_unsent(c) == 0) {
            conn_kill(c);
            http_flush(h);
            return true;
        }
    return false;
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *address, int n,
                      void *arg)
{
    static const char full[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                               "Connection: close\r\nContent-Length: 0\r\n\r\n";
    struct http *h = arg;

    (void)l;
    (void)n;
    if (h->n_conns >= h->options.max_connections && !evict_idle(h)) {
        (void)!send(fd, full, sizeof(full) - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
        return;
    }
    conn_new(h, fd, address->sa_family, on_event, on_timer);
}

static void set_accepting(struct http *h, bool on)
{
    for (size_t i = 0; i < h->n_listeners; i++)
        if (on)
            evconnlistener_enable(h->listeners[i]);
        else
            evconnlistener_disable(h->listeners[i]);
}

static void on_resume(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    set_accepting(arg, true);
}

static void on_accept_error(struct evconnlistener *l, void *arg)
{
    const struct timeval pause = {.tv_sec = PAUSE_S};
    struct http *h = arg;

    (void)l;
    set_accepting(h, false);
    event_add(h->resume, &pause);
}

/* ---- the server */

struct http *http_new(struct event_base *base, const struct http_options *options)
{
    struct http *h = calloc(1, sizeof(*h));

    if (!h)
        return NULL;
    h->base = base;
    h->options = *options;
    TAILQ_INIT(&h->idle);
    TAILQ_INIT(&h->busy);
    TAILQ_INIT(&h->dirty);
    h->resume = evtimer_new(base, on_resume, h);
    if (h->resume)
        return h;
    http_free(h);
    return NULL;
}

int http_listen(struct http *h, int fd)
{
    const unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC;
    struct evconnlistener *l = NULL;

    if (h->n_listeners < HTTP_MAX_LISTENERS)
        l = evconnlistener_new(h->base, on_accept, h, flags, BACKLOG, fd);
    if (!l) {
        close(fd);
        return -ENOMEM;
    }
    evconnlistener_set_error_cb(l, on_accept_error);
    h->listeners[h->n_listeners++] = l;
    return 0;
}

void http_stop(struct http *h)
{
    struct http_conn *c;

    while (h->n_listeners > 0)
        evconnlistener_free(h->listeners[--h->n_listeners]);
    event_del(h->resume);
    h->stopping = true;
    TAILQ_FOREACH (c, &h->idle, link)
        conn_touch(c);
    http_flush(h);
}

bool http_is_over(const struct http *h, size_t bytes)
{
    return bytes > HTTP_FAIR_BYTES && buf_held() > h->options.max_memory;
}

static bool any_unsent(const struct conn_list *list)
{
    const struct http_conn *c;

    TAILQ_FOREACH (c, list, link)
        if (conn_unsent(c) > 0)
            return true;
    return false;
}

bool http_unsent(const struct http *h)
{
    return any_unsent(&h->idle) || any_unsent(&h->busy);
}

static void free_all(struct conn_list *list)
{
    struct http_conn *c;

    while ((c = TAILQ_FIRST(list)) != NULL)
        conn_free(c);
}

void http_free(struct http *h)
{
    if (!h)
        return;
    while (h->n_listeners > 0)
        evconnlistener_free(h->listeners[--h->n_listeners]);
    free_all(&h->idle);
    free_all(&h->busy);
    if (h->resume)
        event_free(h->resume);
    free(h);
}
