/* test_client_loop.c - libnvllm-client as part of a program: in its event loop, with deadlines that
 * are kept on this side, in several threads and across fork. */
#include "client_rig.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>

#include "client/lib/clock.h"
#include "tests/unit/run_suite.h"

enum { MS = 1000 };

/* One iteration of a program's loop: sleeps as the library says, then lets it work. */
static enum nvllm_code iterate(void)
{
    unsigned wants = nvllm_wants(client);
    struct pollfd p = {.fd = nvllm_fd(client)};
    int timeout = nvllm_timeout(client);

    p.events =
        (short)((wants & NVLLM_WANT_READ ? POLLIN : 0) | (wants & NVLLM_WANT_WRITE ? POLLOUT : 0));
    poll(&p, 1, timeout < 0 || timeout > MS ? MS : timeout);
    return nvllm_process(client, &err);
}

static enum nvllm_code connect_later(int timeout_ms)
{
    struct nvllm_options options;

    nvllm_options_init(&options);
    options.fd = open_pair();
    options.timeout_ms = timeout_ms;
    return nvllm_connect_start(&client, &options, &err);
}

static uint64_t start_for(int timeout_ms)
{
    struct nvllm_request request = request_of("x");
    uint64_t id = 0;

    request.timeout_ms = timeout_ms;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &request, &err), NVLLM_OK);
    return id;
}

/* n deltas in one write. */
static void server_deltas(uint64_t id, int n)
{
    struct frame_buffer b = {0};
    FRAME(f, d, Delta, DELTA, delta, DELTA, id);

    d.has_text = true;
    d.text = (ProtobufCBinaryData){40, (uint8_t *)"0123456789012345678901234567890123456789"};
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(frame_buffer_put(&b, &f.base), 0);
    server_write(&server, b.data, b.end);
    frame_buffer_deinit(&b);
}

static void expect_none(void)
{
    const struct nvllm_event *event;

    ck_assert_int_eq(nvllm_next(client, 0, &event, &err), NVLLM_E_TIMEOUT);
}

static void expect_given_up(const struct nvllm_event *event, uint64_t id)
{
    ck_assert_int_eq(event->type, NVLLM_EVENT_ERROR);
    ck_assert_uint_eq(event->id, id);
    ck_assert_int_eq(event->error->code, NVLLM_E_TIMEOUT);
    ck_assert(event->error->retryable);
    ck_assert_str_ne(event->error->message, "");
}

/* ---- connecting without waiting */

/* Requests may be started before the daemon has said a word, and are behind the greeting. */
TEST(requests_before_the_greeting)
{
    uint64_t id;

    ck_assert_int_eq(connect_later(MS), NVLLM_OK);
    ck_assert(!nvllm_greeted(client));
    id = start_for(-1);
    ck_assert_int_eq(server_read(&server)->op_case, NVLLM__V1__CLIENT_FRAME__OP_HELLO);
    ck_assert_int_eq(server_read(&server)->op_case, NVLLM__V1__CLIENT_FRAME__OP_GENERATE);
    ck_assert_int_gt(nvllm_timeout(client), 0);
    server_welcome(&server, NVLLM__V1__STATE__STATE_READY);
    ck_assert_int_eq(iterate(), NVLLM_OK);
    expect_none();
    ck_assert(nvllm_greeted(client));
    ck_assert_int_eq(nvllm_timeout(client), -1);
    server_delta(&server, id, "hi", NVLLM_FINISH_STOP);
    ck_assert_int_eq(iterate(), NVLLM_OK);
    expect_delta(next(), id, "hi");
}

/* A daemon that never greets is given up at the deadline, for good. */
TEST(no_greeting_in_time)
{
    const struct nvllm_event *event;
    int64_t began = clock_ms();

    ck_assert_int_eq(connect_later(50), NVLLM_OK);
    while (iterate() == NVLLM_OK) {
        expect_none();
        ck_assert_int_lt(clock_ms() - began, 10 * MS);
    }
    ck_assert_int_eq(err.code, NVLLM_E_TIMEOUT);
    ck_assert_int_ge(clock_ms() - began, 50);
    ck_assert_uint_eq(nvllm_wants(client), 0);
    ck_assert_int_eq(nvllm_next(client, MS, &event, &err), NVLLM_E_TIMEOUT);
    ck_assert_str_eq(err.message, "nvllmd does not answer");
}

