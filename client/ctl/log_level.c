/* log_level.c - nvllmctl log-level: how much the daemon says. */
#include <string.h>

#include "client/ctl/ask.h"

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    static const char *const levels[] = {"error", "warning", "info", "debug"};
    const size_t n = sizeof(levels) / sizeof(levels[0]);
    struct nvllm_client *client = NULL;
    const char *level, *near;
    struct nvllm_error err;
    size_t i = 0;
    int rc;

    ctl_getopt(ctl, argc, argv, ctl_no_options);
    if (argc - optind != 1)
        ctl_usage(ctl, "log-level wants one of error, warning, info and debug");
    level = argv[optind];
    while (i < n && strcmp(level, levels[i]) != 0)
        i++;
    near = ctl_nearest(level, levels, n);
    if (i == n && near)
        ctl_usage(ctl, "there is no level “%s”: did you mean “%s”?", level, near);
    if (i == n)
        ctl_usage(ctl, "the levels are error, warning, info and debug, not “%s”", level);
    rc = ctl_connect(&client, ctl);
    if (rc == EXIT_OK &&
        nvllm_set_log_level(client, level, ctl_ask_ms(ctl), NULL, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    nvllm_close(client);
    return rc;
}

const struct ctl_command ctl_log_level = {
    .name = "log-level",
    .about = "how much nvllmd logs",
    .run = run_command,
    .any_state = true,
    .help = "usage: nvllmctl log-level error|warning|info|debug\n\n"
            "Until nvllmd ends or reads its configuration anew. For administrators.\n",
    .examples = "  nvllmctl log-level debug\n",
};
