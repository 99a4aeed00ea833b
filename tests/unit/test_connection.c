/* test_connection.c - whose frames are taken when, where their owners have a part each of the
 * loop's time, and how much goes out at a time. What is on the wire is tested with real clients, in
 * tests/e2e. */
#include "daemon/connection.h"

#include <check.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/nvllm.pb-c.h"
#include "tests/unit/run_suite.h"

enum { QUANTUM = 3, N_CLIENTS = 3 }; /* frames that an owner may have taken in a round */

/* Two connections of a user, one of another. */
struct client {
    struct user *user;
    struct connection *connection; /* NULL: the daemon has let it go */
    int fd;                        /* the other end */
    char name;
};

static struct user {
    uint64_t round;
    int left; /* of its frames in that round */
} one, other;

static struct client clients[N_CLIENTS];
static struct connections shared;
static struct options options;
static void (*on_taken)(struct client *c); /* NULL, or what else a test does with a frame */
static char taken[512];                    /* the names of whose frames were taken, in order */
static size_t n_taken;

static void on_frame(void *owner, const uint8_t *data, size_t n)
{
    struct client *c = owner;

    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(data[0], c->name);
    ck_assert_uint_lt(n_taken, sizeof(taken) - 1);
    taken[n_taken++] = c->name;
    c->user->left--;
    if (on_taken)
        on_taken(c);
}

static void on_fault(void *owner, enum connection_fault fault)
{
    (void)owner;
    ck_abort_msg("a fault: %d", (int)fault);
}

static void on_buffers(void *owner, size_t bytes)
{
    (void)owner;
    (void)bytes;
}

static void let_go(struct client *c)
{
    connection_free(c->connection);
    c->connection = NULL;
}

static void on_settle(void *arg)
{
    struct client *c;

    (void)arg;
    connections_flush(&shared);
    while ((c = connections_next_gone(&shared)))
        let_go(c);
}

static bool may_take(void *owner)
{
    const struct client *c = owner;

    if (c->user->round != shared.round)
        *c->user = (struct user){shared.round, QUANTUM};
    return c->user->left > 0;
}

static const struct connection_handler handler = {
    .frame = on_frame,
    .fault = on_fault,
    .buffers = on_buffers,
    .settle = on_settle,
    .may_take = may_take,
};

static void setup(void)
{
    options = (struct options){
        .max_frame_bytes = 4096,
        .output_pause_bytes = 4096,
        .max_output_bytes = 16384,
        .slow_reader_s = 60,
        .hello_timeout_s = 60,
        .frame_timeout_s = 60,
    };
    shared =
        (struct connections){.base = event_base_new(), .handler = &handler, .options = &options};
    on_taken = NULL;
    ck_assert_ptr_nonnull(shared.base);
    ck_assert_int_eq(connections_init(&shared), 0);
    one = other = (struct user){.left = QUANTUM};
    n_taken = 0;
    memset(taken, 0, sizeof(taken));
    for (int i = 0; i < N_CLIENTS; i++) {
        int pair[2];

        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        ck_assert_int_eq(fcntl(pair[0], F_SETFL, O_NONBLOCK), 0);
        clients[i] =
            (struct client){.user = i < 2 ? &one : &other, .fd = pair[1], .name = (char)('A' + i)};
        ck_assert_int_eq(connection_new(&clients[i].connection, &shared, pair[0], &clients[i]), 0);
        connection_greeted(clients[i].connection);
    }
}

static void teardown(void)
{
    for (int i = 0; i < N_CLIENTS; i++) {
        if (clients[i].connection)
            let_go(&clients[i]);
        if (clients[i].fd >= 0)
            close(clients[i].fd);
    }
    connections_deinit(&shared);
    event_base_free(shared.base);
}

static void send_frames(struct client *c, int n)
{
    const char frame[] = {1, c->name};

    while (n--)
        ck_assert_int_eq(write(c->fd, frame, sizeof(frame)), sizeof(frame));
}

