/* bench.c - nvllmctl bench: puts the daemon under load and measures it.
 *
 * Tokens are counted and dropped, and times go into histograms: its cost is that of the library. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/bench.h"
#include "client/ctl/flight.h"
#include "client/ctl/json.h"
#include "client/ctl/show.h"

enum {
    DEFAULT_STREAMS = 8,
    DEFAULT_REQUESTS = 64,
    DEFAULT_PROMPT_TOKENS = 256,
    DEFAULT_OUTPUT_TOKENS = 128,
    DEFAULT_TURNS = 8,
    MAX_TURNS = 10000,
    MAX_STREAMS = 65536,
    MAX_REQUESTS = 100000000,
    TICK_MS = 200,
    MAX_SHOWN_FAILURES = 3,
    HEAD_COLUMNS = 40, /* left of a bar */
    MAX_BAR = 60,
};

struct stream {
    struct flight_request flight;
    struct workload_item item;
    struct conversation *conversation; /* or NULL */
    int64_t due_ns, first_ns, last_ns;
    uint64_t n_tokens;
};

/* What has been measured; counts are of the type that jansson and printf() take. */
struct result {
    long long n_done, n_failed;
    long long n_cut;  /* in flight when the time was over */
    long long n_busy; /* refusals of a busy daemon; the requests are sent again */
    long long prompt_tokens, cached_tokens; /* of finished requests */
    long long output_tokens;                /* all that have come */
    double seconds;
    struct quantiles ttft;    /* from when a request was due to its first token */
    struct quantiles later;   /* the same, of the later turns of conversations */
    struct quantiles between; /* from one delivery of a request's tokens to the next */
    struct quantiles token;   /* first token to last, divided by the number of tokens */
    struct quantiles request; /* from when it was due to its end */
};

struct bench {
    struct ctl *ctl;
    struct flight flight;
    struct workload workload;
    struct conversations conversations; /* n = 0: none */
    struct nvllm_request request;
    size_t n_streams;    /* at a time, at most */
    uint64_t n_requests; /* to start; UINT64_MAX: until the time is over */
    uint64_t n_started;
    double rate;     /* requests a second; 0: as streams become free */
    double duration; /* in s; 0: until all requests are done */
    bool has_next;
    struct workload_item next;
    int64_t next_ns; /* when it is due */
    int64_t start_ns, end_ns, last_ns;
    int rc;
    struct result result;
};

/* ---- requests */

static enum nvllm_code start(void *owner, struct flight_request *r, struct nvllm_error *err)
{
    const struct stream *s = (const struct stream *)r;
    struct bench *b = owner;

    if (s->conversation) {
        b->request.prompt_ids = s->conversation->ids;
        b->request.n_prompt_ids = s->conversation->n;
    } else {
        b->request.prompt_ids = workload_ids(&b->workload, &s->item);
        b->request.n_prompt_ids = s->item.prompt_tokens;
    }
    b->request.max_tokens = s->item.output_tokens;
    return nvllm_generate_start(b->flight.ctl->client, &r->id, &b->request, err);
}

/* Sets next, if there is one, and when it is due. */
static void look_ahead(struct bench *b)
{
    bool again = b->workload.n_items == 0 || b->workload.items[0].at_us < 0;

    b->has_next = b->n_started < b->n_requests &&
                  workload_next(&b->workload, &b->next, again && b->duration > 0);
    if (b->next.at_us >= 0)
        b->next_ns = b->start_ns + b->next.at_us * 1000;
    else if (b->rate > 0)
        b->next_ns += (int64_t)(-log(random_share(&b->workload.random)) / b->rate * 1e9);
    else
        b->next_ns = 0; /* when it can be sent */
}

/* The next request that is due, or NULL, and *soonest is lowered to when one will be. */
static struct stream *next_due(struct bench *b, int64_t now, int64_t *soonest)
{
    struct stream *s;

    if (!b->has_next)
        return NULL;
    if (b->next_ns > now) {
        *soonest = MIN(*soonest, b->next_ns);
        return NULL;
    }
    s = ctl_alloc(1, sizeof(*s));
    s->item = b->next;
    s->due_ns = b->next_ns ? b->next_ns : now;
    return s;
}

/* The same of conversations. */
static struct stream *next_turn(struct bench *b, int64_t now, int64_t *soonest)
{
    struct conversation *v = conversations_due(&b->conversations, now, soonest);
    struct stream *s;

    if (!v)
        return NULL;
    s = ctl_alloc(1, sizeof(*s));
    (void)workload_next(&b->workload, &s->item, true);
    conversation_add(v, workload_ids(&b->workload, &s->item), s->item.prompt_tokens);
    v->asked = true;
    s->conversation = v;
    s->due_ns = MAX(v->due_ns, b->start_ns);
    return s;
}

