/* metrics.c - see metrics.h: the thread, its socket and its file; metrics_text.c says what is in
 * them.
 *
 * A client sends one request and is sent one answer. There are N_CLIENTS at a time, each with a
 * buffer of a set size and a few seconds in all; the oldest makes room for one that comes. */
#include "daemon/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/param.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/accounts.h"
#include "daemon/listener.h"
#include "daemon/log.h"
#include "daemon/metrics_text.h"
#include "engine/util/clock.h"
#include "engine/util/file.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

enum {
    N_CLIENTS = 16,
    REQUEST_BYTES = 8192, /* head of a request; those of scrapers have a few hundred */
    CLIENT_US = 5000000,  /* from connecting to the last byte */
    PAUSE_US = 250000,    /* after descriptors have run out */
    END_MS = 1000,        /* for the thread to end */
    LOG_EVERY_MS = 60000,
};

#define FORMAT_OPENMETRICS "application/openmetrics-text; version=1.0.0; charset=utf-8"
#define FORMAT_TEXT        "text/plain; version=0.0.4; charset=utf-8"

struct client {
    int fd; /* -1: a free place */
    uint64_t end_us;
    char in[REQUEST_BYTES + 1];
    size_t n_in;
    char *out; /* [n_out] the answer, once the request is there */
    size_t n_out, sent;
};

struct metrics {
    struct metrics_parts parts;
    struct metrics_counts counts;
    struct listener *listener; /* NULL: there is a file */
    gid_t gid;                 /* of the file, where metrics.group is set */
    uint64_t start_us;
    struct nvml *nvml; /* NULL: there is none, or its turn has not come */
    bool nvml_tried;
    int stop_fd, done_fd; /* eventfds: the thread is to end; it is about to */
    bool runs;
    pthread_t thread;
    uint64_t write_us;  /* when the file is written next; UINT64_MAX: there is none */
    uint64_t accept_us; /* nobody is accepted before */
    struct log_rate failed;
    struct client clients[N_CLIENTS];
};

/* ---- told by the loop */

void metrics_set_state(struct metrics *m, Nvllm__V1__State state)
{
    if (m)
        atomic_store(&m->counts.state, (int)state);
}

void metrics_count_end(struct metrics *m, Nvllm__V1__FinishReason reason)
{
    if (m)
        atomic_fetch_add(&m->counts.ends[reason], 1);
}

void metrics_count_error(struct metrics *m, Nvllm__V1__ErrorCode code)
{
    if (m && code == NVLLM__V1__ERROR_CODE__ERROR_CANCELLED)
        metrics_count_end(m, NVLLM__V1__FINISH_REASON__FINISH_CANCELLED);
    else if (m)
        atomic_fetch_add(&m->counts.errors[code], 1);
}

/* ---- the text */

/* Looks for the driver's library once the devices are known. */
static void find_devices(struct metrics *m)
{
    struct engine_status status;

    if (m->nvml_tried || engine_state(m->parts.engine) != ENGINE_READY)
        return;
    m->nvml_tried = true;
    engine_status(m->parts.engine, &status);
    if (!*status.backend.devices[0].pci)
        return;
    m->nvml = nvml_open();
    if (!m->nvml)
        log_event(LOG_LEVEL_WARNING, "no_nvml", "metrics=%s", m->parts.options->metrics_path);
}

static void write_text(struct metrics *m, struct exposition *x)
{
    find_devices(m);
    metrics_write(x, &m->parts, &m->counts, m->nvml, clock_us() - m->start_us);
}

/* ---- the file */

static bool is_file(const char *path)
{
    const size_t n = strlen(path);

    return n > 5 && strcmp(path + n - 5, ".prom") == 0;
}

/* Under another name, so that nobody reads half of it. */
static int write_beside(const struct metrics *m, const char *path, const struct exposition *x)
{
    const struct options *o = m->parts.options;
    const mode_t mode = (mode_t)o->metrics_mode & 0444;
    int fd, r = 0;

    (void)unlink(path); /* what an earlier daemon has left */
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    if ((*o->metrics_group && fchown(fd, (uid_t)-1, m->gid) < 0) || fchmod(fd, mode | 0600) < 0)
        r = -errno;
    if (r == 0)
        r = file_write(fd, x->data, x->len);
    close(fd);
    return r;
}

static int write_file(struct metrics *m, struct err *e)
{
    const char *path = m->parts.options->metrics_path;
    struct exposition x = {0};
    char beside[4096];
    int r = -ENOMEM;

    write_text(m, &x);
    if ((size_t)snprintf(beside, sizeof(beside), "%s.tmp", path) >= sizeof(beside))
        r = -ENAMETOOLONG;
    else if (!x.failed)
        r = write_beside(m, beside, &x);
    if (r == 0 && rename(beside, path) < 0)
        r = -errno;
    if (r < 0)
        (void)unlink(beside);
    exposition_deinit(&x);
    return r < 0 ? err_set(e, r, "metrics.path: cannot write %s: %s", path, strerror(-r)) : 0;
}

