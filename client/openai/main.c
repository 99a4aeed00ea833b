/* main.c - nvllm-openai: options, sockets, signals, and the end. */
#include <errno.h>
#include <event2/event.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

#include "client/openai/answer.h"
#include "client/openai/fields.h"
#include "client/openai/listen.h"
#include "client/openai/tokens.h"
#include "client/openai/usage.h"

enum {
    EXIT_USAGE = 2,     /* or configuration: starting again would not help */
    MAX_CALLBACKS = 32, /* of connections, before the loop looks for new events */
    OTHER_DESCRIPTORS = 64,
    DRAIN_LOOK_MS = 50, /* between two looks whether all has been answered */
    READ_LOOKS = 20,    /* for clients to read how their answers were cut off */
};

struct program {
    struct gateway gateway;
    struct usage_line line;
    struct http_options http;
    const char *socket_path;
    const char *keys_path; /* NULL: none */
    int drain_s;
    const char *paths[HTTP_MAX_LISTENERS]; /* [n_paths] of sockets that the program has made */
    size_t n_paths;
    struct event *signals[3], *drain, *watchdog;
    int drain_looks; /* left, until answers are cut off; then negative: looks since */
};

/* ---- options */

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
    va_list args;

    fputs("nvllm-openai: ", stderr);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    exit(EXIT_USAGE);
}

/* A number with K, M or G behind it where unit is set. */
static size_t number(const struct program *p, const char *option, size_t fallback, size_t min,
                     size_t max, bool unit)
{
    const char *text = usage_value(&p->line, option);
    unsigned long long n;
    int shift = 0;
    char *end;

    if (!text)
        return fallback;
    errno = 0;
    n = strtoull(text, &end, 10);
    if (unit && *end)
        shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
    end += shift > 0;
    if (text[0] < '0' || text[0] > '9' || *end || errno || n > max >> shift || n << shift < min)
        die("--%s takes a whole number from %zu to %zu%s, not “%s”", option, min, max,
            unit ? ", or with K, M or G" : "", text);
    return (size_t)(n << shift);
}

static void read_options(struct program *p)
{
    p->socket_path = usage_value(&p->line, "socket");
    if (!p->socket_path)
        p->socket_path = program_socket(NVLLM_DEFAULT_SOCKET);
    p->keys_path = usage_value(&p->line, "api-keys");
    p->gateway.allow_remote = usage_value(&p->line, "allow-remote");
    p->gateway.max_requests = number(p, "max-requests", 256, 1, 100000, false);
    p->http.max_connections = number(p, "max-connections", 512, 1, 100000, false);
    p->http.max_body = number(p, "max-body", 4 << 20, 1024, 1 << 30, true);
    p->http.max_memory = number(p, "max-memory", 256 << 20, 1 << 20, (size_t)1 << 40, true);
    p->http.timeout_s = (int)number(p, "timeout", 30, 1, 86400, false);
    p->drain_s = (int)number(p, "drain-timeout", 20, 0, 86400, false);
    if (p->gateway.allow_remote && !p->keys_path)
        die("--allow-remote needs --api-keys");
}

/* False: --help or --version was all. */
static bool parse(struct program *p, int argc, char **argv)
{
    const struct usage_option *groups[] = {openai_program.common, NULL};
    char why[USAGE_WHY];

    if (usage_parse(&p->line, why, argc, argv, groups, false) < 0)
        die("%s\nSee “nvllm-openai --help”.", why);
    if (usage_value(&p->line, "help")) {
        puts("usage: nvllm-openai [options]\n\n"
             "Serves the model of nvllmd by HTTP, as clients of OpenAI's API expect it.\n");
        usage_print_options(stdout, openai_program.common);
        return false;
    }
    if (usage_value(&p->line, "version")) {
        puts("nvllm-openai " NVLLM_VERSION);
        return false;
    }
    if (p->line.n_words > 0)
        die("unexpected argument “%s”", p->line.words[0]);
    read_options(p);
    return true;
}

/* ---- sockets and keys */

