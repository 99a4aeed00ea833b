/* heap.h - a pairing heap with the links inside its members, so that insertion cannot fail.
 *
 * Insertion takes constant time, removal of any member O(log n) amortised. */
#ifndef NVLLM_ENGINE_UTIL_HEAP_H
#define NVLLM_ENGINE_UTIL_HEAP_H

#include <stdbool.h>

struct heap_node {
    struct heap_node *child; /* leftmost */
    struct heap_node *next;  /* right sibling */
    struct heap_node *prev;  /* left sibling, or the parent for a leftmost child */
};

struct heap {
    struct heap_node *root;
    bool (*less)(const struct heap_node *a, const struct heap_node *b);
};

/* less must be a strict order of the members. To change a member's key: remove, change, insert. */
void heap_init(struct heap *h, bool (*less)(const struct heap_node *a, const struct heap_node *b));
void heap_insert(struct heap *h, struct heap_node *n);
void heap_remove(struct heap *h, struct heap_node *n);

/* The least member, or NULL. */
static inline struct heap_node *heap_top(const struct heap *h)
{
    return h->root;
}

#endif
