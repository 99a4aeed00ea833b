/* stop.c - nvllmctl stop: ends the daemon. */
#include "client/ctl/ask.h"

/* The connection ends when the daemon has. */
static int wait_ended(struct nvllm_client *client, const struct ctl *ctl)
{
    const struct nvllm_event *event;
    struct nvllm_error err;

    while (!ctl_interrupted()) {
        enum nvllm_code code = ctl_next(client, -1, ctl_left_ms(ctl), &event, &err);

        if (code == NVLLM_E_CONNECTION)
            return EXIT_OK;
        if (code == NVLLM_E_TIMEOUT && ctl_left_ms(ctl) == 0) {
            ctl_message("nvllmd has not ended in the time that --timeout gives");
            return EXIT_DEADLINE;
        }
        if (code != NVLLM_OK && code != NVLLM_E_TIMEOUT)
            return ctl_report(ctl, &err);
    }
    return ctl_interrupted();
}

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    bool wait;
    int rc;

    ctl_getopt(ctl, argc, argv, ctl_no_options);
    if (optind < argc)
        ctl_usage(ctl, "stop takes no “%s”", argv[optind]);
    wait = ctl->wait;
    ctl->wait = false; /* for the end, and not for a start */
    rc = ctl_connect(&client, ctl);
    if (rc != EXIT_OK)
        return rc;
    ctl_catch_interrupts();
    if (nvllm_shutdown(client, ctl_ask_ms(ctl), NULL, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    else if (wait)
        rc = wait_ended(client, ctl);
    nvllm_close(client);
    return rc;
}

const struct ctl_command ctl_stop = {
    .name = "stop",
    .about = "end nvllmd",
    .run = run_command,
    .any_state = true,
    .help = "usage: nvllmctl stop [OPTION…]\n\n"
            "Ends nvllmd as SIGTERM does: it drains first. Where systemd runs it and may\n"
            "start it again, “systemctl stop nvllmd” is better. For administrators.\n\n"
            "  --wait                    … until it has ended\n",
    .examples = "  nvllmctl stop --wait --timeout 30\n",
};
