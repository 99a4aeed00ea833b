/* test_client.c - libnvllm-client against a daemon that is played by hand, well and badly. */
#include "fake_server.h"

static struct server server;
static struct nvllm_client *client;
static struct nvllm_error err;

static enum nvllm_code connect_fd(int fd, int timeout_ms, bool wait_ready)
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

static int open_pair(void)
{
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    server_init(&server, fds[1]);
    client = NULL;
    memset(&err, 0, sizeof(err));
    return fds[0];
}

/* A client that has been greeted; the server has read its greeting. */
static void greeted(void)
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

static void teardown(void)
{
    nvllm_close(client);
    client = NULL;
    server_close(&server);
}

static uint64_t start(const char *prompt)
{
    struct nvllm_request request;
    uint64_t id = 0;

    nvllm_request_init(&request);
    request.prompt = nvllm_str(prompt);
    ck_assert_int_eq(nvllm_generate_start(client, &id, &request, &err), NVLLM_OK);
    ck_assert_uint_ne(id, 0);
    return id;
}

static const struct nvllm_event *next(void)
{
    const struct nvllm_event *event = NULL;

    ck_assert_msg(nvllm_next(client, 1000, &event, &err) == NVLLM_OK, "%s", err.message);
    return event;
}

static void expect_next_error(enum nvllm_code code)
{
    const struct nvllm_event *event = NULL;

    ck_assert_int_eq(nvllm_next(client, 1000, &event, &err), code);
    ck_assert_int_eq(err.code, code);
    ck_assert(err.message[0] != '\0');
    ck_assert_ptr_null(event);
}

static void expect_delta(const struct nvllm_event *e, uint64_t id, const char *text)
{
    ck_assert_int_eq(e->type, NVLLM_EVENT_DELTA);
    ck_assert_uint_eq(e->id, id);
    ck_assert_uint_eq(e->delta->text.len, strlen(text));
    ck_assert_mem_eq(e->delta->text.data, text, strlen(text));
}

/* ---- the ordinary way */

/* Text comes as it is made, then the end with its figures. */
START_TEST(generate_gives_deltas_and_done)
{
    const struct nvllm_event *e;
    uint64_t id;

    greeted();
    id = start("hello");
    server_delta(&server, id, "wor", 0);
    server_delta(&server, id, "ld", NVLLM_FINISH_LENGTH);
    server_done(&server, id);
    expect_delta(next(), id, "wor");
    e = next();
    expect_delta(e, id, "ld");
    ck_assert_uint_eq(e->delta->n_tokens, 1);
    ck_assert_int_eq(e->delta->token_ids[0], 2);
    ck_assert_ptr_null(e->delta->logprobs);
    ck_assert_int_eq(e->delta->finish, NVLLM_FINISH_LENGTH);
    ck_assert_uint_eq(nvllm_pending(client), 1);
    e = next();
    ck_assert_int_eq(e->type, NVLLM_EVENT_DONE);
    ck_assert_uint_eq(e->done->prompt_tokens, 7);
    ck_assert_uint_eq(e->done->completion_tokens, 2);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}
END_TEST

/* Answers to many requests find their own, in whatever order they come. */
START_TEST(many_requests_on_one_connection)
{
    enum { N = 100 };
    uint64_t ids[N];

    greeted();
    for (int i = 0; i < N; i++)
        ids[i] = start("x");
    ck_assert_uint_eq(nvllm_pending(client), N);
    for (int i = 0; i < N; i++) { /* 37 and 100 share no factor: each once, out of order */
        server_delta(&server, ids[i * 37 % N], "a", NVLLM_FINISH_STOP);
        server_done(&server, ids[i * 37 % N]);
    }
    for (int i = 0; i < N; i++) {
        expect_delta(next(), ids[i * 37 % N], "a");
        ck_assert_uint_eq(next()->id, ids[i * 37 % N]);
    }
    ck_assert_uint_eq(nvllm_pending(client), 0);
}
END_TEST

