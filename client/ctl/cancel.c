/* cancel.c - nvllmctl cancel: ends requests of any connection. */
#include <inttypes.h>

#include "client/ctl/ask.h"

int ctl_cancel(struct ctl *ctl)
{
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    int rc;

    if (ctl->line.n_words == 0)
        ctl_usage(ctl, "cancel needs the number of a request: “nvllmctl requests” shows them");
    for (int i = 0; i < ctl->line.n_words; i++)
        ctl_request_number(ctl, ctl->line.words[i]);
    rc = ctl_connect(&client, ctl);
    for (int i = 0; client && i < ctl->line.n_words; i++) {
        uint64_t request = ctl_request_number(ctl, ctl->line.words[i]);
        bool found;

        if (nvllm_cancel_request(client, request, ctl_ask_ms(ctl), &found, &err) != NVLLM_OK) {
            rc = ctl_report(ctl, &err);
        } else if (!found) {
            ctl_message("there is no request %" PRIu64 " (any more) that you may cancel", request);
            rc = rc == EXIT_OK ? EXIT_ERROR : rc;
        }
    }
    nvllm_close(client);
    return rc;
}
