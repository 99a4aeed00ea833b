/* test_client_resume.c - libnvllm-client when its daemon exits and another takes its place: which
 * requests go there, and how the others end. */
#include "client_rig.h"

#include <poll.h>
#include <sys/un.h>

#include "client/lib/clock.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

#define READY    NVLLM__V1__STATE__STATE_READY
#define LOADING  NVLLM__V1__STATE__STATE_LOADING
#define HELLO    NVLLM__V1__CLIENT_FRAME__OP_HELLO
#define GENERATE NVLLM__V1__CLIENT_FRAME__OP_GENERATE
#define STATUS   NVLLM__V1__CLIENT_FRAME__OP_GET_STATUS

enum { MS = 1000 };

static char path[128];
static int listener = -1;

static void listen_there(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strcpy(address.sun_path, path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(listener, 8), 0);
}

static void stop_listening(void)
{
    close(listener);
    listener = -1;
    unlink(path);
}

static void set_up(void)
{
    make_dir();
    snprintf(path, sizeof(path), "%s/s", dir);
    listen_there();
}

static void tear_down(void)
{
    teardown();
    stop_listening();
    remove_dir();
}

static void iterate(void)
{
    int ms = nvllm_timeout(client);
    unsigned wants = nvllm_wants(client);
    struct pollfd p = {.fd = nvllm_fd(client)};

    p.events =
        (short)((wants & NVLLM_WANT_READ ? POLLIN : 0) | (wants & NVLLM_WANT_WRITE ? POLLOUT : 0));
    poll(&p, 1, ms >= 0 && ms < MS ? ms : MS);
    nvllm_process(client, NULL);
}

static void expect_none(void)
{
    const struct nvllm_event *event;

    ck_assert_int_eq(nvllm_next(client, 0, &event, &err), NVLLM_E_TIMEOUT);
}

/* The next connection of the client, whose greeting is read and answered. */
static void accept_next(Nvllm__V1__State state)
{
    server_init(&server, accept(listener, NULL, NULL));
    ck_assert_int_ge(server.fd, 0);
    ck_assert_int_eq(server_read(&server)->op_case, HELLO);
    server_welcome(&server, state);
}

/* Likewise, and the client takes the answer. */
static void greet(Nvllm__V1__State state)
{
    accept_next(state);
    iterate();
    expect_none();
}

static void connect_as(bool reconnect, bool wait_start)
{
    struct nvllm_options options;

    nvllm_options_init(&options);
    options.socket_path = path;
    options.reconnect = reconnect;
    options.wait_start = wait_start;
    ck_assert_int_eq(nvllm_connect_start(&client, &options, &err), NVLLM_OK);
    greet(READY);
    ck_assert(nvllm_greeted(client));
}

/* The number of the next request, which the daemon has read. */
static uint64_t take(Nvllm__V1__ClientFrame__OpCase op)
{
    const client_frame *f = server_read(&server);

    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(f->op_case, op);
    return f->id;
}

/* An error of a daemon that is exiting; id 0: its last word on the connection. */
static void server_exits(uint64_t id)
{
    FRAME(f, e, Error, ERROR, error, ERROR, id);

    e.has_code = e.has_reconnect = e.reconnect = true;
    e.code = NVLLM__V1__ERROR_CODE__ERROR_UNAVAILABLE;
    e.message = (char *)"nvllmd has shut down";
    e.has_retryable = e.retryable = true;
    server_send(&server, &f);
}

static void expect_end(const struct nvllm_event *event, uint64_t id, enum nvllm_code code)
{
    ck_assert_int_eq(event->type, NVLLM_EVENT_ERROR);
    ck_assert_uint_eq(event->id, id);
    ck_assert_int_eq(event->error->code, code);
    ck_assert_str_ne(event->error->message, "");
}

static void answer(uint64_t id)
{
    ck_assert_uint_eq(take(GENERATE), id);
    server_delta(&server, id, "hi", NVLLM_FINISH_STOP);
    server_done(&server, id);
    expect_delta(next(), id, "hi");
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
}

/* A request that an exiting daemon refuses is answered by the next, once the others have ended; the
 * program sees nothing of it but another descriptor. */
