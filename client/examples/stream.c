/* stream.c - several prompts at a time on one connection, in a poll() loop of one's own.
 *
 *   cc stream.c $(pkg-config --cflags --libs libnvllm-client) -o stream
 *   ./stream SOCKET "Once upon a time" "The capital of France is" … */
#include <nvllm_client.h>

#include <poll.h>
#include <stdio.h>

/* All events that are here. False when the connection is over. */
static bool show_events(struct nvllm_client *client, struct nvllm_error *err)
{
    const struct nvllm_event *event;
    enum nvllm_code code;

    while ((code = nvllm_next(client, 0, &event, err)) == NVLLM_OK) {
        unsigned long long id = event->id;

        if (event->delta)
            printf("%llu: %.*s\n", id, (int)event->delta->text.len, event->delta->text.data);
        else if (event->done)
            printf("%llu: done, %u tokens in %.0f ms\n", id, event->done->completion_tokens,
                   event->done->total_ms);
        else
            printf("%llu: %s\n", id, event->error->message);
    }
    return code == NVLLM_E_TIMEOUT; /* no more for now */
}

/* Sleeps until the socket has, or takes, something. */
static void wait_for_socket(struct nvllm_client *client)
{
    struct pollfd p = {.fd = nvllm_fd(client)};
    unsigned wants = nvllm_wants(client);

    if (wants & NVLLM_WANT_READ)
        p.events |= POLLIN;
    if (wants & NVLLM_WANT_WRITE)
        p.events |= POLLOUT;
    poll(&p, 1, -1);
}

int main(int argc, char **argv)
{
    struct nvllm_client *client = NULL;
    struct nvllm_options options;
    struct nvllm_error err = {0};

    nvllm_options_init(&options);
    if (argc > 1)
        options.socket_path = argv[1];
    options.wait_ready = true;
    if (nvllm_connect(&client, &options, &err) != NVLLM_OK)
        goto fail;
    for (int i = 2; i < argc; i++) {
        struct nvllm_request request;
        uint64_t id;

        nvllm_request_init(&request);
        request.prompt = nvllm_str(argv[i]);
        request.max_tokens = 16;
        if (nvllm_generate_start(client, &id, &request, &err) != NVLLM_OK)
            goto fail;
        printf("%llu: started\n", (unsigned long long)id);
    }
    while (nvllm_pending(client) > 0) {
        if (!show_events(client, &err))
            goto fail;
        if (nvllm_pending(client) > 0)
            wait_for_socket(client);
    }
    nvllm_close(client);
    return 0;
fail:
    fprintf(stderr, "%s: %s\n", nvllm_code_name(err.code), err.message);
    nvllm_close(client);
    return 1;
}
