/* batch.c - nvllmctl batch: runs a file of requests, many in flight, and writes the answers in its
 * order.
 *
 * A ring of slots holds the lines from the oldest whose answer is not written to the newest that
 * has been read, so memory is bounded however long the file is. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/lines.h"
#include "client/ctl/progress.h"
#include "client/ctl/request.h"
#include "client/ctl/result.h"

enum {
    DEFAULT_CONCURRENCY = 64,
    MAX_CONCURRENCY = 4096,
    SLOTS_A_REQUEST = 4, /* ring size, so that one slow request does not hold up all others */
    TICK_MS = 200,
    EVENTS_A_ROUND = 256, /* a fast daemon may always have another event */
    FIRST_RETRY_MS = 20,  /* before a refused request is sent again, doubled up to LAST_RETRY_MS */
    LAST_RETRY_MS = 2000,
    MAX_TRIES = 100,
    MAX_SHOWN_FAILURES = 5,
};

struct slot {
    enum { SLOT_WAITING, SLOT_SENT, SLOT_DONE, SLOT_DROPPED } state;
    struct ctl_request request; /* of a slot that waits or is in flight */
    struct ctl_result result;
    json_t *id;     /* NULL: the line has none */
    json_t *answer; /* of a slot that is done */
    uint64_t request_id;
    uint64_t line;      /* its number */
    uint64_t bytes_end; /* its end in the input */
    int64_t not_before; /* of a slot that waits */
    int n_tries;
};

struct batch {
    struct ctl *ctl;
    struct ctl_request defaults;
    struct lines lines;
    bool input_ended;
    int out_fd;
    bool json;
    struct slot *slots;    /* [n_slots] a ring */
    size_t n_slots;        /* a power of two */
    uint64_t head, tail;   /* the oldest slot, and one past the newest, counted from the start */
    uint64_t *by_id;       /* [n_slots] a slot's number, by the low bits of its request id */
    uint64_t first_unsent; /* no slot before this one waits */
    size_t n_sent, n_waiting;
    size_t concurrency;
    struct nvllm_error dead; /* not NVLLM_OK: nothing can be sent any more */
    bool stopping;           /* after an interrupt or a timeout */
    bool out_of_time;
    int64_t stop_end;
    int rc; /* not EXIT_OK: the whole batch has failed */
    struct progress progress;
    uint64_t written_bytes; /* of the input, up to the last answer written */
    uint64_t n_requests, n_failed, n_tokens;
    uint64_t prompt_tokens, cached_tokens, output_tokens;
};

static struct slot *slot_at(const struct batch *b, uint64_t i)
{
    return &b->slots[i & (b->n_slots - 1)];
}

/* ---- the end of a slot */

static void finish(struct batch *b, struct slot *s, json_t *answer)
{
    json_t *object = json_object();

    json_object_set_new(object, "id", s->id ? s->id : json_integer((json_int_t)s->line));
    s->id = NULL;
    json_object_update(object, answer);
    json_decref(answer);
    if (s->state == SLOT_SENT)
        b->n_sent--;
    else if (s->state == SLOT_WAITING)
        b->n_waiting--;
    s->answer = object;
    s->state = SLOT_DONE;
    ctl_result_deinit(&s->result);
    ctl_request_deinit(&s->request);
}

static void fail(struct batch *b, struct slot *s, const struct nvllm_error *err)
{
    b->n_failed++;
    if (!b->json && b->dead.code == NVLLM_OK && b->n_failed <= MAX_SHOWN_FAILURES) {
        progress_end(&b->progress);
        ctl_message("line %llu: %s%s", (unsigned long long)s->line, err->message,
                    b->n_failed == MAX_SHOWN_FAILURES ? " (further failures show in the output)"
                                                      : "");
    }
    finish(b, s, json_pack("{so}", "error", ctl_json_error(err)));
}

static void drop(struct batch *b, struct slot *s)
{
    b->n_waiting--;
    s->state = SLOT_DROPPED;
    ctl_result_deinit(&s->result);
    ctl_request_deinit(&s->request);
}

/* The connection has failed: ends all open requests with this error. */
static void fail_all(struct batch *b, const struct nvllm_error *err)
{
    b->dead = *err;
    for (uint64_t i = b->head; i < b->tail; i++) {
        struct slot *s = slot_at(b, i);

        if (s->state == SLOT_SENT || s->state == SLOT_WAITING)
            fail(b, s, err);
    }
}

/* ---- input */

