/* cancel.c - nvllmctl cancel: ends requests of any connection. */
#include <inttypes.h>

#include "client/ctl/ask.h"

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    int rc;

    ctl_getopt(ctl, argc, argv, ctl_no_options);
    if (optind == argc)
        ctl_usage(ctl, "cancel wants the number of a request: “nvllmctl requests” shows them");
    for (int i = optind; i < argc; i++)
        ctl_request_number(ctl, argv[i]);
    rc = ctl_connect(&client, ctl);
    for (int i = optind; client && i < argc; i++) {
        uint64_t request = ctl_request_number(ctl, argv[i]);
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

const struct ctl_command ctl_cancel = {
    .name = "cancel",
    .about = "end requests",
    .run = run_command,
    .any_state = true,
    .help = "usage: nvllmctl cancel REQUEST…\n\n"
            "Ends requests by the numbers that “nvllmctl requests” shows; who asked gets\n"
            "what came until then. Exit code 1 if one had ended already. Users may end their\n"
            "own.\n",
    .examples = "  nvllmctl cancel 17 18\n",
};
