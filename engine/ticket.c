/* ticket.c - see ticket.h. */
#include "engine/ticket.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/util/must.h"

void tickets_init(struct tickets *t)
{
    *t = (struct tickets){0};
    list_init(&t->cancels);
}

void tickets_deinit(struct tickets *t)
{
    struct ticket *k;
    size_t at = 0;

    while ((k = id_map_next(&t->by_id, &at)))
        free(k);
    id_map_deinit(&t->by_id);
    list_init(&t->cancels);
}

int tickets_open(struct tickets *t, uint64_t id, struct job *job, bool in_pool)
{
    struct ticket *k = malloc(sizeof(*k));
    int r;

    if (!k)
        return -ENOMEM;
    *k = (struct ticket){.id = id, .job = job, .in_pool = in_pool};
    list_init(&k->in_cancels);
    r = id_map_put(&t->by_id, id, k);
    if (r < 0) {
        free(k);
        return r;
    }
    return 0;
}

bool tickets_leave_pool(struct tickets *t, uint64_t id)
{
    struct ticket *k = id_map_get(&t->by_id, id);

    must(k && k->in_pool);
    k->in_pool = false;
    return k->cancelled;
}

void tickets_take_job(struct tickets *t, uint64_t id)
{
    struct ticket *k = id_map_get(&t->by_id, id);

    must(k && k->job && !k->in_pool);
    k->job = NULL;
}

bool tickets_is_cancelled(const struct tickets *t, uint64_t id)
{
    const struct ticket *k = id_map_get(&t->by_id, id);

    return k && k->cancelled;
}

bool tickets_cancel(struct tickets *t, uint64_t id)
{
    struct ticket *k = id_map_get(&t->by_id, id);

    if (!k || k->cancelled)
        return false;
    k->cancelled = true;
    if (k->in_pool)
        return false; /* whoever leaves the pool with it sees it */
    list_append(&t->cancels, &k->in_cancels);
    return true;
}

void tickets_take_cancels(struct tickets *t, struct list *out)
{
    while (!list_empty(&t->cancels)) {
        struct list *l = t->cancels.next;

        list_remove(l);
        list_append(out, l);
    }
}

void tickets_close(struct tickets *t, uint64_t id)
{
    struct ticket *k = id_map_take(&t->by_id, id);

    must(k && !k->in_pool);
    list_remove(&k->in_cancels);
    free(k);
}
