/* bench.c - nvllmctl bench: a load on the daemon, and how it bears it.
 *
 * One thread, one connection. Tokens are counted and dropped, and times go into buckets, so what
 * it costs itself is the library's decoding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/ctl.h"
#include "client/ctl/bench.h"
#include "client/ctl/workload.h"

enum {
    DEFAULT_STREAMS = 8,
    DEFAULT_REQUESTS = 64,
    DEFAULT_PROMPT_TOKENS = 256,
    DEFAULT_OUTPUT_TOKENS = 128,
    MAX_STREAMS = 65536,
    MAX_REQUESTS = 100000000,
    TICK_MS = 200,
    EVENTS_A_ROUND = 1024,
    FIRST_RETRY_MS = 5, /* of a request that the daemon is too busy for, doubled up to … */
    LAST_RETRY_MS = 500,
    MAX_SHOWN_FAILURES = 3,
};

/* A request under way, or one that the daemon did not take yet. */
struct stream {
    enum { STREAM_FREE, STREAM_RETRY, STREAM_SENT } state;
    uint64_t id;
    struct workload_item item;
    int64_t due_ns, first_ns, last_ns;
    uint64_t n_tokens;
    int64_t retry_ns;
    int n_tries;
};

struct bench {
    struct ctl *ctl;
    struct nvllm_client *client;
    struct workload workload;
    struct nvllm_request request;
    size_t n_streams;       /* at a time, at most */
    struct stream *streams; /* [n_streams] */
    uint32_t *free_streams; /* [n_free] */
    size_t n_free, n_retry;
    uint32_t *by_id; /* [id_mask + 1] a stream by the low bits of its request's id */
    size_t id_mask;
    uint64_t n_requests; /* to be started; UINT64_MAX: until the time is over */
    uint64_t n_started;
    double rate;     /* of requests a second; 0: whenever a stream is free */
    double duration; /* in s; 0: until the requests are done */
    bool has_next, exhausted;
    struct workload_item next;
    int64_t next_ns; /* when it is due */
    int64_t start_ns, end_ns, last_ns;
    int64_t wake_ns; /* when what is being taken was there: of all events of a wake-up the same */
    bool stopping;
    int64_t stop_deadline;
    bool json;
    bool warm; /* what earlier runs have left in the prefix cache may be found */
    char salt[48];
    int rc;
    struct bench_result *result;
};

static int64_t clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- requests */

static void release(struct bench *b, struct stream *s)
{
    s->state = STREAM_FREE;
    b->free_streams[b->n_free++] = (uint32_t)(s - b->streams);
}

static void fail(struct bench *b, struct stream *s, const struct nvllm_error *err)
{
    if (++b->result->n_failed <= MAX_SHOWN_FAILURES)
        ctl_message("%s", err->message);
    release(b, s);
}

/* Nothing can be sent any more. */
static void fail_all(struct bench *b, const struct nvllm_error *err)
{
    b->rc = ctl_report(b->ctl, err);
    b->n_retry = 0;
    for (size_t i = 0; i < b->n_streams; i++) {
        if (b->streams[i].state != STREAM_FREE) {
            b->result->n_failed++;
            release(b, &b->streams[i]);
        }
    }
    b->stopping = true;
}

static void put_off(struct bench *b, struct stream *s, uint32_t after_ms)
{
    int64_t pause = ctl_put_off_ms(s->n_tries, FIRST_RETRY_MS, LAST_RETRY_MS, after_ms);

    s->n_tries++;
    s->state = STREAM_RETRY;
    s->retry_ns = clock_ns() + pause * INT64_C(1000000);
    b->n_retry++;
    b->result->n_busy++;
}

static void send_request(struct bench *b, struct stream *s)
{
    struct nvllm_error err;
    enum nvllm_code code;

    b->request.prompt_ids = workload_ids(&b->workload, &s->item);
    b->request.n_prompt_ids = s->item.prompt_tokens;
    b->request.max_tokens = s->item.output_tokens;
    code = nvllm_generate_start(b->client, &s->id, &b->request, &err);
    if (code == NVLLM_OK) {
        s->state = STREAM_SENT;
        b->by_id[s->id & b->id_mask] = (uint32_t)(s - b->streams);
    } else if (code == NVLLM_E_BUSY) {
        put_off(b, s, 0);
    } else if (code == NVLLM_E_CONNECTION || code == NVLLM_E_PROTOCOL) {
        s->state = STREAM_SENT;
        fail_all(b, &err);
    } else {
        fail(b, s, &err);
    }
}

