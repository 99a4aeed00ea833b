/* resume.c - nvllmctl resume: takes new requests again. */
#include "client/ctl/ask.h"

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
