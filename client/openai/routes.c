/* routes.c - who may send what where: the paths, keys, and the names by which browsers come.
 *
 * A page in a browser can send requests to this host. One of another site says so by Origin; one
 * whose own name has been made to point here (DNS rebinding) says that name by Host. Both are
 * refused. No answer has a field that would let a page read it. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/openai/gateway.h"

/* ---- what asks nvllmd for its status: /health and /v1/models */

struct question {
    struct upstream_request upstream; /* first, so that one is the other */
    struct http_conn *conn;           /* NULL: the client has gone */
    const struct gateway *gateway;
    void (*reply)(struct question *q, const struct nvllm_status *status);
    char model[256]; /* of /v1/models/MODEL; empty: all */
};

static void on_gone(void *owner)
{
    ((struct question *)owner)->conn = NULL;
}

static void on_status(struct upstream_request *upstream, const struct nvllm_event *event)
{
    struct question *q = (struct question *)upstream;
    struct api_error e;

    if (q->conn && event->type == NVLLM_EVENT_STATUS) {
        q->reply(q, event->status);
    } else if (q->conn) {
        api_error_of(&e, event->error);
        api_reply_error(q->conn, &e);
    }
    free(q);
}

static void ask(struct gateway *gateway, struct http_conn *conn, const char *model,
                void (*reply)(struct question *, const struct nvllm_status *))
{
    struct question *q = calloc(1, sizeof(*q));
    struct nvllm_error err = {.code = NVLLM_E_NOMEM, .message = "out of memory"};
    struct api_error e;

    if (q) {
        *q = (struct question){.upstream = {.event = on_status},
                               .conn = conn,
                               .gateway = gateway,
                               .reply = reply};
        snprintf(q->model, sizeof(q->model), "%s", model);
    }
    if (q && upstream_status(gateway->upstream, &q->upstream, &err)) {
        http_watch(conn, on_gone, q);
        return;
    }
    free(q);
    api_error_of(&e, &err);
    api_reply_error(conn, &e);
}

static void reply_health(struct question *q, const struct nvllm_status *status)
{
    static const char good[] = "{\"status\":\"ok\"}";
    struct api_error e;

    if (status->state == NVLLM_STATE_READY) {
        http_reply(q->conn, 200, "", good, sizeof(good) - 1);
        return;
    }
    api_fail(&e, 503, "unavailable", "", "nvllmd is %s.", nvllm_state_name(status->state));
    e.retry_after_s = 1;
    api_reply_error(q->conn, &e);
}

static void put_model(struct buf *out, const struct gateway *gateway,
                      const struct nvllm_status *status)
{
    buf_lit(out, "{\"id\":");
    buf_json_string(out, status->model, strlen(status->model));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"nvllm\"",
               gateway->since);
    if (status->max_seq_len > 0)
        buf_printf(out, ",\"max_model_len\":%" PRIu32, status->max_seq_len);
    buf_lit(out, "}");
}

static void no_such_model(struct api_error *e, const char *model, const char *served)
{
    api_fail(e, 404, "model_not_found", "model",
             "The model “%.100s” is not served here, but “%.100s” is.", model, served);
}

static void reply_models(struct question *q, const struct nvllm_status *status)
{
    struct buf out = {0};
    struct api_error e;

    if (q->model[0] && strcmp(q->model, status->model) != 0) {
        no_such_model(&e, q->model, status->model);
        api_reply_error(q->conn, &e);
        return;
    }
    if (!q->model[0])
        buf_lit(&out, "{\"object\":\"list\",\"data\":[");
    put_model(&out, q->gateway, status);
    if (!q->model[0])
        buf_lit(&out, "]}");
    http_reply(q->conn, 200, "", out.data, out.len);
    buf_deinit(&out);
}

