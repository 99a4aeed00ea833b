/* control.c - commands that change the daemon: cancel, drain, resume, reload, log-level, sleep,
 * wake, stop. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/show.h"

enum { LOOK_MS = 100, ANSWER_MS = 10000 };

int ctl_cancel(struct ctl *ctl)
{
    const struct usage_line *line = &ctl->line;
    int rc = EXIT_OK;

    if (line->n_words == 0)
        ctl_usage(ctl, "cancel needs the number of a request: see “nvllmctl requests”");
    for (int i = 0; i < line->n_words; i++)
        ctl_request_number(ctl, line->words[i]);
    ctl_connect(ctl);
    for (int i = 0; i < line->n_words; i++) {
        uint64_t request = ctl_request_number(ctl, line->words[i]);
        bool found;

        if (nvllm_cancel_request(ctl->client, request, ctl_ask_ms(ctl), &found, &ctl->err) !=
            NVLLM_OK) {
            rc = ctl_report(ctl, &ctl->err);
        } else if (!found) {
            ctl_message("request %" PRIu64 " does not exist, has ended, or is not yours", request);
            rc = rc == EXIT_OK ? EXIT_ERROR : rc;
        }
    }
    return rc;
}

int ctl_resume(struct ctl *ctl)
{
    ctl_connect(ctl);
    ctl_check(ctl, nvllm_resume(ctl->client, ctl_ask_ms(ctl), NULL, &ctl->err));
    return EXIT_OK;
}

int ctl_log_level(struct ctl *ctl)
{
    if (ctl->line.n_words != 1)
        ctl_usage(ctl, "log-level takes one of error, warning, info and debug");
    ctl_word(ctl, ctl->line.words[0]);
    ctl_connect(ctl);
    ctl_check(ctl, nvllm_set_log_level(ctl->client, ctl->line.words[0], ctl_ask_ms(ctl), NULL,
                                       &ctl->err));
    return EXIT_OK;
}

/* ---- drain */

/* On a terminal shows what is left meanwhile, on a line that is erased again. */
static void pause_and_show(const struct nvllm_status *status)
{
    bool shown = isatty(STDERR_FILENO);

    if (shown)
        fprintf(stderr, "%u running, %u waiting", status->requests_running,
                status->requests_waiting);
    usleep(LOOK_MS * 1000);
    if (shown)
        fputs("\r\033[K", stderr);
}

/* The daemon keeps refusing requests after the command has ended early. */
static int leave(int rc)
{
    fprintf(stderr,
            "nvllmd still refuses new requests; to accept them again, run “nvllmctl resume”.\n");
    return rc;
}

static int wait_drained(struct ctl *ctl)
{
    const struct nvllm_status *status;

    while (!ctl_interrupted()) {
        ctl_check(ctl, nvllm_get_status(ctl->client, ANSWER_MS, &status, &ctl->err));
        if (status->requests_running == 0 && status->requests_waiting == 0)
            return EXIT_OK;
        if (status->state != NVLLM_STATE_DRAINING)
            ctl_die("someone else has resumed nvllmd");
        if (ctl_left_ms(ctl) == 0) {
            ctl_message("%u running and %u waiting requests are left", status->requests_running,
                        status->requests_waiting);
            return leave(EXIT_DEADLINE);
        }
        pause_and_show(status);
    }
    return leave(EXIT_INTERRUPTED);
}

int ctl_drain(struct ctl *ctl)
{
    double seconds = ctl_real(ctl, "end-after", -1, 0, 4e6);
    struct nvllm_drain_options wanted;

    nvllm_drain_options_init(&wanted);
    if (seconds >= 0)
        wanted.drain_timeout_ms = (int64_t)ceil(seconds * 1000);
    ctl_connect(ctl);
    ctl_catch_interrupts(false);
    ctl_check(ctl, nvllm_drain(ctl->client, &wanted, ctl_ask_ms(ctl), NULL, &ctl->err));
    return ctl_option(ctl, "wait") ? wait_drained(ctl) : EXIT_OK;
}

