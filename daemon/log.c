/* log.c - see log.h. */
#include "daemon/log.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "daemon/log_ids.h"
#include "engine/util/clock.h"
#include "proto/utf8.h"

static _Atomic enum log_level log_level = LOG_LEVEL_INFO;
static bool under_journal;
static int journal = -1; /* its socket; -1: lines go to stderr, also where that is the journal */

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

static void open_journal(void)
{
    const struct sockaddr_un address = {.sun_family = AF_UNIX,
                                        .sun_path = "/run/systemd/journal/socket"};

    journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (journal >= 0 && connect(journal, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        close(journal);
        journal = -1;
    }
}

void log_init(enum log_level level)
{
    log_set_level(level);
    under_journal = stderr_is_journal();
    if (under_journal)
        open_journal();
}

void log_set_level(enum log_level level)
{
    atomic_store(&log_level, level);
}

const char *log_level_name(enum log_level level)
{
    return names[level];
}

/* ---- a line, which is built first and written at once */

struct line {
    enum log_level level;
    const char *event;
    size_t n_pairs; /* bytes of its pairs: what follows is the text */
    size_t len;
    char data[2000]; /* with what is put before it, a line has 2 KiB at most */
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
    l->level = level;
    l->event = event;
    l->len = 0;
    line_put(l, "event=%s", event);
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

/* ---- to the journal, by its protocol: a call of libsystemd might wait */

struct record {
    size_t len;
    char data[2 * sizeof(struct line) + 1024]; /* the line, and its pairs once more */
};

static int compare_ids(const void *a, const void *b)
{
    return strcmp(((const struct log_id *)a)->event, ((const struct log_id *)b)->event);
}

static void record_put(struct record *r, const char *field, const char *value, size_t n)
{
    const size_t n_field = strlen(field);

    if (n_field + n + 2 > sizeof(r->data) - r->len)
        return;
    memcpy(r->data + r->len, field, n_field);
    memcpy(r->data + r->len + n_field, value, n);
    r->len += n_field + n;
    r->data[r->len++] = '\n';
}

/* "key=value" as NVLLM_KEY=value. */
static void record_put_pair(struct record *r, const char *pair, size_t n)
{
    const size_t at = r->len;

    record_put(r, "NVLLM_", pair, n);
    for (size_t i = at; i < r->len && r->data[i] != '='; i++)
        r->data[i] = (char)toupper((unsigned char)r->data[i]);
}

static void record_make(struct record *r, const struct line *l)
{
    const struct log_id key = {.event = l->event};
    const struct log_id *id =
        bsearch(&key, log_ids, sizeof(log_ids) / sizeof(*log_ids), sizeof(*log_ids), compare_ids);
    const char *pair = l->data, *end = l->data + l->n_pairs;

    r->len = 0;
    record_put(r, "MESSAGE=", l->data, l->len);
    record_put(r, "PRIORITY=", priorities[l->level] + 1, 1); /* of "<3>" */
    record_put(r, "SYSLOG_IDENTIFIER=", "nvllmd", 6);
    if (id)
        record_put(r, "MESSAGE_ID=", id->id, strlen(id->id));
    while (pair < end) {
        size_t n = strcspn(pair, " ");

        n = n < (size_t)(end - pair) ? n : (size_t)(end - pair);
        if (memchr(pair, '=', n))
            record_put_pair(r, pair, n);
        pair += n + 1;
    }
}

/* False: it has no room. Where it is gone, lines go to stderr from now on. */
static bool journal_write(const struct line *l)
{
    struct record r;

    record_make(&r, l);
    if (send(journal, r.data, r.len, MSG_NOSIGNAL) >= 0)
        return true;
    if (errno == ECONNREFUSED || errno == ENOTCONN || errno == ECONNRESET) {
        close(journal); /* journald has been restarted, and its socket is another one */
        open_journal();
        return journal >= 0 && send(journal, r.data, r.len, MSG_NOSIGNAL) >= 0;
    }
    return false;
}

/* ---- to stderr */

/* Writes the line unless that would block: a writable pipe, socket or terminal has room for more
 * than a line. On any other error the daemon goes on without its log. */
static bool stream_write(const struct line *l)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    char data[sizeof(l->data) + 64];
    size_t n;
    ssize_t done;

    if (poll(&p, 1, 0) != 1 || !(p.revents & POLLOUT))
        return false;
    n = (size_t)snprintf(data, sizeof(data), under_journal ? "%s" : "nvllmd: level=%s ",
                         under_journal ? priorities[l->level] : names[l->level]);
    memcpy(data + n, l->data, l->len);
    n += l->len;
    data[n++] = '\n';
    for (size_t at = 0; at < n; at += (size_t)done)
        if ((done = write(STDERR_FILENO, data + at, n - at)) <= 0)
            break;
    return true;
}

static bool line_write(struct line *l)
{
    utf8_clean(l->data); /* terminals would obey, the journal hide the line or take it for two */
    return journal >= 0 ? journal_write(l) : stream_write(l);
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
    l.n_pairs = l.len;
    if (text)
        line_put_text(&l, text);
    pthread_mutex_lock(&write_lock);
    if (n_dropped) {
        line_begin(&lost, LOG_LEVEL_WARNING, "log_dropped");
        line_put(&lost, " lines=%" PRIu64, n_dropped);
        lost.n_pairs = lost.len;
        if (line_write(&lost))
            n_dropped = 0;
    }
    n_dropped += !line_write(&l);
    pthread_mutex_unlock(&write_lock);
}

uint64_t log_due(struct log_rate *r, uint64_t interval_ms)
{
    const uint64_t now = clock_us() / 1000, n = ++r->n;

    if (r->last_ms && now - r->last_ms < interval_ms)
        return 0;
    *r = (struct log_rate){.last_ms = now ? now : 1};
    return n;
}
