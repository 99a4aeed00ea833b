/* log.c - see log.h. */
#include "daemon/log.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "proto/utf8.h"

static _Atomic enum log_level log_level = LOG_LEVEL_INFO;
static bool under_journal;

/* Two threads must not both count on room for one line. */
static pthread_mutex_t write_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t n_dropped; /* under the lock */

static const char *const names[] = {"error", "warning", "info", "debug"};
static const char *const priorities[] = {SD_ERR, SD_WARNING, SD_INFO, SD_DEBUG};

/* systemd passes the device and inode of the journal's stream; stderr may have been redirected. */
static bool stderr_is_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long dev, ino;
    struct stat st;

    return stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
           fstat(STDERR_FILENO, &st) == 0 && st.st_dev == (dev_t)dev && st.st_ino == (ino_t)ino;
}

void log_init(enum log_level level)
{
    log_set_level(level);
    under_journal = stderr_is_journal();
}

void log_set_level(enum log_level level)
{
    atomic_store(&log_level, level);
}

const char *log_level_name(enum log_level level)
{
    return names[level];
}

/* A line is built first and written at once; one byte is for the newline. */
struct line {
    char data[2048];
    size_t len;
};

__attribute__((format(printf, 2, 0))) static void line_vput(struct line *l, const char *fmt,
                                                            va_list ap)
{
    size_t room = sizeof(l->data) - l->len;
    int n = vsnprintf(l->data + l->len, room, fmt, ap);

    if (n > 0)
        l->len += (size_t)n < room ? (size_t)n : room - 1;
}

__attribute__((format(printf, 2, 3))) static void line_put(struct line *l, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    line_vput(l, fmt, ap);
    va_end(ap);
}

static void line_begin(struct line *l, enum log_level level, const char *event)
{
    l->len = 0;
    if (under_journal)
        line_put(l, "%sevent=%s", priorities[level], event);
    else
        line_put(l, "nvllmd: level=%s event=%s", names[level], event);
}

/* A client's text may be as long as a frame: no more is read than there is room for, up to two
 * bytes each, and one each for the quote and the newline. */
static void line_put_text(struct line *l, const char *text)
{
    line_put(l, " text=\"");
    for (; *text && l->len + 4 <= sizeof(l->data); text++) {
        if (*text == '"' || *text == '\\')
            l->data[l->len++] = '\\';
        l->data[l->len++] = *text;
    }
    line_put(l, "\"");
}

/* Writes the line unless that would block: a writable pipe, socket or terminal has room for more
 * than a line. On any other error the daemon goes on without its log. */
static bool line_write(struct line *l)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t done;

    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT))
        return false;
    utf8_clean(l->data); /* terminals would obey, the journal hide the line */
    l->data[l->len++] = '\n';
    for (size_t at = 0; at < l->len; at += (size_t)done)
        if ((done = write(STDERR_FILENO, l->data + at, l->len - at)) <= 0)
            break;
    return true;
}

void log_text(enum log_level level, const char *event, const char *text, const char *fmt, ...)
{
    struct line l, lost;
    size_t before;
    va_list ap;

    if (level > atomic_load(&log_level))
        return;
    line_begin(&l, level, event);
    before = l.len;
    line_put(&l, " ");
    va_start(ap, fmt);
    line_vput(&l, fmt, ap);
    va_end(ap);
    if (l.len == before + 1)
        l.len = before; /* no pairs */
    if (text)
        line_put_text(&l, text);
    pthread_mutex_lock(&write_lock);
    if (n_dropped) {
        line_begin(&lost, LOG_LEVEL_WARNING, "log_dropped");
        line_put(&lost, " lines=%" PRIu64, n_dropped);
        if (line_write(&lost))
            n_dropped = 0;
    }
    n_dropped += !line_write(&l);
    pthread_mutex_unlock(&write_lock);
}

uint64_t log_due(struct log_rate *r, uint64_t interval_ms)
{
    struct timespec ts;
    uint64_t now, n = ++r->n;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    now = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
    if (r->last_ms && now - r->last_ms < interval_ms)
        return 0;
    *r = (struct log_rate){.last_ms = now ? now : 1};
    return n;
}
