/* batch.c - nvllmctl batch: runs a file of requests, many in flight, and writes the answers in its
 * order.
 *
 * A queue of limited length holds the lines from the oldest whose answer is not written to the
 * newest that has been read, so memory is bounded however long the file is. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/param.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/flight.h"
#include "client/ctl/json.h"
#include "client/ctl/lines.h"
#include "client/ctl/request.h"
#include "client/ctl/show.h"

enum {
    DEFAULT_CONCURRENCY = 64,
    MAX_CONCURRENCY = 4096,
    SLOTS_A_REQUEST = 4, /* lines to hold, so that one slow request does not hold up all others */
    MAX_TRIES = 100,
    MAX_SHOWN_FAILURES = 5,
    DRAW_MS = 200, /* between two lines of progress */
    BAR_WIDTH = 24,
    SHORTEST_BAR = 4,
};

struct slot {
    struct flight_request flight;
    STAILQ_ENTRY(slot) next;
    bool is_done;
    struct ctl_request request; /* of a slot that is not done */
    struct ctl_result result;
    json_t *id;         /* NULL: the line has none */
    json_t *answer;     /* of a slot that is done; NULL: it was never sent */
    uint64_t line;      /* its number */
    uint64_t bytes_end; /* its end in the input */
};

struct batch {
    struct ctl *ctl;
    struct flight flight;
    struct ctl_request defaults;
    struct lines lines;
    bool input_ended;
    int out_fd;
    bool json;
    STAILQ_HEAD(, slot) slots; /* the oldest first */
    size_t n_slots, max_slots;
    bool shown;           /* progress, on one line of stderr */
    uint64_t total_bytes; /* of input; 0: unknown */
    int64_t started_ms;
    int64_t drawn_ms; /* when progress was last drawn, and for how many tokens */
    long long drawn_tokens;
    double tokens_a_second; /* smoothed */
    uint64_t written_bytes; /* of the input, up to the last answer written */
    /* Of the type that jansson and printf() take. */
    long long n_requests, n_failed, n_tokens, prompt_tokens, cached_tokens, output_tokens;
};

/* ---- progress: on one line of a terminal, redrawn in place */

static void put_left(FILE *to, const struct batch *b, double share, int64_t now)
{
    double left = (double)(now - b->started_ms) / 1000 * (1 - share) / share;

    if (left < 3600)
        fprintf(to, ", %d:%02d left", (int)left / 60, (int)left % 60);
    else if (left < 1000 * 3600.0)
        fprintf(to, ", %d:%02d:%02d left", (int)left / 3600, (int)left / 60 % 60, (int)left % 60);
}

/* The bar gets the room that the words leave, and words that are too long are cut. */
static void draw_line(const char *words, double share, bool has_bar)
{
    int room = show_columns(STDERR_FILENO, NULL) - 1;
    int bar = MIN(BAR_WIDTH, room - (int)strlen(words) - (int)strlen("[] "));

    fputs("\r\033[K", stderr);
    if (has_bar && bar >= SHORTEST_BAR) {
        fputc('[', stderr);
        for (int i = 0; i < bar; i++)
            fputc(i < (int)(share * bar) ? '#' : '.', stderr);
        fputs("] ", stderr);
    }
    fprintf(stderr, "%.*s", room, words);
}

static void draw_progress(struct batch *b)
{
    int64_t now = clock_ms();
    char words[200] = "";
    double share, rate;
    FILE *to;

    if (!b->shown || now - b->drawn_ms < DRAW_MS)
        return;
    rate = (double)(b->n_tokens - b->drawn_tokens) * 1000 / (double)(now - b->drawn_ms);
    b->tokens_a_second = b->drawn_tokens == 0 ? rate : 0.8 * b->tokens_a_second + 0.2 * rate;
    b->drawn_tokens = b->n_tokens;
    b->drawn_ms = now;
    share = b->total_bytes ? (double)b->written_bytes / (double)b->total_bytes : 0;
    share = MIN(share, 1); /* the file may have grown */
    to = fmemopen(words, sizeof(words), "w");
    if (!to)
        return;
    if (b->total_bytes)
        fprintf(to, "%3d %%  ", (int)(share * 100));
    fprintf(to, "%lld done", b->n_requests - (long long)flight_count(&b->flight));
    if (b->n_failed)
        fprintf(to, ", %lld failed", b->n_failed);
    fprintf(to, ", %.0f tok/s", b->tokens_a_second);
    if (share > 0)
        put_left(to, b, share, now);
    fclose(to);
    draw_line(words, share, b->total_bytes > 0);
}

static void erase_progress(const struct batch *b)
{
    if (b->shown)
        fputs("\r\033[K", stderr);
}

/* ---- the end of a slot */

