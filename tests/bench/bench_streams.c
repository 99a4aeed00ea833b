/* bench_streams.c - tokens through the socket of a running nvllmd: how many a second, and how late
 * each is.
 *
 * usage: bench_streams SOCKET INSTANT PID throughput CONNECTIONS STREAMS TOKENS
 *        bench_streams SOCKET INSTANT PID latency TOKENS IDLE
 *        bench_streams bare STEPS STEP-US
 *
 * tests/e2e/test_load.py starts the daemon and judges the figures, which are printed as a JSON
 * object; INSTANT is the file that this program and the backend share. One thread reads all
 * connections with libnvllm-client, as a program with a loop of its own does; its work counts, too.
 * bare measures the wake-ups of a token by themselves. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/lib/nvllm_client.h"
#include "tests/bench/instant.h"

enum {
    MAX_EVENTS = 64,
    PROMPT_TOKENS = 4,
    SILENCE_MS = 20000, /* while streams run, that is an error */
    WARM_UP_TOKENS = 200,
    MESSAGE = 13, /* bytes, as of a delta of one token */
    NICE = -10,   /* as the engine's thread, where that is allowed */
};

static const char *socket_path;
static struct instant *shared;
static clockid_t daemon_clock;

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fputs("bench_streams: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(2);
}

/* NVLLM_OK, or the end of the program. */
static void want_ok(enum nvllm_code code, const struct nvllm_error *err, const char *what)
{
    if (code != NVLLM_OK)
        die("%s: %s: %s", what, nvllm_code_name(code), err->message);
}

static struct nvllm_client **connect_many(int n)
{
    struct nvllm_client **all = calloc((size_t)n + 1, sizeof(struct nvllm_client *));
    struct nvllm_options o;
    struct nvllm_error err;

    if (!all)
        die("out of memory");
    nvllm_options_init(&o);
    o.socket_path = socket_path;
    for (int i = 0; i < n; i++)
        want_ok(nvllm_connect(&all[i], &o, &err), &err, "connect");
    return all;
}

