/* event_queue.c - see event_queue.h. */
#include "engine/event_queue.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/util/checked.h"
#include "engine/util/must.h"

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
    q->list.bytes += l->bytes;
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
    pthread_cond_broadcast(&q->room);
    pthread_mutex_unlock(&q->lock);
    return head;
}

bool event_queue_wait(struct event_queue *q)
{
    bool waited = false;

    pthread_mutex_lock(&q->lock);
    while (!q->closed && q->limit && q->list.bytes > q->limit) {
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
