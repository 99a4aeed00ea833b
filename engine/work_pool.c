/* work_pool.c - see work_pool.h. */
#include "engine/work_pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "engine/util/id_map.h"
#include "engine/util/list.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

/* What a client has had of the pool. The pool's time is the turn of the piece begun last, in bytes
 * of each client's own: a client that comes begins there, and each further piece of its is due when
 * as much as it has brought already was done of everybody's. So it is known until that time has
 * come, or nobody has anything to do: who always has one piece waiting has no more than others. */
struct work_flow {
    uint64_t client;
    uint64_t end;     /* the turn of its next piece */
    size_t n;         /* pieces that wait */
    struct list idle; /* in the pool's list, where none does */
};

struct work_pool {
    pthread_mutex_t lock;
    pthread_cond_t any;        /* for the threads that take all work */
    pthread_cond_t short_only; /* for the one that takes short work */
    struct heap lanes[2];      /* short, long */
    struct id_map flows;       /* by client */
    struct list idle;          /* flows with nothing waiting whose end is ahead */
    uint64_t now;              /* the latest turn that was taken */
    uint64_t n_pushed;
    int32_t n_running;
    bool quit;
    int32_t n_threads;
    pthread_t threads[];
};

enum { SHORT, LONG };

enum { PIECE_COST = 512 }; /* of the smallest piece, as if of text */

static struct work *work_of(struct heap_node *n)
{
    return n ? CONTAINER_OF(n, struct work, node) : NULL;
}

static bool goes_before(const struct work *a, const struct work *b)
{
    return a->turn != b->turn ? a->turn < b->turn : a->order < b->order;
}

static bool less(const struct heap_node *a, const struct heap_node *b)
{
    return goes_before(CONTAINER_OF(a, const struct work, node),
                       CONTAINER_OF(b, const struct work, node));
}

static struct heap *lane_of(struct work_pool *p, const struct work *w)
{
    return &p->lanes[w->cost <= WORK_SHORT_BYTES ? SHORT : LONG];
}

/* The client's, or NULL: no memory. */
static struct work_flow *flow_of(struct work_pool *p, uint64_t client)
{
    struct work_flow *f = id_map_get(&p->flows, client);

    if (f)
        return f;
    f = calloc(1, sizeof(*f));
    if (f && id_map_put(&p->flows, client, f) < 0) {
        free(f);
        return NULL;
    }
    if (f) {
        f->client = client;
        list_init(&f->idle);
    }
    return f;
}

/* Those that begin at the pool's time as anybody does; all where nobody has anything to do. */
static void forget_idle(struct work_pool *p, bool all)
{
    struct list *at = p->idle.next;

    while (at != &p->idle) {
        struct work_flow *f = CONTAINER_OF(at, struct work_flow, idle);

        at = at->next;
        if (!all && f->end > p->now)
            continue;
        list_remove(&f->idle);
        must(id_map_take(&p->flows, f->client) == f);
        free(f);
    }
}

static struct work *take(struct work_pool *p, struct work *w)
{
    heap_remove(lane_of(p, w), &w->node);
    if (w->turn > p->now)
        p->now = w->turn;
    if (w->flow && --w->flow->n == 0)
        list_append(&p->idle, &w->flow->idle);
    forget_idle(p, false);
    return w;
}

/* The piece that is next of those that this thread may take, or NULL. */
static struct work *pick(struct work_pool *p, bool short_only)
{
    struct work *s = work_of(heap_top(&p->lanes[SHORT]));
    struct work *l = short_only ? NULL : work_of(heap_top(&p->lanes[LONG]));

    if (s && (!l || goes_before(s, l)))
        return take(p, s);
    return l ? take(p, l) : NULL;
}

static void serve(struct work_pool *p, bool short_only)
{
    pthread_mutex_lock(&p->lock);
    while (!p->quit) {
        struct work *w = pick(p, short_only);

        if (!w) {
            if (p->n_running == 0 && !heap_top(&p->lanes[LONG]))
                forget_idle(p, true);
            pthread_cond_wait(short_only ? &p->short_only : &p->any, &p->lock);
            continue;
        }
        p->n_running++;
        pthread_mutex_unlock(&p->lock);
        w->run(w);
        pthread_mutex_lock(&p->lock);
        p->n_running--;
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
    heap_init(&p->lanes[SHORT], less);
    heap_init(&p->lanes[LONG], less);
    list_init(&p->idle);
    for (; p->n_threads < n_threads; p->n_threads++) {
        int r = thread_start(&p->threads[p->n_threads], NULL,
                             p->n_threads == 0 ? serve_short : serve_any, p);

        if (r < 0) {
            work_pool_free(p);
            return r;
        }
    }
    *out = p;
    return 0;
}

void work_pool_push(struct work_pool *p, struct work *w)
{
    struct heap *l = lane_of(p, w);

    pthread_mutex_lock(&p->lock);
    w->flow = flow_of(p, w->client);
    w->turn = p->now;
    if (w->flow) {
        w->turn = w->flow->end > p->now ? w->flow->end : p->now;
        w->flow->end = w->turn + w->cost + PIECE_COST;
        w->flow->n++;
        list_remove(&w->flow->idle);
    }
    w->order = p->n_pushed++;
    heap_insert(l, &w->node);
    pthread_cond_signal(&p->any);
    if (l == &p->lanes[SHORT])
        pthread_cond_signal(&p->short_only);
    pthread_mutex_unlock(&p->lock);
}

/* All that waits, as a list, in the order of its turns. */
static struct work *take_all(struct work_pool *p)
{
    struct work *first = NULL, **end = &first, *w;

    while ((w = pick(p, false))) {
        w->next = NULL;
        *end = w;
        end = &w->next;
    }
    forget_idle(p, true);
    id_map_deinit(&p->flows);
    return first;
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
    left = take_all(p);
    pthread_cond_destroy(&p->short_only);
    pthread_cond_destroy(&p->any);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return left;
}