static void take_line(struct batch *b, int got, const char *line, size_t n)
{
    struct slot *s = slot_at(b, b->tail++);
    struct nvllm_error err;
    json_t *value = NULL;
    bool ok = false;

    memset(s, 0, sizeof(*s));
    s->line = b->lines.number;
    s->bytes_end = b->lines.bytes;
    s->state = SLOT_WAITING;
    b->n_waiting++;
    b->n_requests++;
    ctl_request_init(&s->request);
    s->request.r = b->defaults.r;
    if (got == LINES_E_LONG)
        ctl_invalid(&err, "longer than %d MiB", LINES_MAX_BYTES >> 20);
    else if ((value = ctl_json_parse(line, n, &err)) != NULL)
        ok = ctl_json_read_request(&s->request, value, &err);
    if (json_object_get(value, "id"))
        s->id = json_incref(json_object_get(value, "id"));
    json_decref(value);
    if (ok && b->dead.code != NVLLM_OK) {
        err = b->dead;
        ok = false;
    }
    if (!ok) {
        fail(b, s, &err);
        return;
    }
    s->request.r.stream =
        b->progress.shown; /* needed for the token rate; otherwise fewer frames will do */
    ctl_result_init(&s->result, &s->request.r);
}

/* Reads as many lines as may be sent soon. True: more input is expected, but not there yet. */
static bool read_lines(struct batch *b)
{
    while (!b->input_ended && !b->stopping && b->rc == EXIT_OK &&
           b->n_sent + b->n_waiting < b->concurrency && b->tail - b->head < b->n_slots) {
        char *line = NULL;
        size_t n = 0;
        int got = lines_next(&b->lines, &line, &n, false);

        if (got == LINES_LATER)
            return true;
        if (got == LINES_OK || got == LINES_E_LONG) {
            if (got == LINES_E_LONG || strspn(line, " \t\r") < n)
                take_line(b, got, line, n);
            continue;
        }
        b->input_ended = true;
        if (got != LINES_END) {
            ctl_message("cannot read the input: %s",
                        got == LINES_E_NOMEM ? "out of memory" : strerror(errno));
            b->rc = EXIT_ERROR;
        }
    }
    return false;
}

/* ---- requests */

/* False: nothing more can be sent now. */
static bool send_slot(struct batch *b, uint64_t number)
{
    struct slot *s = slot_at(b, number);
    struct nvllm_error err;
    enum nvllm_code code =
        nvllm_generate_start(b->ctl->client, &s->request_id, &s->request.r, &err);

    if (code == NVLLM_OK) {
        s->state = SLOT_SENT;
        b->by_id[s->request_id & (b->n_slots - 1)] = number;
        b->n_waiting--;
        b->n_sent++;
    } else if (code == NVLLM_E_BUSY) {
        return false; /* the socket is full: fetch events first */
    } else if (code == NVLLM_E_CONNECTION || code == NVLLM_E_PROTOCOL) {
        fail_all(b, &err);
    } else {
        fail(b, s, &err);
    }
    return true;
}

/* Sends what may be sent. Returns the milliseconds until a waiting slot may be sent. */
static int send_waiting(struct batch *b)
{
    int64_t now = clock_ms();
    int soonest = TICK_MS;

    if (b->first_unsent < b->head)
        b->first_unsent = b->head;
    for (uint64_t i = b->first_unsent; i < b->tail && b->n_waiting > 0; i++) {
        struct slot *s = slot_at(b, i);

        if (s->state == SLOT_WAITING && s->not_before > now) {
            if (s->not_before - now < soonest)
                soonest = (int)(s->not_before - now);
            continue;
        }
        if (s->state == SLOT_WAITING && (b->n_sent >= b->concurrency || !send_slot(b, i)))
            break;
        if (i == b->first_unsent && s->state != SLOT_WAITING)
            b->first_unsent++;
    }
    return soonest;
}

static struct slot *slot_of(const struct batch *b, uint64_t request_id)
{
    uint64_t i = b->by_id[request_id & (b->n_slots - 1)];
    struct slot *s = slot_at(b, i);

    if (i >= b->head && i < b->tail && s->state == SLOT_SENT && s->request_id == request_id)
        return s;
    for (i = b->head; i < b->tail; i++) {
        s = slot_at(b, i);
        if (s->state == SLOT_SENT && s->request_id == request_id)
            return s;
    }
    return NULL;
}

