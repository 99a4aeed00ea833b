/* connect.c - the socket, the greeting, and waiting for the daemon to start and load its model. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/lib/client.h"
#include "client/lib/clock.h"
#include "client/lib/error.h"
#include "client/lib/pack.h"

enum {
    CONNECT_TIMEOUT_MS = 10000,
    MAX_FRAME_BYTES = 64 << 20,
    MAX_QUEUE_BYTES = 256 << 20,
    START_PAUSE_MS = 20, /* between two attempts while nobody listens */
    REPLACED_MS = 1000,  /* for attempts at a daemon that closes connections: its successor comes */
    FIRST_POLL_MS = 10,  /* between two looks at a loading daemon, doubled up to LAST_POLL_MS */
    LAST_POLL_MS = 200,
};

static const struct nvllm_options default_options = {
    .size = sizeof(default_options),
    .socket_path = NVLLM_DEFAULT_SOCKET,
    .fd = -1,
    .name = "libnvllm-client",
    .timeout_ms = CONNECT_TIMEOUT_MS,
    .max_frame_bytes = MAX_FRAME_BYTES,
    .max_queue_bytes = MAX_QUEUE_BYTES,
    .reconnect = true,
};

void nvllm_options_init_size(struct nvllm_options *options, size_t size)
{
    sized_give(options, size, &default_options, sizeof(default_options));
}

/* Sleeps until the deadline at most. False if it has passed. */
static bool pause_ms(int ms, int64_t deadline)
{
    int left = clock_left_ms(deadline);

    if (left == 0)
        return false;
    poll(NULL, 0, left > 0 && left < ms ? left : ms);
    return true;
}

/* True if path is known to be something other than a socket. */
static bool is_no_socket(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && !S_ISSOCK(st.st_mode);
}

static enum nvllm_code connect_error(const char *path, int sys_errno, struct nvllm_error *err)
{
    if (is_no_socket(path))
        return error_field(err, "socket_path", "%s is not a socket", path);
    switch (sys_errno) {
    case ENOENT:
    case ENOTDIR:
        return error_set(err, NVLLM_E_NOT_RUNNING, sys_errno,
                         "nvllmd is not running: %s does not exist", path);
    case ECONNREFUSED:
        return error_set(err, NVLLM_E_NOT_RUNNING, sys_errno,
                         "nvllmd is not running: no process is listening on %s", path);
    case EACCES:
    case EPERM:
        return error_set(err, NVLLM_E_DENIED, sys_errno, "this user may not connect to %s", path);
    case EAGAIN:
        return error_set(err, NVLLM_E_BUSY, sys_errno,
                         "too many clients are waiting to connect to %s", path);
    default:
        return error_set(err, NVLLM_E_CONNECTION, sys_errno, "cannot connect to %s: %s", path,
                         strerror(sys_errno));
    }
}

static void tell_waiting(const struct nvllm_options *o, enum nvllm_state state, float progress)
{
    if (o->on_wait)
        o->on_wait(o->on_wait_arg, state, progress);
}

/* 0, or a negative errno. */
static int try_socket(int *out, const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error;

    strcpy(address.sun_path, path);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0) {
        error = errno;
        close(fd);
        return -error;
    }
    *out = fd;
    return 0;
}

static bool is_absent(const char *path, int sys_errno)
{
    return sys_errno == ENOENT || (sys_errno == ECONNREFUSED && !is_no_socket(path));
}

static enum nvllm_code open_socket(int *fd, const struct nvllm_options *o, int64_t deadline,
                                   struct nvllm_error *err)
{
    const size_t max = sizeof(((struct sockaddr_un *)0)->sun_path) - 1;
    bool absent;
    int error;

    if (!o->socket_path || !*o->socket_path)
        return error_field(err, "socket_path", "the path of the socket is empty");
    if (strlen(o->socket_path) > max)
        return error_field(err, "socket_path", "a socket's path has at most %zu bytes, not %zu",
                           max, strlen(o->socket_path));
    for (;;) {
        error = -try_socket(fd, o->socket_path);
        if (error == 0)
            return NVLLM_OK;
        absent = is_absent(o->socket_path, error);
        if (error != EAGAIN && error != EINTR && !(absent && o->wait_start))
            break;
        if (absent)
            tell_waiting(o, NVLLM_STATE_UNKNOWN, 0);
        if (!pause_ms(START_PAUSE_MS, deadline))
            break;
    }
    return connect_error(o->socket_path, error, err);
}

static enum nvllm_code wait_greeting(struct nvllm_client *c, const struct nvllm_options *o,
                                     int64_t deadline, struct nvllm_error *err)
{
    enum nvllm_code code;

    for (;;) {
        client_take(c, 0); /* no request has been sent: only the greeting can arrive */
        if (c->conn.welcomed && c->conn.death.code == NVLLM_OK)
            return NVLLM_OK;
        if (c->conn.death.code != NVLLM_OK)
            return error_copy(err, &c->conn.death);
        code = client_wait(c, deadline, err);
        if (code == NVLLM_E_TIMEOUT)
            return error_set(err, NVLLM_E_TIMEOUT, 0, "nvllmd at %s does not answer",
                             o->socket_path ? o->socket_path : "the socket");
        if (code != NVLLM_OK)
            return code;
    }
}

