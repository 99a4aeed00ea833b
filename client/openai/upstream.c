/* upstream.c - see upstream.h. nvllm_process() and nvllm_next() run in the loop alone, so an event
 * is never taken away under whoever looks at it. */
#include "client/openai/upstream.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/openai/gateway.h"

enum {
    RETRY_MS = 250,
    ANSWER_MS = 10000, /* for nvllmd to tell its status, or the bytes of a token */
    MAX_EVENTS = 2048, /* of one wake-up, so that answers are written in between */
};

TAILQ_HEAD(request_list, upstream_request);

struct upstream {
    struct event_base *base;
    struct upstream_options options;
    struct nvllm_client *client; /* NULL: not connected */
    struct event *readable, *writable, *timer;
    struct request_list computes; /* generate and embed, found by user_data */
    struct request_list others;   /* found by id: there are few */
    size_t n_to_cancel;
    struct upstream_request hello; /* asks for the status, after which there is a model */
    bool greeted;                  /* hello has been answered, and model is known */
    bool refused;                  /* it has been answered by an error */
    struct nvllm_error refusal;    /* with refused: why */
    bool tried;                    /* one of the two, or there was nobody to answer */
    char model[256];
    struct nvllm_error why; /* there is no model */
};

static void lose(struct upstream *u, const struct nvllm_error *why);

static void set_timer(struct upstream *u, int ms)
{
    const struct timeval t = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};

    if (ms >= 0)
        event_add(u->timer, &t);
    else if (event_pending(u->timer, EV_TIMEOUT, NULL))
        event_del(u->timer);
}

/* Watches the socket for what the client wants now, until its next deadline. */
static void watch(struct upstream *u)
{
    unsigned wants = nvllm_wants(u->client);

    if (wants & NVLLM_WANT_READ)
        event_add(u->readable, NULL);
    else
        event_del(u->readable);
    if (wants & NVLLM_WANT_WRITE)
        event_add(u->writable, NULL);
    set_timer(u, u->n_to_cancel > 0 ? 0 : nvllm_timeout(u->client));
}

/* ---- events */

static struct upstream_request *find(struct upstream *u, const struct nvllm_event *event)
{
    struct upstream_request *q = event->user_data;

    if (q)
        return q;
    TAILQ_FOREACH (q, &u->others, link)
        if (q->id == event->id)
            return q;
    return NULL;
}

static void remove_request(struct upstream *u, struct upstream_request *q, bool is_computed)
{
    u->n_to_cancel -= q->to_cancel;
    TAILQ_REMOVE(is_computed ? &u->computes : &u->others, q, link);
}

static void dispatch(struct upstream *u, const struct nvllm_event *event)
{
    struct upstream_request *q = find(u, event);

    if (!q)
        return;
    if (event->type != NVLLM_EVENT_DELTA)
        remove_request(u, q, event->user_data != NULL);
    q->event(q, event);
}

static void cancel_marked(struct upstream *u)
{
    struct upstream_request *q;

    TAILQ_FOREACH (q, &u->computes, link)
        if (q->to_cancel && nvllm_cancel(u->client, q->id, NULL) == NVLLM_OK) {
            q->to_cancel = false;
            u->n_to_cancel--;
        }
}

/* Takes what has come, and watches for more. */
static void run(struct upstream *u)
{
    const struct nvllm_event *event;
    enum nvllm_code code = NVLLM_OK;
    struct nvllm_error err;

    nvllm_process(u->client, NULL); /* nvllm_next() reports its errors */
    for (int i = 0; i < MAX_EVENTS && code == NVLLM_OK; i++) {
        code = nvllm_next(u->client, 0, &event, &err);
        if (code == NVLLM_OK)
            dispatch(u, event);
    }
    if (code != NVLLM_OK && nvllm_wants(u->client) == 0)
        lose(u, &err);
    else if (u->refused)
        lose(u, &u->refusal);
    u->options.after(u->options.arg, !u->client);
    if (u->n_to_cancel > 0 && u->client)
        cancel_marked(u);
    if (u->client)
        watch(u);
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
    struct upstream *u = arg;

    (void)fd;
    (void)what;
    if (u->client)
        run(u);
}

/* ---- the connection */

static void on_status(struct upstream_request *q, const struct nvllm_event *event)
{
    struct upstream *u = (struct upstream *)((char *)q - offsetof(struct upstream, hello));

    if (event->type != NVLLM_EVENT_STATUS) {
        u->refusal = *event->error;
        u->refused = true;
        return;
    }
    snprintf(u->model, sizeof(u->model), "%s", event->status->model);
    u->greeted = u->tried = true;
    gateway_log("connected", "nvllmd serves %s", u->model);
}

static bool start(struct upstream *u, struct request_list *list, struct upstream_request *q,
                  enum nvllm_code code)
{
    if (code != NVLLM_OK)
        return false;
    TAILQ_INSERT_TAIL(list, q, link);
    watch(u);
    return true;
}