/* A socket that is not there is said at once. */
TEST(nobody_listens, .no_fixture = true)
{
    struct nvllm_options options;

    nvllm_options_init(&options);
    options.socket_path = "/nowhere/nvllm.sock";
    options.wait_start = true; /* does not apply */
    client = (struct nvllm_client *)&options;
    ck_assert_int_eq(nvllm_connect_start(&client, &options, &err), NVLLM_E_NOT_RUNNING);
    ck_assert_ptr_null(client);
}

/* ---- deadlines of requests */

/* A request of a daemon that hangs ends with an error when its time is over: it is cancelled, what
 * still comes of it is dropped, and the connection goes on. */
TEST(request_is_given_up)
{
    uint64_t id, other;
    int left;

    id = start_for(700);
    other = start_for(-1);
    left = nvllm_timeout(client);
    ck_assert(left >= 0 && left <= 700);
    server_delta(&server, id, "be", 0);
    expect_delta(next(), id, "be");
    ck_assert_uint_eq(nvllm_pending(client), 2);
    expect_given_up(next(), id); /* nvllm_next() wakes up for it by itself */
    ck_assert_uint_eq(nvllm_pending(client), 1);
    ck_assert_int_eq(server_read(&server)->op_case, NVLLM__V1__CLIENT_FRAME__OP_GENERATE);
    ck_assert_int_eq(server_read(&server)->op_case, NVLLM__V1__CLIENT_FRAME__OP_GENERATE);
    ck_assert_uint_eq(server_read(&server)->cancel->target, id);
    server_delta(&server, id, "late", NVLLM_FINISH_CANCELLED);
    server_done(&server, id);
    server_delta(&server, other, "y", NVLLM_FINISH_STOP);
    expect_delta(next(), other, "y");
    expect_none();
    ck_assert_int_eq(nvllm_timeout(client), -1);
}