/* Sends what is due. Returns the milliseconds until the next request is. */
static int send_due(struct bench *b)
{
    int64_t now = clock_ns();
    int64_t soonest = now + flight_send(&b->flight) * INT64_C(1000000);

    while (!b->flight.stopping && b->flight.dead.code == NVLLM_OK &&
           flight_count(&b->flight) < b->n_streams) {
        struct stream *s =
            b->conversations.n ? next_turn(b, now, &soonest) : next_due(b, now, &soonest);

        if (!s)
            break;
        b->n_started++;
        flight_add(&b->flight, &s->flight);
        flight_send(&b->flight);
        if (!b->conversations.n)
            look_ahead(b); /* after the prompt's tokens were drawn */
    }
    if (b->end_ns && b->end_ns < soonest)
        soonest = b->end_ns;
    return soonest <= now ? 0 : (int)((soonest - now + 999999) / 1000000);
}

/* ---- events */

/* Deltas of one wake-up count as one delivery: decoding them is not time between tokens. */
static void take_tokens(struct bench *b, struct stream *s, const struct nvllm_delta *delta)
{
    int64_t now = b->flight.wake_ns;

    if (delta->n_tokens == 0)
        return;
    if (s->conversation)
        conversation_add(s->conversation, delta->token_ids, delta->n_tokens);
    if (b->end_ns && now > b->end_ns)
        return; /* too late to be counted */
    if (s->n_tokens == 0) {
        s->first_ns = now;
        quantiles_add(&b->result.ttft, (uint64_t)(now - s->due_ns));
        if (s->conversation && s->conversation->turn > 0)
            quantiles_add(&b->result.later, (uint64_t)(now - s->due_ns));
    } else if (now > s->last_ns) {
        quantiles_add(&b->result.between, (uint64_t)(now - s->last_ns));
    }
    s->last_ns = b->last_ns = now;
    s->n_tokens += delta->n_tokens;
    b->result.output_tokens += delta->n_tokens;
}

static void take_done(struct bench *b, const struct stream *s, const struct nvllm_done *done)
{
    struct result *r = &b->result;

    b->last_ns = b->flight.wake_ns;
    r->n_done++;
    r->prompt_tokens += done->prompt_tokens;
    r->cached_tokens += done->cached_tokens;
    quantiles_add(&r->request, (uint64_t)(b->last_ns - s->due_ns));
    if (s->n_tokens > 1)
        quantiles_add(&r->token, (uint64_t)(s->last_ns - s->first_ns) / (s->n_tokens - 1));
}

static void take(void *owner, struct flight_request *r, const struct nvllm_event *event)
{
    struct stream *s = (struct stream *)r;
    struct bench *b = owner;

    if (event && event->delta) {
        take_tokens(b, s, event->delta);
        return;
    }
    if (event && b->flight.dead.code != NVLLM_OK)
        b->result.n_failed++;
    else if (event && b->flight.stopping)
        b->result.n_cut++;
    else if (event && event->done)
        take_done(b, s, event->done);
    else if (event && ++b->result.n_failed <= MAX_SHOWN_FAILURES)
        ctl_message("%s", event->error->message);
    if (s->conversation)
        conversation_answered(&b->conversations, s->conversation, event && event->done, clock_ns(),
                              &b->workload.random);
    free(s);
}

/* ---- the loop */

static bool is_over(struct bench *b)
{
    bool out_of_time = ctl_left_ms(b->ctl) == 0;
    int64_t now = clock_ns();

    if (!b->flight.stopping &&
        (ctl_interrupted() || out_of_time || (b->end_ns && now >= b->end_ns))) {
        if (out_of_time)
            b->rc = ctl_report_timeout();
        b->end_ns = b->end_ns ? MIN(b->end_ns, now) : now;
        flight_stop(&b->flight);
    }
    if (b->flight.stopping)
        return flight_count(&b->flight) == 0 || clock_left_ms(b->flight.stop_end) == 0;
    return flight_count(&b->flight) == 0 && !b->has_next && b->conversations.n_left == 0;
}

static void run(struct bench *b)
{
    struct flight *f = &b->flight;
    int wait_ms;

    b->start_ns = b->last_ns = b->next_ns = clock_ns();
    if (b->duration > 0)
        b->end_ns = b->start_ns + (int64_t)(b->duration * 1e9);
    if (!b->conversations.n)
        look_ahead(b);
    while (wait_ms = send_due(b), f->dead.code == NVLLM_OK && !is_over(b))
        flight_wait(f, -1, wait_ms);
    if (f->dead.code != NVLLM_OK)
        b->rc = ctl_report(b->ctl, &f->dead);
    b->result.n_busy = f->n_refused;
    b->result.seconds = (double)((f->stopping ? b->end_ns : b->last_ns) - b->start_ns) / 1e9;
}

