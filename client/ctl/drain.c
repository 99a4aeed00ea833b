/* drain.c - nvllmctl drain: makes nvllmd refuse new requests. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/ask.h"

enum { LOOK_MS = 100, ANSWER_MS = 10000 };

/* On a terminal shows what is left meanwhile, on a line that is erased again. */
static void pause_and_show(const struct nvllm_status *status)
{
    const struct timespec pause = {0, LOOK_MS * 1000000L};
    bool shown = isatty(STDERR_FILENO);

    if (shown)
        fprintf(stderr, "%u running, %u waiting", status->requests_running,
                status->requests_waiting);
    nanosleep(&pause, NULL);
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
        if (nvllm_get_status(ctl->client, ANSWER_MS, &status, &ctl->err) != NVLLM_OK)
            return ctl_report(ctl, &ctl->err);
        if (status->requests_running == 0 && status->requests_waiting == 0)
            return EXIT_OK;
        if (status->state != NVLLM_STATE_DRAINING) {
            ctl_message("someone else has resumed nvllmd");
            return EXIT_ERROR;
        }
        if (ctl_left_ms(ctl) == 0) {
            ctl_message("%u running and %u waiting requests are left", status->requests_running,
                        status->requests_waiting);
            return leave(EXIT_DEADLINE);
        }
        pause_and_show(status);
    }
    return leave(ctl_interrupted());
}

int ctl_drain(struct ctl *ctl)
{
    double seconds = ctl_real(ctl, "end-after", -1, 0, 4e6);
    struct nvllm_drain_options wanted;
    int rc;

    nvllm_drain_options_init(&wanted);
    if (seconds >= 0)
        wanted.timeout_ms = (int64_t)ceil(seconds * 1000);
    rc = ctl_connect(ctl);
    if (rc != EXIT_OK)
        return rc;
    ctl_catch_interrupts();
    rc = ctl_outcome(ctl, nvllm_drain(ctl->client, &wanted, ctl_ask_ms(ctl), NULL, &ctl->err));
    return rc == EXIT_OK && ctl_option(ctl, "wait") ? wait_drained(ctl) : rc;
}
