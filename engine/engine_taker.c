/* engine_taker.c - events that are taken where they are made, see engine.h. */
#include "engine/engine_private.h"

#include <time.h>

enum {
    /* What a client's wake-up costs is the client's to say: it may have thousands of threads that
     * wait for one socket, and who writes there wakes them all. Where taking takes this thread more
     * than so long, twice in a row, the loop takes for so many times as long: then steps go on
     * beside it. Once may be the machine's doing. */
    DEAR_US = 500,
    DEAR_REST = 99,
};

void engine_set_taker(struct engine *g, const struct engine_taker *taker)
{
    g->taker = taker ? *taker : (struct engine_taker){0};
}

void engine_taker_lock(struct engine *g)
{
    atomic_store(&g->taker_wanted, true);
    pthread_mutex_lock(&g->taker_lock);
    atomic_store(&g->taker_wanted, false);
}

void engine_taker_unlock(struct engine *g)
{
    pthread_mutex_unlock(&g->taker_lock);
}

/* Of the CPU: it is not the taker's doing where this thread has to wait for one. A system call, so
 * it is asked only once the usual clock has seen a long time. */
static uint64_t thread_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void take(struct engine *g)
{
    uint64_t (*const clock_us)(void) = g->was_dear ? thread_us : engine_now_us;
    const uint64_t began_us = clock_us();
    const struct engine_event *rest = g->taker.take(g->taker.ctx, g->out.head);
    uint64_t took_us;

    while (g->out.head != rest)
        event_list_pop(&g->out);
    took_us = clock_us() - began_us;
    if (g->was_dear && took_us > DEAR_US)
        g->take_us = engine_now_us() + took_us * DEAR_REST;
    g->was_dear = took_us > DEAR_US;
}

/* Events that lie in the queue come first: where there are none and the lock is free, all that
 * this thread has pushed has been told. A loop that waits for the lock is next, or this thread
 * might take it again and again before that wakes. */
void engine_hand_over(struct engine *g)
{
    if (g->out.n == 0 || g->out.n > ENGINE_FEW_EVENTS || !event_queue_empty(&g->events) ||
        engine_now_us() < g->take_us || atomic_load(&g->taker_wanted) ||
        pthread_mutex_trylock(&g->taker_lock) != 0)
        return;
    if (g->taker.take)
        take(g);
    pthread_mutex_unlock(&g->taker_lock);
}
