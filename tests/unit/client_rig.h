/* client_rig.h - a client and, at the other end of a socket pair, a daemon played by hand. For one
 * test program. */
#ifndef NVLLM_TESTS_UNIT_CLIENT_RIG_H
#define NVLLM_TESTS_UNIT_CLIENT_RIG_H

#include "fake_server.h"

static inline enum nvllm_code connect_fd(int fd, int timeout_ms, bool wait_ready)
{
    struct nvllm_options options;

    nvllm_options_init(&options);
    options.fd = fd;
    options.timeout_ms = timeout_ms;
    options.wait_ready = wait_ready;
    options.max_frame_bytes = 1 << 20;
    options.max_queue_bytes = 2 << 20;
    return nvllm_connect(&client, &options, &err);
}

static inline void teardown(void)
{
    nvllm_close(client);
    client = NULL;
    server_close(&server);
}

/* The client's end of a new pair; a client that is there is closed first. */
static inline int open_pair(void)
{
    int fds[2];

    teardown();
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    server_init(&server, fds[1]);
    memset(&err, 0, sizeof(err));
    return fds[0];
}

/* A client that has been greeted; the server has read its greeting. */
static inline void greeted(void)
{
    int fd = open_pair();
    const client_frame *hello;

    server_welcome(&server, NVLLM__V1__STATE__STATE_READY);
    ck_assert_msg(connect_fd(fd, 1000, false) == NVLLM_OK, "%s", err.message);
    hello = server_read(&server);
    ck_assert_int_eq(hello->op_case, NVLLM__V1__CLIENT_FRAME__OP_HELLO);
    ck_assert_uint_eq(hello->hello->protocol, 1);
    ck_assert_str_eq(hello->hello->client, "libnvllm-client");
    ck_assert_uint_eq(hello->id, 0);
}

/* Greeted likewise, with so few bytes that may be queued. */
static inline void greeted_with(size_t max_queue_bytes)
{
    struct nvllm_options options;

    nvllm_options_init(&options);
    options.fd = open_pair();
    options.max_queue_bytes = max_queue_bytes;
    server_welcome(&server, NVLLM__V1__STATE__STATE_READY);
    ck_assert_int_eq(nvllm_connect(&client, &options, &err), NVLLM_OK);
}

static inline uint64_t start(const char *prompt)
{
    struct nvllm_request request = request_of(prompt);
    uint64_t id = 0;

    ck_assert_int_eq(nvllm_generate_start(client, &id, &request, &err), NVLLM_OK);
    ck_assert_uint_ne(id, 0);
    return id;
}

static inline const struct nvllm_event *next(void)
{
    const struct nvllm_event *event = NULL;

    ck_assert_msg(nvllm_next(client, 1000, &event, &err) == NVLLM_OK, "%s", err.message);
    return event;
}

static inline void expect_next_error(enum nvllm_code code)
{
    const struct nvllm_event *event = NULL;

    ck_assert_int_eq(nvllm_next(client, 1000, &event, &err), code);
    ck_assert_int_eq(err.code, code);
    ck_assert(err.message[0] != '\0');
    ck_assert_ptr_null(event);
}

static inline void expect_delta(const struct nvllm_event *e, uint64_t id, const char *text)
{
    ck_assert_int_eq(e->type, NVLLM_EVENT_DELTA);
    ck_assert_uint_eq(e->id, id);
    ck_assert_uint_eq(e->delta->text.len, strlen(text));
    ck_assert_mem_eq(e->delta->text.data, text, strlen(text));
}

#endif