/* Descriptors for all connections that may be open. */
static void raise_descriptors(struct program *p)
{
    const rlim_t wanted = p->http.max_connections + OTHER_DESCRIPTORS;
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur >= wanted)
        return;
    if (limit.rlim_max < wanted)
        die("--max-connections: %zu connections need %ju descriptors; the limit is %ju",
            p->http.max_connections, (uintmax_t)wanted, (uintmax_t)limit.rlim_max);
    limit.rlim_cur = wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void serve(struct program *p, int fd)
{
    char name[LISTEN_WHY];

    listen_name(name, fd);
    if (http_listen(p->gateway.http, fd) < 0)
        die("out of memory");
    gateway_log("listening", "%s", name);
}

static void open_sockets(struct program *p)
{
    int n_passed = sd_listen_fds(1), n = n_passed > 0 ? n_passed : 0;
    char why[LISTEN_WHY];

    if (n > HTTP_MAX_LISTENERS)
        die("systemd passes %d sockets: at most %d are served", n, HTTP_MAX_LISTENERS);
    for (int i = 0; i < n_passed; i++) {
        if (listen_check(SD_LISTEN_FDS_START + i, p->gateway.allow_remote, why) < 0)
            die("%s", why);
        evutil_make_socket_nonblocking(SD_LISTEN_FDS_START + i);
        serve(p, SD_LISTEN_FDS_START + i);
    }
    for (size_t i = 0; i < p->line.n_given; i++) {
        const char *address = p->line.given[i].value;
        int fd;

        if (strcmp(p->line.given[i].option->name, "listen") != 0)
            continue;
        if (++n > HTTP_MAX_LISTENERS)
            die("--listen: at most %d addresses", HTTP_MAX_LISTENERS);
        fd = listen_open(address, p->gateway.allow_remote, why);
        if (fd < 0)
            die("%s", why);
        serve(p, fd);
        if (strncmp(address, "unix:", 5) == 0)
            p->paths[p->n_paths++] = address + 5;
    }
    if (n == 0)
        die("nothing to listen on: give --listen 127.0.0.1:8000");
}

/* Also for SIGHUP: wrong keys leave those that hold. */
static bool load_keys(struct program *p)
{
    struct keys *fresh;
    char why[KEYS_WHY];

    if (!p->keys_path)
        return true;
    if (keys_load(&fresh, p->keys_path, why) < 0) {
        gateway_log("wrong_keys", "%s", why);
        return false;
    }
    keys_free(p->gateway.keys);
    p->gateway.keys = fresh;
    return true;
}

/* ---- events */

static void after_events(void *arg, bool lost)
{
    struct gateway *gateway = arg;

    if (lost) {
        tokens_forget(gateway->tokens);
        answers_lose_held(gateway);
    }
    while (!lost && tokens_run(gateway->tokens))
        answers_resume(gateway); /* which may ask for more */
    http_flush(gateway->http);
}

static void on_drain(evutil_socket_t fd, short what, void *arg)
{
    struct program *p = arg;
    struct gateway *gateway = &p->gateway;

    (void)fd;
    (void)what;
    if (p->drain_looks-- == 0) {
        struct api_error e;

        api_fail(&e, 503, "unavailable", "", "The server is shutting down.");
        answers_end(gateway, &e);
        embeddings_end(gateway, &e);
        http_flush(gateway->http);
    }
    if (p->drain_looks < -READ_LOOKS ||
        (TAILQ_EMPTY(&gateway->answers) && TAILQ_EMPTY(&gateway->embeddings) &&
         !http_unsent(gateway->http)))
        event_base_loopbreak(gateway->base);
}

/* The first one lets answers go on to their end, the second does not. */
static void on_stop(evutil_socket_t number, short what, void *arg)
{
    const struct timeval look = {.tv_usec = DRAIN_LOOK_MS * 1000};
    struct program *p = arg;

    (void)number;
    (void)what;
    if (p->gateway.stopping && p->drain_looks > 0)
        p->drain_looks = 0;
    else if (!p->gateway.stopping)
        p->drain_looks = p->drain_s * 1000 / DRAIN_LOOK_MS;
    p->gateway.stopping = true;
    sd_notify(0, "STOPPING=1");
    http_stop(p->gateway.http);
    event_add(p->drain, &look);
    event_active(p->drain, EV_TIMEOUT, 0);
}

