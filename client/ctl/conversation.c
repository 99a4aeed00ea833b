/* conversation.c - see bench.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/ctl/bench.h"

void conversations_init(struct conversations *c, size_t n, uint32_t n_turns, double think_s)
{
    *c = (struct conversations){.list = ctl_grow(NULL, n, sizeof(*c->list)), .n = n, .n_left = n};
    c->think_s = think_s;
    for (size_t i = 0; i < n; i++)
        c->list[i] = (struct conversation){.n_turns = n_turns};
}

void conversations_deinit(struct conversations *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->list[i].ids);
    free(c->list);
}

struct conversation *conversations_due(struct conversations *c, int64_t now, int64_t *soonest)
{
    struct conversation *first = NULL;

    for (size_t i = 0; i < c->n; i++) {
        struct conversation *v = &c->list[i];

        if (v->turn < v->n_turns && !v->asked && (!first || v->due_ns < first->due_ns))
            first = v;
    }
    if (!first || first->due_ns <= now)
        return first;
    if (first->due_ns < *soonest)
        *soonest = first->due_ns;
    return NULL;
}

void conversation_add(struct conversation *v, const int32_t *ids, size_t n)
{
    if (v->cap - v->n < n) {
        v->cap = (v->n + n) * 2;
        v->ids = ctl_grow(v->ids, v->cap, sizeof(*v->ids));
    }
    if (n > 0)
        memcpy(v->ids + v->n, ids, n * sizeof(*ids));
    v->n += n;
}

/* Pauses between turns are drawn as those between people's requests are: most are short. */
void conversation_answered(struct conversations *c, struct conversation *v, bool well, int64_t now,
                           struct random *r)
{
    v->asked = false;
    v->turn = well ? v->turn + 1 : v->n_turns;
    v->due_ns = now;
    if (c->think_s > 0)
        v->due_ns += (int64_t)(-log(random_share(r)) * c->think_s * 1e9);
    c->n_left -= v->turn == v->n_turns;
}