/* No time at all is over at once, whatever the daemon does. */
TEST(request_without_time)
{
    uint64_t id = start_for(0);

    ck_assert_int_eq(nvllm_timeout(client), 0);
    expect_given_up(next(), id);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* Each request has its own deadline, and one that has ended has none. */
TEST(many_deadlines)
{
    uint64_t ids[3];
    int64_t began;

    began = clock_ms();
    ids[0] = start_for(3000);
    ids[1] = start_for(1000);
    ids[2] = start_for(2000);
    server_done(&server, ids[2]);
    ck_assert_uint_eq(next()->id, ids[2]);
    while (nvllm_pending(client) > 0) {
        const struct nvllm_event *event;

        ck_assert_int_eq(iterate(), NVLLM_OK);
        while (nvllm_next(client, 0, &event, &err) == NVLLM_OK) {
            size_t i = nvllm_pending(client) == 1 ? 1 : 0;

            expect_given_up(event, ids[i]);
            ck_assert_int_ge(clock_ms() - began, i ? 1000 : 3000);
        }
    }
    ck_assert_int_lt(clock_ms() - began, 10 * MS);
    ck_assert_int_eq(nvllm_timeout(client), -1);
}

/* Many that are over at once each get their end. */
TEST(all_over_at_once)
{
    enum { N = 100 };
    bool seen[N + 1] = {false};

    for (int i = 0; i < N; i++)
        start_for(20);
    for (int i = 0; i < N; i++) {
        const struct nvllm_event *event = next();

        ck_assert(event->id >= 1 && event->id <= N && !seen[event->id]);
        seen[event->id] = true;
        expect_given_up(event, event->id);
    }
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

static int ignore(void *arg, const struct nvllm_event *event)
{
    (void)arg;
    (void)event;
    return 0;
}

/* The call that runs one request heeds the request's time as well as its own. */
TEST(blocking_call_heeds_the_request)
{
    struct nvllm_request request = request_of("x");
    int64_t began = clock_ms();

    request.timeout_ms = 30;
    ck_assert_int_eq(nvllm_generate(client, &request, ignore, NULL, -1, &err), NVLLM_E_TIMEOUT);
    ck_assert_int_lt(clock_ms() - began, 5 * MS);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* ---- short operations without waiting */

/* Tokens, texts and the status come as events among others, and count as pending until then. */
TEST(answers_as_events)
{
    const struct nvllm_message message = {.role = "user", .content = {"x", 1}};
    ProtobufCBinaryData bytes = {2, (uint8_t *)"hi"};
    const struct nvllm_event *event;
    struct nvllm_chat chat = chat_of(&message, 1);
    int32_t token = 7;
    uint64_t ids[5];

    ids[0] = start_for(-1);
    ck_assert_int_eq(nvllm_tokenize_start(client, &ids[1], nvllm_str("hi"), true, MS, &err), 0);
    ck_assert_int_eq(nvllm_detokenize_start(client, &ids[2], &token, 1, true, -1, &err), 0);
    ck_assert_int_eq(nvllm_render_start(client, &ids[3], &chat, MS, &err), 0);
    ck_assert_int_eq(nvllm_get_status_start(client, &ids[4], MS, &err), 0);
    ck_assert_uint_eq(nvllm_pending(client), 5);
    server_read(&server);
    ck_assert(server_read(&server)->tokenize->special);
    ck_assert_int_eq(server_read(&server)->detokenize->ids[0], 7);
    ck_assert_str_eq(server_read(&server)->render->chat->messages[0]->role, "user");
    ck_assert_int_eq(server_read(&server)->op_case, NVLLM__V1__CLIENT_FRAME__OP_GET_STATUS);
    server_status(&server, ids[4], NVLLM__V1__STATE__STATE_DRAINING);
    server_delta(&server, ids[0], "a", NVLLM_FINISH_STOP);
    server_text(&server, ids[2], "b\0c", 3);
    server_error(&server, ids[3], NVLLM__V1__ERROR_CODE__ERROR_UNSUPPORTED, "no template");
    {
        FRAME(f, t, Tokens, TOKENS, tokens, TOKENS, ids[1]);
        t.n_ids = t.n_tokens = 1;
        t.ids = &token;
        t.tokens = &bytes;
        server_send(&server, &f);
    }
    event = next();
    ck_assert(event->type == NVLLM_EVENT_STATUS && event->id == ids[4]);
    ck_assert_int_eq(event->status->state, NVLLM_STATE_DRAINING);
    ck_assert_uint_eq(nvllm_pending(client), 4);
    expect_delta(next(), ids[0], "a");
    event = next();
    ck_assert(event->type == NVLLM_EVENT_TEXT && event->id == ids[2]);
    ck_assert_mem_eq(event->text->data, "b\0c", 3);
    event = next();
    ck_assert(event->type == NVLLM_EVENT_ERROR && event->id == ids[3]);
    ck_assert_int_eq(event->error->code, NVLLM_E_UNSUPPORTED);
    event = next();
    ck_assert(event->type == NVLLM_EVENT_TOKENS && event->id == ids[1]);
    ck_assert(event->tokens->n_tokens == 1 && event->tokens->ids[0] == 7);
    ck_assert(!event->delta && !event->text && !event->status);
    ck_assert_uint_eq(nvllm_pending(client), 1);
}

/* One that is not answered in time ends with an error, and its late answer is dropped. */
TEST(short_operation_is_given_up)
{
    uint64_t id;

    ck_assert_int_eq(nvllm_get_status_start(client, &id, 30, &err), NVLLM_OK);
    expect_given_up(next(), id);
    ck_assert_uint_eq(nvllm_pending(client), 0);
    server_status(&server, id, NVLLM__V1__STATE__STATE_READY);
    ck_assert_int_eq(nvllm_process(client, &err), NVLLM_OK);
    expect_none();
}

/* The daemon is asked to end one that it may have work with, when the program cancels it and when
 * its time is over; the end of the first still comes. */
TEST(short_operation_is_cancelled)
{
    const struct nvllm_event *event;
    const client_frame *f;
    uint64_t ids[2];

    ck_assert_int_eq(nvllm_tokenize_start(client, &ids[0], nvllm_str("a"), true, -1, &err), 0);
    ck_assert_int_eq(nvllm_cancel(client, ids[0], &err), NVLLM_OK);
    server_read(&server);
    f = server_read(&server);
    ck_assert_int_eq(f->op_case, NVLLM__V1__CLIENT_FRAME__OP_CANCEL);
    ck_assert_uint_eq(f->cancel->target, ids[0]);
    server_error(&server, ids[0], NVLLM__V1__ERROR_CODE__ERROR_CANCELLED, "cancelled");
    event = next();
    ck_assert(event->type == NVLLM_EVENT_ERROR && event->id == ids[0]);
    ck_assert_int_eq(event->error->code, NVLLM_E_CANCELLED);
    ck_assert_int_eq(nvllm_tokenize_start(client, &ids[1], nvllm_str("a"), true, 20, &err), 0);
    expect_given_up(next(), ids[1]);
    server_read(&server);
    ck_assert_uint_eq(server_read(&server)->cancel->target, ids[1]);
    server_error(&server, ids[1], NVLLM__V1__ERROR_CODE__ERROR_CANCELLED, "cancelled");
    expect_none();
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* What cannot be sent is refused at once, and no request is pending. */
TEST(short_operations_asked_wrongly)
{
    struct nvllm_chat never_prepared = {0};
    uint64_t id = 77;

    ck_assert_int_eq(nvllm_tokenize_start(client, &id, (struct nvllm_text){NULL, 1}, true, MS,
                                          &err),
                     NVLLM_E_INVALID);
    ck_assert_int_eq(nvllm_detokenize_start(client, &id, NULL, 1, true, MS, &err), NVLLM_E_INVALID);
    ck_assert_int_eq(nvllm_render_start(client, &id, &never_prepared, MS, &err), NVLLM_E_INVALID);
    ck_assert_int_eq(nvllm_render_start(client, &id, NULL, MS, &err), NVLLM_E_INVALID);
    ck_assert_int_eq(nvllm_generate_start(client, &id, NULL, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "request");
    ck_assert_uint_eq(id, 77);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* ---- what a loop may rely on */

/* A loop that takes one event at a time is told not to sleep while another is here. */
TEST(no_sleep_while_events_are_here)
{
    uint64_t id = start_for(-1);

    ck_assert_int_eq(nvllm_timeout(client), -1);
    server_delta(&server, id, "a", 0);
    server_delta(&server, id, "b", 0);
    ck_assert_int_eq(nvllm_process(client, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_timeout(client), 0);
    expect_delta(next(), id, "a");
    ck_assert_int_eq(nvllm_timeout(client), 0);
    expect_delta(next(), id, "b");
    ck_assert_int_eq(nvllm_timeout(client), -1);
}

/* Process once and fetch until nothing is here: that empties the socket, as a loop that is told of
 * changes alone (EPOLLET) needs it, even past the queue's limit. */
TEST(one_iteration_empties_the_socket)
{
    enum { N = 1500 };
    const struct nvllm_event *event;
    int n = 0;
    uint64_t id;
    char left;

    greeted_with(1000);
    id = start_for(-1);
    server_deltas(id, N); /* more than the library reads at a time */
    ck_assert_int_eq(nvllm_process(client, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_process(client, &err), NVLLM_OK);
    while (nvllm_next(client, 0, &event, &err) == NVLLM_OK)
        n++;
    ck_assert_int_eq(n, N);
    ck_assert_int_eq(recv(nvllm_fd(client), &left, 1, MSG_PEEK | MSG_DONTWAIT), -1);
}

static int count(void *arg, const struct nvllm_event *event)
{
    *(int *)arg += event->type == NVLLM_EVENT_DELTA;
    return 0;
}

/* However small the queue, a call that takes its events as they come is never too slow for it. */
TEST(small_queue_and_a_fast_stream)
{
    enum { N = 3000 };
    struct nvllm_request request = request_of("x");
    int n = 0;

    greeted_with(100);
    server_deltas(1, N);
    server_done(&server, 1);
    ck_assert_msg(nvllm_generate(client, &request, count, &n, MS, &err) == NVLLM_OK, "%s",
                  err.message);
    ck_assert_int_eq(n, N);
}

/* Calls that only look at the client leave the current event as it is. */
TEST(event_outlives_getters)
{
    const struct nvllm_event *event;
    uint64_t id = start_for(5 * MS);

    server_delta(&server, id, "abc", 0);
    server_delta(&server, id, "xyz", 0);
    event = next();
    nvllm_fd(client);
    nvllm_wants(client);
    nvllm_timeout(client);
    nvllm_pending(client);
    nvllm_greeted(client);
    expect_delta(event, id, "abc");
    ck_assert_int_eq(event->delta->token_ids[0], 3);
}

/* Events of others that arrive while a call waits are kept in order, each with its text and ids. */
TEST(kept_deltas_are_whole)
{
    enum { N = 200 };
    const struct nvllm_status *status;
    uint64_t id = start_for(-1);

    for (int i = 0; i < N; i++) {
        char text[32];

        snprintf(text, sizeof(text), "%*d", i % 20, i);
        server_delta(&server, id, text, 0);
    }
    server_done(&server, id);
    server_status(&server, id + 1, NVLLM__V1__STATE__STATE_READY);
    ck_assert_int_eq(nvllm_get_status(client, MS, &status, &err), NVLLM_OK);
    ck_assert_uint_eq(nvllm_pending(client), 1);
    for (int i = 0; i < N; i++) {
        const struct nvllm_event *event = next();
        char text[32];

        snprintf(text, sizeof(text), "%*d", i % 20, i);
        expect_delta(event, id, text);
        ck_assert_int_eq(event->delta->token_ids[0], (int)strlen(text));
    }
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* An answer larger than the queue may be is read all the same: it is one. */
TEST(answer_larger_than_the_queue)
{
    enum { LARGE = 100000 };
    char *text = malloc(LARGE + 1);
    uint64_t id;

    greeted_with(1000);
    id = start_for(-1);
    memset(text, 'a', LARGE);
    text[LARGE] = '\0';
    server_delta(&server, id, text, 0);
    expect_delta(next(), id, text);
    free(text);
}

/* ---- processes and threads */

/* A child that closes its copy does not end the parent's connection. */
TEST(child_closes_parent_goes_on)
{
    uint64_t id = start_for(-1);
    pid_t child;
    int status;

    server_read(&server);
    child = fork();
    if (child == 0) {
        close(server.fd);
        nvllm_close(client);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(recv(server.fd, &status, 1, MSG_DONTWAIT), -1); /* no end, and no byte */
    server_delta(&server, id, "on", NVLLM_FINISH_STOP);
    expect_delta(next(), id, "on");
}

/* No program that is started gets the socket, not even one that the caller had opened. */
TEST(sockets_close_on_exec)
{
    int fd = open_pair();

    fcntl(fd, F_SETFD, 0);
    server_welcome(&server, NVLLM__V1__STATE__STATE_READY);
    ck_assert_int_eq(connect_fd(fd, MS, false), NVLLM_OK);
    ck_assert_int_eq(fcntl(nvllm_fd(client), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

enum { N_THREADS = 8, N_ROUNDS = 100, N_AT_A_TIME = 5 };

/* Answers each generate at once, until the client goes. */
static void *answer_all(void *arg)
{
    struct server *s = arg;
    const client_frame *f;

    server_welcome(s, NVLLM__V1__STATE__STATE_READY);
    while ((f = server_read(s)) != NULL)
        if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_GENERATE) {
            server_delta(s, f->id, "abc", NVLLM_FINISH_STOP);
            server_done(s, f->id);
        } else if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_GET_STATUS) {
            server_status(s, f->id, NVLLM__V1__STATE__STATE_READY);
        }
    server_close(s);
    return NULL;
}

/* A program's thread with a client of its own; how many ends it saw. */
static void *use_one(void *arg)
{
    struct nvllm_client *own = NULL;
    const struct nvllm_status *status;
    const struct nvllm_event *event;
    struct nvllm_options options;
    struct nvllm_request request = request_of("x");
    struct nvllm_error e;
    uintptr_t n_ends = 0;
    uint64_t id;

    nvllm_options_init(&options);
    options.fd = *(int *)arg;
    if (nvllm_connect(&own, &options, &e) != NVLLM_OK)
        return NULL;
    request.timeout_ms = 60 * MS;
    for (int round = 0; round < N_ROUNDS; round++) {
        for (int i = 0; i < N_AT_A_TIME; i++)
            nvllm_generate_start(own, &id, &request, &e);
        nvllm_get_status(own, 60 * MS, &status, &e);
        while (nvllm_pending(own) > 0 && nvllm_next(own, 60 * MS, &event, &e) == NVLLM_OK)
            n_ends += event->type == NVLLM_EVENT_DONE;
    }
    nvllm_close(own);
    return (void *)n_ends;
}

/* Threads with a client each do not disturb one another. */
TEST(a_client_a_thread, .no_fixture = true)
{
    pthread_t servers[N_THREADS], users[N_THREADS];
    struct server s[N_THREADS];
    int fds[N_THREADS][2];

    for (int i = 0; i < N_THREADS; i++) {
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds[i]), 0);
        server_init(&s[i], fds[i][1]);
        ck_assert_int_eq(pthread_create(&servers[i], NULL, answer_all, &s[i]), 0);
        ck_assert_int_eq(pthread_create(&users[i], NULL, use_one, &fds[i][0]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        void *n_ends;

        pthread_join(users[i], &n_ends);
        pthread_join(servers[i], NULL);
        ck_assert_uint_eq((uintptr_t)n_ends, N_ROUNDS * N_AT_A_TIME);
    }
}

RUN_TESTS("client_loop", greeted, teardown)
