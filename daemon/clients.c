/* clients.c - clients: connections, Hello, frames, the table of operations, limits of buffers. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/server_private.h"
#include "engine/util/clock.h"

/* Log lines that clients can cause; each counts the connections since the last one. */
enum { LOG_EVERY_MS = 1000 };

/* Sends an error of the connection as a whole, and closes it. */
static void refuse_client(struct client *client, const struct refusal *e)
{
    const uint64_t n = log_due(&client->server->clients_refused, LOG_EVERY_MS);
    struct error_frame f;

    if (n)
        log_text(LOG_LEVEL_INFO, "connection_refused", e->message.text,
                 "uid=%u pid=%d requests=%zu connections=%" PRIu64, (unsigned)client->account->uid,
                 (int)client->pid, client->requests.n, n);
    client_abandon(client);
    connection_end(client->connection, reply_error_frame(&f, e));
}

void client_check_put(struct client *client, int r)
{
    const struct options *o = client->server->parts.options;
    struct refusal e;

    if (r == CONNECTION_OK)
        return;
    if (r == CONNECTION_E_SLOW || r == CONNECTION_E_LARGE)
        limit_refuse_text(&e, o, LIMIT_OUTPUT_BYTES,
                          "more than %" PRId64 " bytes of answers are unread", o->max_output_bytes);
    else
        refusal_set(&e, CODE(INTERNAL), "out of memory");
    refuse_client(client, &e);
}

/* ---- operations */

/* Who may call each, and what runs it. Users may inspect and change their own objects; what
 * concerns all is for admins. A pinned prefix takes blocks from all. */
static const struct operation table[] = {
    {OP(HELLO), "hello", false, NULL}, /* the first frame: see take_hello */
    {OP(GENERATE), "generate", false, client_start},
    {OP(EMBED), "embed", false, client_start},
    {OP(CANCEL), "cancel", false, client_cancel},
    {OP(TOKENIZE), "tokenize", false, client_start},
    {OP(DETOKENIZE), "detokenize", false, client_start},
    {OP(RENDER), "render", false, client_start},
    {OP(GET_STATUS), "get_status", false, client_status},
    {OP(LIST_REQUESTS), "list_requests", false, client_inspect},
    {OP(GET_BLOCKS), "get_blocks", false, client_inspect},
    {OP(SHOW_CACHE), "show_cache", false, client_inspect},
    {OP(CLEAR_CACHE), "clear_cache", false, client_inspect},
    {OP(PIN_CACHE), "pin_cache", true, client_pin},
    {OP(EXPLAIN), "explain", false, client_inspect},
    {OP(CREATE_SESSION), "create_session", false, chat_create},
    {OP(FORK_SESSION), "fork_session", false, chat_fork},
    {OP(REWIND_SESSION), "rewind_session", false, chat_rewind},
    {OP(LIST_SESSIONS), "list_sessions", false, chat_list},
    {OP(SHOW_SESSION), "show_session", false, chat_show},
    {OP(DELETE_SESSION), "delete_session", false, chat_delete},
    {OP(DRAIN), "drain", true, control_drain},
    {OP(RESUME), "resume", true, control_resume},
    {OP(RELOAD), "reload", true, control_reload},
    {OP(SET_LOG_LEVEL), "set_log_level", true, control_log_level},
    {OP(SHUTDOWN), "shutdown", true, control_shutdown},
    {OP(SLEEP), "sleep", true, client_inspect},
    {OP(WAKE), "wake", true, client_inspect},
    {OP(TRACE), "trace", true, client_inspect},
};

const struct operation *operation_of(Nvllm__V1__ClientFrame__OpCase op)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        if (table[i].op == op)
            return &table[i];
    return NULL;
}

static int run_operation(struct client_call *c, struct refusal *e)
{
    const struct client *client = c->client;

    if (!c->operation)
        return refusal_set(e, CODE(UNSUPPORTED), "this daemon does not support the operation");
    if (c->operation->for_admins && !client->admin)
        /* without the operation's name, which differs from nvllmctl's command */
        return refusal_set(e, CODE(DENIED),
                           "only administrators may do that: root, the daemon's user, members of "
                           "daemon.admin_group, and clients of daemon.admin_socket");
    if (c->operation->for_admins)
        log_event(LOG_LEVEL_INFO, "admin_operation", "op=%s uid=%u pid=%d", c->operation->name,
                  (unsigned)client->account->uid, (int)client->pid);
    return c->operation->run(c, e);
}

/* Runs an operation, or answers that it is refused. */
static void operate(struct client_call *c)
{
    struct client *client = c->client;
    const uint64_t id = c->frame->id; /* the frame may be freed */
    const bool computes = c->frame->op_case == OP(GENERATE) || c->frame->op_case == OP(EMBED);
    struct refusal e;
    int r = run_operation(c, &e);

    if (r == -ENOMEM)
        refusal_set(&e, CODE(INTERNAL), "out of memory");
    if (r < 0 && computes)
        metrics_count_error(client->server->metrics, e.code);
    if (r < 0)
        r = reply_error(client->connection, id, &e);
    client_check_put(client, r);
}

