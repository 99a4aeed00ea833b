/* flight.c - see flight.h. */
#include "client/ctl/flight.h"

#include <search.h>
#include <stdlib.h>
#include <sys/param.h>

#include "client/lib/clock.h"

enum {
    TICK_MS = 200,
    EVENTS_A_ROUND = 1024, /* a fast daemon may always have another event */
    FIRST_RETRY_MS = 10,   /* before a refused request is sent again, doubled up to LAST_RETRY_MS */
    LAST_RETRY_MS = 1000,
    MAX_DOUBLINGS = 7,
    MAX_ADVICE_MS = 60000,
};

void flight_deinit(struct flight *f)
{
    tdestroy(f->sent, free);
    free(f->waiting);
}

static int compare_ids(const void *a, const void *b)
{
    const struct flight_request *x = a, *y = b;

    return x->id < y->id ? -1 : x->id > y->id;
}

static void land(struct flight *f, struct flight_request *r)
{
    tdelete(r, &f->sent, compare_ids);
    f->n_sent--;
}

void flight_fail(struct flight *f, const struct nvllm_error *err)
{
    const struct nvllm_event event = {.error = err};

    f->dead = *err;
    while (f->n_waiting > 0)
        f->take(f->owner, f->waiting[--f->n_waiting], &event);
    while (f->sent) {
        struct flight_request *r = *(struct flight_request **)f->sent; /* of the root */

        land(f, r);
        f->take(f->owner, r, &event);
    }
}

/* ---- sending */

static void enqueue(struct flight *f, struct flight_request *r)
{
    if (f->n_waiting == f->cap) {
        f->cap = f->cap ? f->cap * 2 : 64;
        f->waiting = ctl_grow(f->waiting, f->cap, sizeof(struct flight_request *));
    }
    f->waiting[f->n_waiting++] = r;
}

void flight_add(struct flight *f, struct flight_request *r)
{
    *r = (struct flight_request){0};
    enqueue(f, r);
}

int flight_send(struct flight *f)
{
    size_t n = f->n_waiting;
    int64_t now = clock_ms(), wait_ms = TICK_MS;
    bool full = false; /* nothing more can be sent now */

    f->n_waiting = 0;
    for (size_t i = 0; i < n; i++) {
        struct flight_request *r = f->waiting[i];
        struct nvllm_error err;
        enum nvllm_code code;

        if (r->not_before_ms > now)
            wait_ms = MIN(wait_ms, r->not_before_ms - now);
        if (full || f->n_sent >= f->limit || r->not_before_ms > now) {
            enqueue(f, r);
            continue;
        }
        code = f->start(f->owner, r, &err);
        if (code == NVLLM_OK) {
            if (!tsearch(r, &f->sent, compare_ids))
                ctl_no_memory();
            f->n_sent++;
        } else if (code == NVLLM_E_BUSY) { /* the socket is full */
            full = true;
            wait_ms = MIN(wait_ms, FIRST_RETRY_MS);
            enqueue(f, r);
        } else if (nvllm_wants(f->ctl->client) == 0) { /* the connection has ended */
            full = true;
            f->dead = err;
            enqueue(f, r);
        } else {
            f->take(f->owner, r, &(struct nvllm_event){.error = &err});
        }
    }
    if (f->dead.code != NVLLM_OK)
        flight_fail(f, &f->dead);
    return (int)wait_ms;
}

/* ---- events */

/* Doubled with each try, but at least what the daemon advises, up to a minute. */
static int64_t pause_ms(const struct flight_request *r, uint32_t advice_ms)
{
    int64_t pause = FIRST_RETRY_MS << MIN(r->n_tries, MAX_DOUBLINGS);

    return MAX(MIN(pause, LAST_RETRY_MS), MIN(advice_ms, MAX_ADVICE_MS));
}

static void take_event(struct flight *f, const struct nvllm_event *event)
{
    struct flight_request **found =
        tfind(&(struct flight_request){.id = event->id}, &f->sent, compare_ids);
    struct flight_request *r = found ? *found : NULL;

    if (!r)
        return;
    if (!event->delta)
        land(f, r);
    if (!event->error || event->error->code != NVLLM_E_BUSY || f->stopping ||
        r->n_tries >= f->max_tries) {
        f->take(f->owner, r, event);
        return;
    }
    r->not_before_ms = clock_ms() + pause_ms(r, event->error->retry_after_ms);
    r->n_tries++;
    f->n_refused++;
    if (f->adapts)
        f->limit = f->n_sent > 0 ? f->n_sent : 1;
    enqueue(f, r);
}

void flight_wait(struct flight *f, int also_fd, int timeout_ms)
{
    const struct nvllm_event *event;
    struct nvllm_error err;
    enum nvllm_code code = ctl_next(f->ctl, also_fd, timeout_ms, &event, &err);

    f->wake_ns = clock_ns();
    for (int i = 0; code == NVLLM_OK; i++) {
        take_event(f, event);
        code = i < EVENTS_A_ROUND ? nvllm_next(f->ctl->client, 0, &event, &err) : NVLLM_E_TIMEOUT;
    }
    if (code != NVLLM_E_TIMEOUT)
        flight_fail(f, &err);
}

/* ---- the end */

static void cancel(const void *node, VISIT visit, void *client)
{
    const struct flight_request *r = *(struct flight_request *const *)node;

    if (visit == preorder || visit == leaf)
        nvllm_cancel(client, r->id, NULL);
}

void flight_stop(struct flight *f)
{
    f->stopping = true;
    f->stop_end = ctl_cancel_end(f->ctl);
    twalk_r(f->sent, cancel, f->ctl->client);
    while (f->n_waiting > 0)
        f->take(f->owner, f->waiting[--f->n_waiting], NULL);
}
