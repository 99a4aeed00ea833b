/* held.c - see held.h. */
#include "daemon/held.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_IDS = 16, FIRST_TEXT = 64 };

struct held {
    struct held *next;
    struct engine_event delta; /* its arrays are ours */
    size_t cap_ids, cap_logprobs, cap_text;
    size_t bytes;
};

/* Room for n more of size each behind used; what the array takes more is added to *grown. */
static int reserve(void **array, size_t *cap, size_t used, size_t n, size_t size, size_t first,
                   size_t *grown)
{
    size_t want = *cap ? *cap : first, needed;
    void *p;

    if (__builtin_add_overflow(used, n, &needed))
        return -ENOMEM;
    if (needed <= *cap)
        return 0;
    while (want < needed)
        if (__builtin_mul_overflow(want, (size_t)2, &want))
            return -ENOMEM;
    p = reallocarray(*array, want, size);
    if (!p)
        return -ENOMEM;
    *grown += (want - *cap) * size;
    *array = p;
    *cap = want;
    return 0;
}

static int append(struct held *h, const struct engine_event *delta)
{
    struct engine_event *to = &h->delta;
    void *ids = to->ids, *logprobs = to->logprobs, *text = (void *)(uintptr_t)to->text.data;
    size_t n = delta->n_ids;
    int r;

    /* Each array is kept as it grows: one that cannot leaves nothing half done. */
    r = reserve(&ids, &h->cap_ids, to->n_ids, n, sizeof(*to->ids), FIRST_IDS, &h->bytes);
    to->ids = ids;
    if (r == 0 && delta->logprobs) {
        r = reserve(&logprobs, &h->cap_logprobs, to->n_ids, n, sizeof(*to->logprobs), FIRST_IDS,
                    &h->bytes);
        to->logprobs = logprobs;
    }
    if (r == 0) {
        r = reserve(&text, &h->cap_text, to->text.len, delta->text.len, 1, FIRST_TEXT, &h->bytes);
        to->text.data = text;
    }
    if (r < 0)
        return r;
    if (n)
        memcpy(to->ids + to->n_ids, delta->ids, n * sizeof(*to->ids));
    if (n && delta->logprobs)
        memcpy(to->logprobs + to->n_ids, delta->logprobs, n * sizeof(*to->logprobs));
    if (delta->text.len)
        memcpy((char *)text + to->text.len, delta->text.data, delta->text.len);
    to->n_ids += n;
    to->text.len += delta->text.len;
    to->reason = delta->reason;
    return 0;
}

int held_add(struct held **list, const struct engine_event *delta, size_t *bytes)
{
    struct held **at = list, *h;
    size_t before;
    int r;

    while (*at && (*at)->delta.choice != delta->choice)
        at = &(*at)->next;
    h = *at;
    before = h ? h->bytes : 0;
    if (!h) {
        h = calloc(1, sizeof(*h));
        if (!h)
            return -ENOMEM;
        h->delta.type = ENGINE_DELTA;
        h->delta.choice = delta->choice;
        h->bytes = sizeof(*h);
        *at = h;
    }
    r = append(h, delta);
    *bytes += h->bytes - before; /* room that was made stays, whatever became of the rest */
    return r;
}

const struct engine_event *held_delta(const struct held *first)
{
    return &first->delta;
}

size_t held_bytes(const struct held *first)
{
    return first->bytes;
}

void held_pop(struct held **list)
{
    struct held *h = *list;

    *list = h->next;
    free(h->delta.ids);
    free(h->delta.logprobs);
    free((void *)(uintptr_t)h->delta.text.data);
    free(h);
}
