/* control.c - the short commands that change the daemon: cancel, resume, reload, log-level, stop.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"

int ctl_cancel(struct ctl *ctl)
{
    const struct usage_line *line = &ctl->line;
    int rc;

    if (line->n_words == 0)
        ctl_usage(ctl, "cancel needs the number of a request: see “nvllmctl requests”");
    for (int i = 0; i < line->n_words; i++)
        ctl_request_number(ctl, line->words[i]);
    rc = ctl_connect(ctl);
    for (int i = 0; ctl->client && i < line->n_words; i++) {
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
    int rc = ctl_connect(ctl);

    if (rc != EXIT_OK)
        return rc;
    return ctl_outcome(ctl, nvllm_resume(ctl->client, ctl_ask_ms(ctl), NULL, &ctl->err));
}

int ctl_log_level(struct ctl *ctl)
{
    static const char *const levels[] = {"error", "warning", "info", "debug"};
    const char *level;
    int rc;

    if (ctl->line.n_words != 1)
        ctl_usage(ctl, "log-level takes one of error, warning, info and debug");
    level = levels[ctl_word(ctl, ctl->line.words[0], levels, 4)];
    rc = ctl_connect(ctl);
    if (rc != EXIT_OK)
        return rc;
    return ctl_outcome(ctl,
                       nvllm_set_log_level(ctl->client, level, ctl_ask_ms(ctl), NULL, &ctl->err));
}

/* ---- reload */

static json_t *names_json(const char *const *names, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, ctl_json_text(names[i], strlen(names[i])));
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

static int print_reloaded(const struct nvllm_reloaded *r, bool json)
{
    if (json)
        return ctl_json_answer(json_pack("{soso}", "changed", names_json(r->changed, r->n_changed),
                                         "needs_restart",
                                         names_json(r->needs_restart, r->n_needs_restart)));
    print_names("changed", r->changed, r->n_changed);
    print_names("needs a restart", r->needs_restart, r->n_needs_restart);
    if (r->n_changed + r->n_needs_restart == 0)
        puts("nothing has changed");
    return EXIT_OK;
}

int ctl_reload(struct ctl *ctl)
{
    const struct nvllm_reloaded *reloaded;
    int rc = ctl_connect(ctl);

    if (rc == EXIT_OK)
        rc = ctl_outcome(ctl, nvllm_reload(ctl->client, ctl_ask_ms(ctl), &reloaded, &ctl->err));
    return rc == EXIT_OK ? print_reloaded(reloaded, ctl_option(ctl, "json")) : rc;
}

/* ---- stop */

/* The daemon closes the connection when it exits. */
static int wait_stopped(struct ctl *ctl)
{
    const struct nvllm_event *event;

    while (!ctl_interrupted()) {
        enum nvllm_code code = ctl_next(ctl, -1, ctl_left_ms(ctl), &event, &ctl->err);

        if (code == NVLLM_E_CONNECTION)
            return EXIT_OK;
        if (code == NVLLM_E_TIMEOUT && ctl_left_ms(ctl) == 0)
            return ctl_report_timeout();
        if (code != NVLLM_OK && code != NVLLM_E_TIMEOUT)
            return ctl_report(ctl, &ctl->err);
    }
    return ctl_interrupted();
}

int ctl_stop(struct ctl *ctl)
{
    int rc = ctl_connect(ctl);

    ctl_catch_interrupts();
    if (rc == EXIT_OK)
        rc = ctl_outcome(ctl, nvllm_shutdown(ctl->client, ctl_ask_ms(ctl), NULL, &ctl->err));
    return rc == EXIT_OK && ctl_option(ctl, "wait") ? wait_stopped(ctl) : rc;
}
