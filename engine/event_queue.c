/* event_queue.c - see event_queue.h. */
#include "engine/event_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

struct engine_event *engine_event_new(enum engine_event_type type, uint64_t request, size_t n_ids,
                                      bool logprobs, size_t text_bytes)
{
    bool fails = type == ENGINE_ERROR;
    struct engine_event *ev;
    size_t bytes, part;
    char *at;

    if (!size_mul(&bytes, n_ids, sizeof(int32_t) + (logprobs ? sizeof(*ev->logprobs) : 0)) ||
        !size_add(&part, text_bytes, sizeof(*ev) + 1 + (fails ? sizeof(*ev->message) : 0)) ||
        !size_add(&bytes, bytes, part))
        return NULL;
    ev = malloc(bytes);
    if (!ev)
        return NULL;
    *ev = (struct engine_event){.type = type, .request = request, .n_ids = n_ids, .bytes = bytes};
    at = (char *)(ev + 1);
    if (fails) {
        ev->message = (struct err *)(void *)at;
        *ev->message = (struct err){""};
        at += sizeof(*ev->message);
    }
    if (logprobs && n_ids) {
        ev->logprobs = (struct engine_logprobs *)(void *)at;
        at += n_ids * sizeof(*ev->logprobs);
    }
    if (n_ids) {
        ev->ids = (int32_t *)(void *)at;
        at += n_ids * sizeof(*ev->ids);
    }
    ev->text = (struct text){.data = at, .len = text_bytes};
    return ev;
}

char *event_text_buffer(struct engine_event *ev)
{
    return (char *)(ev + 1) + (ev->text.data - (const char *)(ev + 1));
}

static size_t bytes_of(const struct engine_event *ev)
{
    const struct inspect_report *r = ev->report;
    size_t bytes = ev->bytes + ev->packed.bytes;

    if (r)
        bytes += sizeof(*r) + (size_t)r->n_requests * sizeof(*r->requests) +
                 (size_t)r->n_clients * sizeof(*r->clients) + (size_t)r->n_map +
                 (size_t)r->n_prefixes * sizeof(*r->prefixes);
    return bytes;
}

void event_list_push(struct event_list *l, struct engine_event *ev)
{
    ev->next = NULL;
    l->bytes += bytes_of(ev);
    if (l->tail)
        l->tail->next = ev;
    else
        l->head = ev;
    l->tail = ev;
}

int event_queue_init(struct event_queue *q, size_t limit)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

    if (fd < 0)
        return -errno;
    *q = (struct event_queue){.fd = fd, .limit = limit};
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->room, NULL);
    return 0;
}

void event_queue_deinit(struct event_queue *q)
{
    engine_events_free(q->list.head);
    pthread_cond_destroy(&q->room);
    pthread_mutex_destroy(&q->lock);
    close(q->fd);
}

void event_queue_push(struct event_queue *q, struct event_list *l)
{
    const uint64_t one = 1;
    bool was_empty;

    if (!l->head)
        return;
    pthread_mutex_lock(&q->lock);
    was_empty = !q->list.head;
    if (was_empty)
        q->list.head = l->head;
    else
        q->list.tail->next = l->head;
    q->list.tail = l->tail;
    atomic_fetch_add(&q->bytes, l->bytes);
    pthread_mutex_unlock(&q->lock);
    *l = (struct event_list){0};
    if (was_empty)
        must(write(q->fd, &one, sizeof(one)) == sizeof(one));
}

struct engine_event *event_queue_take(struct event_queue *q)
{
    struct engine_event *head;
    uint64_t count;
    ssize_t r;

    /* The eventfd is read first: a list pushed after the swap below makes it readable again. */
    r = read(q->fd, &count, sizeof(count));
    must(r == sizeof(count) || errno == EAGAIN);
    pthread_mutex_lock(&q->lock);
    head = q->list.head;
    q->list = (struct event_list){0};
    atomic_store(&q->bytes, 0);
    pthread_cond_broadcast(&q->room);
    pthread_mutex_unlock(&q->lock);
    return head;
}

bool event_queue_wait(struct event_queue *q)
{
    bool waited = false;

    if (!q->limit || atomic_load(&q->bytes) <= q->limit)
        return false; /* the usual case, without the lock */
    pthread_mutex_lock(&q->lock);
    while (!q->closed && atomic_load(&q->bytes) > q->limit) {
        waited = true;
        pthread_cond_wait(&q->room, &q->lock);
    }
    pthread_mutex_unlock(&q->lock);
    return waited;
}

void event_queue_close(struct event_queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->room);
    pthread_mutex_unlock(&q->lock);
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
