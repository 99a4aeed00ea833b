/* log_level.c - nvllmctl log-level: how much the daemon says. */
#include <string.h>

#include "client/ctl/ask.h"

int ctl_log_level(struct ctl *ctl)
{
    static const char *const levels[] = {"error", "warning", "info", "debug"};
    const size_t n = sizeof(levels) / sizeof(levels[0]);
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    const char *level;
    int rc;

    if (ctl->line.n_words != 1)
        ctl_usage(ctl, "log-level takes one of error, warning, info and debug");
    level = levels[ctl_word(ctl, ctl->line.words[0], levels, n)];
    rc = ctl_connect(&client, ctl);
    if (rc == EXIT_OK &&
        nvllm_set_log_level(client, level, ctl_ask_ms(ctl), NULL, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    nvllm_close(client);
    return rc;
}