/* Sets next and when it is due; false: there is none. */
static bool look_ahead(struct bench *b)
{
    bool again = b->workload.n_items == 0 || b->workload.items[0].at_us < 0;

    if (b->has_next)
        return true;
    if (b->exhausted || b->n_started == b->n_requests ||
        !workload_next(&b->workload, &b->next, again && b->duration > 0)) {
        b->exhausted = true;
        return false;
    }
    if (b->next.at_us >= 0)
        b->next_ns = b->start_ns + b->next.at_us * 1000;
    else if (b->rate > 0)
        b->next_ns += (int64_t)(-log(random_share(&b->workload.random)) / b->rate * 1e9);
    else
        b->next_ns = 0; /* when it can be sent */
    b->has_next = true;
    return true;
}

/* Sends what is due. Gives the milliseconds until something else is. */
static int send_due(struct bench *b)
{
    int64_t now = clock_ns(), soonest = now + TICK_MS * INT64_C(1000000);

    for (size_t i = 0; b->n_retry > 0 && i < b->n_streams; i++) {
        struct stream *s = &b->streams[i];

        if (s->state != STREAM_RETRY)
            continue;
        if (s->retry_ns > now) {
            soonest = s->retry_ns < soonest ? s->retry_ns : soonest;
            continue;
        }
        b->n_retry--;
        send_request(b, s);
    }
    while (!b->stopping && b->n_free > 0 && look_ahead(b)) {
        struct stream *s;

        if (b->next_ns > now) {
            soonest = b->next_ns < soonest ? b->next_ns : soonest;
            break;
        }
        s = &b->streams[b->free_streams[--b->n_free]];
        *s = (struct stream){.item = b->next};
        s->due_ns = b->next_ns ? b->next_ns : now;
        b->has_next = false;
        b->n_started++;
        send_request(b, s);
    }
    if (b->end_ns && b->end_ns < soonest)
        soonest = b->end_ns;
    return soonest <= now ? 0 : (int)((soonest - now + 999999) / 1000000);
}

/* ---- events */

static struct stream *stream_of(struct bench *b, uint64_t id)
{
    struct stream *s = &b->streams[b->by_id[id & b->id_mask]];

    if (s->state == STREAM_SENT && s->id == id)
        return s;
    for (size_t i = 0; i < b->n_streams; i++)
        if (b->streams[i].state == STREAM_SENT && b->streams[i].id == id)
            return &b->streams[i];
    return NULL;
}

/* Deltas that lay ready together are one delivery: how fast they are decoded is no time between
 * tokens. */
static void take_tokens(struct bench *b, struct stream *s, const struct nvllm_delta *delta)
{
    int64_t now = b->wake_ns;

    if (delta->n_tokens == 0)
        return;
    if (b->end_ns && now > b->end_ns)
        return; /* too late to be counted */
    if (s->n_tokens == 0) {
        s->first_ns = now;
        quantiles_add(&b->result->ttft, (uint64_t)(now - s->due_ns));
    } else if (now > s->last_ns) {
        quantiles_add(&b->result->between, (uint64_t)(now - s->last_ns));
    }
    s->last_ns = b->last_ns = now;
    s->n_tokens += delta->n_tokens;
    b->result->output_tokens += delta->n_tokens;
}

static void take_done(struct bench *b, struct stream *s, const struct nvllm_done *done)
{
    struct bench_result *r = b->result;

    if (b->stopping) {
        r->n_cut++;
    } else {
        b->last_ns = b->wake_ns;
        r->n_done++;
        r->prompt_tokens += done->prompt_tokens;
        r->cached_tokens += done->cached_tokens;
        quantiles_add(&r->request, (uint64_t)(b->last_ns - s->due_ns));
        if (s->n_tokens > 1)
            quantiles_add(&r->token, (uint64_t)(s->last_ns - s->first_ns) / (s->n_tokens - 1));
    }
    release(b, s);
}

