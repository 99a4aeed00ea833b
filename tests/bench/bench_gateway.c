/* bench_gateway.c - tokens through nvllm-openai: how many a second, and what the program's CPU
 * takes for each.
 *
 * usage: bench_gateway SOCKET INSTANT PID STREAMS TOKENS STEP-US
 *
 * tests/e2e/test_openai_load.py starts nvllmd with a backend that answers at once and the program
 * with this process id, and judges the figures, which are printed as a JSON object. One thread
 * reads all streams; what it does with them is little: it counts their objects. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/bench/instant.h"

enum {
    MAX_EVENTS = 64,
    SILENCE_MS = 20000, /* while streams run, that is an error */
    READ_BYTES = 256 << 10,
};

static const char text_mark[] = "\"text\":\"";

struct stream {
    int fd;
    int in_mark; /* letters of the mark that the last bytes are */
    bool in_text;
    int n_tokens; /* letters of its texts: one for each token of the backend */
};

/* Counts from when all streams run to when the first one ends. */
struct meter {
    int n_streams, n_begun, n_ended;
    int step_us; /* of the backend, once all streams run */
    size_t n_tokens, n_bytes;
    double from_s, to_s, cpu_s;
    clockid_t clock;
    struct instant *shared;
};

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fputs("bench_gateway: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    if (clock_gettime(clock, &t) != 0)
        die("the program has ended");
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void start_stream(struct stream *s, const struct sockaddr_un *address, int number,
                         int n_tokens)
{
    char body[256], head[256];
    int n =
        snprintf(body, sizeof(body),
                 "{\"prompt\":[%d,%d,7,7],\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":0,"
                 "\"stream\":true}",
                 number % 64, number / 64, n_tokens);
    int m = snprintf(head, sizeof(head),
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     "Content-Length: %d\r\n\r\n",
                     n);

    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd < 0 || connect(s->fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ||
        write(s->fd, head, (size_t)m) != m || write(s->fd, body, (size_t)n) != n)
        die("a stream cannot start: %s", strerror(errno));
}

/* The letters of all texts among these bytes; escapes are not among the backend's first tokens. */
static int count_letters(struct stream *s, const char *p, const char *end)
{
    int n = 0;

    for (; p < end; p++) {
        if (s->in_text && *p == '"' && !s->in_mark) {
            s->in_text = false;
        } else if (s->in_text) {
            s->in_mark = !s->in_mark && *p == '\\'; /* the next letter is escaped */
            n += !s->in_mark;
        } else if (*p == text_mark[s->in_mark]) {
            s->in_text = text_mark[++s->in_mark] == '\0';
            s->in_mark = s->in_text ? 0 : s->in_mark;
        } else {
            s->in_mark = *p == text_mark[0];
        }
    }
    return n;
}

static void take(struct meter *m, struct stream *s, const char *data, size_t n_bytes)
{
    int n = count_letters(s, data, data + n_bytes);

    if (s->n_tokens == 0 && n > 0 && ++m->n_begun == m->n_streams) {
        atomic_store(&m->shared->step_us, (uint_fast64_t)m->step_us);
        m->cpu_s = -seconds_of(m->clock);
        m->from_s = seconds_of(CLOCK_MONOTONIC);
    }
    s->n_tokens += n;
    if (m->n_begun == m->n_streams && m->n_ended == 0) {
        m->n_tokens += (size_t)n;
        m->n_bytes += n_bytes;
    }
}

static void end_stream(struct meter *m, struct stream *s, int n_tokens)
{
    if (m->n_ended++ == 0) {
        m->to_s = seconds_of(CLOCK_MONOTONIC);
        m->cpu_s += seconds_of(m->clock);
    }
    if (s->n_tokens != n_tokens)
        die("a stream had %d tokens of %d", s->n_tokens, n_tokens);
    close(s->fd);
}

static void run(struct meter *m, struct stream *streams, int n_tokens)
{
    static char data[READ_BYTES];
    struct epoll_event ready[MAX_EVENTS];
    int ep = epoll_create1(EPOLL_CLOEXEC);

    for (int i = 0; i < m->n_streams; i++) {
        struct epoll_event want = {.events = EPOLLIN, .data.u32 = (uint32_t)i};

        epoll_ctl(ep, EPOLL_CTL_ADD, streams[i].fd, &want);
    }
    while (m->n_ended < m->n_streams) {
        int n = epoll_wait(ep, ready, MAX_EVENTS, SILENCE_MS);

        if (n == 0)
            die("no token for %d s", SILENCE_MS / 1000);
        for (int i = 0; i < n; i++) {
            struct stream *s = &streams[ready[i].data.u32];
            ssize_t got = read(s->fd, data, sizeof(data));

            if (got <= 0)
                end_stream(m, s, n_tokens);
            else
                take(m, s, data, (size_t)got);
        }
    }
    close(ep);
}

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct meter m = {0};
    struct stream *streams;
    int fd, n_tokens;

    if (argc != 7)
        die("see the head of its source for its arguments");
    snprintf(address.sun_path, sizeof(address.sun_path), "%s", argv[1]);
    fd = open(argv[2], O_RDWR | O_CLOEXEC);
    m.shared = fd < 0 ? MAP_FAILED
                      : mmap(NULL, sizeof(*m.shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (m.shared == MAP_FAILED)
        die("%s: %s", argv[2], strerror(errno));
    if (clock_getcpuclockid(atoi(argv[3]), &m.clock) != 0)
        die("the CPU time of process %s cannot be read", argv[3]);
    m.n_streams = atoi(argv[4]);
    n_tokens = atoi(argv[5]);
    m.step_us = atoi(argv[6]);
    streams = calloc((size_t)m.n_streams, sizeof(*streams));
    if (!streams || m.n_streams < 1)
        die("out of memory");
    for (int i = 0; i < m.n_streams; i++)
        start_stream(&streams[i], &address, i, n_tokens);
    run(&m, streams, n_tokens);
    printf("{\"tokens_s\": %.0f, \"gateway_us\": %.2f, \"bytes\": %.0f}\n",
           (double)m.n_tokens / (m.to_s - m.from_s), m.cpu_s * 1e6 / (double)m.n_tokens,
           (double)m.n_bytes / (double)m.n_tokens);
    free(streams);
    return 0;
}