/* What is set arrives by value; what is not set does not arrive at all. */
START_TEST(request_fields_arrive)
{
    const int32_t ids[] = {5, 6};
    const struct nvllm_text stop[] = {{"a\0b", 3}};
    const struct nvllm_logit_bias bias = {42, -1.5f};
    const Nvllm__V1__Generate *g;
    struct nvllm_request r;
    uint64_t id;

    greeted();
    nvllm_request_init(&r);
    r.prompt_ids = ids;
    r.n_prompt_ids = 2;
    r.temperature = 0;
    r.seed = UINT64_MAX;
    r.has_seed = true;
    r.stop = stop;
    r.n_stop = 1;
    r.logit_bias = &bias;
    r.n_logit_bias = 1;
    r.max_tokens = 9;
    r.priority = NVLLM_PRIORITY_LOW;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
    g = server_read(&server)->generate;
    ck_assert_int_eq(g->input_case, NVLLM__V1__GENERATE__INPUT_PROMPT_IDS);
    ck_assert_uint_eq(g->prompt_ids->n_ids, 2);
    ck_assert_int_eq(g->prompt_ids->ids[1], 6);
    ck_assert(g->sampling->has_temperature && g->sampling->temperature == 0);
    ck_assert(g->sampling->has_seed && g->sampling->seed == UINT64_MAX);
    ck_assert(!g->sampling->has_top_p && !g->sampling->has_top_k && !g->sampling->has_logprobs);
    ck_assert(!g->sampling->has_repetition_penalty && !g->has_n && !g->has_deadline_ms);
    ck_assert(g->has_max_tokens && g->max_tokens == 9);
    ck_assert_uint_eq(g->stop[0].len, 3);
    ck_assert_mem_eq(g->stop[0].data, "a\0b", 3);
    ck_assert_int_eq(g->sampling->logit_bias[0]->id, 42);
    ck_assert(g->sampling->logit_bias[0]->bias == -1.5f);
    ck_assert_int_eq(g->priority, NVLLM__V1__PRIORITY__PRIORITY_LOW);
    ck_assert(g->has_stream && g->stream);
}
END_TEST

/* A chat arrives with all its parts; a text that is absent is not the same as an empty one. */
START_TEST(chat_arrives)
{
    const struct nvllm_tool_call call = {{"add", 3}, {"{\"a\": 1}", 8}, {NULL}};
    const struct nvllm_message messages[] = {
        {.role = "user", .content = {"hi\0", 3}},
        {.role = "assistant", .content = {"", 0}, .tool_calls = &call, .n_tool_calls = 1},
        {.role = "assistant", .reasoning_content = {"hm", 2}},
    };
    const struct nvllm_text tool = {"{}", 2};
    const Nvllm__V1__Chat *c;
    struct nvllm_chat chat;
    struct nvllm_request r;
    uint64_t id;

    greeted();
    nvllm_chat_init(&chat);
    chat.messages = messages;
    chat.n_messages = 3;
    chat.tools = &tool;
    chat.n_tools = 1;
    chat.enable_thinking = NVLLM_OFF;
    nvllm_request_init(&r);
    r.chat = &chat;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
    c = server_read(&server)->generate->chat;
    ck_assert_uint_eq(c->n_messages, 3);
    ck_assert_uint_eq(c->messages[0]->content.len, 3);
    ck_assert(c->messages[1]->has_content && c->messages[1]->content.len == 0);
    ck_assert(!c->messages[2]->has_content && c->messages[2]->has_reasoning_content);
    ck_assert_uint_eq(c->messages[1]->tool_calls[0]->arguments.len, 8);
    ck_assert_uint_eq(c->n_tools, 1);
    ck_assert(c->has_enable_thinking && !c->enable_thinking);
    ck_assert(!c->has_add_generation_prompt);
}
END_TEST

/* Alternatives of each token come with it. */
START_TEST(logprobs_come_with_tokens)
{
    int32_t ids[] = {8, 9}, top_ids[] = {8, 3};
    float top[] = {-0.25f, -2};
    Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT, *rows[] = {&row, &row};
    const struct nvllm_logprobs *got;
    uint64_t id;

    greeted();
    id = start("x");
    {
        FRAME(f, d, Delta, DELTA, delta, DELTA, id);

        row.has_logprob = true;
        row.logprob = -0.25f;
        row.n_top_ids = row.n_top_logprobs = 2;
        row.top_ids = top_ids;
        row.top_logprobs = top;
        d.n_token_ids = d.n_logprobs = 2;
        d.token_ids = ids;
        d.logprobs = rows;
        server_send(&server, &f);
    }
    got = next()->delta->logprobs;
    ck_assert_uint_eq(got[1].n_top, 2);
    ck_assert_int_eq(got[1].top_ids[1], 3);
    ck_assert(got[1].top_logprobs[1] == -2 && got[0].logprob == -0.25f);
}
END_TEST