static void take_event(struct bench *b, const struct nvllm_event *event)
{
    struct stream *s = stream_of(b, event->id);

    if (!s)
        return;
    if (event->delta) {
        take_tokens(b, s, event->delta);
    } else if (event->done) {
        take_done(b, s, event->done);
    } else if (b->stopping) {
        b->result->n_cut++;
        release(b, s);
    } else if (event->error->code == NVLLM_E_BUSY) {
        put_off(b, s, event->error->retry_after_ms);
    } else {
        fail(b, s, event->error);
    }
}

/* ---- the loop */

static void stop(struct bench *b)
{
    b->stopping = true;
    b->stop_deadline = ctl_cancel_end(b->ctl);
    for (size_t i = 0; i < b->n_streams; i++) {
        struct stream *s = &b->streams[i];

        if (s->state == STREAM_SENT) {
            nvllm_cancel(b->client, s->id, NULL);
        } else if (s->state == STREAM_RETRY) {
            b->n_retry--;
            release(b, s);
        }
    }
}

static bool is_over(struct bench *b)
{
    bool out_of_time = ctl_left_ms(b->ctl) == 0;

    if (!b->stopping && out_of_time) {
        ctl_message("gave up after the time that --timeout gives");
        b->rc = EXIT_DEADLINE;
    }
    if (!b->stopping &&
        (ctl_interrupted() || out_of_time || (b->end_ns && clock_ns() >= b->end_ns))) {
        if (!b->end_ns || clock_ns() < b->end_ns)
            b->end_ns = clock_ns();
        stop(b);
    }
    if (b->stopping)
        return b->n_free == b->n_streams || clock_left_ms(b->stop_deadline) == 0;
    return b->n_free == b->n_streams && !look_ahead(b);
}

static void run(struct bench *b)
{
    const struct nvllm_event *event;
    struct nvllm_error err;
    enum nvllm_code code;

    b->start_ns = b->last_ns = b->next_ns = clock_ns();
    if (b->duration > 0)
        b->end_ns = b->start_ns + (int64_t)(b->duration * 1e9);
    for (;;) {
        int wait = send_due(b);

        if (is_over(b))
            break;
        code = ctl_next(b->client, -1, wait, &event, &err);
        b->wake_ns = clock_ns();
        for (int i = 0; code == NVLLM_OK && i < EVENTS_A_ROUND; i++) {
            take_event(b, event);
            code = nvllm_next(b->client, 0, &event, &err);
        }
        if (code == NVLLM_OK) {
            take_event(b, event);
        } else if (code != NVLLM_E_TIMEOUT) {
            fail_all(b, &err);
            break;
        }
    }
    b->result->seconds = (double)((b->end_ns ? b->end_ns : b->last_ns) - b->start_ns) / 1e9;
}

/* ---- options */

static struct workload_range read_range(const struct ctl *ctl, const char *option, const char *text)
{
    char *dash = strchr(text, '-');
    char low[24];
    struct workload_range range;

    snprintf(low, sizeof(low), "%.*s", dash && dash - text < 20 ? (int)(dash - text) : 20, text);
    range.min = (uint32_t)ctl_number(ctl, option, dash ? low : text, 1, WORKLOAD_MAX_TOKENS);
    range.max = dash ? (uint32_t)ctl_number(ctl, option, dash + 1, range.min, WORKLOAD_MAX_TOKENS)
                     : range.min;
    return range;
}

static double read_positive(const struct ctl *ctl, const char *option, const char *text, double max)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end || !(value > 0) || value > max)
        ctl_usage(ctl, "--%s takes a number above 0, up to %g, not “%s”", option, max, text);
    return value;
}

struct settings {
    const char *file;
    bool nano_vllm;
    bool has_lengths, has_seed;
    uint64_t seed;
    struct workload_range prompt, output;
};