/* If the daemon is too busy, the request is sent again, with fewer in flight. */
static bool retry(struct batch *b, struct slot *s, const struct nvllm_error *err)
{
    int64_t pause = ctl_retry_ms(s->n_tries, FIRST_RETRY_MS, LAST_RETRY_MS, err->retry_after_ms);

    if (err->code != NVLLM_E_BUSY || b->stopping || ++s->n_tries > MAX_TRIES)
        return false;
    s->not_before = clock_ms() + pause;
    s->state = SLOT_WAITING;
    b->n_sent--;
    b->n_waiting++;
    b->first_unsent = b->head;
    b->concurrency = b->n_sent > 0 ? b->n_sent : 1;
    ctl_result_deinit(&s->result);
    ctl_result_init(&s->result, &s->request.r);
    return true;
}

static void take_event(struct batch *b, const struct nvllm_event *event)
{
    struct slot *s = slot_of(b, event->id);

    if (!s)
        return;
    if (event->delta) {
        b->n_tokens += event->delta->n_tokens;
        ctl_result_add(&s->result, event->delta);
    } else if (event->done) {
        s->result.done = *event->done;
        b->prompt_tokens += event->done->prompt_tokens;
        b->cached_tokens += event->done->cached_tokens;
        b->output_tokens += event->done->completion_tokens;
        ctl_result_end(&s->result, NVLLM_FINISH_STOP);
        finish(b, s, ctl_result_json(&s->result));
    } else if (!retry(b, s, event->error)) {
        fail(b, s, event->error);
    }
}

/* ---- output */

static void write_done(struct batch *b)
{
    while (b->head < b->tail) {
        struct slot *s = slot_at(b, b->head);

        if (s->state != SLOT_DONE && s->state != SLOT_DROPPED)
            return;
        if (s->state == SLOT_DONE && b->rc == EXIT_OK && !ctl_json_print(b->out_fd, s->answer))
            b->rc = EXIT_ERROR;
        else if (s->state == SLOT_DONE && b->rc != EXIT_OK)
            json_decref(s->answer);
        json_decref(s->id);
        b->written_bytes = s->bytes_end;
        b->head++;
    }
}

/* ---- the loop */

static void stop(struct batch *b)
{
    b->stopping = true;
    b->stop_end = ctl_cancel_end(b->ctl);
    for (uint64_t i = b->head; i < b->tail; i++) {
        struct slot *s = slot_at(b, i);

        if (s->state == SLOT_SENT)
            nvllm_cancel(b->ctl->client, s->request_id, NULL);
        else if (s->state == SLOT_WAITING)
            drop(b, s);
    }
}

static void check_stop(struct batch *b)
{
    struct nvllm_error late = {.code = NVLLM_E_CANCELLED};

    b->out_of_time = b->out_of_time || ctl_left_ms(b->ctl) == 0;
    if (!b->stopping && (ctl_interrupted() || b->out_of_time || b->rc != EXIT_OK))
        stop(b);
    if (!b->stopping || clock_left_ms(b->stop_end) > 0)
        return;
    strcpy(late.message, "cancelled, and nvllmd did not say how it ended");
    fail_all(b, &late);
}

static bool is_finished(const struct batch *b)
{
    return b->head == b->tail && (b->input_ended || b->stopping);
}

static void run(struct batch *b)
{
    for (;;) {
        const struct nvllm_event *event;
        struct nvllm_error err;
        enum nvllm_code code;
        bool more_later = read_lines(b);
        int wait = send_waiting(b);

        write_done(b);
        check_stop(b);
        progress_show(&b->progress, b->written_bytes, b->n_requests - b->n_sent - b->n_waiting,
                      b->n_failed, b->n_tokens);
        if (is_finished(b))
            return;
        if (b->dead.code != NVLLM_OK) {
            if (more_later)
                ctl_wait_input(b->lines.fd, -1, wait);
            continue;
        }
        if (b->n_sent == 0 && b->n_waiting == 0 && !more_later)
            continue; /* every line so far was invalid */
        code = ctl_next(b->ctl, more_later ? b->lines.fd : -1, wait, &event, &err);
        for (int i = 0; code == NVLLM_OK && i < EVENTS_A_ROUND; i++) {
            take_event(b, event);
            code = nvllm_next(b->ctl->client, 0, &event, &err);
        }
        if (code == NVLLM_OK)
            take_event(b, event);
        else if (code != NVLLM_E_TIMEOUT)
            fail_all(b, &err);
    }
}

/* ---- around it */

static json_t *summary_json(const struct batch *b, double seconds, double rate)
{
    return json_pack("{sIsIsIsIsIsfsf}", "requests", (json_int_t)b->n_requests, "failed",
                     (json_int_t)b->n_failed, "prompt_tokens", (json_int_t)b->prompt_tokens,
                     "cached_tokens", (json_int_t)b->cached_tokens, "output_tokens",
                     (json_int_t)b->output_tokens, "seconds", seconds, "output_tok_s", rate);
}

