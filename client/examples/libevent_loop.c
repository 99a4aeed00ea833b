/* libevent_loop.c - requests in a libevent loop; nothing here ever waits by itself.
 *
 *   cc libevent_loop.c $(pkg-config --cflags --libs libnvllm-client libevent_core) -o libevent_loop
 *   ./libevent_loop SOCKET PROMPT… */
#include <event2/event.h>
#include <nvllm_client.h>

#include <stdio.h>

struct app {
    struct event_base *base;
    struct event *event; /* the socket, and the client's next deadline */
    struct nvllm_client *client;
    int n_failed;
};

static void show(struct app *app, const struct nvllm_event *event)
{
    unsigned long long id = event->id;

    switch (event->type) {
    case NVLLM_EVENT_DELTA:
        printf("%llu: %.*s\n", id, (int)event->delta->text.len, event->delta->text.data);
        break;
    case NVLLM_EVENT_DONE:
        printf("%llu: done, %u tokens\n", id, event->done->completion_tokens);
        break;
    case NVLLM_EVENT_ERROR:
        printf("%llu: %s: %s\n", id, nvllm_code_name(event->error->code), event->error->message);
        app->n_failed++;
        break;
    default: /* of requests that are not made here */
        break;
    }
}

static void on_ready(evutil_socket_t fd, short what, void *arg);

/* Watches the socket for what the client wants now, until its next deadline. */
static void watch(struct app *app)
{
    unsigned wants = nvllm_wants(app->client);
    int ms = nvllm_timeout(app->client);
    struct timeval t = {ms / 1000, ms % 1000 * 1000};
    short what = 0;

    if (wants & NVLLM_WANT_READ)
        what |= EV_READ;
    if (wants & NVLLM_WANT_WRITE)
        what |= EV_WRITE;
    event_assign(app->event, app->base, nvllm_fd(app->client), what, on_ready, app);
    event_add(app->event, ms < 0 ? NULL : &t);
}

static void on_ready(evutil_socket_t fd, short what, void *arg)
{
    const struct nvllm_event *event;
    struct nvllm_error err;
    struct app *app = arg;
    enum nvllm_code code;

    (void)fd;
    (void)what;
    nvllm_process(app->client, NULL); /* nvllm_next() reports its errors */
    while ((code = nvllm_next(app->client, 0, &event, &err)) == NVLLM_OK)
        show(app, event);
    if (nvllm_wants(app->client) == 0) { /* the connection is over */
        fprintf(stderr, "%s: %s\n", nvllm_code_name(code), err.message);
        app->n_failed++;
        return;
    }
    if (nvllm_pending(app->client) > 0)
        watch(app);
}

int main(int argc, char **argv)
{
    struct app app = {.base = event_base_new()};
    struct nvllm_options options;
    struct nvllm_error err;

    if (argc < 3 || !app.base) {
        fprintf(stderr, "usage: libevent_loop SOCKET PROMPT...\n");
        return 2;
    }
    nvllm_options_init(&options);
    options.socket_path = argv[1];
    if (nvllm_connect_start(&app.client, &options, &err) != NVLLM_OK)
        goto fail;
    for (int i = 2; i < argc; i++) {
        struct nvllm_request request;
        uint64_t id;

        nvllm_request_init(&request);
        request.prompt = nvllm_str(argv[i]);
        request.max_tokens = 16;
        request.temperature = 0;
        request.timeout_ms = 60000;
        if (nvllm_generate_start(app.client, &id, &request, &err) != NVLLM_OK)
            goto fail;
    }
    app.event = event_new(app.base, nvllm_fd(app.client), 0, on_ready, &app);
    watch(&app);
    event_base_dispatch(app.base); /* ends when nothing is watched any more */
    event_free(app.event);
    nvllm_close(app.client);
    event_base_free(app.base);
    return app.n_failed == 0 ? 0 : 1;
fail:
    fprintf(stderr, "%s: %s\n", nvllm_code_name(err.code), err.message);
    nvllm_close(app.client);
    event_base_free(app.base);
    return 1;
}