static void on_reload(evutil_socket_t number, short what, void *arg)
{
    const struct program *p = arg;

    (void)number;
    (void)what;
    if (p->keys_path && load_keys(arg))
        gateway_log("reloaded", "keys have been read again");
}

static void on_watchdog(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
    sd_notify(0, "WATCHDOG=1");
}

static void watch_signals(struct program *p)
{
    struct event_base *base = p->gateway.base;
    uint64_t us = 0;

    p->signals[0] = evsignal_new(base, SIGTERM, on_stop, p);
    p->signals[1] = evsignal_new(base, SIGINT, on_stop, p);
    p->signals[2] = evsignal_new(base, SIGHUP, on_reload, p);
    for (size_t i = 0; i < 3; i++)
        if (!p->signals[i] || event_add(p->signals[i], NULL) < 0)
            die("out of memory");
    p->drain = event_new(base, -1, EV_PERSIST, on_drain, p);
    p->watchdog = event_new(base, -1, EV_PERSIST, on_watchdog, p);
    if (!p->drain || !p->watchdog)
        die("out of memory");
    if (sd_watchdog_enabled(1, &us) > 0) {
        const struct timeval third = {.tv_sec = (time_t)(us / 3000000),
                                      .tv_usec = (suseconds_t)(us / 3 % 1000000)};

        event_add(p->watchdog, &third);
    }
}

static struct event_base *new_base(void)
{
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;

    /* Edges and closed connections are what http.c builds on. */
    if (config &&
        event_config_require_features(config, EV_FEATURE_ET | EV_FEATURE_EARLY_CLOSE) == 0 &&
        event_config_set_max_dispatch_interval(config, NULL, MAX_CALLBACKS, 0) == 0)
        base = event_base_new_with_config(config);
    if (config)
        event_config_free(config);
    return base;
}

static void start(struct program *p)
{
    struct gateway *gateway = &p->gateway;
    const struct upstream_options upstream = {.socket_path = p->socket_path,
                                              .after = after_events,
                                              .arg = gateway};

    gateway->since = time(NULL);
    routes_set(&p->http, gateway);
    TAILQ_INIT(&gateway->answers);
    TAILQ_INIT(&gateway->embeddings);
    if (!load_keys(p))
        exit(EXIT_USAGE);
    gateway->base = new_base();
    if (gateway->base) {
        gateway->http = http_new(gateway->base, &p->http);
        gateway->upstream = upstream_new(gateway->base, &upstream);
    }
    if (gateway->upstream)
        gateway->tokens = tokens_new(gateway->upstream);
    if (!gateway->http || !gateway->tokens)
        die("out of memory");
    watch_signals(p);
    /* Who has started this program by a request, through systemd's socket, waits for it. */
    while (!upstream_tried(gateway->upstream) && !gateway->stopping)
        event_base_loop(gateway->base, EVLOOP_ONCE);
    if (!gateway->stopping)
        open_sockets(p);
}

static void finish(struct program *p)
{
    struct event *const events[] = {p->signals[0], p->signals[1], p->signals[2], p->drain,
                                    p->watchdog};

    upstream_free(p->gateway.upstream); /* ends all answers */
    http_free(p->gateway.http);
    tokens_free(p->gateway.tokens);
    keys_free(p->gateway.keys);
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++)
        event_free(events[i]);
    event_base_free(p->gateway.base);
    while (p->n_paths > 0)
        unlink(p->paths[--p->n_paths]);
    usage_line_deinit(&p->line);
}

int main(int argc, char **argv)
{
    static struct program p;

    program_hold_streams();
    signal(SIGPIPE, SIG_IGN);  /* of stderr */
    prctl(PR_SET_DUMPABLE, 0); /* a core would hold keys, prompts and answers */
    json_set_alloc_funcs(fields_alloc_json, free);
    if (!parse(&p, argc, argv))
        return fflush(stdout) == 0 ? 0 : 1;
    raise_descriptors(&p);
    start(&p);
    sd_notify(0, "READY=1");
    event_base_dispatch(p.gateway.base);
    finish(&p);
    return 0;
}
