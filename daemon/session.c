/* session.c - see session.h. */
#include "daemon/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "daemon/log.h"
#include "engine/must.h"

#define CODE(name) NVLLM__V1__ERROR_CODE__ERROR_##name

struct session {
    struct sessions *shared;
    struct session *next, **link; /* in shared->all; who points here */
    struct connection *connection;
    struct id_map requests; /* struct pending, by the client's id */
    uid_t uid;
    pid_t pid;
    bool greeted;
};

/* A request between its acceptance and its terminal event. */
struct pending {
    uint64_t id;             /* ours */
    uint64_t client_id;      /* the client's */
    struct session *session; /* NULL: the client has left */
    int32_t n;               /* choices of generate, 0 for others */
    uint64_t told;           /* bit i: choice i has its finish reason */
    bool cancel_again;       /* the engine had no memory to note it */
};

_Static_assert(REQUEST_MAX_CHOICES <= 64, "choices are bits of pending.told");

static uint64_t now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static void cancel(struct sessions *s, struct pending *p)
{
    p->cancel_again = engine_cancel(s->engine, p->id) < 0;
}

/* The client has no more part in its requests: they are cancelled and belong to nobody. */
static void abandon_requests(struct session *s)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at))) {
        p->session = NULL;
        cancel(s->shared, p);
    }
    id_map_deinit(&s->requests);
    s->requests = (struct id_map){0};
}

/* An error of the connection as a whole: told, then closed. */
static void fail(struct session *s, Nvllm__V1__ErrorCode code, const char *message)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;
    Nvllm__V1__Error e;

    log_text(LOG_LEVEL_INFO, "connection_refused", message, "uid=%u pid=%d requests=%zu",
             (unsigned)s->uid, (int)s->pid, s->requests.n);
    abandon_requests(s);
    reply_error_init(&e, code, NULL, message);
    f.has_id = true;
    f.event_case = NVLLM__V1__SERVER_FRAME__EVENT_ERROR;
    f.error = &e;
    connection_end(s->connection, &f.base);
}

/* What became of a put: a client that does not read is let go. */
static void check_put(struct session *s, int r)
{
    char text[128];

    if (r == CONNECTION_E_SLOW) {
        snprintf(text, sizeof(text), "more than %" PRId64 " bytes of answers are unread",
                 s->shared->options->max_output_bytes);
        fail(s, CODE(BUSY), text);
    } else if (r < 0) {
        fail(s, CODE(INTERNAL), "out of memory");
    }
}

static void answer_error(struct session *s, uint64_t id, Nvllm__V1__ErrorCode code,
                         const char *field, const char *message)
{
    check_put(s, reply_error(s->connection, id, code, field, message));
}

/* ---- requests */

static void forget(struct sessions *s, struct pending *p)
{
    must(id_map_take(&s->requests, p->id) == p);
    if (p->session)
        must(id_map_take(&p->session->requests, p->client_id) == p);
    free(p);
}

/* Why no request is taken now, or NULL. */
static const char *refusal(const struct session *s, Nvllm__V1__ErrorCode *code)
{
    const struct sessions *all = s->shared;
    const struct options *o = all->options;

    *code = CODE(UNAVAILABLE);
    switch (all->facts.state) {
    case NVLLM__V1__STATE__STATE_READY:
        break;
    case NVLLM__V1__STATE__STATE_DRAINING:
        return "the daemon is shutting down";
    case NVLLM__V1__STATE__STATE_FAILED:
        return "the engine has failed, the daemon is about to end";
    default:
        return "the model is being loaded";
    }
    *code = CODE(BUSY);
    if (s->requests.n >= (size_t)o->max_requests_per_connection)
        return "too many requests of this connection are under way "
               "(limits.requests_per_connection)";
    if (all->requests.n >= (size_t)o->max_requests)
        return "too many requests are under way (limits.requests)";
    if (atomic_load(&all->held_bytes) >= (uint64_t)o->max_request_bytes)
        return "requests under way hold too much memory (limits.request_bytes)";
    return NULL;
}