/* A few iterations of the loop, none of which waits. */
static void run_loop(int n)
{
    while (n--)
        event_base_loop(shared.base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
}

static size_t count(char name)
{
    size_t n = 0;

    for (size_t i = 0; i < n_taken; i++)
        n += taken[i] == name;
    return n;
}

/* The frame timeout does not run while frames that have arrived wait for the next round. */
TEST(frame_timer_stops_while_a_connection_waits)
{
    options.frame_timeout_s = 0;
    send_frames(&clients[0], 40);
    send_frames(&clients[1], 40);
    run_loop(60);
    ck_assert_uint_eq(count('A'), 40);
    ck_assert_uint_eq(count('B'), 40);
}

/* A frame waits for at most one quantum of each client that has sent many; those frames are all
 * taken in the end, although nothing more arrives. */
TEST(many_frames_let_others_in)
{
    send_frames(&clients[0], 40);
    send_frames(&clients[1], 40);
    send_frames(&clients[2], 1);
    run_loop(1);
    ck_assert_uint_eq(count('C'), 1);
    ck_assert_uint_le(n_taken, 2 * QUANTUM + 1); /* one on arrival, one in the round after it */
    run_loop(100);
    ck_assert_uint_eq(count('A'), 40);
    ck_assert_uint_eq(count('B'), 40);
    ck_assert(list_empty(&shared.waiting));
}

/* The connections of one user share its quantum in rotation, whichever came first. */
TEST(connections_of_a_user_rotate)
{
    send_frames(&clients[0], 100);
    run_loop(3);
    ck_assert_uint_lt(count('A'), 100);
    send_frames(&clients[1], 100);
    run_loop(16);
    ck_assert_uint_lt(count('A'), 100);
    ck_assert_uint_ge(count('B'), 5 * QUANTUM);
    run_loop(100);
    ck_assert_uint_eq(n_taken, 200);
}

/* One small request beside a connection that sends without end is taken within a few rounds. */
TEST(quiet_connection_is_not_starved)
{
    for (int i = 0; i < 10; i++) {
        send_frames(&clients[0], 20);
        run_loop(1);
    }
    send_frames(&clients[1], 1);
    for (int i = 0; i < 4; i++) {
        send_frames(&clients[0], 2 * QUANTUM);
        run_loop(1);
    }
    ck_assert_uint_eq(count('B'), 1);
}

/* A client that leaves while it waits has its earlier frames taken, and is then freed. */
TEST(leaves_while_it_waits)
{
    send_frames(&clients[0], 10);
    send_frames(&clients[1], 10);
    run_loop(1);
    for (int i = 0; i < 2; i++) {
        close(clients[i].fd);
        clients[i].fd = -1;
    }
    run_loop(20);
    ck_assert_uint_eq(n_taken, 20);
    ck_assert_ptr_null(clients[0].connection);
    ck_assert_ptr_null(clients[1].connection);
}

/* A connection that is ended while it waits has nothing more taken. */
TEST(ended_while_it_waits)
{
    size_t n;

    send_frames(&clients[0], 40);
    run_loop(1);
    n = n_taken;
    connection_end(clients[0].connection, NULL);
    run_loop(5);
    ck_assert_uint_eq(n_taken, n);
    ck_assert(list_empty(&shared.waiting));
}

/* What is put while the loop is at one thing goes out in one write: a socket that keeps writes
 * apart has one. */
TEST(one_write_for_all_that_was_put)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;
    struct connection *c;
    char buf[256];
    int pair[2];
    ssize_t n;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair),
                     0);
    ck_assert_int_eq(connection_new(&c, &shared, pair[0], &clients[0]), 0);
    f.has_id = true;
    for (f.id = 1; f.id <= 20; f.id++)
        ck_assert_int_eq(connection_put(c, &f.base, NULL, 0), CONNECTION_OK);
    ck_assert_int_lt(read(pair[1], buf, sizeof(buf)), 0); /* nothing went out so far */
    connections_flush(&shared);
    n = read(pair[1], buf, sizeof(buf));
    ck_assert_int_eq(n, 20 * 3);
    ck_assert_int_lt(read(pair[1], buf, sizeof(buf)), 0);
    connection_free(c);
    close(pair[1]);
}

/* Puts answers until the socket is full and so many are left that the connection is paused. */
static void answer_until_paused(struct client *c)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;
    const size_t bytes = (size_t)options.output_pause_bytes;

    while (connection_unread_bytes(c->connection) <= 2 * bytes)
        ck_assert_int_eq(connection_put(c->connection, &f.base, calloc(1, bytes), bytes),
                         CONNECTION_OK);
}

/* A's timer is due when B's frame is taken: what A did not read is read then. */
static void read_or_answer(struct client *c)
{
    char buf[4096];

    options.slow_reader_s = 60;
    if (c == &clients[0])
        answer_until_paused(c);
    while (c == &clients[1] && recv(clients[0].fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
        ;
}

/* A client that reads all just before it is too slow, and is paused again by the answer to its next
 * request, has the whole time once more. */
TEST(pause_after_a_pause_has_its_own_time)
{
    options.slow_reader_s = 0;
    answer_until_paused(&clients[0]);
    connections_flush(&shared);
    on_taken = read_or_answer;
    send_frames(&clients[0], 1);
    send_frames(&clients[1], 1);
    run_loop(1);
    ck_assert_str_eq(taken, "BA");
    ck_assert_uint_gt(connection_unread_bytes(clients[0].connection), 4096);
}

RUN_TESTS("connection", setup, teardown)