/* A frame may come a byte at a time, and many in one piece. */
START_TEST(half_frames_wait_for_the_rest)
{
    struct frame_buffer b = {0};
    uint64_t id;

    greeted();
    id = start("x");
    {
        FRAME(f, d, Done, DONE, done, DONE, id);

        (void)d;
        ck_assert_int_eq(frame_buffer_put(&b, &f.base), 0);
    }
    for (size_t i = 0; i < b.end; i++) {
        const struct nvllm_event *e;

        ck_assert_int_eq(nvllm_next(client, 0, &e, &err), NVLLM_E_TIMEOUT);
        server_write(&server, b.data + i, 1);
    }
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
    frame_buffer_deinit(&b);
}
END_TEST

/* ---- a daemon that goes or lies */

/* What came before the connection broke is handed out first; then every call says so. */
START_TEST(closed_in_mid_stream)
{
    uint64_t id;

    greeted();
    id = start("x");
    server_delta(&server, id, "par", 0);
    server_close(&server);
    expect_delta(next(), id, "par");
    expect_next_error(NVLLM_E_CONNECTION);
    ck_assert(err.retryable);
    ck_assert_uint_eq(nvllm_pending(client), 0);
    expect_next_error(NVLLM_E_CONNECTION);
    ck_assert_int_eq(nvllm_process(client, &err), NVLLM_E_CONNECTION);
    ck_assert_uint_eq(nvllm_wants(client), 0);
}
END_TEST

/* A request to a daemon that has gone raises no signal. */
START_TEST(sending_to_a_closed_peer_is_an_error)
{
    struct nvllm_request r;
    uint64_t id;

    greeted();
    server_close(&server);
    nvllm_request_init(&r);
    r.prompt = nvllm_str("x");
    nvllm_generate_start(client, &id, &r, NULL);
    expect_next_error(NVLLM_E_CONNECTION);
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_CONNECTION);
}
END_TEST

static void expect_refused_greeting(const void *bytes, size_t n, enum nvllm_code code)
{
    int fd = open_pair();

    server_write(&server, bytes, n);
    shutdown(server.fd, SHUT_WR);
    ck_assert_int_eq(connect_fd(fd, 1000, false), code);
    ck_assert_ptr_null(client);
    server_close(&server);
}

/* Whatever answers at the socket and is no nvllmd is told apart, whatever it says. */
START_TEST(not_nvllmd)
{
    static const char http[] = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"
                               "<html><body>this is a web server, and a long text</body></html>";

    expect_refused_greeting("", 0, NVLLM_E_CONNECTION);
    expect_refused_greeting(http, sizeof(http) - 1, NVLLM_E_PROTOCOL);
    expect_refused_greeting("\xff\xff\xff\xff\xff\xff", 6, NVLLM_E_PROTOCOL);
    expect_refused_greeting("\xff\xff\xff\xff\x0f", 5, NVLLM_E_PROTOCOL); /* 4 GiB to come */
    expect_refused_greeting("\x03\x0a\xff\xff", 4, NVLLM_E_PROTOCOL);
    expect_refused_greeting("\x20\x0a", 2, NVLLM_E_CONNECTION); /* half a frame */
}
END_TEST

/* A daemon of another version of the protocol is named as such. */
START_TEST(other_version)
{
    int fd = open_pair();
    FRAME(f, w, Welcome, WELCOME, welcome, WELCOME, 0);

    w.has_protocol = true;
    w.protocol = 2;
    server_send(&server, &f);
    ck_assert_int_eq(connect_fd(fd, 1000, false), NVLLM_E_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(err.message, "version 2"));
}
END_TEST

/* A daemon that refuses the connection says why. */
START_TEST(refused_connection)
{
    int fd = open_pair();

    server_error(&server, 0, NVLLM__V1__ERROR_CODE__ERROR_BUSY, "too many \x1b[31mconnections");
    ck_assert_int_eq(connect_fd(fd, 1000, false), NVLLM_E_BUSY);
    ck_assert_str_eq(err.message, "too many ?[31mconnections");
}
END_TEST