static void summarise(struct batch *b)
{
    double seconds = (double)(clock_ms() - b->progress.started_ms) / 1000;
    double rate = seconds > 0 ? (double)b->output_tokens / seconds : 0;

    progress_end(&b->progress);
    if (b->dead.code != NVLLM_OK && !b->stopping)
        ctl_message("%s", b->dead.message);
    if (b->json)
        ctl_json_print(STDERR_FILENO, summary_json(b, seconds, rate));
    else
        fprintf(stderr,
                "%llu request%s, %llu failed; %llu prompt tokens (%llu cached), %llu output tokens "
                "in %.2f s: %.1f tok/s\n",
                (unsigned long long)b->n_requests, b->n_requests == 1 ? "" : "s",
                (unsigned long long)b->n_failed, (unsigned long long)b->prompt_tokens,
                (unsigned long long)b->cached_tokens, (unsigned long long)b->output_tokens, seconds,
                rate);
}

/* A file, or for "-" the standard stream. -1 after a message. */
static int open_file(const char *path, int standard, int flags)
{
    int fd = strcmp(path, "-") == 0 ? standard : open(path, flags | O_CLOEXEC, 0666);

    if (fd < 0)
        ctl_message("%s: %s", path, strerror(errno));
    return fd;
}

static bool same_file(int a, int b)
{
    struct stat x, y;

    return fstat(a, &x) == 0 && fstat(b, &y) == 0 && S_ISREG(x.st_mode) && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* Opens both, and truncates the output only after checking that it is not the input. */
static int open_files(struct batch *b, const char *input, const char *output)
{
    int fd = open_file(input, STDIN_FILENO, O_RDONLY);

    lines_init(&b->lines, fd);
    if (fd < 0)
        return EXIT_ERROR;
    b->out_fd = open_file(output, STDOUT_FILENO, O_WRONLY | O_CREAT);
    if (b->out_fd < 0)
        return EXIT_ERROR;
    if (same_file(fd, b->out_fd)) {
        ctl_message("input and output are the same file: %s", input);
        return EXIT_USAGE;
    }
    if (strcmp(output, "-") != 0 && ftruncate(b->out_fd, 0) != 0 && errno != EINVAL) {
        ctl_message("%s: %s", output, strerror(errno));
        return EXIT_ERROR;
    }
    return EXIT_OK;
}

static void make_slots(struct batch *b)
{
    b->n_slots = 1;
    while (b->n_slots < b->concurrency * SLOTS_A_REQUEST)
        b->n_slots *= 2;
    b->slots = ctl_alloc(b->n_slots, sizeof(*b->slots));
    b->by_id = ctl_alloc(b->n_slots, sizeof(*b->by_id));
}

static int exit_code(const struct batch *b)
{
    if (ctl_interrupted())
        return ctl_interrupted();
    if (b->out_of_time)
        return ctl_report_timeout();
    return b->rc != EXIT_OK || b->n_failed > 0 ? EXIT_ERROR : EXIT_OK;
}

int ctl_batch(struct ctl *ctl)
{
    const char *input = ctl_option(ctl, "input"), *output = ctl_option(ctl, "output");
    struct batch b = {
        .ctl = ctl,
        .out_fd = -1,
        .concurrency =
            (size_t)ctl_whole(ctl, "concurrency", DEFAULT_CONCURRENCY, 1, MAX_CONCURRENCY),
        .json = ctl_option(ctl, "json"),
    };
    int rc;

    ctl_request_init(&b.defaults);
    ctl_request_take_options(&b.defaults, ctl);
    if (!input || !output)
        ctl_usage(ctl, "batch needs --input FILE and --output FILE; “-” is stdin or stdout");
    rc = open_files(&b, input, output);
    if (rc == EXIT_OK)
        rc = ctl_connect(ctl);
    if (rc == EXIT_OK) {
        ctl_catch_interrupts();
        make_slots(&b);
        progress_init(&b.progress, b.lines.fd);
        run(&b);
        summarise(&b);
        rc = exit_code(&b);
    }
    if (b.lines.fd > STDERR_FILENO)
        close(b.lines.fd);
    if (b.out_fd > STDERR_FILENO && close(b.out_fd) != 0 && rc == EXIT_OK) {
        ctl_message("%s: %s", output, strerror(errno));
        rc = EXIT_ERROR;
    }
    lines_deinit(&b.lines);
    ctl_request_deinit(&b.defaults);
    free(b.slots);
    free(b.by_id);
    return rc;
}