/* ---- the result */

static double a_second(const struct result *r, long long n)
{
    return r->seconds > 0 ? (double)n / r->seconds : 0;
}

static void print_times(const char *name, const struct quantiles *q)
{
    if (q->n > 0)
        printf("%-22s %10.3f %10.3f %10.3f %10.3f %10.3f\n", name, quantiles_ms(q, 0.5),
               quantiles_ms(q, 0.9), quantiles_ms(q, 0.99), quantiles_ms(q, 1),
               quantiles_mean_ms(q));
}

static void print_result(const struct result *r)
{
    int width = show_columns(STDOUT_FILENO, NULL) - HEAD_COLUMNS;

    printf("%-14s%lld done, %lld failed", "requests", r->n_done, r->n_failed);
    if (r->n_cut)
        printf(", %lld cut short at the end", r->n_cut);
    if (r->n_busy)
        printf(", sent again %lld times", r->n_busy);
    printf("\n%-14s%lld prompt (%lld cached), %lld output\n", "tokens", r->prompt_tokens,
           r->cached_tokens, r->output_tokens);
    printf("%-14s%.3f s\n", "time", r->seconds);
    printf("%-14s%.1f output tok/s, %.1f prompt tok/s, %.2f requests/s\n\n", "throughput",
           a_second(r, r->output_tokens), a_second(r, r->prompt_tokens), a_second(r, r->n_done));
    printf("%-22s %10s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "max", "mean");
    print_times("to the first token", &r->ttft);
    print_times("... of later turns", &r->later);
    print_times("between tokens", &r->between);
    print_times("per token of a request", &r->token);
    print_times("request", &r->request);
    if (r->between.n == 0)
        return;
    printf("\nbetween tokens\n");
    quantiles_draw(&r->between, stdout, MAX(10, MIN(width, MAX_BAR)));
}

static json_t *times_json(const struct quantiles *q)
{
    return json_pack("{sIsfsfsfsfsf}", "n", (json_int_t)q->n, "p50", quantiles_ms(q, 0.5), "p90",
                     quantiles_ms(q, 0.9), "p99", quantiles_ms(q, 0.99), "max", quantiles_ms(q, 1),
                     "mean", quantiles_mean_ms(q));
}

static json_t *result_json(const struct result *r)
{
    return json_pack("{sIsIsIsIsIsIsIsfsfsfsfsososososo}", "requests", r->n_done, "failed",
                     r->n_failed, "cut", r->n_cut, "busy", r->n_busy, "prompt_tokens",
                     r->prompt_tokens, "cached_tokens", r->cached_tokens, "output_tokens",
                     r->output_tokens, "seconds", r->seconds, "output_tok_s",
                     a_second(r, r->output_tokens), "prompt_tok_s", a_second(r, r->prompt_tokens),
                     "requests_s", a_second(r, r->n_done), "ttft_ms", times_json(&r->ttft),
                     "later_ttft_ms", times_json(&r->later), "between_ms", times_json(&r->between),
                     "token_ms", times_json(&r->token), "request_ms", times_json(&r->request));
}

/* ---- options */

/* The value of an option that takes N or A-B. */
static struct workload_range read_range(const struct ctl *ctl, const char *option,
                                        uint32_t fallback)
{
    const char *text = ctl_option(ctl, option), *low;
    struct workload_range range = {fallback, fallback};
    char *high;

    if (!text)
        return range;
    high = strdupa(text);
    low = strsep(&high, "-");
    range.min = (uint32_t)ctl_number(ctl, option, low, 1, WORKLOAD_MAX_TOKENS);
    range.max = range.min;
    if (high)
        range.max = (uint32_t)ctl_number(ctl, option, high, range.min, WORKLOAD_MAX_TOKENS);
    return range;
}

static void check_options(const struct bench *b)
{
    const struct ctl *ctl = b->ctl;
    bool has_lengths = ctl_option(ctl, "prompt-tokens") || ctl_option(ctl, "output-tokens");

    if (ctl_option(ctl, "nano-vllm") &&
        (ctl_option(ctl, "workload") || has_lengths || ctl_option(ctl, "seed") || b->n_requests))
        ctl_usage(ctl, "--nano-vllm defines the requests: drop --workload, --prompt-tokens, "
                       "--output-tokens, --requests and --seed");
    if (ctl_option(ctl, "workload") && has_lengths)
        ctl_usage(ctl, "--workload defines the lengths: drop --prompt-tokens and "
                       "--output-tokens");
    if (!ctl_option(ctl, "conversations")) {
        if (ctl_option(ctl, "turns") || ctl_option(ctl, "think"))
            ctl_usage(ctl, "--turns and --think need --conversations");
    } else if (ctl_option(ctl, "nano-vllm") || ctl_option(ctl, "workload") || b->n_requests ||
               b->rate > 0) {
        ctl_usage(ctl, "--conversations cannot be combined with --nano-vllm, --workload, "
                       "--requests and --rate");
    }
    if (b->duration > 0 && b->n_requests)
        ctl_usage(ctl, "--duration and --requests cannot be combined");
}

/* The requests that the options define. */
static void make_workload(struct bench *b)
{
    const char *file = ctl_option(b->ctl, "workload");
    bool nano_vllm = ctl_option(b->ctl, "nano-vllm");
    struct workload *w = &b->workload;
    bool timed;

    random_seed(&w->random, (uint64_t)ctl_whole(b->ctl, "seed", 0, 0, INT64_MAX));
    w->prompt = read_range(b->ctl, "prompt-tokens", DEFAULT_PROMPT_TOKENS);
    w->output = read_range(b->ctl, "output-tokens", DEFAULT_OUTPUT_TOKENS);
    if (ctl_option(b->ctl, "conversations"))
        conversations_init(&b->conversations,
                           (size_t)ctl_whole(b->ctl, "conversations", 0, 1, MAX_STREAMS),
                           (uint32_t)ctl_whole(b->ctl, "turns", DEFAULT_TURNS, 1, MAX_TURNS),
                           ctl_real(b->ctl, "think", 0, 0, 1e6));
    if (nano_vllm)
        workload_nano_vllm(w);
    if (file)
        workload_read(w, file);
    timed = w->items && w->items->at_us >= 0;
    if (b->rate > 0 && timed)
        ctl_usage(b->ctl, "--rate cannot be combined with at_ms, which %s has", file);
    if (b->n_requests == 0)
        b->n_requests = w->items || b->duration > 0 ? UINT64_MAX : DEFAULT_REQUESTS;
    /* A known number of requests without a rate is sent all at once, as nano-vLLM does. */
    if (b->n_streams == 0)
        b->n_streams = nano_vllm              ? w->n_items
                       : b->conversations.n   ? b->conversations.n
                       : b->rate > 0 || timed ? MAX_STREAMS
                                              : DEFAULT_STREAMS;
}

int ctl_bench(struct ctl *ctl)
{
    struct bench b = {
        .ctl = ctl,
        .n_streams = (size_t)ctl_whole(ctl, "streams", 0, 1, MAX_STREAMS),
        .n_requests = (uint64_t)ctl_whole(ctl, "requests", 0, 1, MAX_REQUESTS),
        .rate = ctl_real(ctl, "rate", 0, 1e-3, 1e6),
        .duration = ctl_real(ctl, "duration", 0, 1e-3, 1e6),
        .flight = {.ctl = ctl,
                   .owner = &b,
                   .start = start,
                   .take = take,
                   .max_tries = INT_MAX,
                   .limit = SIZE_MAX},
    };
    char salt[48];

    nvllm_request_init(&b.request);
    b.request.ignore_eos = true; /* exactly as many tokens as were asked for */
    b.request.temperature = (float)ctl_real(ctl, "temperature", 0.6, 0, 1e6);
    b.request.top_k = 0;
    b.request.top_p = 1;
    b.request.min_p = 0;
    b.request.repetition_penalty = 1;
    check_options(&b);
    make_workload(&b);
    ctl_connect(ctl);
    workload_find_tokens(&b.workload, ctl);
    snprintf(salt, sizeof(salt), "bench %d %lld", (int)getpid(), (long long)clock_ns());
    if (!ctl_option(ctl, "warm-cache")) /* prompts of earlier runs are not found */
        b.request.cache_salt = nvllm_str(salt);
    ctl_catch_interrupts(false);
    run(&b);
    if (ctl_option(ctl, "json"))
        ctl_json_print(STDOUT_FILENO, result_json(&b.result));
    else
        print_result(&b.result);
    if (b.rc == EXIT_OK && b.result.n_failed > 0)
        b.rc = EXIT_ERROR;
    workload_deinit(&b.workload);
    conversations_deinit(&b.conversations);
    flight_deinit(&b.flight);
    return b.rc;
}