/* ---- frames */

static int take_hello(struct client *client, const Nvllm__V1__ClientFrame *f, struct refusal *e)
{
    const struct server *server = client->server;
    struct engine_status status;
    Nvllm__V1__Welcome w = NVLLM__V1__WELCOME__INIT;

    if (f->op_case != OP(HELLO) || f->id != 0)
        return refusal_set(e, CODE(PROTOCOL), "the first frame must be Hello, with id 0");
    if (f->hello->protocol != 1)
        return refusal_set(e, CODE(UNSUPPORTED),
                           "protocol %" PRIu32
                           " is not supported, only 1: this is nvllmd " NVLLM_VERSION
                           "; install nvllmd and the client of the same release",
                           f->hello->protocol);
    client->greeted = true;
    connection_greeted(client->connection);
    engine_status(server->parts.engine, &status);
    log_text(LOG_LEVEL_DEBUG, "hello", f->hello->client ? f->hello->client : "", "uid=%u pid=%d",
             (unsigned)client->account->uid, (int)client->pid);
    w.has_protocol = w.has_state = w.has_progress = w.has_max_frame_bytes = true;
    w.protocol = 1;
    w.server = reply_text(SERVER_NAME);
    w.state = server_state(server);
    w.progress = (float)status.progress;
    w.model = reply_text(server->parts.model);
    w.max_frame_bytes = (uint32_t)server->parts.options->max_frame_bytes;
    client_check_put(client, reply_put(client->connection, 0, EVENT(WELCOME), &w));
    return 0;
}

static int dispatch(struct client_call *c, struct refusal *e)
{
    const Nvllm__V1__ClientFrame *f = c->frame;
    struct client *client = c->client;

    if (!client->greeted)
        return take_hello(client, f, e);
    if (f->op_case == OP(HELLO))
        return refusal_set(e, CODE(PROTOCOL), "Hello was sent twice");
    if (f->id == 0)
        return refusal_set(e, CODE(PROTOCOL), "a request must have an id other than 0");
    if (id_map_get(&client->requests, f->id))
        return refusal_set(e, CODE(PROTOCOL), "the id of a request in progress was used again");
    operate(c);
    return 0;
}

static int take_frame(struct client *client, const uint8_t *data, size_t n, struct refusal *e)
{
    static const char *const faults[] = {
        [UNPACK_E_INVALID] = "a frame is not a message of the protocol",
        [UNPACK_E_BUDGET] = "a frame would take far more memory than its size",
        [UNPACK_E_FIELDS] = "a frame has more fields than any request needs",
        [UNPACK_E_NOMEM] = "out of memory",
    };
    struct client_call c = {.client = client};
    int r = unpack_request(&c.message, &nvllm__v1__client_frame__descriptor, data, n);

    if (r != UNPACK_OK)
        return refusal_set(e, r == UNPACK_E_NOMEM ? CODE(INTERNAL) : CODE(PROTOCOL), "%s",
                           faults[r]);
    c.frame = (const Nvllm__V1__ClientFrame *)unpacked_message(c.message);
    c.operation = operation_of(c.frame->op_case);
    r = dispatch(&c, e);
    unpacked_free(c.message);
    return r;
}

/* The loop's time that the frames of a user, on all its connections, may take in a round. */
enum { QUANTUM_US = 2000 };

static bool may_take(void *owner)
{
    struct client *client = owner;
    const uint64_t round = client->server->connections.round;

    if (client->account->round != round) {
        client->account->round = round;
        client->account->round_us = 0;
    }
    return client->account->round_us < QUANTUM_US;
}

static void on_frame(void *owner, const uint8_t *data, size_t n)
{
    struct client *client = owner;
    uint64_t begin_us = clock_us();
    struct refusal e;

    if (take_frame(client, data, n, &e) < 0)
        refuse_client(client, &e);
    client->account->round_us += clock_us() - begin_us;
}

