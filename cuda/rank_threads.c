/* rank_threads.c - see rank_threads.h.
 *
 * Jobs are posted in a ring that all ranks read. The poster writes an entry and counts it; no lock
 * is on the way of a step. A rank that has nothing to do watches that count for a while, then
 * sleeps on it. */
#include "cuda/rank_threads.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/util/thread.h"

enum {
    N_JOBS = 4,      /* posted and not yet done, at most: steps in flight, the sampling of one of
                      * them and one more */
    WAIT_US = 50,    /* between looks at a long job */
    SPIN_US = 1000,  /* before a rank sleeps; steps longer than this hide what waking costs */
    SPIN_LOOKS = 64, /* between looks at the clock */
};

struct job {
    rank_fn *run; /* NULL: the thread ends */
    const void *arg;
    bool is_step;
};

struct worker {
    struct rank_threads *all;
    struct rank *rank;
    pthread_t thread;
    _Atomic uint32_t n_done; /* jobs */
    int result;              /* of the last job that is no step, for who waits for that */
    struct err err;
    _Atomic int failed; /* the first error of a step, behind its text: no step is run any more */
    struct err failure;
};

struct rank_threads {
    struct worker workers[MAX_RANKS];
    int n;    /* started */
    int lost; /* a rank whose thread has stopped, or -1 */
    struct job jobs[N_JOBS];
    _Atomic uint32_t n_posted;
    _Atomic int n_asleep;
};

static void futex(_Atomic uint32_t *at, int op, uint32_t value)
{
    (void)syscall(SYS_futex, at, op | FUTEX_PRIVATE_FLAG, value, NULL, NULL, 0);
}

/* Returns when n_posted is no longer n. */
static void wait_for_job(struct rank_threads *t, uint32_t n)
{
    const double begin = monotonic_seconds();

    while (monotonic_seconds() - begin < SPIN_US * 1e-6)
        for (int i = 0; i < SPIN_LOOKS; i++)
            if (t->n_posted != n)
                return;
    t->n_asleep++;
    while (t->n_posted == n)
        futex(&t->n_posted, FUTEX_WAIT, n);
    t->n_asleep--;
}

static void *rank_main(void *arg)
{
    struct worker *w = arg;

    for (uint32_t n = 0;; n++) {
        struct job job;

        wait_for_job(w->all, n);
        job = w->all->jobs[n % N_JOBS];
        if (!job.run) {
            w->n_done = n + 1;
            return NULL;
        }
        if (!job.is_step)
            w->result = job.run(w->rank, job.arg, &w->err);
        else if (w->failed == 0)
            w->failed = job.run(w->rank, job.arg, &w->failure);
        w->n_done = n + 1;
    }
}

/* Returns -1 when all ranks have done n jobs, or the rank that has not within so many seconds. */
static int wait_until_done(const struct rank_threads *t, uint32_t n, double seconds)
{
    const double begin = monotonic_seconds();

    for (int i = 0; i < t->n; i++)
        for (int looks = 0; (int32_t)(t->workers[i].n_done - n) < 0; looks++) {
            if (looks > SPIN_LOOKS * 10)
                (void)usleep(WAIT_US);
            if (looks % SPIN_LOOKS == 0 && monotonic_seconds() - begin > seconds)
                return i;
        }
    return -1;
}

bool rank_threads_are_lost(const struct rank_threads *t)
{
    return t->lost >= 0;
}

static int lost_error(const struct rank_threads *t, struct err *e)
{
    return err_set(e, -ETIMEDOUT, "rank %d has not answered for %d s", t->lost, STEP_SECONDS);
}

static int post(struct rank_threads *t, struct job job, struct err *e)
{
    if (t->lost < 0) /* wait until all have read the entry */
        t->lost = wait_until_done(t, t->n_posted - (N_JOBS - 1), STEP_SECONDS);
    if (t->lost >= 0)
        return lost_error(t, e);
    t->jobs[t->n_posted % N_JOBS] = job;
    t->n_posted++;
    if (t->n_asleep > 0)
        futex(&t->n_posted, FUTEX_WAKE, INT_MAX);
    return 0;
}

int rank_threads_run(struct rank_threads *t, double seconds, rank_fn *run, const void *arg,
                     struct err *e)
{
    int r;

    if (t->lost < 0)
        t->lost = wait_until_done(t, t->n_posted, seconds);
    r = post(t, (struct job){.run = run, .arg = arg}, e);
    if (r < 0)
        return r;
    t->lost = wait_until_done(t, t->n_posted, seconds);
    if (t->lost >= 0)
        return lost_error(t, e);
    for (int i = 0; i < t->n; i++)
        if (t->workers[i].result < 0)
            return err_set(e, t->workers[i].result, "rank %d: %s", t->workers[i].rank->shard.rank,
                           t->workers[i].err.text);
    return 0;
}

int rank_threads_post(struct rank_threads *t, rank_fn *run, const void *arg, uint32_t *number,
                      struct err *e)
{
    const int r = post(t, (struct job){.run = run, .arg = arg, .is_step = true}, e);

    *number = rank_threads_posted(t);
    return r;
}

static int step_error(const struct rank_threads *t, struct err *e)
{
    for (int i = 0; i < t->n; i++)
        if (t->workers[i].failed < 0)
            return err_set(e, t->workers[i].failed, "rank %d: %s", t->workers[i].rank->shard.rank,
                           t->workers[i].failure.text);
    return 0;
}

int rank_threads_wait(struct rank_threads *t, uint32_t number, struct err *e)
{
    const int r = t->lost < 0 ? wait_until_done(t, number, STEP_SECONDS) : t->lost;

    t->lost = r;
    return r >= 0 ? lost_error(t, e) : step_error(t, e);
}

uint32_t rank_threads_posted(const struct rank_threads *t)
{
    return t->n_posted;
}

int rank_threads_poll(const struct rank_threads *t, uint32_t number, struct err *e)
{
    bool done = true;
    int r;

    for (int i = 0; i < t->n; i++)
        done &= (int32_t)(t->workers[i].n_done - number) >= 0;
    r = step_error(t, e); /* which is there before its rank is done */
    return r < 0 ? r : done;
}

int rank_threads_new(struct rank_threads **out, struct rank *ranks, int n, struct err *e)
{
    struct rank_threads *t = calloc(1, sizeof(*t));

    if (!t)
        return err_set(e, -ENOMEM, "out of memory");
    t->lost = -1;
    for (; t->n < n; t->n++) {
        struct worker *w = &t->workers[t->n];
        int r;

        w->all = t;
        w->rank = &ranks[t->n];
        r = thread_start(&w->thread, "cuda-rank", rank_main, w);
        if (r < 0) {
            (void)rank_threads_free(t);
            return err_set(e, r, "cannot start a thread for a rank: %s", strerror(-r));
        }
    }
    *out = t;
    return 0;
}

bool rank_threads_free(struct rank_threads *t)
{
    struct err ignored;

    if (!t)
        return true;
    if (post(t, (struct job){.run = NULL}, &ignored) < 0)
        return false;
    t->lost = wait_until_done(t, t->n_posted, STEP_SECONDS);
    if (t->lost >= 0)
        return false;
    for (int i = 0; i < t->n; i++)
        pthread_join(t->workers[i].thread, NULL);
    free(t);
    return true;
}
