/* bench_connections.c - many clients that are there and say nothing, and others that come and go:
 * what a connection costs, and whether the daemon still answers at once. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench_daemon.h"
#include "tests/bench/daemon_rig.h"

enum {
    CHURN_ALIVE = 100, /* of those that come and go: each lives for a while */
    LEAVES_WORK = 5,   /* every fifth leaves while its request runs */
    PING_US = 3000,
    TIMEOUT_MS = 10000,
    LARGEST_KIB = 16,
    SLOWEST_MS = 10,
};

static void sleep_until(uint64_t ns)
{
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};

    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

/* ---- a thread that asks for the status all the time */

struct pinger {
    const struct daemon_rig *rig;
    atomic_bool quit;
    double *ms; /* [cap] */
    size_t n, cap;
};

static void *ping(void *arg)
{
    struct pinger *p = arg;
    struct nvllm_client *c = daemon_rig_connect(p->rig);
    const struct nvllm_status *status;
    struct nvllm_error err;

    while (!atomic_load(&p->quit) && p->n < p->cap) {
        uint64_t start = instant_now_ns();

        want_ok(nvllm_get_status(c, TIMEOUT_MS, &status, &err), &err, "status");
        p->ms[p->n++] = (double)(instant_now_ns() - start) / 1e6;
        sleep_until(start + PING_US * 1000u);
    }
    nvllm_close(c);
    return NULL;
}

/* ---- connections */

static void leave_work(struct nvllm_client *c)
{
    struct nvllm_request r;
    struct nvllm_error err;
    uint64_t id;

    nvllm_request_init(&r);
    r.prompt = nvllm_str("work that nobody waits for");
    r.max_tokens = 1000;
    r.ignore_eos = true;
    want_ok(nvllm_generate_start(c, &id, &r, &err), &err, "generate");
}

static void churn(const struct daemon_rig *rig, int n_total, int a_second)
{
    struct nvllm_client *alive[CHURN_ALIVE] = {NULL};
    uint64_t start = instant_now_ns();

    for (int i = 0; i < n_total; i++) {
        sleep_until(start + (uint64_t)i * 1000000000u / (uint64_t)a_second);
        nvllm_close(alive[i % CHURN_ALIVE]);
        alive[i % CHURN_ALIVE] = daemon_rig_connect(rig);
        if (i % LEAVES_WORK == 0)
            leave_work(alive[i % CHURN_ALIVE]);
    }
    for (int i = 0; i < CHURN_ALIVE; i++)
        nvllm_close(alive[i]);
}

/* Those who have left are gone from the daemon, too; the loop needs a moment. */
static int settled_descriptors(const struct daemon_rig *rig, int wanted)
{
    uint64_t until = instant_now_ns() + 5000000000u;
    int n = daemon_rig_descriptors(rig);

    while (n != wanted && instant_now_ns() < until) {
        sleep_until(instant_now_ns() + 20000000u);
        n = daemon_rig_descriptors(rig);
    }
    return n;
}

static void make_options(char options[][64], const char **list, int n_idle)
{
    snprintf(options[0], 64, "limits.connections=%d", n_idle + 2 * CHURN_ALIVE);
    snprintf(options[1], 64, "limits.connections_per_uid=%d", n_idle + 2 * CHURN_ALIVE);
    list[0] = options[0];
    list[1] = options[1];
    list[2] = "scheduler.max_seq_len=2048";
    list[3] = NULL;
}

bool bench_connections(const struct bench_setup *s, int n_idle, int a_second, int seconds)
{
    size_t before, after, n_pings = (size_t)seconds * 1000000u / PING_US + 1;
    struct pinger p = {.cap = n_pings, .ms = calloc(n_pings, sizeof(double))};
    struct nvllm_client **idle;
    const char *list[4];
    char options[2][64];
    struct daemon_rig rig;
    double each, p99, cpu_s;
    int base, drift;
    pthread_t thread;

    if (!p.ms)
        die("out of memory");
    raise_own_descriptors(n_idle + CHURN_ALIVE);
    make_options(options, list, n_idle);
    daemon_rig_start(&rig, s->nvllmd, s->module, s->model, list);
    atomic_store(&rig.shared->step_us, 1000);
    close_many(connect_many(&rig, 16), 16); /* what is taken once is no connection's */
    before = daemon_rig_kib(&rig, "RssAnon");
    idle = connect_many(&rig, n_idle);
    after = daemon_rig_kib(&rig, "RssAnon");
    each = (double)(after > before ? after - before : 0) / n_idle;
    base = daemon_rig_descriptors(&rig);

    p.rig = &rig;
    if (pthread_create(&thread, NULL, ping, &p) != 0)
        die("cannot start a thread");
    cpu_s = -daemon_rig_cpu_s(&rig);
    churn(&rig, a_second * seconds, a_second);
    cpu_s += daemon_rig_cpu_s(&rig);
    atomic_store(&p.quit, true);
    pthread_join(thread, NULL);
    drift = settled_descriptors(&rig, base) - base;
    p99 = quantile(p.ms, p.n, 0.99);
    printf("connections: %d idle, %.1f KiB each; %d a second come and go for %d s: status median "
           "%.2f ms, p99 %.2f, worst %.2f; descriptors drift by %d; the daemon uses %.0f%% of a "
           "core; anonymous memory %zu to %zu KiB\n",
           n_idle, each, a_second, seconds, quantile(p.ms, p.n, 0.5), p99, quantile(p.ms, p.n, 1),
           drift, 100 * cpu_s / seconds, after, daemon_rig_kib(&rig, "RssAnon"));
    close_many(idle, n_idle);
    free(p.ms);
    daemon_rig_stop(&rig);
    return drift == 0 && (s->lax || (each <= LARGEST_KIB && p99 <= SLOWEST_MS));
}
