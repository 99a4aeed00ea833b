/* trace.c - the command trace: what requests and steps do, as Chrome's trace events, which Perfetto
 * and chrome://tracing show.
 *
 * Two processes are shown: the engine, with a row for its thread and one for the steps; and the
 * requests, each with the phases of its life. Times are those of the host's monotonic clock. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/lib/clock.h"

enum { ENGINE = 1, REQUESTS };     /* processes */
enum { ENGINE_THREAD = 1, STEPS }; /* threads of the first */
enum { MOST_SECONDS = 600, ANSWER_MS = 10000 };

/* The file, as far as it is written. */
struct output {
    int fd;
    bool begun; /* what was there before is gone */
    uint64_t n_records;
    struct text_buffer text; /* to be written */
};

__attribute__((format(printf, 2, 3))) static void put(struct output *o, const char *fmt, ...)
{
    char event[512];
    va_list args;
    int n;

    va_start(args, fmt);
    n = vsnprintf(event, sizeof(event), fmt, args);
    va_end(args);
    text_buffer_add(&o->text, event, (size_t)n < sizeof(event) ? (size_t)n : sizeof(event) - 1);
}

static void flush(struct output *o)
{
    ctl_write(o->fd, o->text.data, o->text.len);
    o->text.len = 0;
}

