/* list.h - doubly linked lists with the links inside their members: nothing to allocate. */
#ifndef NVLLM_ENGINE_UTIL_LIST_H
#define NVLLM_ENGINE_UTIL_LIST_H

#include <stdbool.h>
#include <stddef.h>

/* The struct that holds `member` at p. */
#define CONTAINER_OF(p, type, member) ((type *)((char *)(p)-offsetof(type, member)))

struct list {
    struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
    l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
    return l->next == l;
}

/* Appends n to the list of which head is the anchor. */
static inline void list_append(struct list *head, struct list *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

/* Appends all members of `from` to the list with the anchor head; `from` is then empty. */
static inline void list_move(struct list *head, struct list *from)
{
    if (list_empty(from))
        return;
    from->next->prev = head->prev;
    from->prev->next = head;
    head->prev->next = from->next;
    head->prev = from->prev;
    list_init(from);
}

/* Inserts n into a sorted list, behind its equals. Constant time for a new last or first member. */
static inline void list_insert(struct list *head, struct list *n,
                               bool (*less)(const struct list *a, const struct list *b))
{
    struct list *at = head;

    if (!list_empty(head) && less(n, head->prev))
        for (at = head->next; !less(n, at);)
            at = at->next;
    list_append(at, n);
}

/* Removes n from its list; removing it again is harmless. */
static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

/* Removes all members. */
static inline void list_clear(struct list *head)
{
    while (!list_empty(head))
        list_remove(head->next);
}

/* for each member of a list, from which it may be removed */
#define LIST_EACH(type, member, link, head)                                                        \
    for (type *member = CONTAINER_OF((head)->next, type, link), *next_##member;                    \
         next_##member = CONTAINER_OF(member->link.next, type, link), &member->link != (head);     \
         member = next_##member)

#endif