/* answer NULL: there is none, since the request was never sent. */
static void finish(struct slot *s, json_t *answer)
{
    if (answer) {
        s->answer =
            json_pack("{so}", "id", s->id ? json_incref(s->id) : json_integer((json_int_t)s->line));
        json_object_update_new(s->answer, answer);
    }
    json_decref(s->id);
    s->is_done = true;
    ctl_result_deinit(&s->result);
    ctl_request_deinit(&s->request);
}

static void fail(struct batch *b, struct slot *s, const struct nvllm_error *err)
{
    b->n_failed++;
    if (!b->json && b->flight.dead.code == NVLLM_OK && b->n_failed <= MAX_SHOWN_FAILURES) {
        erase_progress(b);
        ctl_message("line %llu: %s%s", (unsigned long long)s->line, err->message,
                    b->n_failed == MAX_SHOWN_FAILURES ? " (further failures are only in the output)"
                                                      : "");
    }
    finish(s, json_pack("{so}", "error", ctl_json_error(err)));
}

/* ---- input */

static void take_line(struct batch *b, bool is_long)
{
    struct slot *s = ctl_alloc(1, sizeof(*s));
    struct nvllm_error err;
    json_t *value = NULL;
    bool ok = false;

    STAILQ_INSERT_TAIL(&b->slots, s, next);
    b->n_slots++;
    s->line = b->lines.number;
    s->bytes_end = b->lines.bytes;
    b->n_requests++;
    ctl_request_init(&s->request);
    s->request.r = b->defaults.r;
    if (is_long)
        ctl_invalid(&err, "longer than %d MiB", LINES_MAX_BYTES >> 20);
    else if ((value = ctl_json_parse(b->lines.line, b->lines.n, &err)) != NULL)
        ok = ctl_request_read(&s->request, value, &err);
    s->id = json_incref(json_object_get(value, "id"));
    json_decref(value);
    if (!ok || b->flight.dead.code != NVLLM_OK) {
        fail(b, s, ok ? &b->flight.dead : &err);
        return;
    }
    /* Needed for the token rate; otherwise fewer frames will do. */
    s->request.r.stream = b->shown;
    ctl_result_init(&s->result, &s->request.r);
    flight_add(&b->flight, &s->flight);
}

/* Reads as many lines as may be sent soon. True: more input is expected, but not there yet. */
static bool read_lines(struct batch *b)
{
    while (!b->input_ended && !b->flight.stopping && flight_count(&b->flight) < b->flight.limit &&
           b->n_slots < b->max_slots) {
        int got = lines_next(&b->lines, false);

        if (got == LINES_LATER)
            return true;
        if (got == LINES_OK || got == LINES_E_LONG) {
            if (got == LINES_E_LONG || lines_has_text(&b->lines))
                take_line(b, got == LINES_E_LONG);
            continue;
        }
        b->input_ended = true;
        if (got != LINES_END) {
            erase_progress(b);
            ctl_die("cannot read the input: %s", strerror(errno));
        }
    }
    return false;
}

/* ---- requests */

static enum nvllm_code start(void *owner, struct flight_request *r, struct nvllm_error *err)
{
    const struct ctl_request *q = &((struct slot *)r)->request;
    struct nvllm_client *client = ((struct batch *)owner)->ctl->client;

    return q->embeds ? nvllm_embed_start(client, &r->id, &q->embed, -1, err)
                     : nvllm_generate_start(client, &r->id, &q->r, err);
}

static void take(void *owner, struct flight_request *r, const struct nvllm_event *event)
{
    struct slot *s = (struct slot *)r;
    struct batch *b = owner;

    if (!event) {
        finish(s, NULL);
    } else if (event->delta) {
        b->n_tokens += event->delta->n_tokens;
        ctl_result_add(&s->result, event->delta);
    } else if (event->done) {
        s->result.done = *event->done;
        b->prompt_tokens += event->done->prompt_tokens;
        b->cached_tokens += event->done->cached_tokens;
        b->output_tokens += event->done->completion_tokens;
        ctl_result_end(&s->result, NVLLM_FINISH_STOP);
        finish(s, ctl_result_json(&s->result));
    } else if (event->embedding) {
        b->prompt_tokens += event->embedding->prompt_tokens;
        b->cached_tokens += event->embedding->cached_tokens;
        finish(s, ctl_json_embedding(event->embedding));
    } else {
        fail(b, s, event->error);
    }
}

/* ---- output */

static void write_done(struct batch *b)
{
    struct slot *s;

    while ((s = STAILQ_FIRST(&b->slots)) != NULL && s->is_done) {
        if (s->answer)
            ctl_json_print(b->out_fd, s->answer);
        b->written_bytes = s->bytes_end;
        STAILQ_REMOVE_HEAD(&b->slots, next);
        b->n_slots--;
        free(s);
    }
}

/* ---- the loop */