/* Enters a request into both tables; NULL: no memory. */
static struct pending *enter(struct session *s, uint64_t client_id, int32_t n)
{
    struct sessions *all = s->shared;
    struct pending *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    *p = (struct pending){.id = ++all->last_id, .client_id = client_id, .session = s, .n = n};
    if (id_map_put(&all->requests, p->id, p) < 0)
        goto fail;
    if (id_map_put(&s->requests, client_id, p) < 0) {
        id_map_take(&all->requests, p->id);
        goto fail;
    }
    return p;
fail:
    free(p);
    return NULL;
}

static int start_generate(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                          struct request_owner **owner, struct request_error *e)
{
    struct sessions *all = s->shared;
    struct engine_request r;
    struct pending *p;
    int ret = request_generate(&r, f->generate, u, &all->rules, now_us(), e);

    if (ret < 0)
        return ret;
    *owner = request_owner_new(u, &all->held_bytes);
    p = *owner ? enter(s, f->id, r.n) : NULL;
    if (!p)
        return -ENOMEM;
    r.id = p->id;
    r.client = s->uid;
    r.owner = *owner;
    r.release = request_owner_release;
    ret = engine_generate(all->engine, &r);
    if (ret < 0)
        forget(all, p);
    return ret;
}

/* Tokenize, Detokenize and Render: the engine answers each with one event. */
static int start_other(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u,
                       struct request_owner **owner, struct request_error *e)
{
    struct sessions *all = s->shared;
    struct text text = {0};
    struct chat *chat = NULL;
    struct pending *p;
    int r = 0;

    if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE)
        r = request_tokenize(&text, f->tokenize, e);
    else if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE)
        r = request_detokenize(f->detokenize, e);
    else
        r = request_chat(&chat, f->render->chat, u, "chat", e);
    if (r < 0)
        return r;
    *owner = request_owner_new(u, &all->held_bytes);
    p = *owner ? enter(s, f->id, 0) : NULL;
    if (!p)
        return -ENOMEM;
    if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE)
        r = engine_tokenize(all->engine, p->id, text,
                            f->tokenize->has_special && f->tokenize->special, *owner,
                            request_owner_release);
    else if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE)
        r = engine_detokenize(all->engine, p->id, f->detokenize->ids, f->detokenize->n_ids,
                              f->detokenize->has_skip_special && f->detokenize->skip_special,
                              *owner, request_owner_release);
    else
        r = engine_render(all->engine, p->id, chat, *owner, request_owner_release);
    if (r < 0)
        forget(all, p);
    return r;
}

/* True when the message now belongs to the engine. */
static bool start(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u)
{
    struct request_error e = {.field = ""};
    struct request_owner *owner = NULL;
    Nvllm__V1__ErrorCode code;
    const char *why = refusal(s, &code);
    int r;

    if (why) {
        answer_error(s, f->id, code, NULL, why);
        return false;
    }
    if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_GENERATE)
        r = start_generate(s, f, u, &owner, &e);
    else
        r = start_other(s, f, u, &owner, &e);
    if (r == 0)
        return true;
    if (r == -ENOMEM)
        answer_error(s, f->id, CODE(INTERNAL), NULL, "out of memory");
    else
        answer_error(s, f->id, e.code, e.field, e.message.text);
    if (!owner)
        return false;
    request_owner_release(owner); /* and with it the message */
    return true;
}

/* ---- frames */

static void refresh(struct sessions *s)
{
    s->facts.uptime_ms = now_us() / 1000 - s->start_ms;
}

static void take_hello(struct session *s, const Nvllm__V1__ClientFrame *f)
{
    struct engine_status status;
    char text[96];

    if (f->op_case != NVLLM__V1__CLIENT_FRAME__OP_HELLO || f->id != 0) {
        fail(s, CODE(PROTOCOL), "a connection begins with Hello, of id 0");
        return;
    }
    if (f->hello->protocol != 1) {
        snprintf(text, sizeof(text), "protocol %" PRIu32 " is not known here, only 1",
                 f->hello->protocol);
        fail(s, CODE(UNSUPPORTED), text);
        return;
    }
    s->greeted = true;
    connection_greeted(s->connection);
    engine_status(s->shared->engine, &status);
    refresh(s->shared);
    log_text(LOG_LEVEL_DEBUG, "hello", f->hello->client ? f->hello->client : "", "uid=%u pid=%d",
             (unsigned)s->uid, (int)s->pid);
    check_put(s, reply_welcome(s->connection, &s->shared->facts, status.progress));
}

