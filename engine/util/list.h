/* list.h - doubly linked lists whose links lie inside their members: nothing to allocate. */
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

/* Puts n at the end of the list that head stands for. */
static inline void list_append(struct list *head, struct list *n)
{
    n->prev = head->prev;
    n->next = head;
    head->prev->next = n;
    head->prev = n;
}

/* Appends all of `from` to the list that head stands for, and leaves `from` empty. */
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

/* Takes n out of its list; n is then a list of its own, so that removing it again is harmless. */
static inline void list_remove(struct list *n)
{
    n->prev->next = n->next;
    n->next->prev = n->prev;
    list_init(n);
}

#endif
