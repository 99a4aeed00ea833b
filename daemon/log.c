/* log.c - see log.h. */
#include "daemon/log.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

static enum log_level log_level = LOG_LEVEL_INFO;
static bool under_journal;

/* systemd names the device and inode of the stream that it reads: stderr may be another by now. */
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
    log_level = level;
    under_journal = stderr_is_journal();
}

/* A line is put together first, so that it leaves in one write. */
struct line {
    char data[2048];
    size_t len;
};

__attribute__((format(printf, 2, 0))) static void line_vput(struct line *l, const char *fmt,
                                                            va_list ap)
{
    size_t room = sizeof(l->data) - l->len; /* one byte stays for the newline */
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
    static const int priorities[] = {LOG_ERR, LOG_WARNING, LOG_INFO, LOG_DEBUG};
    static const char *const names[] = {"error", "warning", "info", "debug"};

    l->len = 0;
    if (under_journal)
        line_put(l, "<%d>event=%s", priorities[level], event);
    else
        line_put(l, "nvllmd: level=%s event=%s", names[level], event);
}

static void line_end(struct line *l)
{
    size_t done = 0;

    for (size_t i = 0; i < l->len; i++)
        if ((unsigned char)l->data[i] < 0x20 || l->data[i] == 0x7f)
            l->data[i] = '?';
    l->data[l->len++] = '\n';
    while (done < l->len) {
        ssize_t n = write(STDERR_FILENO, l->data + done, l->len - done);

        if (n <= 0)
            return; /* a log that cannot be written is no reason to stop */
        done += (size_t)n;
    }
}

void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    struct line l;
    va_list ap;

    if (level > log_level)
        return;
    line_begin(&l, level, event);
    if (*fmt) {
        line_put(&l, " ");
        va_start(ap, fmt);
        line_vput(&l, fmt, ap);
        va_end(ap);
    }
    line_end(&l);
}

void log_text(enum log_level level, const char *event, const char *text, const char *fmt, ...)
{
    struct line l;
    va_list ap;

    if (level > log_level)
        return;
    line_begin(&l, level, event);
    if (*fmt) {
        line_put(&l, " ");
        va_start(ap, fmt);
        line_vput(&l, fmt, ap);
        va_end(ap);
    }
    line_put(&l, " text=\"");
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\')
            line_put(&l, "\\");
        line_put(&l, "%c", *p);
    }
    line_put(&l, "\"");
    line_end(&l);
}

int log_due(uint64_t *last_ms, uint64_t interval_ms)
{
    struct timespec ts;
    uint64_t now;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    now = (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
    if (*last_ms && now - *last_ms < interval_ms)
        return 0;
    *last_ms = now ? now : 1;
    return 1;
}