static void on_fault(void *owner, enum connection_fault fault)
{
    struct client *client = owner;
    const struct options *o = client->server->parts.options;
    struct refusal e;

    switch (fault) {
    case CONNECTION_TOO_LARGE:
        limit_refuse_text(&e, o, LIMIT_FRAME_BYTES, "a frame exceeds %" PRId64 " bytes",
                          o->max_frame_bytes);
        break;
    case CONNECTION_GARBAGE:
        refusal_set(&e, CODE(PROTOCOL), "the length of a frame is invalid");
        break;
    case CONNECTION_TIMED_OUT:
        if (client->greeted)
            limit_refuse_text(&e, o, LIMIT_FRAME_TIMEOUT_S,
                              "a frame did not arrive in full within %" PRId64 " s",
                              o->frame_timeout_s);
        else
            limit_refuse_text(&e, o, LIMIT_HELLO_TIMEOUT_S, "no Hello arrived within %" PRId64 " s",
                              o->hello_timeout_s);
        break;
    case CONNECTION_SLOW:
        limit_refuse_text(&e, o, LIMIT_SLOW_READER_S,
                          "of %zu bytes of answers too few were read within %" PRId64 " s",
                          connection_unread_bytes(client->connection), o->slow_reader_s);
        break;
    case CONNECTION_NO_MEMORY:
        refusal_set(&e, CODE(INTERNAL), "out of memory");
        break;
    }
    refuse_client(client, &e);
}

/* Charges the account for the connection's buffers. */
static void on_buffers(void *owner, size_t bytes)
{
    struct client *client = owner;

    account_sub(client->account, ACCOUNT_BUFFER_BYTES, client->buffer_bytes);
    account_add(client->account, ACCOUNT_BUFFER_BYTES, bytes);
    client->buffer_bytes = bytes;
}

static void on_settle(void *server)
{
    clients_settle(server);
}

static const struct connection_handler handler = {
    .frame = on_frame,
    .fault = on_fault,
    .buffers = on_buffers,
    .settle = on_settle,
    .may_take = may_take,
};

/* ---- all of them */

void clients_limits_changed(struct server *s)
{
    const struct options *o = s->parts.options;

    atomic_store(&s->limit_answer_bytes, (size_t)o->max_output_bytes);
    atomic_store(&s->limit_request_bytes, (size_t)o->max_request_bytes);
    atomic_store(&s->limit_request_bytes_per_uid, (size_t)o->max_request_bytes_per_uid);
}

/* On the tokenizer pool, because answers may be large. */
static int pack_answer(void *ctx, struct engine_packed *out, const struct engine_event *answer,
                       const struct tokenizer *tokenizer)
{
    const struct server *s = ctx;

    return reply_pack(out, answer, tokenizer, atomic_load(&s->limit_answer_bytes));
}

int clients_init(struct server *s)
{
    const struct engine_packer packer = {.pack = pack_answer, .ctx = s};

    s->connections = (struct connections){.base = s->base,
                                          .handler = &handler,
                                          .settle_ctx = s,
                                          .options = s->parts.options};
    clients_limits_changed(s);
    engine_set_packer(s->parts.engine, &packer);
    return connections_init(&s->connections);
}

static void free_client(struct client *client)
{
    list_remove(&client->link);
    connection_free(client->connection); /* its buffers leave the account */
    account_sub(client->account, ACCOUNT_CONNECTIONS, 1);
    account_unref(client->account);
    free(client);
}

void clients_deinit(struct server *s)
{
    requests_deinit(s);
    while (!list_empty(&s->clients))
        free_client(CONTAINER_OF(s->clients.next, struct client, link));
    chat_session_store_close(s->store);
    chat_sessions_deinit(&s->accounts);
    accounts_deinit(&s->accounts);
    connections_deinit(&s->connections);
}

/* Refuses a client: sends the error in one write, and closes. */
static void reject(struct server *s, int fd, const struct refusal *why)
{
    struct frame_buffer b = {0};
    struct error_frame f;

    if (log_due(&s->turned_away, LOG_EVERY_MS))
        log_text(LOG_LEVEL_WARNING, "connection_turned_away", why->message.text,
                 "connections=%" PRIu64, server_connections(s));
    if (frame_buffer_put(&b, reply_error_frame(&f, why)) == 0)
        (void)!send(fd, b.data + b.start, frame_buffer_bytes(&b), MSG_NOSIGNAL | MSG_DONTWAIT);
    frame_buffer_deinit(&b);
    close(fd);
}

/* Checks the limits of connections. */
static int refuse_connection(const struct server *s, const struct account *a, bool admin,
                             struct refusal *e)
{
    const struct options *o = s->parts.options;
    uint64_t reserve = admin ? (uint64_t)o->admin_connections : 0;
    uint64_t n = a->amounts[ACCOUNT_CONNECTIONS] + 1, all = server_connections(s) + 1;

    if (all > (uint64_t)o->max_connections + reserve)
        return limit_refuse(e, o, LIMIT_CONNECTIONS, "", all);
    if (n > (uint64_t)o->max_connections_per_uid + reserve)
        return limit_refuse(e, o, LIMIT_CONNECTIONS_PER_UID, "", n);
    return 0;
}