/* Answers that fit no request end the connection, and crash nothing. */
START_TEST(answers_that_fit_nothing)
{
    int32_t token = 1;

    for (int i = 0; i < 9; i++) {
        uint64_t id;

        greeted();
        id = start("x");
        if (i == 0) {
            server_delta(&server, id + 1, "other id", 0);
        } else if (i == 1) {
            server_text(&server, id, "other kind", 10);
        } else if (i == 2) {
            server_welcome(&server, NVLLM__V1__STATE__STATE_READY);
        } else if (i == 3) {
            server_done(&server, 0);
        } else if (i == 4) {
            FRAME(f, d, Delta, DELTA, delta, DELTA, id);
            d.has_choice = true;
            d.choice = 1;
            server_send(&server, &f);
        } else if (i == 5) {
            Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT, *rows[] = {&row, &row};
            FRAME(f, d, Delta, DELTA, delta, DELTA, id);
            d.n_token_ids = 1;
            d.token_ids = &token;
            d.n_logprobs = 2;
            d.logprobs = rows;
            server_send(&server, &f);
        } else if (i == 6) {
            Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT, *rows[] = {&row};
            FRAME(f, d, Delta, DELTA, delta, DELTA, id);
            row.n_top_ids = 1;
            row.top_ids = &token;
            d.n_token_ids = 1;
            d.token_ids = &token;
            d.n_logprobs = 1;
            d.logprobs = rows;
            server_send(&server, &f);
        } else if (i == 7) {
            server_write(&server, "\xff\xff\xff\x7f", 4); /* over max_frame_bytes */
        } else {
            server_write(&server, "\x02\xff\xff", 3);
        }
        expect_next_error(NVLLM_E_PROTOCOL);
        ck_assert_uint_eq(nvllm_pending(client), 0);
        teardown();
    }
}
END_TEST

/* A second end of the same request is an answer to nothing. */
START_TEST(two_ends)
{
    uint64_t id;

    greeted();
    id = start("x");
    server_done(&server, id);
    server_done(&server, id);
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
    expect_next_error(NVLLM_E_PROTOCOL);
}
END_TEST

/* Kinds of events that a newer daemon has are passed over. */
START_TEST(unknown_events_are_passed_over)
{
    static const unsigned char news[] = {5, 0x08, 1, 0xfa, 0x01, 0}; /* id 1, field 31 */
    static const unsigned char own_news[] = {3, 0xfa, 0x01, 0};      /* no id */
    static const unsigned char empty[] = {0};
    uint64_t id;

    greeted();
    id = start("x");
    ck_assert_uint_eq(id, 1);
    server_write(&server, news, sizeof(news));
    server_write(&server, own_news, sizeof(own_news));
    server_write(&server, empty, sizeof(empty));
    server_done(&server, id);
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
}
END_TEST

/* Numbers outside their enum become the one that says that all went wrong. */
START_TEST(numbers_outside_their_enum)
{
    const struct nvllm_event *e;
    uint64_t id;

    greeted();
    id = start("x");
    server_delta(&server, id, "", 99);
    server_error(&server, id, (Nvllm__V1__ErrorCode)77, NULL);
    ck_assert_int_eq(next()->delta->finish, NVLLM_FINISH_ERROR);
    e = next();
    ck_assert_int_eq(e->error->code, NVLLM_E_INTERNAL);
    ck_assert_str_eq(e->error->message, "internal");
}
END_TEST

/* An error of a request ends that one alone, and keeps what the daemon said. */
START_TEST(error_of_one_request)
{
    const struct nvllm_event *e;
    uint64_t a, b;

    greeted();
    a = start("x");
    b = start("y");
    {
        FRAME(f, er, Error, ERROR, error, ERROR, a);

        er.has_code = er.has_retryable = er.has_retry_after_ms = true;
        er.code = NVLLM__V1__ERROR_CODE__ERROR_BUSY;
        er.retryable = true;
        er.retry_after_ms = 250;
        er.message = (char *)"a long \xe2\x82\xac story";
        er.field = (char *)"sampling.top_p";
        server_send(&server, &f);
    }
    server_done(&server, b);
    e = next();
    ck_assert_int_eq(e->type, NVLLM_EVENT_ERROR);
    ck_assert_int_eq(e->error->code, NVLLM_E_BUSY);
    ck_assert(e->error->retryable && e->error->retry_after_ms == 250);
    ck_assert_str_eq(e->error->field, "sampling.top_p");
    ck_assert_str_eq(e->error->message, "a long \xe2\x82\xac story");
    ck_assert_uint_eq(next()->id, b);
}
END_TEST