TEST(a_refused_request_goes_to_the_next)
{
    uint64_t running, refused;
    int fd;

    connect_as(true, false);
    running = start("a");
    refused = start("b");
    ck_assert_uint_eq(take(GENERATE), running);
    ck_assert_uint_eq(take(GENERATE), refused);
    server_exits(refused);
    server_delta(&server, running, "x", NVLLM_FINISH_STOP);
    server_done(&server, running);
    expect_delta(next(), running, "x");
    ck_assert_int_eq(next()->type, NVLLM_EVENT_DONE);
    expect_none();
    ck_assert_uint_eq(nvllm_pending(client), 1);
    fd = nvllm_fd(client);
    server_exits(0);
    server_close(&server);
    iterate();
    expect_none();
    ck_assert_int_ne(nvllm_fd(client), fd);
    greet(READY);
    answer(refused);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* So are a request that was not read any more, and one that is made afterwards. */
TEST(requests_that_nobody_has_read_go_to_the_next)
{
    uint64_t unread, later;

    connect_as(true, false);
    unread = start("a");
    server_exits(0);
    server_close(&server);
    iterate();
    expect_none();
    later = start("b");
    greet(READY);
    ck_assert_uint_eq(take(GENERATE), unread);
    ck_assert_uint_eq(take(GENERATE), later);
    server_done(&server, later);
    ck_assert_uint_eq(next()->id, later);
    server_exits(unread);
    server_exits(0);
    server_close(&server);
    poll(NULL, 0, 30); /* attempts keep a distance */
    iterate();
    expect_none();
    greet(READY);
    answer(unread);
}

/* An idle client connects again with its next request, however the daemon has ended. */
TEST(an_idle_client_connects_again, .n = 2)
{
    connect_as(true, false);
    if (_i == 0)
        server_exits(0);
    server_close(&server);
    iterate();
    expect_none();
    ck_assert_uint_eq(nvllm_wants(client), NVLLM_WANT_READ);
    ck_assert_int_eq(nvllm_timeout(client), -1);
    ck_assert_int_eq(poll(&(struct pollfd){nvllm_fd(client), POLLIN, 0}, 1, 0), 0);
    start("a");
    greet(READY);
    answer(1);
}

/* While the next daemon loads its model, it is asked for its state, and gets the requests then. */
TEST(requests_wait_until_the_model_is_loaded)
{
    int64_t began = clock_ms();
    uint64_t id;

    connect_as(true, false);
    id = start("a");
    server_exits(0);
    server_close(&server);
    iterate();
    expect_none();
    greet(LOADING);
    for (int i = 0; i < 3; i++) {
        server_status(&server, take(STATUS), i < 2 ? LOADING : READY);
        for (int k = 0; k < 1 + (i < 2);
             k++) { /* the answer, and the time until the next question */
            iterate();
            expect_none();
        }
    }
    ck_assert_int_ge(clock_ms() - began, 150);
    answer(id);
}

/* What has been shown in part is not generated again: it ends with UNAVAILABLE. */
TEST(an_answer_that_was_cut_off_ends)
{
    const struct nvllm_event *event;
    uint64_t cut, kept, asked;

    connect_as(true, false);
    cut = start("a");
    kept = start("b");
    ck_assert_int_eq(nvllm_get_status_start(client, &asked, -1, &err), NVLLM_OK);
    server_delta(&server, cut, "x", 0);
    expect_delta(next(), cut, "x");
    server_exits(0);
    server_close(&server);
    for (uint64_t n = 0; n < 2; n++) {
        event = next();
        expect_end(event, event->id == cut ? cut : asked, NVLLM_E_UNAVAILABLE);
    }
    ck_assert_uint_eq(nvllm_pending(client), 1);
    iterate();
    greet(READY);
    answer(kept);
}

/* A daemon that ends without a word may have died of a request, and the next one is spared it. */
TEST(a_crash_is_not_repeated)
{
    connect_as(true, false);
    start("a");
    server_close(&server);
    expect_next_error(NVLLM_E_CONNECTION);
    ck_assert_uint_eq(nvllm_wants(client), 0);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* A program that does not want it gets the daemon's errors. */
TEST(reconnect_can_be_switched_off)
{
    uint64_t id;

    connect_as(false, false);
    id = start("a");
    server_exits(id);
    expect_end(next(), id, NVLLM_E_UNAVAILABLE);
    server_exits(0);
    expect_next_error(NVLLM_E_UNAVAILABLE);
    ck_assert(err.retryable);
    ck_assert_str_eq(err.message, "nvllmd has shut down");
}

/* A request that waits can be cancelled, and has its deadlines. */
TEST(a_request_that_waits_can_end)
{
    struct nvllm_request request = request_of("x");
    uint64_t cancelled, late, given_up;

    connect_as(true, false);
    cancelled = start("a");
    request.deadline_ms = 500;
    ck_assert_int_eq(nvllm_generate_start(client, &late, &request, &err), NVLLM_OK);
    request.deadline_ms = 0;
    request.timeout_ms = 900;
    ck_assert_int_eq(nvllm_generate_start(client, &given_up, &request, &err), NVLLM_OK);
    for (uint64_t id = cancelled; id <= given_up; id++)
        server_exits(id);
    iterate();
    expect_none();
    ck_assert_int_eq(nvllm_cancel(client, cancelled, &err), NVLLM_OK);
    ck_assert_int_eq(nvllm_timeout(client), 0);
    expect_end(next(), cancelled, NVLLM_E_CANCELLED);
    expect_end(next(), late, NVLLM_E_DEADLINE);
    expect_end(next(), given_up, NVLLM_E_TIMEOUT);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* The next daemon gets the time that is left. */
TEST(deadlines_go_on)
{
    struct nvllm_request request = request_of("x");
    const client_frame *f;
    uint64_t id;

    connect_as(true, false);
    request.deadline_ms = 10 * MS;
    ck_assert_int_eq(nvllm_generate_start(client, &id, &request, &err), NVLLM_OK);
    server_exits(0);
    server_close(&server);
    iterate();
    expect_none();
    poll(NULL, 0, 30);
    greet(READY);
    f = server_read(&server);
    ck_assert_uint_eq(f->id, id);
    ck_assert_uint_le(f->generate->deadline_ms, 10 * MS - 30);
}

/* Without a next daemon the requests end, but not the client. */
TEST(nobody_takes_its_place)
{
    const struct nvllm_status *status;
    uint64_t id;

    connect_as(true, false);
    id = start("a");
    server_exits(0);
    server_close(&server);
    stop_listening();
    expect_end(next(), id, NVLLM_E_NOT_RUNNING);
    ck_assert_uint_eq(nvllm_pending(client), 0);
    expect_none();
    ck_assert_int_eq(nvllm_get_status(client, MS, &status, &err), NVLLM_E_UNAVAILABLE);
    poll(NULL, 0, 30);
    listen_there();
    id = start("b");
    expect_none();
    greet(READY);
    answer(id);
}

/* With wait_start the next daemon may take its time; nothing spins meanwhile. */
TEST(the_next_may_start_later)
{
    int n = 0;
    uint64_t id;

    connect_as(true, true);
    id = start("a");
    server_exits(0);
    server_close(&server);
    stop_listening();
    for (int64_t began = clock_ms(); clock_ms() - began < 200; n++) {
        iterate();
        expect_none();
        ck_assert_uint_eq(nvllm_wants(client), NVLLM_WANT_READ);
    }
    ck_assert_int_le(n, 15);
    listen_there();
    iterate();
    expect_none();
    greet(READY);
    answer(id);
}

/* Exits while it loads; the next one is ready. */
static int play_a_late_end(void)
{
    accept_next(LOADING);
    take(STATUS);
    poll(NULL, 0, 1100);
    server_exits(0);
    server_close(&server);
    accept_next(READY);
    return server_read(&server) ? -1 : 0;
}

static int play_two_daemons(void)
{
    uint64_t id;

    accept_next(READY);
    take(GENERATE);
    server_exits(0);
    server_close(&server);
    accept_next(READY);
    id = take(GENERATE);
    server_delta(&server, id, "hi", NVLLM_FINISH_STOP);
    server_done(&server, id);
    return server_read(&server) ? -1 : 0;
}

static void *run_daemons(void *play)
{
    return (void *)(intptr_t)((int (*)(void))play)();
}

/* Starts the daemons, and connects; they end as expected once the client has closed. */
static pthread_t connect_to(int (*play)(void), bool wait_ready)
{
    struct nvllm_options options;
    pthread_t daemons;

    nvllm_options_init(&options);
    options.socket_path = path;
    options.wait_ready = wait_ready;
    ck_assert_int_eq(pthread_create(&daemons, NULL, run_daemons, (void *)play), 0);
    ck_assert_msg(nvllm_connect(&client, &options, &err) == NVLLM_OK, "%s", err.message);
    return daemons;
}

static void expect_played(pthread_t daemons)
{
    void *result;

    nvllm_close(client);
    client = NULL;
    pthread_join(daemons, &result);
    ck_assert_ptr_null(result);
}

/* The calls that wait do the same. */
TEST(waiting_calls_resume)
{
    struct nvllm_request request = request_of("x");
    pthread_t daemons = connect_to(play_two_daemons, false);

    ck_assert_int_eq(nvllm_generate(client, &request, NULL, NULL, 10 * MS, &err), NVLLM_OK);
    expect_played(daemons);
}

/* Connecting goes on with the next daemon, however long the first one has loaded. */
TEST(connecting_resumes)
{
    expect_played(connect_to(play_a_late_end, true));
}

RUN_TESTS("client_resume", set_up, tear_down)
