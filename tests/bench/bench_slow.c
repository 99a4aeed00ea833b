/* bench_slow.c - clients that ask for much and read nothing, among others that do read: what the
 * others notice of it, and what memory it costs the daemon. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "tests/bench/bench_daemon.h"
#include "tests/bench/daemon_rig.h"

enum {
    EACH = 10, /* streams of a connection */
    STEP_US = 4000,
    PAUSE_KIB = 64, /* of answers that may lie unread for one connection before it is paused */
    CUT_KIB = 256,  /* and before it is cut off */
    GRACE_S = 2,
    SILENCE_MS = 20000,
    MAX_EVENTS = 64,
    SPARE_KIB = 16 << 10, /* the streams themselves, and what the allocator keeps */
};

static const double MOST_SLOWER = 1.2;

/* Streams on connections of EACH, without end as far as this program goes. */
static struct nvllm_client **start_streams(const struct daemon_rig *rig, int n, int first)
{
    struct nvllm_client **all = calloc((size_t)n / EACH, sizeof(struct nvllm_client *));

    if (!all)
        die("out of memory");
    for (int i = 0; i < n; i++) {
        const int32_t prompt[] = {(first + i) % 1024, (first + i) / 1024, 9};
        struct nvllm_request r;
        struct nvllm_error err;
        uint64_t id;

        if (i % EACH == 0)
            all[i / EACH] = daemon_rig_connect(rig);
        nvllm_request_init(&r);
        r.prompt_ids = prompt;
        r.n_prompt_ids = 3;
        r.max_tokens = 16000;
        r.ignore_eos = true;
        want_ok(nvllm_generate_start(all[i / EACH], &id, &r, &err), &err, "generate");
    }
    return all;
}

static void close_streams(struct nvllm_client **all, int n)
{
    for (int i = 0; i < n / EACH; i++)
        nvllm_close(all[i]);
    free(all);
}

/* ---- those who read */

struct readers {
    const struct daemon_rig *rig;
    struct nvllm_client **clients;
    int n, ep;
    uint64_t *last_ns; /* [n] when a stream's last token came; 0: none has */
    double *gap_ms;    /* [cap] between two tokens of one stream */
    size_t n_gaps, cap;
    size_t peak_kib;
};

static void begin_readers(struct readers *r, const struct daemon_rig *rig, int n, int seconds)
{
    *r = (struct readers){.rig = rig, .n = n, .ep = epoll_create1(EPOLL_CLOEXEC)};
    r->cap = (size_t)n * (size_t)seconds * 1000000u / STEP_US * 2;
    r->last_ns = calloc((size_t)n, sizeof(*r->last_ns));
    r->gap_ms = calloc(r->cap, sizeof(*r->gap_ms));
    if (r->ep < 0 || !r->last_ns || !r->gap_ms)
        die("out of memory");
    r->clients = start_streams(rig, n, 0);
    for (int i = 0; i < n / EACH; i++) {
        struct epoll_event want = {.events = EPOLLIN, .data.u32 = (uint32_t)i};

        epoll_ctl(r->ep, EPOLL_CTL_ADD, nvllm_fd(r->clients[i]), &want);
    }
}

static void end_readers(struct readers *r)
{
    close_streams(r->clients, r->n);
    close(r->ep);
    free(r->last_ns);
    free(r->gap_ms);
}

static void take_events(struct readers *r, uint32_t connection)
{
    const struct nvllm_event *ev;
    struct nvllm_error err;
    enum nvllm_code code;

    while ((code = nvllm_next(r->clients[connection], 0, &ev, &err)) == NVLLM_OK) {
        uint64_t now = instant_now_ns(), *last = &r->last_ns[connection * EACH + ev->id - 1];

        if (ev->type != NVLLM_EVENT_DELTA)
            die("a stream that is read has ended");
        if (*last && r->n_gaps < r->cap)
            r->gap_ms[r->n_gaps++] = (double)(now - *last) / 1e6;
        *last = now;
    }
    if (code != NVLLM_E_TIMEOUT)
        want_ok(code, &err, "a stream that is read");
}

/* The p99 of the gaps in so many seconds. */
static double read_for(struct readers *r, int seconds)
{
    uint64_t until = instant_now_ns() + (uint64_t)seconds * 1000000000u, look = 0;
    struct epoll_event ready[MAX_EVENTS];

    r->n_gaps = 0;
    while (instant_now_ns() < until) {
        int n = epoll_wait(r->ep, ready, MAX_EVENTS, SILENCE_MS);

        if (n == 0)
            die("no token for %d s", SILENCE_MS / 1000);
        for (int i = 0; i < n; i++)
            take_events(r, ready[i].data.u32);
        if (instant_now_ns() > look) {
            size_t kib = daemon_rig_kib(r->rig, "RssAnon");

            r->peak_kib = kib > r->peak_kib ? kib : r->peak_kib;
            look = instant_now_ns() + 100000000u;
        }
    }
    return quantile(r->gap_ms, r->n_gaps, 0.99);
}

static int running(const struct daemon_rig *rig)
{
    struct nvllm_client *c = daemon_rig_connect(rig);
    const struct nvllm_status *status;
    struct nvllm_error err;
    int n;

    want_ok(nvllm_get_status(c, SILENCE_MS, &status, &err), &err, "status");
    n = (int)status->requests_running;
    nvllm_close(c);
    return n;
}

bool bench_slow(const struct bench_setup *s, int n_slow, int n_readers, int seconds)
{
    char seqs[64], pause[64], cut[64], grace[64];
    const char *options[] = {
        seqs, pause, cut, grace, "scheduler.max_seq_len=32768", "limits.connections_per_uid=1024",
        NULL};
    struct nvllm_client **slow;
    struct daemon_rig rig;
    struct readers r;
    double without, with;
    size_t before, grown, allowed = (size_t)(n_slow / EACH) * CUT_KIB + SPARE_KIB;
    int left;

    snprintf(seqs, sizeof(seqs), "scheduler.max_seqs=%d", n_slow + n_readers);
    snprintf(pause, sizeof(pause), "limits.output_pause_bytes=%dK", PAUSE_KIB);
    snprintf(cut, sizeof(cut), "limits.output_bytes=%dK", CUT_KIB);
    snprintf(grace, sizeof(grace), "limits.slow_reader_s=%d", GRACE_S);
    daemon_rig_start(&rig, s->nvllmd, s->module, s->model, options);
    atomic_store(&rig.shared->step_us, STEP_US);
    begin_readers(&r, &rig, n_readers, seconds);
    read_for(&r, 1); /* all have begun */
    without = read_for(&r, seconds);
    before = daemon_rig_kib(&rig, "RssAnon");
    r.peak_kib = 0;
    slow = start_streams(&rig, n_slow, n_readers);
    with = read_for(&r, seconds);
    grown = r.peak_kib > before ? r.peak_kib - before : 0;
    left = running(&rig) - n_readers;
    printf("slow readers: %d streams that nobody reads among %d: time between tokens of the "
           "others, p99: %.2f ms without, %.2f with, %.2f times; the daemon grew by %zu KiB, %zu "
           "are allowed; %d of the unread still run\n",
           n_slow, n_readers, without, with, with / without, grown, allowed, left);
    close_streams(slow, n_slow);
    end_readers(&r);
    daemon_rig_stop(&rig);
    return left == 0 && (s->lax || (with <= MOST_SLOWER * without && grown <= allowed));
}
