/* client_script.h - a client whose daemon is a thread that plays a script. For one test program. */
#ifndef NVLLM_TESTS_UNIT_CLIENT_SCRIPT_H
#define NVLLM_TESTS_UNIT_CLIENT_SCRIPT_H

#include "fake_server.h"

#define HELLO      NVLLM__V1__CLIENT_FRAME__OP_HELLO
#define GENERATE   NVLLM__V1__CLIENT_FRAME__OP_GENERATE
#define CANCEL     NVLLM__V1__CLIENT_FRAME__OP_CANCEL
#define TOKENIZE   NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE
#define DETOKENIZE NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE
#define EMBED      NVLLM__V1__CLIENT_FRAME__OP_EMBED
#define RENDER     NVLLM__V1__CLIENT_FRAME__OP_RENDER
#define STATUS     NVLLM__V1__CLIENT_FRAME__OP_GET_STATUS
#define READY      NVLLM__V1__STATE__STATE_READY
#define LOADING    NVLLM__V1__STATE__STATE_LOADING

typedef void script(struct server *s);

static pthread_t thread;
static script *thread_script;

/* The next request, its id and kind. */
static inline uint64_t expect(struct server *s, Nvllm__V1__ClientFrame__OpCase op)
{
    const client_frame *f = server_read(s);

    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(f->op_case, op);
    return f->id;
}

static inline void *run_script(void *arg)
{
    expect(arg, HELLO);
    thread_script(arg);
    shutdown(server.fd, SHUT_WR);
    return NULL;
}

/* Connects to a server that runs the script once the client has greeted it. */
static inline enum nvllm_code serve(script *run, Nvllm__V1__State state, bool wait_ready)
{
    struct nvllm_options options;
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    server_init(&server, fds[1]);
    server_welcome(&server, state);
    thread_script = run;
    ck_assert_int_eq(pthread_create(&thread, NULL, run_script, &server), 0);
    nvllm_options_init(&options);
    options.fd = fds[0];
    options.timeout_ms = 1000;
    options.wait_ready = wait_ready;
    return nvllm_connect(&client, &options, &err);
}

static inline void end(void)
{
    nvllm_close(client);
    client = NULL;
    pthread_join(thread, NULL);
    server_close(&server);
}

#endif