/* Random damage to a stream of good frames never does more than end the connection. */
START_TEST(damaged_streams)
{
    enum { ROUNDS = 3000 };
    uint64_t seed = 12345;
    int n_ends[2] = {0};

    for (int round = 0; round < ROUNDS; round++) {
        const struct nvllm_event *e;
        struct frame_buffer b = {0};
        enum nvllm_code code;
        uint64_t id;

        greeted();
        id = start("x");
        for (int i = 0; i < 3; i++) {
            int32_t ids[] = {1, 2, 3};
            Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT;
            Nvllm__V1__TokenLogprobs *rows[] = {&row, &row, &row};
            FRAME(f, d, Delta, DELTA, delta, DELTA, id);

            d.has_text = true;
            d.text = (ProtobufCBinaryData){5, (uint8_t *)"hello"};
            d.n_token_ids = d.n_logprobs = 3;
            d.token_ids = ids;
            d.logprobs = rows;
            ck_assert_int_eq(frame_buffer_put(&b, &f.base), 0);
        }
        for (int i = 0; i < 1 + round % 3; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            b.data[(seed >> 33) % b.end] ^= (uint8_t)(1u << (seed >> 60 & 7));
        }
        server_write(&server, b.data, b.end);
        server_close(&server);
        while ((code = nvllm_next(client, 1000, &e, &err)) == NVLLM_OK)
            for (size_t i = 0; e->delta && e->delta->logprobs && i < e->delta->n_tokens; i++)
                ck_assert(e->delta->logprobs[i].n_top <= 100);
        ck_assert(code == NVLLM_E_PROTOCOL || code == NVLLM_E_CONNECTION);
        n_ends[code == NVLLM_E_PROTOCOL]++;
        frame_buffer_deinit(&b);
        teardown();
    }
    /* The damage was neither always fatal nor never. */
    ck_assert_int_gt(n_ends[0], ROUNDS / 100);
    ck_assert_int_gt(n_ends[1], ROUNDS / 100);
}
END_TEST

/* ---- what is asked wrongly */

/* Requests that cannot be sent are refused with the field that is wrong. */
START_TEST(wrong_requests)
{
    struct nvllm_request r, never_prepared = {0};
    struct nvllm_message no_role = {.content = {"x", 1}};
    struct nvllm_chat chat;
    uint64_t id = 77;

    greeted();
    nvllm_request_init(&r);
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "input");
    ck_assert_int_eq(nvllm_generate_start(client, &id, &never_prepared, &err), NVLLM_E_INVALID);
    r.prompt = nvllm_str("x");
    r.top_k = (int64_t)UINT32_MAX + 1;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "sampling.top_k");
    r.top_k = -1;
    r.n_stop = 1;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "stop");
    r.n_stop = 0;
    nvllm_chat_init(&chat);
    chat.messages = &no_role;
    chat.n_messages = 1;
    r.chat = &chat;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "input"); /* two of them */
    r.prompt.data = NULL;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "messages[0]");
    r.chat = NULL;
    r.prompt = (struct nvllm_text){NULL, 5};
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_INVALID);
    ck_assert_uint_eq(id, 77);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}
END_TEST

/* More than the daemon takes in one frame is refused here, and the connection goes on. */
START_TEST(request_larger_than_the_daemon_takes)
{
    int fd = open_pair();
    char *text = calloc(1, 2000);
    struct nvllm_request r;
    uint64_t id;
    FRAME(f, w, Welcome, WELCOME, welcome, WELCOME, 0);

    w.has_protocol = w.has_max_frame_bytes = true;
    w.protocol = 1;
    w.max_frame_bytes = 1000;
    server_send(&server, &f);
    ck_assert_int_eq(connect_fd(fd, 1000, false), NVLLM_OK);
    nvllm_request_init(&r);
    r.prompt = (struct nvllm_text){text, 2000};
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_TOO_LONG);
    r.prompt.len = 500;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_OK);
    free(text);
}
END_TEST