static void take_cancel(struct session *s, const Nvllm__V1__ClientFrame *f)
{
    struct pending *p = id_map_get(&s->requests, f->cancel->target);

    if (p)
        cancel(s->shared, p);
    check_put(s, reply_cancelled(s->connection, f->id, p != NULL));
}

static void take_get_status(struct session *s, const Nvllm__V1__ClientFrame *f)
{
    struct engine_status status;

    engine_status(s->shared->engine, &status);
    refresh(s->shared);
    check_put(s, reply_status(s->connection, f->id, &s->shared->facts, &status));
}

/* True when the message was taken over. */
static bool dispatch(struct session *s, const Nvllm__V1__ClientFrame *f, struct unpacked *u)
{
    if (!s->greeted) {
        take_hello(s, f);
        return false;
    }
    if (f->op_case == NVLLM__V1__CLIENT_FRAME__OP_HELLO) {
        fail(s, CODE(PROTOCOL), "Hello came twice");
        return false;
    }
    if (f->id == 0) {
        fail(s, CODE(PROTOCOL), "a request must have an id other than 0");
        return false;
    }
    if (id_map_get(&s->requests, f->id)) {
        fail(s, CODE(PROTOCOL), "the id of a request under way was used again");
        return false;
    }
    switch (f->op_case) {
    case NVLLM__V1__CLIENT_FRAME__OP_GENERATE:
    case NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE:
    case NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE:
        return start(s, f, u);
    case NVLLM__V1__CLIENT_FRAME__OP_RENDER:
        if (f->render->chat)
            return start(s, f, u);
        answer_error(s, f->id, CODE(INVALID), "chat", "chat: is missing");
        return false;
    case NVLLM__V1__CLIENT_FRAME__OP_CANCEL:
        take_cancel(s, f);
        return false;
    case NVLLM__V1__CLIENT_FRAME__OP_GET_STATUS:
        take_get_status(s, f);
        return false;
    default:
        answer_error(s, f->id, CODE(UNSUPPORTED), NULL, "this daemon does not know the operation");
        return false;
    }
}

static void on_frame(void *owner, const uint8_t *data, size_t n)
{
    struct session *s = owner;
    struct unpacked *u;

    switch (unpack(&u, &nvllm__v1__client_frame__descriptor, data, n)) {
    case UNPACK_OK:
        if (!dispatch(s, (const Nvllm__V1__ClientFrame *)unpacked_message(u), u))
            unpacked_free(u);
        break;
    case UNPACK_E_BUDGET:
        fail(s, CODE(PROTOCOL), "a frame stands for far more memory than its own size");
        break;
    case UNPACK_E_NOMEM:
        fail(s, CODE(INTERNAL), "out of memory");
        break;
    default:
        fail(s, CODE(PROTOCOL), "a frame is no message of the protocol");
        break;
    }
}

static void on_fault(void *owner, enum connection_fault fault)
{
    struct session *s = owner;
    char text[96];

    switch (fault) {
    case CONNECTION_TOO_LARGE:
        snprintf(text, sizeof(text), "a frame is over %" PRIu32 " bytes (limits.frame_bytes)",
                 s->shared->connections.max_frame_bytes);
        fail(s, CODE(PROTOCOL), text);
        break;
    case CONNECTION_GARBAGE:
        fail(s, CODE(PROTOCOL), "bytes that are no length of a frame");
        break;
    case CONNECTION_TIMED_OUT:
        fail(s, CODE(PROTOCOL),
             s->greeted ? "a frame was begun and did not come to its end" : "no Hello came");
        break;
    case CONNECTION_NO_MEMORY:
        fail(s, CODE(INTERNAL), "out of memory");
        break;
    }
}

static void on_settle(void *shared)
{
    sessions_settle(shared);
}

static const struct connection_handler handler = {on_frame, on_fault, on_settle};

/* ---- all of them */

