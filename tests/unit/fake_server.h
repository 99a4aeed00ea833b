/* fake_server.h - the daemon's side of the protocol, by hand: the test says each answer. */
#ifndef NVLLM_TESTS_UNIT_FAKE_SERVER_H
#define NVLLM_TESTS_UNIT_FAKE_SERVER_H

#include <check.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/lib/nvllm_client.h"
#include "proto/frame.h"
#include "proto/nvllm.pb-c.h"
#include "proto/unpack.h"

typedef Nvllm__V1__ServerFrame server_frame;
typedef Nvllm__V1__ClientFrame client_frame;

struct server {
    int fd;
    struct frame_decoder in;
    struct unpacked *last; /* what server_read() gave last */
};

/* Of a test program. */
static struct server server = {.fd = -1};
static struct nvllm_client *client;
static struct nvllm_error err;

static inline struct nvllm_request request_of(const char *prompt)
{
    struct nvllm_request r;

    nvllm_request_init(&r);
    r.prompt = nvllm_str(prompt);
    return r;
}

static inline struct nvllm_chat chat_of(const struct nvllm_message *messages, size_t n)
{
    struct nvllm_chat chat;

    nvllm_chat_init(&chat);
    chat.messages = messages;
    chat.n_messages = n;
    return chat;
}

static inline void server_init(struct server *s, int fd)
{
    s->fd = fd;
    s->last = NULL;
    frame_decoder_init(&s->in, FRAME_LARGEST_MAX);
}

static inline void server_close(struct server *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    unpacked_free(s->last);
    s->last = NULL;
    frame_decoder_deinit(&s->in);
}

/* The client's next frame; NULL: it has closed. */
static inline const client_frame *server_read(struct server *s)
{
    const uint8_t *data;
    char buf[4096];
    size_t n;

    unpacked_free(s->last);
    s->last = NULL;
    while (frame_decoder_take(&s->in, &data, &n) == FRAME_MORE) {
        ssize_t k = read(s->fd, buf, sizeof(buf));

        if (k <= 0)
            return NULL;
        ck_assert_int_eq(frame_decoder_push(&s->in, buf, (size_t)k), 0);
    }
    ck_assert_int_eq(unpack(&s->last, &nvllm__v1__client_frame__descriptor, data, n), UNPACK_OK);
    return (const client_frame *)unpacked_message(s->last);
}

static inline void server_write(struct server *s, const void *data, size_t n)
{
    const char *p = data;

    while (n > 0) {
        ssize_t k = send(s->fd, p, n, MSG_NOSIGNAL);

        if (k <= 0)
            return; /* the client has gone, as some tests want */
        p += k;
        n -= (size_t)k;
    }
}

static inline void server_send(struct server *s, const server_frame *frame)
{
    struct frame_buffer b = {0};

    ck_assert_int_eq(frame_buffer_put(&b, &frame->base), 0);
    server_write(s, b.data + b.start, frame_buffer_bytes(&b));
    frame_buffer_deinit(&b);
}

/* A frame named f for id, with one event of this kind, named e. */
#define FRAME(f, e, Type, TYPE, kind, KIND, the_id)                                                \
    Nvllm__V1__##Type e = NVLLM__V1__##TYPE##__INIT;                                               \
    server_frame f = NVLLM__V1__SERVER_FRAME__INIT;                                                \
    f.has_id = true;                                                                               \
    f.id = (the_id);                                                                               \
    f.event_case = NVLLM__V1__SERVER_FRAME__EVENT_##KIND;                                          \
    f.kind = &e

static inline void server_welcome(struct server *s, Nvllm__V1__State state)
{
    FRAME(f, w, Welcome, WELCOME, welcome, WELCOME, 0);

    w.has_protocol = w.has_state = true;
    w.protocol = 1;
    w.state = state;
    w.server = (char *)"fake/1";
    server_send(s, &f);
}

static inline void server_delta(struct server *s, uint64_t id, const char *text, int finish)
{
    int32_t token = (int32_t)strlen(text);
    FRAME(f, d, Delta, DELTA, delta, DELTA, id);

    d.has_text = true;
    d.text = (ProtobufCBinaryData){strlen(text), (uint8_t *)text};
    d.n_token_ids = 1;
    d.token_ids = &token;
    d.has_finish_reason = finish != 0;
    d.finish_reason = (Nvllm__V1__FinishReason)finish;
    server_send(s, &f);
}

static inline void server_done(struct server *s, uint64_t id)
{
    Nvllm__V1__Usage usage = NVLLM__V1__USAGE__INIT;
    FRAME(f, d, Done, DONE, done, DONE, id);

    usage.has_prompt_tokens = usage.has_completion_tokens = true;
    usage.prompt_tokens = 7;
    usage.completion_tokens = 2;
    d.usage = &usage;
    server_send(s, &f);
}

static inline void server_error(struct server *s, uint64_t id, Nvllm__V1__ErrorCode code,
                                const char *message)
{
    FRAME(f, e, Error, ERROR, error, ERROR, id);

    e.has_code = true;
    e.code = code;
    e.message = (char *)message;
    server_send(s, &f);
}

static inline void server_text(struct server *s, uint64_t id, const char *text, size_t n)
{
    FRAME(f, t, Text, TEXT, text, TEXT, id);

    t.has_text = true;
    t.text = (ProtobufCBinaryData){n, (uint8_t *)text};
    server_send(s, &f);
}

static inline void server_status(struct server *s, uint64_t id, Nvllm__V1__State state)
{
    FRAME(f, st, Status, STATUS, status, STATUS, id);

    st.has_state = true;
    st.state = state;
    st.model = (char *)"fake-model";
    server_send(s, &f);
}

#endif
