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
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    int rc;

    if (line->n_words == 0)
        ctl_usage(ctl, "cancel needs the number of a request: see “nvllmctl requests”");
    for (int i = 0; i < line->n_words; i++)
        ctl_request_number(ctl, line->words[i]);
    rc = ctl_connect(&client, ctl);
    for (int i = 0; client && i < line->n_words; i++) {
        uint64_t request = ctl_request_number(ctl, line->words[i]);
        bool found;

        if (nvllm_cancel_request(client, request, ctl_ask_ms(ctl), &found, &err) != NVLLM_OK) {
            rc = ctl_report(ctl, &err);
        } else if (!found) {
            ctl_message("request %" PRIu64 " does not exist, has ended, or is not yours", request);
            rc = rc == EXIT_OK ? EXIT_ERROR : rc;
        }
    }
    nvllm_close(client);
    return rc;
}

int ctl_resume(struct ctl *ctl)
{
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    int rc = ctl_connect(&client, ctl);

    if (rc == EXIT_OK && nvllm_resume(client, ctl_ask_ms(ctl), NULL, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    nvllm_close(client);
    return rc;
}

int ctl_log_level(struct ctl *ctl)
{
    static const char *const levels[] = {"error", "warning", "info", "debug"};
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    const char *level;
    int rc;

    if (ctl->line.n_words != 1)
        ctl_usage(ctl, "log-level takes one of error, warning, info and debug");
    level = levels[ctl_word(ctl, ctl->line.words[0], levels, 4)];
    rc = ctl_connect(&client, ctl);
    if (rc == EXIT_OK &&
        nvllm_set_log_level(client, level, ctl_ask_ms(ctl), NULL, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    nvllm_close(client);
    return rc;
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
        return ctl_json_print(STDOUT_FILENO,
                              json_pack("{soso}", "changed", names_json(r->changed, r->n_changed),
                                        "needs_restart",
                                        names_json(r->needs_restart, r->n_needs_restart)))
                   ? EXIT_OK
                   : EXIT_ERROR;
    print_names("changed", r->changed, r->n_changed);
    print_names("needs a restart", r->needs_restart, r->n_needs_restart);
    if (r->n_changed + r->n_needs_restart == 0)
        puts("nothing has changed");
    return EXIT_OK;
}

int ctl_reload(struct ctl *ctl)
{
    const struct nvllm_reloaded *reloaded;
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    int rc = ctl_connect(&client, ctl);

    if (rc == EXIT_OK && nvllm_reload(client, ctl_ask_ms(ctl), &reloaded, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    else if (rc == EXIT_OK)
        rc = print_reloaded(reloaded, ctl_option(ctl, "json"));
    nvllm_close(client);
    return rc;
}

/* ---- stop */

/* The daemon closes the connection when it exits. */
static int wait_stopped(struct nvllm_client *client, const struct ctl *ctl)
{
    const struct nvllm_event *event;
    struct nvllm_error err;

    while (!ctl_interrupted()) {
        enum nvllm_code code = ctl_next(client, -1, ctl_left_ms(ctl), &event, &err);

        if (code == NVLLM_E_CONNECTION)
            return EXIT_OK;
        if (code == NVLLM_E_TIMEOUT && ctl_left_ms(ctl) == 0)
            return ctl_report_timeout();
        if (code != NVLLM_OK && code != NVLLM_E_TIMEOUT)
            return ctl_report(ctl, &err);
    }
    return ctl_interrupted();
}

int ctl_stop(struct ctl *ctl)
{
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    int rc = ctl_connect(&client, ctl);

    ctl_catch_interrupts();
    if (rc == EXIT_OK && nvllm_shutdown(client, ctl_ask_ms(ctl), NULL, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    else if (rc == EXIT_OK && ctl_option(ctl, "wait"))
        rc = wait_stopped(client, ctl);
    nvllm_close(client);
    return rc;
}
