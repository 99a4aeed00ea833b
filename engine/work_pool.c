/* work_pool.c - see work_pool.h. */
#include "engine/work_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "engine/must.h"

struct lane {
    struct work *head, *tail;
};

struct work_pool {
    pthread_mutex_t lock;
    pthread_cond_t any;        /* for the threads that take all work */
    pthread_cond_t short_only; /* for the one that takes short work */
    struct lane lanes[2];      /* short, long */
    uint64_t n_pushed;
    bool quit;
    int32_t n_threads;
    pthread_t threads[];
};

enum { SHORT, LONG };

static struct work *take(struct lane *l)
{
    struct work *w = l->head;

    l->head = w->next;
    if (!l->head)
        l->tail = NULL;
    return w;
}

/* The oldest piece that this thread may take, or NULL. */
static struct work *pick(struct work_pool *p, bool short_only)
{
    struct lane *s = &p->lanes[SHORT], *l = &p->lanes[LONG];

    if (s->head && (short_only || !l->head || s->head->order < l->head->order))
        return take(s);
    return !short_only && l->head ? take(l) : NULL;
}

static void serve(struct work_pool *p, bool short_only)
{
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        struct work *w = pick(p, short_only);

        if (!w) {
            pthread_cond_wait(short_only ? &p->short_only : &p->any, &p->lock);
            continue;
        }
        pthread_mutex_unlock(&p->lock);
        w->run(w);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
}

static void *serve_short(void *pool)
{
    serve(pool, true);
    return NULL;
}

static void *serve_any(void *pool)
{
    serve(pool, false);
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
    pthread_cond_init(&p->any, NULL);
    pthread_cond_init(&p->short_only, NULL);
    for (; p->n_threads < n_threads; p->n_threads++) {
        int r = pthread_create(&p->threads[p->n_threads], NULL,
                               p->n_threads == 0 ? serve_short : serve_any, p);

        if (r) {
            work_pool_free(p);
            return -r;
        }
    }
    *out = p;
    return 0;
}

void work_pool_push(struct work_pool *p, struct work *w)
{
    struct lane *l = &p->lanes[w->cost <= WORK_SHORT_BYTES ? SHORT : LONG];

    w->next = NULL;
    pthread_mutex_lock(&p->lock);
    w->order = p->n_pushed++;
    if (l->tail)
        l->tail->next = w;
    else
        l->head = w;
    l->tail = w;
    pthread_cond_signal(&p->any);
    if (l == &p->lanes[SHORT])
        pthread_cond_signal(&p->short_only);
    pthread_mutex_unlock(&p->lock);
}

struct work *work_pool_free(struct work_pool *p)
{
    struct work *left;

    if (!p)
        return NULL;
    pthread_mutex_lock(&p->lock);
    p->quit = true;
    pthread_cond_broadcast(&p->any);
    pthread_cond_broadcast(&p->short_only);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    left = p->lanes[SHORT].head;
    if (left)
        p->lanes[SHORT].tail->next = p->lanes[LONG].head;
    else
        left = p->lanes[LONG].head;
    pthread_cond_destroy(&p->short_only);
    pthread_cond_destroy(&p->any);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return left;
}
