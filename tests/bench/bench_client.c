/* bench_client.c - what a client costs a token: reading the socket, decoding, handing out.
 *
 * usage: bench_client [REQUESTS] [SECONDS]
 *
 * A thread-less stand-in for the daemon writes one delta of one token for each request, as a step
 * of the engine gives them, into a socket pair; only the library's calls are timed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/nvllm_client.h"
#include "proto/frame.h"
#include "proto/nvllm.pb-c.h"

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void fail(const char *what)
{
    fprintf(stderr, "bench_client: %s\n", what);
    exit(1);
}

static void send_all(int fd, const struct frame_buffer *b)
{
    for (size_t sent = b->start; sent < b->end;) {
        ssize_t n = write(fd, b->data + sent, b->end - sent);

        if (n <= 0)
            fail("write");
        sent += (size_t)n;
    }
}

static void put_delta(struct frame_buffer *b, uint64_t id, int32_t token)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;
    Nvllm__V1__Delta d = NVLLM__V1__DELTA__INIT;

    f.has_id = true;
    f.id = id;
    f.event_case = NVLLM__V1__SERVER_FRAME__EVENT_DELTA;
    f.delta = &d;
    d.has_choice = d.has_text = true;
    d.text = (ProtobufCBinaryData){5, (uint8_t *)" word"};
    d.n_token_ids = 1;
    d.token_ids = &token;
    if (frame_buffer_put(b, &f.base) != 0)
        fail("memory");
}

static struct nvllm_client *greet(int fds[2])
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;
    Nvllm__V1__Welcome w = NVLLM__V1__WELCOME__INIT;
    struct frame_buffer b = {0};
    struct nvllm_client *client;
    struct nvllm_options options;
    struct nvllm_error err;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0)
        fail("socketpair");
    f.event_case = NVLLM__V1__SERVER_FRAME__EVENT_WELCOME;
    f.welcome = &w;
    w.has_protocol = w.has_state = true;
    w.protocol = 1;
    w.state = NVLLM__V1__STATE__STATE_READY;
    if (frame_buffer_put(&b, &f.base) != 0)
        fail("memory");
    send_all(fds[1], &b);
    frame_buffer_deinit(&b);
    nvllm_options_init(&options);
    options.fd = fds[0];
    if (nvllm_connect(&client, &options, &err) != NVLLM_OK)
        fail(err.message);
    return client;
}

int main(int argc, char **argv)
{
    int n_requests = argc > 1 ? atoi(argv[1]) : 16;
    double seconds = argc > 2 ? atof(argv[2]) : 2, spent_us = 0;
    struct frame_buffer step = {0};
    struct nvllm_client *client;
    uint64_t n_tokens = 0, sum = 0;
    struct nvllm_error err;
    int fds[2];

    if (n_requests < 1 || n_requests > 4096)
        fail("REQUESTS is 1 to 4096");
    client = greet(fds);
    for (int i = 0; i < n_requests; i++) {
        struct nvllm_request request;
        char swallowed[256];
        uint64_t id;

        nvllm_request_init(&request);
        request.prompt = nvllm_str("x");
        if (nvllm_generate_start(client, &id, &request, &err) != NVLLM_OK)
            fail(err.message);
        if (read(fds[1], swallowed, sizeof(swallowed)) <= 0)
            fail("read");
        put_delta(&step, id, 100000 + i);
    }
    while (spent_us < seconds * 1e6) {
        const struct nvllm_event *event;
        double began;

        send_all(fds[1], &step);
        began = now_us();
        if (nvllm_process(client, &err) != NVLLM_OK)
            fail(err.message);
        while (nvllm_next(client, 0, &event, &err) == NVLLM_OK) {
            sum += (uint64_t)event->delta->token_ids[0] + event->delta->text.len;
            n_tokens++;
        }
        spent_us += now_us() - began;
    }
    printf("%d requests: %.0f ns a token, %.0f tokens/s on one core (%llu)\n", n_requests,
           spent_us * 1e3 / (double)n_tokens, (double)n_tokens * 1e6 / spent_us,
           (unsigned long long)sum);
    nvllm_close(client);
    close(fds[1]);
    frame_buffer_deinit(&step);
    return 0;
}
