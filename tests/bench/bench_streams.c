/* bench_streams.c - tokens through the socket: how many a second, and how late each is.
 *
 * One thread reads all connections with libnvllm-client, as a program with a loop of its own does;
 * its work counts, too. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tests/bench/bare_wakeups.h"
#include "tests/bench/bench_daemon.h"
#include "tests/bench/daemon_rig.h"

enum {
    MAX_EVENTS = 64,
    PROMPT_TOKENS = 4,
    SILENCE_MS = 20000, /* with streams under way, that is the end */
    WARM_UP_TOKENS = 200,
    START_STEP_US = 5000,
};

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
    const struct daemon_rig *rig;
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
    atomic_store(&m->rig->shared->step_us, 0);
    m->daemon_s = -daemon_rig_cpu_s(m->rig);
    m->client_s = -own_cpu_s();
    m->from_s = now_s();
}

static void window_ends(struct meter *m)
{
    m->to_s = now_s();
    m->daemon_s += daemon_rig_cpu_s(m->rig);
    m->client_s += own_cpu_s();
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

bool bench_throughput(const struct bench_setup *s, int n_connections, int n_streams, int n_tokens)
{
    char seqs[64], len[64];
    const char *options[] = {seqs, len, "scheduler.max_batch_tokens=8192", NULL};
    struct nvllm_client **clients = calloc((size_t)n_connections, sizeof(*clients));
    struct daemon_rig rig;
    struct meter m = {.rig = &rig, .n_streams = n_streams};
    double seconds, tokens;

    if (!clients)
        die("out of memory");
    snprintf(seqs, sizeof(seqs), "scheduler.max_seqs=%d", n_streams);
    snprintf(len, sizeof(len), "scheduler.max_seq_len=%d", n_tokens + PROMPT_TOKENS);
    daemon_rig_start(&rig, s->nvllmd, s->module, s->model, options);
    /* Slow until all run: or the first would be over before the last has begun. */
    atomic_store(&rig.shared->step_us, START_STEP_US);
    for (int i = 0; i < n_connections; i++)
        clients[i] = daemon_rig_connect(&rig);
    run_streams(&m, clients, n_connections, n_tokens);
    seconds = m.to_s - m.from_s;
    tokens = (double)m.n_tokens;
    printf("throughput: %d connections, %d streams: %.0f tokens/s; CPU a token: daemon %.2f us, "
           "client %.2f us; %.2f tokens a delta; peak %zu MiB\n",
           n_connections, n_streams, tokens / seconds, m.daemon_s * 1e6 / tokens,
           m.client_s * 1e6 / tokens, tokens / (double)m.n_deltas,
           daemon_rig_kib(&rig, "VmHWM") / 1024);
    for (int i = 0; i < n_connections; i++)
        nvllm_close(clients[i]);
    free(clients);
    daemon_rig_stop(&rig);
    if (m.wrong)
        printf("throughput: %zu tokens were not those of the backend\n", m.wrong);
    return !m.wrong && (s->lax || tokens / seconds >= 400e3);
}

/* ---- latency */

bool bench_latency(const struct bench_setup *s, int n_tokens, int step_us, int n_idle)
{
    char connections[64], per_uid[64];
    const char *options[] = {"scheduler.max_seqs=4", connections, per_uid, NULL};
    const int n_bare = n_tokens / 2 + 1;
    double *late = calloc((size_t)n_tokens, sizeof(*late)), cpu_s, median, p99;
    double *bare = calloc((size_t)n_bare * 2, sizeof(*bare));
    const struct nvllm_event *ev;
    struct nvllm_client *c, **idle;
    struct nvllm_error err;
    struct daemon_rig rig;
    int n = 0, n_late = 0;

    if (!late || !bare)
        die("out of memory");
    bare_wakeups(bare, n_bare, step_us);
    raise_own_descriptors(n_idle);
    snprintf(connections, sizeof(connections), "limits.connections=%d", n_idle + 8);
    snprintf(per_uid, sizeof(per_uid), "limits.connections_per_uid=%d", n_idle + 8);
    daemon_rig_start(&rig, s->nvllmd, s->module, s->model, options);
    atomic_store(&rig.shared->step_us, (uint64_t)step_us);
    idle = connect_many(&rig, n_idle);
    c = daemon_rig_connect(&rig);
    start_stream(c, 1, n_tokens);
    cpu_s = -daemon_rig_cpu_s(&rig);
    do {
        want_ok(nvllm_next(c, SILENCE_MS, &ev, &err), &err, "stream");
        if (ev->type != NVLLM_EVENT_DELTA)
            break;
        for (size_t i = 0; i < ev->delta->n_tokens; i++, n++) {
            uint64_t ended = atomic_load(&rig.shared->ended_ns[ev->delta->token_ids[i]]);

            if (n >= WARM_UP_TOKENS)
                late[n_late++] = (double)(instant_now_ns() - ended) / 1e3;
        }
    } while (true);
    if (ev->type == NVLLM_EVENT_ERROR || n != n_tokens)
        die("the stream ended after %d tokens", n);
    cpu_s += daemon_rig_cpu_s(&rig);
    median = quantile(late, (size_t)n_late, 0.5);
    p99 = quantile(late, (size_t)n_late, 0.99);
    printf("latency: one stream beside %d idle connections, a step every %d us: added to a token: "
           "median %.1f us, p90 %.1f, "
           "p99 %.1f, worst %.1f; the daemon's CPU a token %.1f us\n",
           n_idle, step_us, median, quantile(late, (size_t)n_late, 0.9), p99,
           quantile(late, (size_t)n_late, 1), cpu_s * 1e6 / n_tokens);
    nvllm_close(c);
    close_many(idle, n_idle);
    daemon_rig_stop(&rig);
    bare_wakeups(bare + n_bare, n_bare, step_us);
    printf("latency: the same wake-ups with nothing to do, half before and half after: median "
           "%.1f us, p90 %.1f, p99 %.1f\n",
           quantile(bare, (size_t)n_bare * 2, 0.5), quantile(bare, (size_t)n_bare * 2, 0.9),
           quantile(bare, (size_t)n_bare * 2, 0.99));
    free(bare);
    free(late);
    return s->lax || (median <= 60 && p99 <= 150);
}