static const struct option options[] = {
    CTL_COMMON_OPTIONS,
    {"streams", required_argument, NULL, 's'},
    {"rate", required_argument, NULL, 'r'},
    {"prompt-tokens", required_argument, NULL, 'p'},
    {"output-tokens", required_argument, NULL, 'o'},
    {"duration", required_argument, NULL, 'd'},
    {"requests", required_argument, NULL, 'q'},
    {"workload", required_argument, NULL, 'w'},
    {"nano-vllm", no_argument, NULL, 'N'},
    {"temperature", required_argument, NULL, 't'},
    {"seed", required_argument, NULL, 'S'},
    {"warm-cache", no_argument, NULL, 'W'},
    {"json", no_argument, NULL, 'j'},
    {NULL, 0, NULL, 0},
};

static void take_option(struct bench *b, struct settings *set, int c)
{
    struct ctl *ctl = b->ctl;
    char *end;

    switch (c) {
    case 's':
        b->n_streams = (size_t)ctl_number(ctl, "streams", optarg, 1, MAX_STREAMS);
        break;
    case 'r':
        b->rate = read_positive(ctl, "rate", optarg, 1e6);
        break;
    case 'p':
        set->prompt = read_range(ctl, "prompt-tokens", optarg);
        set->has_lengths = true;
        break;
    case 'o':
        set->output = read_range(ctl, "output-tokens", optarg);
        set->has_lengths = true;
        break;
    case 'd':
        b->duration = read_positive(ctl, "duration", optarg, 1e6);
        break;
    case 'q':
        b->n_requests = (uint64_t)ctl_number(ctl, "requests", optarg, 1, MAX_REQUESTS);
        break;
    case 'w':
        set->file = optarg;
        break;
    case 'N':
        set->nano_vllm = true;
        break;
    case 't':
        b->request.temperature = strtof(optarg, &end);
        if (end == optarg || *end || !(b->request.temperature >= 0))
            ctl_usage(ctl, "--temperature takes a number from 0, not “%s”", optarg);
        break;
    case 'S':
        set->seed = (uint64_t)ctl_number(ctl, "seed", optarg, 0, INT64_MAX);
        set->has_seed = true;
        break;
    case 'W':
        b->warm = true;
        break;
    case 'j':
        b->json = true;
        break;
    default:
        ctl_usage(ctl, "bench takes no -%c", c);
    }
}

static void check_options(const struct bench *b, const struct settings *set)
{
    if (set->nano_vllm && (set->file || set->has_lengths || set->has_seed || b->n_requests))
        ctl_usage(b->ctl, "--nano-vllm says which requests: no --workload, --prompt-tokens, "
                          "--output-tokens, --requests or --seed goes with it");
    if (set->file && set->has_lengths)
        ctl_usage(b->ctl, "--workload says how long prompts and answers are: --prompt-tokens and "
                          "--output-tokens do not go with it");
    if (b->duration > 0 && b->n_requests)
        ctl_usage(b->ctl, "--duration and --requests exclude each other");
}

/* The requests that the options stand for. EXIT_OK, or the exit code after a message. */
static int make_workload(struct bench *b, const struct settings *set)
{
    struct workload *w = &b->workload;
    int rc;

    workload_init(w, set->seed);
    w->prompt = set->prompt;
    w->output = set->output;
    if (set->nano_vllm)
        workload_nano_vllm(w);
    rc = set->file ? workload_read(w, set->file) : EXIT_OK;
    if (rc == EXIT_OK && b->rate > 0 && w->items && w->items->at_us >= 0)
        ctl_usage(b->ctl, "--rate does not go with at_ms: %s says when requests are due",
                  set->file);
    if (b->n_requests == 0)
        b->n_requests = w->items || b->duration > 0 ? UINT64_MAX : DEFAULT_REQUESTS;
    /* Those of a known number that have no rate come all at once, as nano-vLLM's do. */
    if (b->n_streams == 0)
        b->n_streams = set->nano_vllm                                      ? w->n_items
                       : b->rate > 0 || (w->items && w->items->at_us >= 0) ? MAX_STREAMS
                                                                           : DEFAULT_STREAMS;
    return rc;
}