/* A daemon that does not read makes the library say so, not wait and not grow without end. */
START_TEST(daemon_that_does_not_read)
{
    char *text = calloc(1, 100000);
    struct nvllm_request r;
    enum nvllm_code code;
    uint64_t id;
    int n = 0;

    greeted();
    nvllm_request_init(&r);
    r.prompt = (struct nvllm_text){text, 100000};
    while ((code = nvllm_generate_start(client, &id, &r, &err)) == NVLLM_OK)
        ck_assert_int_lt(++n, 100);
    ck_assert_int_eq(code, NVLLM_E_BUSY);
    ck_assert(err.retryable);
    ck_assert_int_gt(n, 18); /* max_queue_bytes, 2 MiB */
    ck_assert_uint_eq(nvllm_wants(client), NVLLM_WANT_READ | NVLLM_WANT_WRITE);
    free(text);
}
END_TEST

enum { N_LARGE = 6, LARGE_BYTES = 900000 };

static void *send_large_deltas(void *text)
{
    for (int i = 0; i < N_LARGE; i++)
        server_delta(&server, 1, text, 0);
    return NULL;
}

/* Events that nobody fetches stop being read at a limit; all of them come in the end. */
START_TEST(events_that_are_not_fetched)
{
    char *text = malloc(LARGE_BYTES + 1);
    struct nvllm_text answer;
    pthread_t thread;

    greeted();
    ck_assert_uint_eq(start("x"), 1);
    memset(text, 'a', LARGE_BYTES);
    text[LARGE_BYTES] = '\0';
    ck_assert_int_eq(pthread_create(&thread, NULL, send_large_deltas, text), 0);
    ck_assert_int_eq(nvllm_detokenize(client, NULL, 0, false, 5000, &answer, &err), NVLLM_E_BUSY);
    for (int i = 0; i < N_LARGE; i++)
        ck_assert_uint_eq(next()->delta->text.len, LARGE_BYTES);
    pthread_join(thread, NULL);
    free(text);
}
END_TEST

int main(void)
{
    TCase *good = tcase_create("good"), *bad = tcase_create("bad"), *asked = tcase_create("asked");
    Suite *s = suite_create("client");
    SRunner *r;
    int n_failed;

    tcase_add_checked_fixture(good, NULL, teardown);
    tcase_add_test(good, generate_gives_deltas_and_done);
    tcase_add_test(good, many_requests_on_one_connection);
    tcase_add_test(good, request_fields_arrive);
    tcase_add_test(good, chat_arrives);
    tcase_add_test(good, logprobs_come_with_tokens);
    tcase_add_test(good, half_frames_wait_for_the_rest);
    suite_add_tcase(s, good);
    tcase_add_checked_fixture(bad, NULL, teardown);
    tcase_set_timeout(bad, 60);
    tcase_add_test(bad, closed_in_mid_stream);
    tcase_add_test(bad, sending_to_a_closed_peer_is_an_error);
    tcase_add_test(bad, not_nvllmd);
    tcase_add_test(bad, other_version);
    tcase_add_test(bad, refused_connection);
    tcase_add_test(bad, answers_that_fit_nothing);
    tcase_add_test(bad, two_ends);
    tcase_add_test(bad, unknown_events_are_passed_over);
    tcase_add_test(bad, numbers_outside_their_enum);
    tcase_add_test(bad, error_of_one_request);
    tcase_add_test(bad, damaged_streams);
    suite_add_tcase(s, bad);
    tcase_add_checked_fixture(asked, NULL, teardown);
    tcase_set_timeout(asked, 60);
    tcase_add_test(asked, wrong_requests);
    tcase_add_test(asked, request_larger_than_the_daemon_takes);
    tcase_add_test(asked, daemon_that_does_not_read);
    tcase_add_test(asked, events_that_are_not_fetched);
    suite_add_tcase(s, asked);
    r = srunner_create(s);
    srunner_run_all(r, CK_ENV);
    n_failed = srunner_ntests_failed(r);
    srunner_free(r);
    return n_failed == 0 ? 0 : 1;
}