/* ---- reload */

static json_t *names_json(const char *const *names, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, ctl_json_text(nvllm_str(names[i])));
    return array;
}

static void print_names(const char *what, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        printf("%-15s ", what);
        ctl_put_line(stdout, names[i], 0);
        putchar('\n');
    }
}

int ctl_reload(struct ctl *ctl)
{
    const struct nvllm_reloaded *r;

    ctl_connect(ctl);
    ctl_check(ctl, nvllm_reload(ctl->client, ctl_ask_ms(ctl), &r, &ctl->err));
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO,
                              json_pack("{soso}", "changed", names_json(r->changed, r->n_changed),
                                        "needs_restart",
                                        names_json(r->needs_restart, r->n_needs_restart)));
    print_names("changed", r->changed, r->n_changed);
    print_names("needs a restart", r->needs_restart, r->n_needs_restart);
    if (r->n_changed + r->n_needs_restart == 0)
        puts("nothing has changed");
    return EXIT_OK;
}

/* ---- sleep and wake */

int ctl_sleep(struct ctl *ctl)
{
    const char *level = ctl_option(ctl, "level");
    const struct nvllm_sleep_change *c;
    struct nvllm_sleep_options wanted;

    nvllm_sleep_options_init(&wanted);
    if (level && strcmp(level, "weights") == 0)
        wanted.level = NVLLM_SLEEP_WEIGHTS;
    else if (level && strcmp(level, "all") != 0)
        ctl_usage(ctl, "--level takes weights or all, not “%s”", level);
    ctl_connect(ctl);
    ctl_check(ctl, nvllm_sleep(ctl->client, &wanted, ctl_left_ms(ctl), &c, &ctl->err));
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, report_json_sleep_change(c));
    printf("asleep (%s): %.1f MiB given back in %.2f s", nvllm_sleep_level_name(c->level),
           show_mib(c->freed_bytes), (double)c->took_us / 1e6);
    if (c->kept_tokens + c->lost_tokens > 0)
        printf("; of the cached tokens %u are kept below the device, %u are lost", c->kept_tokens,
               c->lost_tokens);
    putchar('\n');
    if (c->level < wanted.level)
        puts("the KV blocks stay, because prefixes are pinned: see “nvllmctl cache”");
    return EXIT_OK;
}

int ctl_wake(struct ctl *ctl)
{
    const struct nvllm_sleep_change *c;

    ctl_connect(ctl);
    ctl_check(ctl, nvllm_wake(ctl->client, ctl_left_ms(ctl), &c, &ctl->err));
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, report_json_sleep_change(c));
    printf("awake after %.2f s\n", (double)c->took_us / 1e6);
    return EXIT_OK;
}

/* ---- stop */

/* The daemon ends the connection when it exits. */
static int wait_stopped(struct ctl *ctl)
{
    const struct nvllm_event *event;

    while (!ctl_interrupted()) {
        enum nvllm_code code = ctl_next(ctl, -1, ctl_left_ms(ctl), &event, &ctl->err);

        if (code == NVLLM_E_UNAVAILABLE || code == NVLLM_E_CONNECTION)
            return EXIT_OK;
        if (code == NVLLM_E_TIMEOUT && ctl_left_ms(ctl) == 0)
            return ctl_report_timeout();
        if (code != NVLLM_E_TIMEOUT)
            ctl_check(ctl, code);
    }
    return EXIT_INTERRUPTED;
}

int ctl_stop(struct ctl *ctl)
{
    ctl_connect(ctl);
    ctl_catch_interrupts(false);
    ctl_check(ctl, nvllm_shutdown(ctl->client, ctl_ask_ms(ctl), NULL, &ctl->err));
    return ctl_option(ctl, "wait") ? wait_stopped(ctl) : EXIT_OK;
}
