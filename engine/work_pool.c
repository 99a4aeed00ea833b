/* work_pool.c - see work_pool.h. */
#include "engine/work_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "engine/util/must.h"
#include "engine/util/thread.h"

enum lane { SHORT, LONG, N_LANES };

struct work_pool {
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct work_queue lanes[N_LANES];
    enum lane next; /* for a thread that takes all work */
    bool quit;
    int32_t n_threads, n_serving;
    pthread_t threads[];
};

void work_queue_init(struct work_queue *q)
{
    list_init(&q->works);
    q->round = 0;
}

static struct work *work_of(const struct list *l)
{
    return CONTAINER_OF(l, struct work, link);
}

static bool round_less(const struct list *a, const struct list *b)
{
    return work_of(a)->round < work_of(b)->round;
}

void work_queue_add(struct work_queue *q, struct work *w, uint64_t client)
{
    w->client = client;
    w->round = q->round + 1;
    for (struct list *l = q->works.prev; l != &q->works; l = l->prev)
        if (work_of(l)->client == client) {
            w->round = work_of(l)->round + 1;
            break;
        }
    list_insert(&q->works, &w->link, round_less);
}

struct work *work_queue_take(struct work_queue *q)
{
    struct work *w = work_of(q->works.next);

    if (list_empty(&q->works))
        return NULL;
    list_remove(&w->link);
    q->round = w->round;
    return w;
}

static struct work *pick(struct work_pool *p, bool short_only)
{
    struct work *w = short_only ? work_queue_take(&p->lanes[SHORT]) : NULL;

    for (int i = 0; i < N_LANES && !w && !short_only; i++) {
        w = work_queue_take(&p->lanes[p->next]);
        p->next = p->next == SHORT ? LONG : SHORT;
    }
    return w;
}

/* A thread: the first one that comes takes short work only. */
static void *serve(void *pool)
{
    struct work_pool *p = pool;
    bool short_only;

    pthread_mutex_lock(&p->lock);
    short_only = p->n_serving++ == 0;
    while (!p->quit) {
        struct work *w = pick(p, short_only);

        if (!w) {
            pthread_cond_wait(&p->wake, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        w->run(w);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

int work_pool_new(struct work_pool **out, int32_t n_threads)
{
    struct work_pool *p;

    must(n_threads >= 2);
    p = calloc(1, sizeof(*p) + (size_t)n_threads * sizeof(p->threads[0]));
    if (!p)
        return -ENOMEM;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    for (int i = 0; i < N_LANES; i++)
        work_queue_init(&p->lanes[i]);
    for (; p->n_threads < n_threads; p->n_threads++) {
        int r = thread_start(&p->threads[p->n_threads], "tokenizer", serve, p);

        if (r < 0) {
            work_pool_free(p);
            return r;
        }
    }
    *out = p;
    return 0;
}

void work_pool_push(struct work_pool *p, struct work *w, uint64_t client, size_t bytes)
{
    pthread_mutex_lock(&p->lock);
    work_queue_add(&p->lanes[bytes <= WORK_SHORT_BYTES ? SHORT : LONG], w, client);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

void work_pool_free(struct work_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
