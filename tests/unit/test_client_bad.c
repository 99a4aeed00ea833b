/* test_client_bad.c - libnvllm-client against a daemon that answers badly, or goes away. */
#include "client_rig.h"
#include "tests/unit/run_suite.h"

/* ---- a daemon that goes or lies */

/* What came before the connection broke is handed out first; then every call says so. */
TEST(closed_in_mid_stream)
{
    uint64_t id = start("x");

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

/* A request to a daemon that has gone raises no signal. */
TEST(sending_to_a_closed_peer_is_an_error)
{
    struct nvllm_request r = request_of("x");
    uint64_t id;

    server_close(&server);
    nvllm_generate_start(client, &id, &r, NULL);
    expect_next_error(NVLLM_E_CONNECTION);
    ck_assert_int_eq(nvllm_generate_start(client, &id, &r, &err), NVLLM_E_CONNECTION);
}

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
TEST(not_nvllmd)
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

/* A daemon of another version of the protocol is named as such. */
TEST(other_version)
{
    int fd = open_pair();
    FRAME(f, w, Welcome, WELCOME, welcome, WELCOME, 0);

    w.has_protocol = true;
    w.protocol = 2;
    server_send(&server, &f);
    ck_assert_int_eq(connect_fd(fd, 1000, false), NVLLM_E_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(err.message, "version 2"));
}

/* A daemon that refuses the connection says why. */
TEST(refused_connection)
{
    int fd = open_pair();

    server_error(&server, 0, NVLLM__V1__ERROR_CODE__ERROR_BUSY, "too many \x1b[31mconnections");
    ck_assert_int_eq(connect_fd(fd, 1000, false), NVLLM_E_BUSY);
    ck_assert_str_eq(err.message, "too many ?[31mconnections");
}

/* A long message is cut between two characters, and not to nothing where it holds none. */
TEST(long_message)
{
    char text[sizeof(err.message) + 10] = {0};
    int fd = open_pair();

    memset(text, 0x80, sizeof(text) - 1);
    server_error(&server, 0, NVLLM__V1__ERROR_CODE__ERROR_BUSY, text);
    ck_assert_int_eq(connect_fd(fd, 1000, false), NVLLM_E_BUSY);
    ck_assert_uint_eq(strspn(err.message, "?"), sizeof(err.message) - 4);
}

/* A delta of one token with so many rows of logprobs, each with so many ids and no values. */
static void send_logprobs(uint64_t id, size_t n_rows, size_t n_ids)
{
    Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT, *rows[] = {&row, &row};
    int32_t token = 1;
    FRAME(f, d, Delta, DELTA, delta, DELTA, id);

    row.n_top_ids = n_ids;
    row.top_ids = &token;
    d.n_token_ids = 1;
    d.token_ids = &token;
    d.n_logprobs = n_rows;
    d.logprobs = rows;
    server_send(&server, &f);
}

/* Answers that fit no request end the connection, and crash nothing. */
TEST(answers_that_fit_nothing)
{
    for (int i = 0; i < 9; i++) {
        uint64_t id;

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
            send_logprobs(id, 2, 0);
        } else if (i == 6) {
            send_logprobs(id, 1, 1);
        } else if (i == 7) {
            server_write(&server, "\xff\xff\xff\x7f", 4); /* over max_frame_bytes */
        } else {
            server_write(&server, "\x02\xff\xff", 3);
        }
        expect_next_error(NVLLM_E_PROTOCOL);
        ck_assert_uint_eq(nvllm_pending(client), 0);
        greeted(); /* the next round */
    }
}

/* A second end of the same request is an answer to nothing. */
TEST(two_ends)
{
    uint64_t id = start("x");

    server_done(&server, id);
    server_done(&server, id);
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
    expect_next_error(NVLLM_E_PROTOCOL);
}

/* Kinds of events that a newer daemon has are passed over. */
TEST(unknown_events_are_passed_over)
{
    static const unsigned char news[] = {5, 0x08, 1, 0xfa, 0x01, 0}; /* id 1, field 31 */
    static const unsigned char own_news[] = {3, 0xfa, 0x01, 0};      /* no id */
    static const unsigned char empty[] = {0};
    uint64_t id = start("x");

    ck_assert_uint_eq(id, 1);
    server_write(&server, news, sizeof(news));
    server_write(&server, own_news, sizeof(own_news));
    server_write(&server, empty, sizeof(empty));
    server_done(&server, id);
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
}

/* Numbers outside their enum become the one that says that all went wrong. */
TEST(numbers_outside_their_enum)
{
    const struct nvllm_event *e;
    uint64_t id = start("x");

    server_delta(&server, id, "", 99);
    server_error(&server, id, (Nvllm__V1__ErrorCode)77, NULL);
    ck_assert_int_eq(next()->delta->finish, NVLLM_FINISH_ERROR);
    e = next();
    ck_assert_int_eq(e->error->code, NVLLM_E_INTERNAL);
    ck_assert_str_eq(e->error->message, "internal");
}

/* An error of a request ends that one alone, and keeps what the daemon said. */
TEST(error_of_one_request)
{
    const struct nvllm_event *e;
    uint64_t a, b;

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

/* Random damage to a stream of good frames never does more than end the connection. */
TEST(damaged_streams)
{
    enum { ROUNDS = 3000 };
    uint64_t seed = 12345;
    int n_ends[2] = {0};

    for (int round = 0; round < ROUNDS; round++) {
        const struct nvllm_event *e;
        struct frame_buffer b = {0};
        enum nvllm_code code;
        uint64_t id;

        id = start("x");
        for (int i = 0; i < 3; i++) {
            int32_t ids[] = {1, 2, 3};
            Nvllm__V1__TokenLogprobs row = NVLLM__V1__TOKEN_LOGPROBS__INIT;
            Nvllm__V1__TokenLogprobs *rows[] = {&row, &row, &row};
            FRAME(f, d, Delta, DELTA, delta, DELTA, id);

            d.has_text = true;
            d.text = (ProtobufCBinaryData){5, (uint8_t *)"hello"};
            d.n_token_ids = 3;
            d.n_logprobs = i == 1 ? 0 : 3; /* both ways of reading a delta */
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
        greeted(); /* the next round */
    }
    /* The damage was neither always fatal nor never. */
    ck_assert_int_gt(n_ends[0], ROUNDS / 100);
    ck_assert_int_gt(n_ends[1], ROUNDS / 100);
}

RUN_TESTS("client_bad", greeted, teardown)