bool gateway_has_model(const struct gateway *gateway, const char *model, struct api_error *e)
{
    struct nvllm_error err;
    const char *served = upstream_model(gateway->upstream, &err);

    if (!served)
        api_error_of(e, &err);
    else if (model && *model && strcmp(model, served) != 0)
        no_such_model(e, model, served);
    else
        return true;
    return false;
}

bool gateway_admits(const struct gateway *gateway, size_t n, struct api_error *e)
{
    if (!gateway->stopping && gateway->n_requests + n <= gateway->max_requests)
        return true;
    if (gateway->stopping)
        api_fail(e, 503, "unavailable", "", "The server is shutting down.");
    else
        api_fail(e, 429, "rate_limit_exceeded", "",
                 "There are too many requests in progress: try again later.");
    e->retry_after_s = 1;
    return false;
}

/* ---- the paths */

static void get_health(struct gateway *gateway, struct http_conn *conn, const struct caller *caller,
                       struct nvllm_text rest)
{
    (void)caller;
    (void)rest;
    ask(gateway, conn, "", reply_health);
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* rest: of the path, "" or "/MODEL", which may be written with %20 and the like. */
static void get_models(struct gateway *gateway, struct http_conn *conn, const struct caller *caller,
                       struct nvllm_text rest)
{
    char model[256];
    size_t n = 0;

    (void)caller;
    for (size_t i = 1; i < rest.len && n + 1 < sizeof(model); i++) {
        int byte = (unsigned char)rest.data[i];

        if (byte == '%' && i + 2 < rest.len && hex(rest.data[i + 1]) >= 0 &&
            hex(rest.data[i + 2]) >= 0) {
            byte = hex(rest.data[i + 1]) << 4 | hex(rest.data[i + 2]);
            i += 2;
        }
        model[n++] = (char)byte;
    }
    model[n] = '\0';
    ask(gateway, conn, model, reply_models);
}

static const struct route {
    const char *path, *method;
    bool open;     /* without a key */
    bool has_rest; /* more of the path may follow, after a slash */
    void (*request)(struct gateway *gateway, struct http_conn *conn, const struct caller *caller,
                    struct nvllm_text body);
} routes[] = {
    {"/v1/chat/completions", "POST", false, false, chat_request},
    {"/v1/completions", "POST", false, false, completions_request},
    {"/v1/embeddings", "POST", false, false, embeddings_request},
    {"/v1/models", "GET", false, true, get_models},
    {"/health", "GET", true, false, get_health},
};

static const struct route *find_route(struct nvllm_text path)
{
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        size_t n = strlen(routes[i].path);

        if (path.len >= n && memcmp(path.data, routes[i].path, n) == 0 &&
            (path.len == n || (routes[i].has_rest && path.data[n] == '/' && path.len > n + 1)))
            return &routes[i];
    }
    return NULL;
}

/* ---- who may come */

/* “localhost”, “127.0.0.1” or “[::1]”, with any port. */
static bool names_loopback(struct nvllm_text host)
{
    const char *colon = memrchr(host.data, ':', host.len);

    if (colon && !memchr(colon, ']', host.len - (size_t)(colon - host.data)))
        host.len = (size_t)(colon - host.data);
    if (http_is_word(host, "localhost") || http_is_word(host, "[::1]"))
        return true;
    if (host.len < 4 || memcmp(host.data, "127.", 4) != 0)
        return false;
    for (size_t i = 0; i < host.len; i++)
        if (host.data[i] != '.' && (host.data[i] < '0' || host.data[i] > '9'))
            return false;
    return true;
}

static bool check_browser(const struct gateway *gateway, const struct http_conn *conn,
                          const struct http_head *head, struct api_error *e)
{
    if (head->origin.data)
        return api_fail(e, 403, "origin_refused", "",
                        "Requests of pages in a browser are not served.");
    if (head->host.data && http_peer(conn) == (uid_t)-1 && !gateway->allow_remote &&
        !names_loopback(head->host))
        return api_fail(e, 403, "host_refused", "",
                        "The server is called localhost, not “%.*s”: use localhost in the address, "
                        "or start nvllm-openai with --allow-remote and --api-keys.",
                        (int)(head->host.len < 100 ? head->host.len : 100), head->host.data);
    return true;
}

