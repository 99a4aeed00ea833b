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

int ctl_stop(struct ctl *ctl)
{
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    int rc;

    rc = ctl_connect(&client, ctl);
    if (rc != EXIT_OK)
        return rc;
    ctl_catch_interrupts();
    if (nvllm_shutdown(client, ctl_ask_ms(ctl), NULL, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    else if (ctl_option(ctl, "wait"))
        rc = wait_ended(client, ctl);
    nvllm_close(client);
    return rc;
}