void sessions_init(struct sessions *s, struct event_base *base, struct engine *engine,
                   const struct options *options, const struct reply_facts *facts)
{
    memset(s, 0, sizeof(*s));
    s->engine = engine;
    s->options = options;
    s->facts = *facts;
    s->facts.state = NVLLM__V1__STATE__STATE_LOADING;
    s->facts.max_frame_bytes = (uint32_t)options->max_frame_bytes;
    s->connections = (struct connections){
        .base = base,
        .handler = &handler,
        .shared = s,
        .max_frame_bytes = (uint32_t)options->max_frame_bytes,
        .max_output_bytes = (size_t)options->max_output_bytes,
        .frame_timeout_s = (int)options->frame_timeout_s,
    };
    atomic_init(&s->held_bytes, 0);
    s->start_ms = now_us() / 1000;
}

void sessions_deinit(struct sessions *s)
{
    struct session *next;
    struct pending *p;
    size_t at = 0;

    for (struct session *one = s->all; one; one = next) {
        next = one->next;
        connection_free(one->connection);
        id_map_deinit(&one->requests);
        free(one);
    }
    s->all = NULL;
    while ((p = id_map_next(&s->requests, &at)))
        free(p);
    id_map_deinit(&s->requests);
}

/* A client that there is no room for is told so, as far as one write goes. */
static void turn_away(struct sessions *s, int fd, const char *why)
{
    struct frame_buffer b = {0};
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;
    Nvllm__V1__Error e;

    if (log_due(&s->busy_logged_ms, 1000))
        log_text(LOG_LEVEL_WARNING, "connection_turned_away", why, "%s", "");
    reply_error_init(&e, CODE(BUSY), NULL, why);
    f.has_id = true;
    f.event_case = NVLLM__V1__SERVER_FRAME__EVENT_ERROR;
    f.error = &e;
    if (frame_buffer_put(&b, &f.base) == 0)
        (void)!send(fd, b.data + b.start, frame_buffer_bytes(&b), MSG_NOSIGNAL | MSG_DONTWAIT);
    frame_buffer_deinit(&b);
    close(fd);
}

static size_t count_of(const struct sessions *s, uid_t uid)
{
    size_t n = 0;

    for (const struct session *one = s->all; one; one = one->next)
        n += one->uid == uid;
    return n;
}

void sessions_accept(struct sessions *s, int fd)
{
    struct ucred peer = {0};
    socklen_t len = sizeof(peer);
    struct session *one;

    if (s->facts.connections >= (uint32_t)s->options->max_connections) {
        turn_away(s, fd, "too many connections (limits.connections)");
        return;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0) {
        turn_away(s, fd, "who connects cannot be told");
        return;
    }
    if (count_of(s, peer.uid) >= (size_t)s->options->max_connections_per_uid) {
        turn_away(s, fd, "too many connections of this user (limits.connections_per_uid)");
        return;
    }
    one = calloc(1, sizeof(*one));
    if (!one) {
        turn_away(s, fd, "out of memory");
        return;
    }
    one->shared = s;
    one->uid = peer.uid;
    one->pid = peer.pid;
    if (connection_new(&one->connection, &s->connections, fd, one) < 0) {
        free(one);
        return;
    }
    one->next = s->all;
    one->link = &s->all;
    if (one->next)
        one->next->link = &one->next;
    s->all = one;
    s->facts.connections++;
    log_event(LOG_LEVEL_DEBUG, "connected", "uid=%u pid=%d", (unsigned)peer.uid, (int)peer.pid);
}

void sessions_ready(struct sessions *s)
{
    struct engine_status status;

    engine_status(s->engine, &status);
    s->rules.defaults = model_defaults(engine_model(s->engine));
    s->rules.vocab_size = model_config(engine_model(s->engine))->vocab_size;
    s->rules.max_seq_len = status.max_seq_len;
    if (s->facts.state == NVLLM__V1__STATE__STATE_LOADING)
        s->facts.state = NVLLM__V1__STATE__STATE_READY;
}