static enum nvllm_code wait_loaded(struct nvllm_client *c, const struct nvllm_options *o,
                                   int64_t deadline, struct nvllm_error *err)
{
    enum nvllm_state state = c->conn.state;
    float progress = c->conn.progress;
    int ms = FIRST_POLL_MS;

    while (state == NVLLM_STATE_LOADING) {
        const struct nvllm_status *status;
        enum nvllm_code code = NVLLM_E_TIMEOUT;

        tell_waiting(o, state, progress);
        if (pause_ms(ms, deadline))
            code = nvllm_get_status(c, clock_left_ms(deadline), &status, err);
        ms = ms * 2 < LAST_POLL_MS ? ms * 2 : LAST_POLL_MS;
        if (code == NVLLM_E_TIMEOUT)
            return error_set(err, NVLLM_E_TIMEOUT, 0, "nvllmd is still loading its model (%d %%)",
                             progress >= 0 && progress <= 1 ? (int)(progress * 100) : 0);
        if (code != NVLLM_OK)
            return code;
        state = status->state;
        progress = status->progress;
    }
    if (state == NVLLM_STATE_FAILED)
        return error_set(err, NVLLM_E_UNAVAILABLE, 0,
                         "nvllmd could not load its model: its log says why");
    return NVLLM_OK;
}

void client_reconnect(struct nvllm_client *c)
{
    const int64_t now = clock_ms();
    int fd, error;
    bool absent;

    if (now < c->reconnect_at)
        return;
    c->reconnect_at = now + START_PAUSE_MS;
    error = -try_socket(&fd, c->socket_path);
    if (error == 0) {
        close(c->fd); /* after the new one: that has another number */
        c->fd = fd;
        c->idle_fd = c->out_broken = c->drained = false;
        c->give_up_at = c->greet_deadline = INT64_MAX;
        conn_restart(&c->conn);
        conn_hello(&c->conn, c->name, &c->conn.death);
        return;
    }
    absent = is_absent(c->socket_path, error);
    if (c->give_up_at == INT64_MAX)
        c->give_up_at = clock_deadline(c->timeout_ms);
    if (error != EAGAIN && error != EINTR && !(absent && c->wait_start))
        c->give_up_at = now;
    if (c->give_up_at <= now) {
        c->give_up_at = INT64_MAX;
        conn_give_up(&c->conn, absent ? NVLLM_E_NOT_RUNNING : NVLLM_E_CONNECTION);
    }
}

/* A client that has queued its greeting. */
static enum nvllm_code open_client(struct nvllm_client **out, const struct nvllm_options *o,
                                   int64_t deadline, struct nvllm_error *err)
{
    struct nvllm_client *c;
    enum nvllm_code code;
    int fd = o->fd;

    if (fd < 0) {
        code = open_socket(&fd, o, deadline, err);
        if (code != NVLLM_OK)
            return code;
    } else {
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
    c = client_new(fd, o);
    if (!c) {
        close(fd);
        return error_set(err, NVLLM_E_NOMEM, ENOMEM, "out of memory for a connection");
    }
    code = conn_hello(&c->conn, o->name, err);
    if (code == NVLLM_OK)
        *out = c;
    else
        nvllm_close(c);
    return code;
}

/* *exits: the daemon has said that it exits. */
static enum nvllm_code connect_client(struct nvllm_client **out, const struct nvllm_options *o,
                                      int64_t deadline, bool *exits, struct nvllm_error *err)
{
    struct nvllm_client *c;
    enum nvllm_code code = open_client(&c, o, deadline, err);

    *exits = false;
    if (code != NVLLM_OK)
        return code;
    code = wait_greeting(c, o, deadline, err);
    if (code == NVLLM_OK && o->wait_ready)
        code = wait_loaded(c, o, deadline, err);
    *exits = code == NVLLM_E_UNAVAILABLE && c->conn.replaceable;
    if (code == NVLLM_OK)
        *out = c;
    else
        nvllm_close(c);
    return code;
}

static enum nvllm_code take_options(struct nvllm_options *ours, const struct nvllm_options *theirs,
                                    struct nvllm_error *err)
{
    if (!sized_take(ours, sizeof(*ours), theirs))
        return error_field(err, "options", "initialise the options by nvllm_options_init()");
    if (!ours->name)
        ours->name = default_options.name;
    return NVLLM_OK;
}

enum nvllm_code nvllm_connect_start(struct nvllm_client **client,
                                    const struct nvllm_options *options, struct nvllm_error *err)
{
    struct nvllm_options o = default_options;
    enum nvllm_code code = take_options(&o, options, err);
    bool wait_start;

    *client = NULL;
    wait_start = o.wait_start; /* for the next daemon only */
    o.wait_start = false;
    if (code == NVLLM_OK)
        code = open_client(client, &o, 0, err);
    if (code != NVLLM_OK)
        return code;
    (*client)->wait_start = wait_start;
    (*client)->greet_deadline = clock_deadline(o.timeout_ms);
    client_flush(*client);
    return NVLLM_OK;
}

bool nvllm_greeted(const struct nvllm_client *client)
{
    return client->conn.welcomed;
}

enum nvllm_code nvllm_connect(struct nvllm_client **client, const struct nvllm_options *options,
                              struct nvllm_error *err)
{
    struct nvllm_options o = default_options;
    enum nvllm_code code = take_options(&o, options, err);
    int64_t deadline, last;
    bool exits;

    *client = NULL;
    if (code != NVLLM_OK)
        return code;
    deadline = clock_deadline(o.timeout_ms);
    last = o.wait_start || (unsigned)o.timeout_ms < REPLACED_MS ? deadline
                                                                : clock_deadline(REPLACED_MS);
    for (;;) {
        code = connect_client(client, &o, deadline, &exits, err);
        /* A daemon that is being replaced may also close the connection without a word. */
        if ((!exits && code != NVLLM_E_CONNECTION) || o.fd >= 0 ||
            !pause_ms(START_PAUSE_MS, exits ? deadline : last))
            return code;
    }
}