static void connect_again(struct upstream *u)
{
    struct nvllm_options o;
    struct nvllm_error err;
    int fd;

    nvllm_options_init(&o);
    o.socket_path = u->options.socket_path;
    o.name = "nvllm-openai/" NVLLM_VERSION;
    o.reconnect = false; /* here: the next daemon may serve another model */
    if (nvllm_connect_start(&u->client, &o, &err) != NVLLM_OK) {
        lose(u, &err);
        return;
    }
    fd = nvllm_fd(u->client);
    event_assign(u->readable, u->base, fd, EV_READ | EV_PERSIST, on_ready, u);
    event_assign(u->writable, u->base, fd, EV_WRITE, on_ready, u);
    u->hello = (struct upstream_request){.event = on_status};
    u->refused = false;
    if (!upstream_status(u, &u->hello, &err))
        lose(u, &err);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct upstream *u = arg;

    (void)fd;
    (void)what;
    if (u->client)
        run(u);
    else
        connect_again(u);
}

static void end_all(struct upstream *u, struct request_list *list, const struct nvllm_error *why)
{
    const struct nvllm_event event = {.type = NVLLM_EVENT_ERROR, .error = why};
    struct upstream_request *q;

    while ((q = TAILQ_FIRST(list)) != NULL) {
        remove_request(u, q, list == &u->computes);
        q->event(q, &event);
    }
}

/* The connection has ended, or could not be made: tries again soon. */
static void lose(struct upstream *u, const struct nvllm_error *why)
{
    const struct nvllm_error error = *why;

    if (u->client) {
        event_del(u->readable);
        event_del(u->writable);
        nvllm_close(u->client);
    }
    u->client = NULL;
    if (u->greeted || u->why.code != error.code)
        gateway_log("not_connected", "%s", error.message);
    u->greeted = false;
    u->tried = true;
    u->why = error;
    end_all(u, &u->computes, &error);
    end_all(u, &u->others, &error);
    set_timer(u, RETRY_MS);
}

struct upstream *upstream_new(struct event_base *base, const struct upstream_options *options)
{
    struct upstream *u = calloc(1, sizeof(*u));

    if (!u)
        return NULL;
    u->base = base;
    u->options = *options;
    u->why = (struct nvllm_error){.code = NVLLM_E_UNAVAILABLE, .message = "connecting to nvllmd"};
    TAILQ_INIT(&u->computes);
    TAILQ_INIT(&u->others);
    u->readable = event_new(base, -1, 0, on_ready, u);
    u->writable = event_new(base, -1, 0, on_ready, u);
    u->timer = evtimer_new(base, on_timer, u);
    if (!u->readable || !u->writable || !u->timer) {
        upstream_free(u);
        return NULL;
    }
    set_timer(u, 0);
    return u;
}

void upstream_free(struct upstream *u)
{
    static const struct nvllm_error gone = {.code = NVLLM_E_CONNECTION,
                                            .message = "the server has ended"};
    struct event *const events[] = {u ? u->readable : NULL, u ? u->writable : NULL,
                                    u ? u->timer : NULL};

    if (!u)
        return;
    end_all(u, &u->computes, &gone);
    end_all(u, &u->others, &gone);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        if (events[i])
            event_free(events[i]);
    nvllm_close(u->client);
    free(u);
}

bool upstream_tried(const struct upstream *u)
{
    return u->tried;
}

const char *upstream_model(const struct upstream *u, struct nvllm_error *err)
{
    if (u->greeted)
        return u->model;
    *err = u->why;
    return NULL;
}

/* ---- requests */

static bool no_client(const struct upstream *u, struct nvllm_error *err)
{
    if (!u->client)
        *err = u->why;
    return !u->client;
}

bool upstream_generate(struct upstream *u, struct upstream_request *q,
                       const struct nvllm_request *request, struct nvllm_error *err)
{
    struct nvllm_request own = *request;

    if (no_client(u, err))
        return false;
    own.user_data = q;
    return start(u, &u->computes, q, nvllm_generate_start(u->client, &q->id, &own, err));
}

bool upstream_embed(struct upstream *u, struct upstream_request *q,
                    const struct nvllm_embed_options *options, struct nvllm_error *err)
{
    struct nvllm_embed_options own = *options;

    if (no_client(u, err))
        return false;
    own.user_data = q;
    return start(u, &u->computes, q, nvllm_embed_start(u->client, &q->id, &own, -1, err));
}

bool upstream_token_bytes(struct upstream *u, struct upstream_request *q, const int32_t *ids,
                          size_t n, struct nvllm_error *err)
{
    return !no_client(u, err) &&
           start(u, &u->others, q,
                 nvllm_token_bytes_start(u->client, &q->id, ids, n, ANSWER_MS, err));
}

bool upstream_status(struct upstream *u, struct upstream_request *q, struct nvllm_error *err)
{
    return !no_client(u, err) &&
           start(u, &u->others, q, nvllm_get_status_start(u->client, &q->id, ANSWER_MS, err));
}

void upstream_cancel(struct upstream *u, struct upstream_request *q)
{
    if (q->to_cancel || !u->client)
        return;
    q->to_cancel = true;
    u->n_to_cancel++;
    set_timer(u, 0);
}