static void close_many(struct nvllm_client **all, int n)
{
    for (int i = 0; i < n; i++)
        nvllm_close(all[i]);
    free(all);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;

    if (clock_gettime(clock, &t) != 0)
        die("nvllmd has ended");
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Prints quantiles of values, which are sorted in place, as members of a JSON object. */
static void print_quantiles(double *values, int n)
{
    if (n == 0)
        die("nothing was measured");
    qsort(values, (size_t)n, sizeof(*values), by_value);
    printf("\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"max\": %.1f", values[n / 2],
           values[n / 10 * 9], values[(int)(0.99 * (n - 1))], values[n - 1]);
}

static uint64_t start_stream(struct nvllm_client *c, int32_t number, int n_tokens)
{
    /* No two begin alike: nobody waits for another's prefix. */
    const int32_t prompt[PROMPT_TOKENS] = {number % 1024, number / 1024, 7, 7};
    struct nvllm_request r;
    struct nvllm_error err;
    uint64_t id;

    nvllm_request_init(&r);
    r.prompt_ids = prompt;
    r.n_prompt_ids = PROMPT_TOKENS;
    r.max_tokens = n_tokens;
    r.ignore_eos = true;
    r.temperature = 0;
    want_ok(nvllm_generate_start(c, &id, &r, &err), &err, "generate");
    return id;
}

/* ---- throughput */

/* Counts from when all streams run to when the first one ends. */
struct meter {
    int n_streams, n_begun, n_ended;
    size_t n_tokens, n_deltas; /* inside the window */
    size_t wrong;
    double from_s, to_s, daemon_s, client_s;
};

static double now_s(void)
{
    return (double)instant_now_ns() / 1e9;
}

static void window_begins(struct meter *m)
{
    atomic_store(&shared->step_us, 0);
    m->daemon_s = -seconds_of(daemon_clock);
    m->client_s = -seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    m->from_s = now_s();
}

static void window_ends(struct meter *m)
{
    m->to_s = now_s();
    m->daemon_s += seconds_of(daemon_clock);
    m->client_s += seconds_of(CLOCK_PROCESS_CPUTIME_ID);
}

struct stream {
    int n_tokens; /* that have come */
};

static void take(struct meter *m, struct stream *streams, const struct nvllm_event *ev, int wanted)
{
    struct stream *s = &streams[ev->id];

    if (ev->type == NVLLM_EVENT_DONE) {
        if (m->n_ended++ == 0)
            window_ends(m);
        m->wrong += s->n_tokens != wanted;
        return;
    }
    if (ev->type == NVLLM_EVENT_ERROR)
        die("a stream failed: %s", ev->error->message);
    for (size_t i = 0; i < ev->delta->n_tokens; i++)
        m->wrong += ev->delta->token_ids[i] != (s->n_tokens + (int)i) % INSTANT_IDS;
    m->wrong += ev->delta->text.len != ev->delta->n_tokens;
    if (s->n_tokens == 0 && ev->delta->n_tokens && ++m->n_begun == m->n_streams)
        window_begins(m);
    s->n_tokens += (int)ev->delta->n_tokens;
    if (m->n_begun == m->n_streams && m->n_ended == 0) {
        m->n_tokens += ev->delta->n_tokens;
        m->n_deltas++;
    }
}

static void drain_events(struct meter *m, struct nvllm_client *c, struct stream *streams,
                         int wanted)
{
    const struct nvllm_event *ev;
    struct nvllm_error err;
    enum nvllm_code code;

    while ((code = nvllm_next(c, 0, &ev, &err)) == NVLLM_OK)
        take(m, streams, ev, wanted);
    if (code != NVLLM_E_TIMEOUT)
        want_ok(code, &err, "stream");
}

static void run_streams(struct meter *m, struct nvllm_client **clients, int n_connections,
                        int n_tokens)
{
    int each = m->n_streams / n_connections, ep = epoll_create1(EPOLL_CLOEXEC);
    /* Ids of a connection count from 1. */
    struct stream *streams = calloc((size_t)n_connections * ((size_t)each + 1), sizeof(*streams));
    struct epoll_event ready[MAX_EVENTS];

    if (ep < 0 || !streams)
        die("out of memory");
    for (int i = 0; i < n_connections; i++) {
        struct epoll_event want = {.events = EPOLLIN, .data.u32 = (uint32_t)i};

        epoll_ctl(ep, EPOLL_CTL_ADD, nvllm_fd(clients[i]), &want);
        for (int k = 0; k < each; k++)
            start_stream(clients[i], i * each + k, n_tokens);
        if (nvllm_wants(clients[i]) & NVLLM_WANT_WRITE)
            die("the socket does not take %d requests", each);
    }
    while (m->n_ended < m->n_streams) {
        int n = epoll_wait(ep, ready, MAX_EVENTS, SILENCE_MS);

        if (n == 0)
            die("no token for %d s", SILENCE_MS / 1000);
        for (int i = 0; i < n; i++) {
            uint32_t k = ready[i].data.u32;

            drain_events(m, clients[k], &streams[k * (size_t)(each + 1)], n_tokens);
        }
    }
    free(streams);
    close(ep);
}

static int throughput(int n_connections, int n_streams, int n_tokens)
{
    struct nvllm_client **clients = connect_many(n_connections);
    struct meter m = {.n_streams = n_streams};
    double tokens;

    run_streams(&m, clients, n_connections, n_tokens);
    tokens = (double)m.n_tokens;
    printf("{\"tokens_s\": %.0f, \"daemon_us\": %.2f, \"client_us\": %.2f, \"tokens_a_delta\": "
           "%.2f}\n",
           tokens / (m.to_s - m.from_s), m.daemon_s * 1e6 / tokens, m.client_s * 1e6 / tokens,
           tokens / (double)m.n_deltas);
    close_many(clients, n_connections);
    if (m.wrong)
        fprintf(stderr, "bench_streams: %zu tokens were not those of the backend\n", m.wrong);
    return m.wrong != 0;
}

static int latency(int n_tokens, int n_idle)
{
    double *late = calloc((size_t)n_tokens, sizeof(*late)), cpu_s;
    struct nvllm_client **clients = connect_many(n_idle + 1), *c = clients[n_idle];
    const struct nvllm_event *ev;
    struct nvllm_error err;
    int n = 0, n_late = 0;

    if (!late)
        die("out of memory");
    start_stream(c, 1, n_tokens);
    cpu_s = -seconds_of(daemon_clock);
    do {
        want_ok(nvllm_next(c, SILENCE_MS, &ev, &err), &err, "stream");
        if (ev->type != NVLLM_EVENT_DELTA)
            break;
        for (size_t i = 0; i < ev->delta->n_tokens; i++, n++) {
            uint64_t ended = atomic_load(&shared->ended_ns[ev->delta->token_ids[i]]);

            if (n >= WARM_UP_TOKENS)
                late[n_late++] = (double)(instant_now_ns() - ended) / 1e3;
        }
    } while (true);
    if (ev->type == NVLLM_EVENT_ERROR || n != n_tokens)
        die("the stream ended after %d tokens", n);
    cpu_s += seconds_of(daemon_clock);
    printf("{\"daemon_us\": %.1f, ", cpu_s * 1e6 / n_tokens);
    print_quantiles(late, n_late);
    puts("}");
    close_many(clients, n_idle + 1);
    free(late);
    return 0;
}

/* ---- what the machine takes for the wake-ups of a token by themselves
 *
 * A child and this process do what nvllmd and a client do, with nothing between: the child sleeps
 * until a step is over and writes a few bytes to a socket that this process waits on. */

struct chain {
    atomic_uint_fast64_t *ended_ns; /* [n], mapped by both processes */
    int n, step_us, out;
};

static void run_steps(const struct chain *c)
{
    const char message[MESSAGE] = {0};
    uint64_t due_ns = instant_now_ns();

    (void)setpriority(PRIO_PROCESS, 0, NICE);
    for (int i = 0; i < c->n; i++) {
        struct timespec due;

        due_ns += (uint64_t)c->step_us * 1000;
        due.tv_sec = (time_t)(due_ns / 1000000000u);
        due.tv_nsec = (long)(due_ns % 1000000000u);
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
            ;
        atomic_store(&c->ended_ns[i], instant_now_ns());
        if (send(c->out, message, sizeof(message), MSG_NOSIGNAL) != sizeof(message))
            _exit(1); /* nobody reads any more */
    }
}

static void take_steps(const struct chain *c, int fd, double *late_us)
{
    size_t got = 0;

    for (int i = 0; i < c->n;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char buf[4096];
        ssize_t r;

        (void)poll(&p, 1, -1);
        r = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
        if (r == 0)
            die("the bare process has ended");
        got += r > 0 ? (size_t)r : 0;
        for (; i < c->n && got >= ((size_t)i + 1) * MESSAGE; i++)
            late_us[i] = (double)(instant_now_ns() - atomic_load(&c->ended_ns[i])) / 1e3;
    }
}

static void bare_wakeups(double *late_us, int n, int step_us)
{
    const size_t bytes = (size_t)n * sizeof(atomic_uint_fast64_t);
    struct chain c = {.n = n, .step_us = step_us};
    int pair[2], status;
    pid_t pid;

    c.ended_ns = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c.ended_ns == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        die("bare wake-ups: %s", strerror(errno));
    pid = fork();
    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid == 0) {
        close(pair[0]);
        c.out = pair[1];
        run_steps(&c);
        _exit(0);
    }
    close(pair[1]);
    take_steps(&c, pair[0], late_us);
    close(pair[0]);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        die("the bare process failed");
    munmap(c.ended_ns, bytes);
}

static int bare(int n, int step_us)
{
    double *late = calloc((size_t)n, sizeof(*late));

    if (!late)
        die("out of memory");
    bare_wakeups(late, n, step_us);
    putchar('{');
    print_quantiles(late, n);
    puts("}");
    free(late);
    return 0;
}

int main(int argc, char **argv)
{
    int fd;

    if (argc == 4 && strcmp(argv[1], "bare") == 0)
        return bare(atoi(argv[2]), atoi(argv[3]));
    if (argc < 7)
        die("see the head of its source for its arguments");
    socket_path = argv[1];
    fd = open(argv[2], O_RDWR | O_CLOEXEC);
    shared = fd < 0 ? MAP_FAILED
                    : mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (shared == MAP_FAILED)
        die("%s: %s", argv[2], strerror(errno));
    if (clock_getcpuclockid(atoi(argv[3]), &daemon_clock) != 0)
        die("nvllmd's CPU time cannot be read");
    if (argc == 8 && strcmp(argv[4], "throughput") == 0)
        return throughput(atoi(argv[5]), atoi(argv[6]), atoi(argv[7]));
    return latency(atoi(argv[5]), atoi(argv[6]));
}