static bool no_such_path(struct nvllm_text path, struct api_error *e)
{
    const size_t n_routes = sizeof(routes) / sizeof(routes[0]);
    char paths[256] = "";

    for (size_t i = 0, n = 0; i < n_routes && n < sizeof(paths); i++)
        n += (size_t)snprintf(paths + n, sizeof(paths) - n, "%s%s",
                              i == 0              ? ""
                              : i == n_routes - 1 ? " and "
                                                  : ", ",
                              routes[i].path);
    return api_fail(e, 404, "unknown_url", "", "There is no “%.*s” here. The paths are %s.",
                    (int)(path.len < 100 ? path.len : 100), path.data, paths);
}

static bool check_route(const struct route *route, const struct http_head *head,
                        struct api_error *e)
{
    static const char allow_get[] = "Allow: GET\r\n", allow_post[] = "Allow: POST\r\n";

    if (!route)
        return no_such_path(head->path, e);
    if (head->method.len == strlen(route->method) &&
        memcmp(head->method.data, route->method, head->method.len) == 0)
        return true;
    api_fail(e, 405, "method_not_allowed", "", "%s takes %s.", route->path, route->method);
    e->fields = route->method[0] == 'G' ? allow_get : allow_post;
    return false;
}

static bool check_key(const struct gateway *gateway, const struct http_head *head,
                      const char **name, struct api_error *e)
{
    *name = gateway->keys ? keys_find(gateway->keys, head->authorization) : NULL;
    if (!gateway->keys || *name)
        return true;
    api_fail(e, 401, "invalid_api_key", "",
             head->authorization.data ? "The API key is not known here."
                                      : "An API key is needed: “Authorization: Bearer KEY”.");
    e->fields = "WWW-Authenticate: Bearer\r\n";
    return false;
}

static bool check_encoding(const struct http_head *head, struct api_error *e)
{
    return !head->content_encoding.data || http_is_word(head->content_encoding, "identity") ||
           api_fail(e, 415, "unsupported_encoding", "", "Compressed bodies are not supported.");
}

static bool on_head(void *arg, struct http_conn *conn, const struct http_head *head)
{
    const struct route *route = find_route(head->path);
    const struct gateway *gateway = arg;
    struct api_error e;
    const char *name;

    if (check_browser(gateway, conn, head, &e) && check_route(route, head, &e) &&
        (route->open || check_key(gateway, head, &name, &e)) && check_encoding(head, &e))
        return true;
    api_reply_error(conn, &e);
    return false;
}

/* The head has been checked; a key may have been revoked since. */
static void on_request(void *arg, struct http_conn *conn, const struct http_head *head,
                       struct nvllm_text body)
{
    const struct route *route = find_route(head->path);
    struct caller caller = {.peer = http_peer(conn)};
    struct gateway *gateway = arg;
    struct api_error e;
    size_t n = strlen(route->path);

    if (!route->open && !check_key(gateway, head, &caller.key, &e))
        api_reply_error(conn, &e);
    else if (route->has_rest)
        route->request(gateway, conn, &caller,
                       (struct nvllm_text){head->path.data + n, head->path.len - n});
    else
        route->request(gateway, conn, &caller, body);
}

static void on_refuse(void *arg, struct http_conn *conn, int status, const char *why)
{
    struct api_error e;

    (void)arg;
    api_fail(&e, status, NULL, "", "%s", why);
    if (status == 503)
        e.retry_after_s = 1;
    api_reply_error(conn, &e);
}

void routes_set(struct http_options *o, struct gateway *gateway)
{
    o->arg = gateway;
    o->head = on_head;
    o->request = on_request;
    o->refuse = on_refuse;
}