static void check_stop(struct batch *b)
{
    struct nvllm_error late = {.code = NVLLM_E_CANCELLED};

    if (!b->flight.stopping && (ctl_interrupted() || ctl_left_ms(b->ctl) == 0))
        flight_stop(&b->flight);
    if (!b->flight.stopping || clock_left_ms(b->flight.stop_end) > 0)
        return;
    strcpy(late.message, "cancelled; nvllmd did not report how it ended");
    flight_fail(&b->flight, &late);
}

static void run(struct batch *b)
{
    struct flight *f = &b->flight;

    for (;;) {
        bool more_later = read_lines(b);
        int wait_ms = flight_send(f);

        write_done(b);
        check_stop(b);
        draw_progress(b);
        if (b->n_slots == 0 && (b->input_ended || f->stopping))
            return;
        if (f->dead.code == NVLLM_OK && (flight_count(f) > 0 || more_later))
            flight_wait(f, more_later ? b->lines.fd : -1, wait_ms);
        else if (more_later)
            ctl_wait_input(b->lines.fd, wait_ms);
    }
}

/* ---- around it */

static void summarise(struct batch *b)
{
    double seconds = (double)(clock_ms() - b->started_ms) / 1000;
    double rate = seconds > 0 ? (double)b->output_tokens / seconds : 0;

    erase_progress(b);
    if (b->flight.dead.code != NVLLM_OK && !b->flight.stopping)
        ctl_message("%s", b->flight.dead.message);
    if (b->json)
        ctl_json_print(STDERR_FILENO,
                       json_pack("{sIsIsIsIsIsfsf}", "requests", b->n_requests, "failed",
                                 b->n_failed, "prompt_tokens", b->prompt_tokens, "cached_tokens",
                                 b->cached_tokens, "output_tokens", b->output_tokens, "seconds",
                                 seconds, "output_tok_s", rate));
    else
        fprintf(stderr,
                "%lld request%s, %lld failed; %lld prompt tokens (%lld cached), %lld output tokens "
                "in %.2f s: %.1f tok/s\n",
                b->n_requests, b->n_requests == 1 ? "" : "s", b->n_failed, b->prompt_tokens,
                b->cached_tokens, b->output_tokens, seconds, rate);
}

static bool same_file(int a, int b)
{
    struct stat x, y;

    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* Opens both, and truncates the output only after checking that it is not the input. */
static void open_files(struct batch *b, const char *input, const char *output)
{
    struct stat st;

    lines_init(&b->lines, ctl_open(input, STDIN_FILENO, O_RDONLY));
    b->out_fd = ctl_open(output, STDOUT_FILENO, O_WRONLY | O_CREAT);
    if (same_file(b->lines.fd, b->out_fd)) {
        ctl_message("input and output are the same file: %s", input);
        ctl_exit(EXIT_USAGE);
    }
    if (strcmp(output, "-") != 0 && ftruncate(b->out_fd, 0) != 0 && errno != EINVAL)
        ctl_die("%s: %s", output, strerror(errno));
    if (fstat(b->lines.fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0)
        b->total_bytes = (uint64_t)st.st_size;
}

int ctl_batch(struct ctl *ctl)
{
    const char *word = ctl->line.n_words ? ctl->line.words[0] : NULL;
    const char *input = ctl_option(ctl, "input"), *output = ctl_option(ctl, "output");
    struct batch b = {
        .ctl = ctl,
        .flight = {.ctl = ctl,
                   .owner = &b,
                   .start = start,
                   .take = take,
                   .max_tries = MAX_TRIES,
                   .adapts = true},
        .json = ctl_option(ctl, "json"),
        .shown = isatty(STDERR_FILENO),
    };
    int rc;

    b.flight.limit = (size_t)ctl_whole(ctl, "concurrency", DEFAULT_CONCURRENCY, 1, MAX_CONCURRENCY);
    ctl_request_init(&b.defaults);
    ctl_request_take_options(&b.defaults, ctl);
    if (word && input)
        ctl_usage(ctl, "“%s” is a second input: give only one", word);
    input = word ? word : input;
    if (!input)
        ctl_usage(ctl, "batch needs a file of requests; “-” is stdin");
    output = output ? output : "-";
    open_files(&b, input, output);
    ctl_connect(ctl);
    ctl_catch_interrupts(false);
    STAILQ_INIT(&b.slots);
    b.max_slots = b.flight.limit * SLOTS_A_REQUEST;
    b.started_ms = b.drawn_ms = clock_ms();
    run(&b);
    summarise(&b);
    if (b.flight.stopping && !ctl_interrupted())
        rc = ctl_report_timeout();
    else
        rc = b.n_failed > 0 ? EXIT_ERROR : EXIT_OK;
    if (b.out_fd > STDERR_FILENO && close(b.out_fd) != 0 && rc == EXIT_OK)
        ctl_die("%s: %s", output, strerror(errno));
    lines_deinit(&b.lines);
    ctl_request_deinit(&b.defaults);
    flight_deinit(&b.flight);
    return rc;
}
