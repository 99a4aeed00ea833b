/* heap.c - see heap.h. */
#include "engine/util/heap.h"

#include <stddef.h>

#include "engine/util/must.h"

void heap_init(struct heap *h, bool (*less)(const struct heap_node *a, const struct heap_node *b))
{
    h->root = NULL;
    h->less = less;
}

/* Joins two trees; either may be NULL. */
static struct heap_node *merge(const struct heap *h, struct heap_node *a, struct heap_node *b)
{
    if (!a)
        return b;
    if (!b)
        return a;
    if (h->less(b, a)) {
        struct heap_node *t = a;

        a = b;
        b = t;
    }
    b->prev = a;
    b->next = a->child;
    if (b->next)
        b->next->prev = b;
    a->child = b;
    return a;
}

/* Joins siblings: in pairs from the left, then all from the right. No recursion, because there may
 * be as many siblings as members. */
static struct heap_node *merge_siblings(const struct heap *h, struct heap_node *first)
{
    struct heap_node *pairs = NULL; /* reversed, linked by next */
    struct heap_node *all = NULL;

    while (first) {
        struct heap_node *a = first, *b = first->next, *pair;

        first = b ? b->next : NULL;
        a->next = a->prev = NULL;
        if (b)
            b->next = b->prev = NULL;
        pair = merge(h, a, b);
        pair->next = pairs;
        pairs = pair;
    }
    while (pairs) {
        struct heap_node *pair = pairs;

        pairs = pair->next;
        pair->next = NULL;
        all = merge(h, all, pair);
    }
    return all;
}

void heap_insert(struct heap *h, struct heap_node *n)
{
    n->child = n->next = n->prev = NULL;
    h->root = merge(h, h->root, n);
}

void heap_remove(struct heap *h, struct heap_node *n)
{
    struct heap_node *rest = merge_siblings(h, n->child);

    if (n == h->root) {
        h->root = rest;
    } else {
        must(n->prev);
        if (n->prev->child == n)
            n->prev->child = n->next;
        else
            n->prev->next = n->next;
        if (n->next)
            n->next->prev = n->prev;
        h->root = merge(h, h->root, rest);
    }
    n->child = n->next = n->prev = NULL;
}