static void begin(struct output *o)
{
    static const char *const rows[][2] = {{"process_name", "\"pid\":1,\"tid\":0"},
                                          {"process_name", "\"pid\":2,\"tid\":0"},
                                          {"thread_name", "\"pid\":1,\"tid\":1"},
                                          {"thread_name", "\"pid\":1,\"tid\":2"}};
    static const char *const names[] = {"engine", "requests", "engine thread", "steps"};

    if (o->begun)
        return;
    o->begun = true;
    if (o->fd != STDOUT_FILENO)
        (void)!ftruncate(o->fd, 0); /* it fails for a pipe, which needs none */
    put(o, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        put(o, "%s\n{\"ph\":\"M\",\"name\":\"%s\",%s,\"args\":{\"name\":\"%s\"}}", i ? "," : "",
            rows[i][0], rows[i][1], names[i]);
}

/* ---- records as events */

static void put_span(struct output *o, int row, const char *name,
                     const struct nvllm_trace_record *r)
{
    put(o,
        ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"name\":\"%s\",\"ts\":%" PRIu64
        ",\"dur\":%" PRIu64,
        ENGINE, row, name, r->at_us, r->took_us);
}

static void put_step(struct output *o, const struct nvllm_trace_record *r)
{
    put_span(o, STEPS,
             r->prompt_tokens == 0   ? "decode"
             : r->decode_tokens == 0 ? "prefill"
                                     : "mixed",
             r);
    put(o,
        ",\"args\":{\"step\":%" PRIu64
        ",\"decode_tokens\":%u,\"prompt_tokens\":%u,\"sequences\":%u}}",
        r->step, r->decode_tokens, r->prompt_tokens, r->sequences);
}

/* The beginning ("b") or the end ("e") of a phase, or a moment ("n"). More may follow, and "}". */
static void put_phase(struct output *o, const char *ph, const char *name, uint64_t request,
                      uint64_t at_us)
{
    put(o,
        ",\n{\"ph\":\"%s\",\"cat\":\"request\",\"id\":\"%" PRIu64
        "\",\"pid\":%d,\"tid\":0,\"name\":\"%s\",\"ts\":%" PRIu64,
        ph, request, REQUESTS, name, at_us);
}

static void put_edge(struct output *o, const char *ph, const char *name, uint64_t request,
                     uint64_t at_us)
{
    put_phase(o, ph, name, request, at_us);
    put(o, "}");
}

/* The phase that something has begun. */
static const char *phase_of(enum nvllm_trace_kind since)
{
    return since == NVLLM_TRACE_FIRST_TOKEN ? "decode"
           : since == NVLLM_TRACE_STARTED   ? "prefill"
                                            : "queue";
}

static void put_request(struct output *o, const struct nvllm_trace_record *r)
{
    const uint64_t id = r->request, at = r->at_us;
    char name[32];

    snprintf(name, sizeof(name), "request %" PRIu64, id);
    switch (r->kind) {
    case NVLLM_TRACE_QUEUED:
        put_edge(o, "b", name, id, at - r->took_us);
        put_edge(o, "b", "encode", id, at - r->took_us);
        put_edge(o, "e", "encode", id, at);
        break;
    case NVLLM_TRACE_STARTED:
        put_edge(o, "e", "queue", id, at);
        break;
    case NVLLM_TRACE_FIRST_TOKEN:
        put_edge(o, "e", "prefill", id, at);
        break;
    case NVLLM_TRACE_PREEMPTED:
        put_phase(o, "n", "preempted", id, at);
        put(o, ",\"args\":{\"choice\":%u}}", r->choice);
        return;
    default:
        put_edge(o, "e", phase_of(r->since), id, at);
        put_phase(o, "e", name, id, at);
        put(o, ",\"args\":{\"finish_reason\":\"%s\"}}", nvllm_finish_name(r->finish));
        return;
    }
    put_edge(o, "b", phase_of(r->kind), id, at);
}

static void put_records(struct output *o, const struct nvllm_trace *t)
{
    begin(o);
    for (size_t i = 0; i < t->n_records; i++) {
        const struct nvllm_trace_record *r = t->records[i];

        if (r->kind == NVLLM_TRACE_PART) {
            put_span(o, ENGINE_THREAD, nvllm_engine_part_name(r->part), r);
            put(o, "}");
        } else if (r->kind == NVLLM_TRACE_STEP) {
            put_step(o, r);
        } else if (r->kind != NVLLM_TRACE_UNKNOWN) {
            put_request(o, r);
        }
    }
    o->n_records += t->n_records;
    flush(o);
}

/* Ends the file, so that it can be read. end is NULL where the trace was cut. */
static void finish(struct output *o, const struct nvllm_traced *end)
{
    begin(o);
    put(o, "\n],\"otherData\":{\"complete\":%s,\"records\":%" PRIu64, end ? "true" : "false",
        o->n_records);
    if (end)
        put(o, ",\"seconds\":%.6f,\"dropped\":%" PRIu64, (double)end->took_us / 1e6, end->dropped);
    put(o, "}}\n");
    flush(o);
}

/* ---- the command */

static int end_well(struct output *o, const struct nvllm_traced *end)
{
    finish(o, end);
    if (end->dropped > 0)
        ctl_message("%" PRIu64 " records were dropped: there was no room for them", end->dropped);
    return EXIT_OK;
}

/* Until the trace has ended, which an interrupt makes it do. */
static int record(struct ctl *ctl, struct output *o, uint64_t id)
{
    const struct nvllm_event *event;
    int64_t end = INT64_MAX;

    for (;;) {
        enum nvllm_code code = ctl_next(ctl, -1, clock_left_ms(end), &event, &ctl->err);

        if (code == NVLLM_E_TIMEOUT && end == INT64_MAX) {
            end = ctl_cancel_end(ctl);
            code = nvllm_cancel(ctl->client, id, &ctl->err);
            if (code == NVLLM_OK)
                continue;
        }
        if (code == NVLLM_OK && event->type == NVLLM_EVENT_TRACE) {
            put_records(o, event->trace);
            continue;
        }
        if (code == NVLLM_OK && event->type == NVLLM_EVENT_TRACED)
            return end_well(o, event->traced);
        if (o->begun)
            finish(o, NULL);
        if (code == NVLLM_E_TIMEOUT) {
            ctl_message("nvllmd does not answer");
            return EXIT_ERROR;
        }
        return ctl_report(ctl, code == NVLLM_OK ? event->error : &ctl->err);
    }
}

int ctl_trace(struct ctl *ctl)
{
    const double seconds = ctl_real(ctl, "seconds", 5, 0.001, MOST_SECONDS);
    struct nvllm_trace_options wanted;
    struct output o = {0};
    int rc, timeout_ms;
    uint64_t id;

    if (ctl->line.n_words != 1)
        ctl_usage(ctl, "trace needs a file to write: “-” is stdout");
    nvllm_trace_options_init(&wanted);
    wanted.duration_ms = (uint32_t)ceil(seconds * 1000);
    o.fd = ctl_open(ctl->line.words[0], STDOUT_FILENO, O_WRONLY | O_CREAT);
    ctl_connect(ctl);
    ctl_catch_interrupts(false);
    timeout_ms = ctl_left_ms(ctl);
    if (timeout_ms < 0)
        timeout_ms = (int)wanted.duration_ms + ANSWER_MS;
    ctl_check(ctl, nvllm_trace_start(ctl->client, &id, &wanted, timeout_ms, &ctl->err));
    rc = record(ctl, &o, id);
    text_buffer_deinit(&o.text);
    if (o.fd != STDOUT_FILENO && close(o.fd) < 0)
        ctl_die("%s: cannot be written", ctl->line.words[0]);
    return rc;
}
