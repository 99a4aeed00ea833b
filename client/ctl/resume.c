/* resume.c - nvllmctl resume: takes new requests again. */
#include "client/ctl/ask.h"

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    int rc = ctl_ask_connect(&client, ctl, argc, argv, 0, NULL);

    if (rc == EXIT_OK && nvllm_resume(client, ctl_ask_ms(ctl), NULL, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    nvllm_close(client);
    return rc;
}

const struct ctl_command ctl_resume = {
    .name = "resume",
    .about = "take new requests again",
    .run = run_command,
    .any_state = true,
    .help = "usage: nvllmctl resume\n\n"
            "Takes back what “nvllmctl drain” did. For administrators.\n",
    .examples = "  nvllmctl resume\n",
};
