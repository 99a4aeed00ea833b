/* follower.c - see follower.h. One thread loads and follows, the first one waits for signals and
 * answers the watchdog for as long as the other moves. */
#include "daemon/follower.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "daemon/log.h"
#include "engine/engine.h"
#include "engine/util/thread.h"

enum { LOOKS_PER_WATCHDOG = 4 };

struct follower {
    const struct options *options;
    const struct backend_ops *ops;
    const char *name;
    _Atomic uint64_t beat;
    _Atomic int percent; /* of loading that systemd knows */
    int r;
    struct err why;
};

/* Any thread of the backend. */
static void on_progress(void *follower, double done)
{
    struct follower *f = follower;
    const int percent = (int)(done * 100);

    f->beat += 2;
    if (atomic_exchange(&f->percent, percent) != percent)
        sd_notifyf(0, "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=Loading %s: %d%%", f->name, percent);
}

static void tell_ready(const struct follower *f, const struct backend_info *info)
{
    const int first = (int)(f->options->cluster_rank * info->n_devices);

    log_text(LOG_LEVEL_INFO, "following", info->devices[0].name,
             "model=%s process=%d processes=%d ranks=%d-%d tensor_parallel=%d blocks=%d", f->name,
             (int)f->options->cluster_rank, info->n_processes, first, first + info->n_devices - 1,
             info->tp_size, info->tiers[TIER_DEVICE].n_blocks);
    sd_notifyf(0, "READY=1\nSTATUS=Process %d of a cluster of %d, with %d of %d ranks of %s",
               (int)f->options->cluster_rank, info->n_processes, info->n_devices, info->tp_size,
               f->name);
}

static int follow(struct follower *f, struct err *e)
{
    struct backend_options o = backend_options_of(f->options);
    struct backend_info info;
    struct backend *backend;
    struct model *model;
    int r = model_open(&model, f->options->model_path, e);

    if (r == 0)
        r = model_quantize(model, options_quantize(f->options), e);
    if (r == 0)
        r = engine_check_options(&o, model, e);
    if (r < 0)
        return r;
    if (o.max_seq_len == 0)
        o.max_seq_len = model_config(model)->max_seq_len;
    o.progress = on_progress;
    o.progress_ctx = f;
    o.beat = &f->beat;
    r = f->ops->open(&backend, model, &o, e);
    if (r < 0)
        return r;
    f->ops->info(backend, &info);
    tell_ready(f, &info);
    r = f->ops->follow(backend, e);
    if (r == 0)
        f->ops->close(backend);
    return r;
}

static void *follower_main(void *follower)
{
    struct follower *f = follower;

    f->r = follow(f, &f->why);
    kill(getpid(), SIGUSR1); /* to the first thread, which waits for it */
    return NULL;
}

int follower_run(const struct options *o, const struct backend_choice *choice, const char *name,
                 struct err *e)
{
    static struct follower f; /* after a signal the other thread goes on with it */
    uint64_t watchdog_us = 0, beat = 0;
    struct timespec look = {.tv_sec = 60};
    pthread_t thread;
    sigset_t signals;
    int r, number;

    f.options = o;
    f.ops = choice->ops;
    f.name = name;
    if (sd_watchdog_enabled(0, &watchdog_us) > 0) {
        watchdog_us /= LOOKS_PER_WATCHDOG;
        look = (struct timespec){(time_t)(watchdog_us / 1000000),
                                 (long)(watchdog_us % 1000000) * 1000};
    }
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    r = thread_start(&thread, "follower", follower_main, &f);
    if (r < 0)
        return err_set(e, r, "cannot start a thread: %s", strerror(-r));
    while ((number = sigtimedwait(&signals, NULL, &look)) < 0) {
        if (f.beat != beat)
            sd_notify(0, "WATCHDOG=1");
        beat = f.beat;
    }
    if (number != SIGUSR1) {
        log_event(LOG_LEVEL_INFO, "ended", "signal=%d", number);
        return 0;
    }
    pthread_join(thread, NULL);
    if (f.r < 0)
        *e = f.why;
    else
        log_event(LOG_LEVEL_INFO, "ended", "leader=closed");
    return f.r;
}