/* Takes ownership of fd, and of the reference to the account on success. */
static int enter(struct server *s, int fd, struct account *account, const struct ucred *peer,
                 bool admin)
{
    struct client *one = calloc(1, sizeof(*one));

    if (!one || connection_new(&one->connection, &s->connections, fd, one) < 0) {
        if (!one)
            close(fd);
        free(one);
        return -ENOMEM;
    }
    one->server = s;
    one->account = account;
    one->pid = peer->pid;
    one->admin = admin;
    list_append(&s->clients, &one->link);
    account_add(account, ACCOUNT_CONNECTIONS, 1);
    log_event(LOG_LEVEL_DEBUG, "connected", "uid=%u pid=%d admin=%d", (unsigned)peer->uid,
              (int)peer->pid, admin);
    return 0;
}

void clients_accept(struct server *s, int fd, bool admin)
{
    struct account *account = NULL;
    struct ucred peer = {0};
    struct refusal e;
    bool by_user = false;
    int r;

    if (rights_of_peer(&s->parts.rights, fd, &peer, &by_user) < 0)
        r = refusal_set(&e, CODE(INTERNAL), "the user of the connection cannot be determined");
    else if (!(account = account_get(&s->accounts, peer.uid)))
        r = refusal_set(&e, CODE(INTERNAL), "out of memory");
    else
        r = refuse_connection(s, account, admin || by_user, &e);
    if (r < 0)
        reject(s, fd, &e);
    else
        r = enter(s, fd, account, &peer, admin || by_user);
    if (r < 0 && account)
        account_unref(account);
}

void clients_end_all(struct server *s, const struct refusal *why)
{
    struct error_frame f;
    const ProtobufCMessage *frame = reply_error_frame(&f, why);

    LIST_EACH (struct client, one, link, &s->clients)
        connection_end(one->connection, frame);
}

static uint64_t buffer_bytes(const struct account *a)
{
    return a->amounts[ACCOUNT_BUFFER_BYTES];
}

/* The account with the most bytes of buffers. */
static struct account *largest_account(const struct server *s)
{
    struct account *one, *largest = NULL;
    size_t at = 0;

    while ((one = id_map_next(&s->accounts.by_uid, &at)))
        if (!largest || buffer_bytes(one) > buffer_bytes(largest))
            largest = one;
    return largest;
}

/* The connection of this account with the most bytes of buffers, or NULL. */
static struct client *largest_client(const struct server *s, const struct account *account)
{
    struct client *largest = NULL;

    LIST_EACH (struct client, one, link, &s->clients)
        if (one->account == account && one->buffer_bytes > (largest ? largest->buffer_bytes : 0))
            largest = one;
    return largest;
}

/* Drops a connection for its buffers. A client that has read all its answers gets an error. */
static void shed(struct server *s, struct client *one, enum limit limit)
{
    const uint64_t n = log_due(&s->clients_dropped, LOG_EVERY_MS);
    struct error_frame f;
    struct refusal e;

    if (n)
        log_event(LOG_LEVEL_WARNING, "connection_dropped",
                  "uid=%u pid=%d bytes=%zu why=%s connections=%" PRIu64,
                  (unsigned)one->account->uid, (int)one->pid, one->buffer_bytes,
                  limit_option(limit), n);
    limit_refuse_text(&e, s->parts.options, limit, "the buffers of all connections are full");
    client_abandon(one);
    connection_drop(one->connection, reply_error_frame(&f, &e));
}

/* Drops connections where the buffers of one user, or of all users, are over their limit: each time
 * the largest connection of the user with the most, so that one large request is safe among many
 * small buffers of another user. */
static void shed_all(struct server *s)
{
    const uint64_t most = limit_value(s->parts.options, LIMIT_BUFFER_BYTES);
    const uint64_t per_uid = limit_value(s->parts.options, LIMIT_BUFFER_BYTES_PER_UID);

    for (;;) {
        const uint64_t all = buffer_bytes(&s->accounts.total);
        const struct account *one = all > most || all > per_uid ? largest_account(s) : NULL;

        if (!one || (all <= most && buffer_bytes(one) <= per_uid))
            return;
        /* Its bytes are those of its connections: there is one. */
        shed(s, largest_client(s, one),
             all > most ? LIMIT_BUFFER_BYTES : LIMIT_BUFFER_BYTES_PER_UID);
    }
}

void clients_settle(struct server *s)
{
    struct client *one;

    connections_flush(&s->connections);
    server_settled(s); /* frames taken while flushing count, too */
    connections_flush(&s->connections);
    shed_all(s);
    while ((one = connections_next_gone(&s->connections))) {
        log_event(LOG_LEVEL_DEBUG, "disconnected", "uid=%u pid=%d requests=%zu",
                  (unsigned)one->account->uid, (int)one->pid, one->requests.n);
        client_abandon(one);
        free_client(one);
    }
    if (s->phase == PHASE_FLUSHING && server_connections(s) == 0)
        event_base_loopbreak(s->base);
}
