/* cpu_wait.c - see cpu_wait.h.
 *
 * Who goes to sleep counts itself among the sleepers and looks once more; who changes what is
 * waited for then looks for sleepers. So no wake-up is lost. */
#include "engine/cpu/cpu_wait.h"

enum { SPINS = 2000 }; /* before sleeping: some tens of microseconds */

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void cpu_wait_init(struct cpu_wait *w)
{
    *w = (struct cpu_wait){.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
}

void cpu_wait_deinit(struct cpu_wait *w)
{
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
}

void cpu_wait_until(struct cpu_wait *w, bool (*ready)(void *arg), void *arg)
{
    for (int spins = 0; spins < SPINS; spins++) {
        if (ready(arg))
            return;
        relax();
    }
    pthread_mutex_lock(&w->lock);
    w->sleepers++;
    while (!ready(arg))
        pthread_cond_wait(&w->changed, &w->lock);
    w->sleepers--;
    pthread_mutex_unlock(&w->lock);
}

void cpu_wait_wake(struct cpu_wait *w)
{
    if (w->sleepers == 0)
        return;
    pthread_mutex_lock(&w->lock);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void cpu_barrier_init(struct cpu_barrier *b, int n)
{
    *b = (struct cpu_barrier){.n = n};
    cpu_wait_init(&b->wait);
}

void cpu_barrier_deinit(struct cpu_barrier *b)
{
    cpu_wait_deinit(&b->wait);
}

/* Of one thread at the barrier. */
struct arrival {
    const struct cpu_barrier *b;
    uint32_t round;
};

static bool is_over(void *arg)
{
    const struct arrival *a = arg;

    return a->b->round != a->round;
}

void cpu_barrier_wait(struct cpu_barrier *b)
{
    struct arrival a = {b, b->round};

    if (++b->arrived < b->n) {
        cpu_wait_until(&b->wait, is_over, &a);
        return;
    }
    b->arrived = 0; /* before the next round can begin */
    b->round++;
    cpu_wait_wake(&b->wait);
}