/* ---- requests and answers */

static void leave(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->out);
    c->fd = -1;
    c->out = NULL;
    c->n_in = c->n_out = c->sent = 0;
}

static void answer(struct client *c, const char *status, const char *type, const char *body,
                   size_t n)
{
    char head[256];
    const int n_head = snprintf(head, sizeof(head),
                                "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
                                "Connection: close\r\n\r\n",
                                status, type, n);

    must(n_head > 0 && (size_t)n_head < sizeof(head));
    c->out = malloc((size_t)n_head + n);
    if (!c->out) {
        leave(c);
        return;
    }
    memcpy(c->out, head, (size_t)n_head);
    memcpy(c->out + n_head, body, n);
    c->n_out = (size_t)n_head + n;
}

static void refuse(struct client *c, const char *status)
{
    char body[64];
    const int n = snprintf(body, sizeof(body), "%s\n", status);

    answer(c, status, "text/plain", body, (size_t)n);
}

static void answer_metrics(struct metrics *m, struct client *c, bool openmetrics)
{
    struct exposition x = {.openmetrics = openmetrics};

    write_text(m, &x);
    if (x.failed)
        refuse(c, "500 Internal Server Error");
    else
        answer(c, "200 OK", openmetrics ? FORMAT_OPENMETRICS : FORMAT_TEXT, x.data, x.len);
    exposition_deinit(&x);
}

/* Whether a request, whose head ends with an empty line, accepts a media type. */
static bool accepts(const char *head, const char *type)
{
    static const char field[] = "\naccept:";
    const char *line = strcasestr(head, field), *found, *end;

    if (!line)
        return false;
    line += sizeof(field) - 1;
    end = strchrnul(line, '\n');
    found = strcasestr(line, type);
    return found && found < end;
}

/* The head of a request is there. */
static void take_request(struct metrics *m, struct client *c)
{
    char method[16], target[256];
    int end = 0; /* of what has matched */

    if (sscanf(c->in, "%15s %255s HTTP/1.%n", method, target, &end) != 2 || end == 0) {
        refuse(c, "400 Bad Request");
        return;
    }
    target[strcspn(target, "?")] = '\0';
    if (strcmp(method, "GET") != 0)
        refuse(c, "405 Method Not Allowed");
    else if (strcmp(target, "/metrics") != 0 && strcmp(target, "/") != 0)
        refuse(c, "404 Not Found");
    else
        answer_metrics(m, c, accepts(c->in, "application/openmetrics-text"));
}

static void read_some(struct metrics *m, struct client *c)
{
    const ssize_t n = recv(c->fd, c->in + c->n_in, REQUEST_BYTES - c->n_in, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        leave(c);
        return;
    }
    c->n_in += (size_t)n;
    c->in[c->n_in] = '\0';
    if (strlen(c->in) < c->n_in)
        refuse(c, "400 Bad Request"); /* a NUL byte */
    else if (strstr(c->in, "\r\n\r\n") || strstr(c->in, "\n\n"))
        take_request(m, c);
    else if (c->n_in == REQUEST_BYTES)
        refuse(c, "431 Request Header Fields Too Large");
}

