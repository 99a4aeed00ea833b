/* event_list.c - see event_list.h. */
#include "engine/event_list.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"

struct engine_event *engine_event_new(enum engine_event_type type, uint64_t request,
                                      const int32_t *ids, const struct engine_logprobs *logprobs,
                                      size_t n_ids, struct text text)
{
    const size_t each = sizeof(*ids) + (logprobs ? sizeof(*logprobs) : 0);
    struct engine_event *ev;
    size_t bytes;
    char *at;

    if (!size_mul(&bytes, n_ids, each) || !size_add(&bytes, bytes, text.len) ||
        !size_add(&bytes, bytes, sizeof(*ev)))
        return NULL;
    ev = malloc(bytes);
    if (!ev)
        return NULL;
    *ev = (struct engine_event){.type = type, .request = request, .n_ids = n_ids, .bytes = bytes};
    at = (char *)(ev + 1);
    if (logprobs && n_ids) {
        ev->logprobs = memcpy(at, logprobs, n_ids * sizeof(*logprobs));
        at += n_ids * sizeof(*logprobs);
    }
    if (n_ids) {
        ev->ids = memcpy(at, ids, n_ids * sizeof(*ids));
        at += n_ids * sizeof(*ids);
    }
    ev->text = (struct text){at, text.len};
    if (text.len)
        memcpy(at, text.data, text.len);
    return ev;
}

void event_list_push(struct event_list *l, struct engine_event *ev)
{
    ev->next = NULL;
    l->bytes += ev->bytes;
    if (l->tail)
        l->tail->next = ev;
    else
        l->head = ev;
    l->tail = ev;
}

void event_list_move(struct event_list *l, struct event_list *from)
{
    if (l->tail)
        l->tail->next = from->head;
    else
        l->head = from->head;
    l->tail = from->tail;
    l->bytes += from->bytes;
    *from = (struct event_list){0};
}

void engine_events_free(struct engine_event *list)
{
    while (list) {
        struct engine_event *next = list->next;

        inspect_report_free(list->report);
        free(list->packed.data);
        free(list);
        list = next;
    }
}