static void make_streams(struct bench *b)
{
    b->id_mask = 1;
    while (b->id_mask < b->n_streams * 4)
        b->id_mask *= 2;
    b->streams = calloc(b->n_streams, sizeof(*b->streams));
    b->free_streams = calloc(b->n_streams, sizeof(*b->free_streams));
    b->by_id = calloc(b->id_mask, sizeof(*b->by_id));
    b->result = calloc(1, sizeof(*b->result));
    if (!b->streams || !b->free_streams || !b->by_id || !b->result) {
        ctl_message("out of memory");
        exit(EXIT_ERROR);
    }
    b->id_mask--;
    for (size_t i = b->n_streams; i > 0; i--)
        b->free_streams[b->n_free++] = (uint32_t)i - 1;
}

static int finish(struct bench *b)
{
    if (!b->json)
        bench_print(b->result);
    else if (!bench_print_json(b->result))
        return EXIT_ERROR;
    if (ctl_interrupted())
        return ctl_interrupted();
    return b->rc == EXIT_OK && b->result->n_failed > 0 ? EXIT_ERROR : b->rc;
}

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    struct bench b = {.ctl = ctl};
    struct settings set = {
        .prompt = {DEFAULT_PROMPT_TOKENS, DEFAULT_PROMPT_TOKENS},
        .output = {DEFAULT_OUTPUT_TOKENS, DEFAULT_OUTPUT_TOKENS},
    };
    int c, rc;

    nvllm_request_init(&b.request);
    b.request.ignore_eos = true; /* as many tokens as were asked for */
    b.request.temperature = 0.6f;
    b.request.top_k = 0;
    b.request.top_p = 1;
    b.request.min_p = 0;
    b.request.repetition_penalty = 1;
    while ((c = ctl_getopt(ctl, argc, argv, options)) != -1)
        take_option(&b, &set, c);
    if (optind < argc)
        ctl_usage(ctl, "bench takes no “%s”", argv[optind]);
    check_options(&b, &set);
    rc = make_workload(&b, &set);
    if (rc == EXIT_OK)
        rc = ctl_connect(&b.client, ctl);
    if (rc == EXIT_OK)
        rc = workload_find_tokens(&b.workload, ctl, b.client);
    if (rc == EXIT_OK) {
        make_streams(&b);
        snprintf(b.salt, sizeof(b.salt), "bench %d %lld", (int)getpid(), (long long)clock_ns());
        if (!b.warm)
            b.request.cache_salt = nvllm_str(b.salt);
        ctl_catch_interrupts();
        run(&b);
        rc = finish(&b);
    }
    nvllm_close(b.client);
    workload_deinit(&b.workload);
    free(b.streams);
    free(b.free_streams);
    free(b.by_id);
    free(b.result);
    return rc;
}

const struct ctl_command ctl_bench = {
    .name = "bench",
    .about = "a load on nvllmd, and how it bears it",
    .run = run_command,
    .help =
        "usage: nvllmctl bench [OPTION…]\n\n"
        "Sends prompts of random tokens, counts what comes, and prints throughput, the\n"
        "time to the first token and between tokens. Answers have the length that was\n"
        "asked for: the model's own end is ignored, and nothing but the temperature\n"
        "limits what is drawn.\n\n"
        "  --streams N               requests at a time (8; with --rate no bound)\n"
        "  --rate R                  R requests a second, at random moments\n"
        "  --prompt-tokens N|A-B     how long prompts are (256)\n"
        "  --output-tokens N|A-B     how long answers are (128)\n"
        "  --requests N              how many (64), or\n"
        "  --duration SECONDS        until then; what is under way then is cut short\n"
        "  --workload FILE|-         lines of {\"prompt_tokens\", \"output_tokens\"}, \"at_ms\"\n"
        "  --nano-vllm               nano-vLLM's benchmark: 256 requests, all at once\n"
        "  --temperature T           0.6\n"
        "  --seed N                  of lengths, moments, tokens (0): the same load again\n"
        "  --warm-cache              let prompts of an earlier run be found in the cache\n"
        "  --json                    print one JSON object\n",
    .examples = "  nvllmctl bench --nano-vllm\n"
                "  nvllmctl bench --streams 1 --prompt-tokens 1 --output-tokens 512 --requests 1\n"
                "  nvllmctl bench --rate 20 --duration 60 --prompt-tokens 100-1000 --json\n",
};