/* Choices that the engine has not told their end of learn it before the request's own. */
static int finish_choices(struct connection *c, struct pending *p, const struct engine_event *ev)
{
    struct engine_event last = {.type = ENGINE_DELTA};
    int r = CONNECTION_OK;

    last.reason = ev->reason != CORE_REASON_NONE ? ev->reason : CORE_REASON_CANCELLED;
    for (int32_t i = 0; i < p->n && r == CONNECTION_OK; i++) {
        if (p->told >> i & 1)
            continue;
        last.choice = i;
        r = reply_delta(c, p->client_id, &last);
    }
    return r;
}

static int tell(struct sessions *s, struct pending *p, const struct engine_event *ev)
{
    struct connection *c = p->session->connection;
    int r;

    switch (ev->type) {
    case ENGINE_DELTA:
        if (ev->reason != CORE_REASON_NONE)
            p->told |= UINT64_C(1) << ev->choice;
        return reply_delta(c, p->client_id, ev);
    case ENGINE_DONE:
        r = finish_choices(c, p, ev);
        return r == CONNECTION_OK ? reply_done(c, p->client_id, &ev->usage) : r;
    case ENGINE_TOKENS:
        return reply_tokens(c, p->client_id, ev, engine_tokenizer(s->engine));
    case ENGINE_TEXT:
        return reply_text(c, p->client_id, ev);
    case ENGINE_ERROR:
        return reply_error(c, p->client_id, reply_error_code(ev->error), ev->field,
                           ev->message->text);
    case ENGINE_REPORT:
    case ENGINE_STATE:
        break;
    }
    return CONNECTION_OK;
}

void sessions_event(struct sessions *s, const struct engine_event *ev)
{
    struct pending *p = id_map_get(&s->requests, ev->request);
    struct session *one;
    int r = CONNECTION_OK;

    if (!p)
        return;
    if (p->cancel_again)
        cancel(s, p);
    one = p->session;
    if (one)
        r = tell(s, p, ev);
    if (ev->type != ENGINE_DELTA)
        forget(s, p);
    if (one)
        check_put(one, r); /* may abandon the rest of its requests */
}

size_t sessions_n_requests(const struct sessions *s)
{
    return s->requests.n;
}

void sessions_cancel_all(struct sessions *s)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at)))
        cancel(s, p);
}

void sessions_fail_all(struct sessions *s, Nvllm__V1__ErrorCode code, const char *message)
{
    struct pending *p;
    size_t at = 0;

    while ((p = id_map_next(&s->requests, &at))) {
        if (p->session)
            (void)reply_error(p->session->connection, p->client_id, code, NULL, message);
        free(p);
    }
    id_map_deinit(&s->requests);
    s->requests = (struct id_map){0};
    for (struct session *one = s->all; one; one = one->next) {
        id_map_deinit(&one->requests);
        one->requests = (struct id_map){0};
    }
}

void sessions_end_all(struct sessions *s)
{
    for (struct session *one = s->all; one; one = one->next)
        connection_end(one->connection, NULL);
}

/* Each connection has its limits, but all of them together could still take the machine's memory:
 * then those that hold the most go, and so never those that keep to little. */
static void shed(struct sessions *s)
{
    while (s->connections.buffer_bytes > (size_t)s->options->max_buffer_bytes) {
        struct session *largest = NULL;

        for (struct session *one = s->all; one; one = one->next)
            if (!largest || connection_buffer_bytes(one->connection) >
                                connection_buffer_bytes(largest->connection))
                largest = one;
        if (!largest)
            return;
        log_event(LOG_LEVEL_WARNING, "connection_dropped",
                  "uid=%u pid=%d bytes=%zu why=limits.buffer_bytes", (unsigned)largest->uid,
                  (int)largest->pid, connection_buffer_bytes(largest->connection));
        connection_drop(largest->connection);
    }
}

void sessions_settle(struct sessions *s)
{
    struct session *one;

    connections_flush(&s->connections);
    shed(s);
    while ((one = connections_next_gone(&s->connections))) {
        *one->link = one->next;
        if (one->next)
            one->next->link = one->link;
        log_event(LOG_LEVEL_DEBUG, "disconnected", "uid=%u pid=%d requests=%zu", (unsigned)one->uid,
                  (int)one->pid, one->requests.n);
        abandon_requests(one);
        connection_free(one->connection);
        free(one);
        s->facts.connections--;
    }
    if (s->settled)
        s->settled(s->server);
}
