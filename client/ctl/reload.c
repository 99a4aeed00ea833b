/* reload.c - nvllmctl reload: the daemon reads its configuration anew. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"

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

int ctl_reload(struct ctl *ctl)
{
    const struct nvllm_reloaded *r;
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    bool json = ctl_option(ctl, "json");
    int rc = ctl_connect(&client, ctl);

    if (rc != EXIT_OK)
        return rc;
    if (nvllm_reload(client, ctl_ask_ms(ctl), &r, &err) != NVLLM_OK) {
        rc = ctl_report(ctl, &err);
    } else if (json) {
        if (!ctl_json_print(STDOUT_FILENO,
                            json_pack("{soso}", "changed", names_json(r->changed, r->n_changed),
                                      "needs_restart",
                                      names_json(r->needs_restart, r->n_needs_restart))))
            rc = EXIT_ERROR;
    } else {
        print_names("changed", r->changed, r->n_changed);
        print_names("needs a restart", r->needs_restart, r->n_needs_restart);
        if (r->n_changed + r->n_needs_restart == 0)
            puts("nothing has changed");
    }
    nvllm_close(client);
    return rc;
}