static void write_some(struct client *c)
{
    const ssize_t n =
        send(c->fd, c->out + c->sent, c->n_out - c->sent, MSG_NOSIGNAL | MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        c->sent += (size_t)n;
    if (n < 0 || c->sent == c->n_out)
        leave(c);
}

/* ---- the thread */

/* A free place, which may be that of the oldest client. */
static struct client *make_room(struct metrics *m)
{
    struct client *oldest = m->clients;

    for (struct client *c = m->clients; c < m->clients + N_CLIENTS; c++) {
        if (c->fd < 0)
            return c;
        if (c->end_us < oldest->end_us)
            oldest = c;
    }
    leave(oldest);
    return oldest;
}

static void accept_some(struct metrics *m, uint64_t now)
{
    for (int i = 0; i < N_CLIENTS; i++) {
        const int fd = accept4(listener_fd(m->listener), NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        struct client *c;

        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
                m->accept_us = now + PAUSE_US;
            return;
        }
        c = make_room(m);
        c->fd = fd;
        c->end_us = now + CLIENT_US;
    }
}

static void write_again(struct metrics *m, uint64_t now)
{
    struct err e;

    if (write_file(m, &e) < 0 && log_due(&m->failed, LOG_EVERY_MS))
        log_text(LOG_LEVEL_ERROR, "metrics_failed", e.text, "%s", "");
    m->write_us = now + (uint64_t)m->parts.options->metrics_interval_s * 1000000u;
}

/* Waits for something to do, and sets what may be read or written. */
static void wait_for_some(const struct metrics *m, struct pollfd polled[2 + N_CLIENTS])
{
    const uint64_t now = clock_us();
    uint64_t until = MIN(m->write_us, now + 60000000); /* poll() takes an int */

    polled[0] = (struct pollfd){.fd = m->stop_fd, .events = POLLIN};
    polled[1] = (struct pollfd){.fd = -1, .events = POLLIN};
    if (m->listener && m->accept_us > now)
        until = MIN(until, m->accept_us);
    else if (m->listener)
        polled[1].fd = listener_fd(m->listener);
    for (int i = 0; i < N_CLIENTS; i++) {
        const struct client *c = &m->clients[i];

        polled[2 + i] = (struct pollfd){.fd = c->fd, .events = c->out ? POLLOUT : POLLIN};
        if (c->fd >= 0)
            until = MIN(until, c->end_us);
    }
    if (poll(polled, 2 + N_CLIENTS, until > now ? (int)((until - now) / 1000 + 1) : 0) < 0)
        for (int i = 0; i < 2 + N_CLIENTS; i++)
            polled[i].revents = 0;
}

static void *serve(void *arg)
{
    struct pollfd polled[2 + N_CLIENTS];
    struct metrics *m = arg;

    for (;;) {
        uint64_t now;

        wait_for_some(m, polled);
        if (polled[0].revents)
            break;
        now = clock_us();
        for (int i = 0; i < N_CLIENTS; i++) {
            struct client *c = &m->clients[i];

            if (polled[2 + i].revents && !c->out)
                read_some(m, c);
            if (polled[2 + i].revents && c->out)
                write_some(c);
            if (c->fd >= 0 && now >= c->end_us)
                leave(c);
        }
        if (polled[1].revents)
            accept_some(m, now);
        if (now >= m->write_us)
            write_again(m, now);
    }
    must(eventfd_write(m->done_fd, 1) == 0);
    return NULL;
}

/* ---- life */

static struct listener_options socket_of(const struct options *o)
{
    return (struct listener_options){o->metrics_path, (mode_t)o->metrics_mode, o->metrics_group,
                                     "metrics.group"};
}

int metrics_check(const struct options *o, struct err *e)
{
    const struct listener_options place = socket_of(o);

    return is_file(o->metrics_path) ? listener_check_place(&place, e) : listener_check(&place, e);
}

static int open_place(struct metrics *m, struct err *e)
{
    const struct options *o = m->parts.options;
    const struct listener_options place = socket_of(o);
    int r;

    if (!is_file(o->metrics_path))
        return listener_open(&m->listener, &place, e);
    r = rights_find_group(&m->gid, o->metrics_group, "metrics.group", e);
    return r < 0 ? r : write_file(m, e);
}

int metrics_new(struct metrics **out, const struct metrics_parts *parts, struct err *e)
{
    struct metrics *m;
    int r;

    *out = NULL;
    if (!*parts->options->metrics_path)
        return 0;
    m = calloc(1, sizeof(*m));
    if (!m)
        return err_set(e, -ENOMEM, "metrics: out of memory");
    m->parts = *parts;
    m->start_us = clock_us();
    atomic_store(&m->counts.state, NVLLM__V1__STATE__STATE_LOADING);
    for (int i = 0; i < N_CLIENTS; i++)
        m->clients[i].fd = -1;
    m->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    m->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    r = m->stop_fd < 0 || m->done_fd < 0 ? err_set(e, -errno, "metrics: %s", strerror(errno))
                                         : open_place(m, e);
    m->write_us = m->listener ? UINT64_MAX : m->start_us;
    if (r == 0) {
        r = thread_start(&m->thread, "metrics", serve, m);
        if (r < 0)
            err_set(e, r, "metrics: cannot start a thread: %s", strerror(-r));
    }
    if (r < 0) {
        metrics_free(m);
        return r;
    }
    m->runs = true;
    log_event(LOG_LEVEL_INFO, "metrics", "%s=%s", m->listener ? "socket" : "file",
              parts->options->metrics_path);
    *out = m;
    return 0;
}

bool metrics_stop(struct metrics *m)
{
    struct pollfd done = {.events = POLLIN};

    if (!m || !m->runs)
        return true;
    done.fd = m->done_fd;
    must(eventfd_write(m->stop_fd, 1) == 0);
    if (poll(&done, 1, END_MS) != 1)
        return false;
    pthread_join(m->thread, NULL);
    m->runs = false;
    if (!m->listener)
        (void)unlink(m->parts.options->metrics_path); /* nobody is to read old figures */
    listener_free(m->listener);
    m->listener = NULL;
    return true;
}

void metrics_free(struct metrics *m)
{
    if (!m)
        return;
    must(!m->runs);
    for (int i = 0; i < N_CLIENTS; i++)
        leave(&m->clients[i]);
    if (m->stop_fd >= 0)
        close(m->stop_fd);
    if (m->done_fd >= 0)
        close(m->done_fd);
    listener_free(m->listener);
    nvml_close(m->nvml);
    free(m);
}
