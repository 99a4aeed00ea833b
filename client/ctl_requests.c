/* ctl_requests.c - nvllmctl requests: what is under way. */
#include "client/ctl_requests.h"

#include <inttypes.h>
#include <unistd.h>

#include "client/ctl_ask.h"
#include "client/ctl_json.h"

json_t *request_json(const struct nvllm_request_info *r)
{
    json_t *o = json_pack("{sosisiss}", "request", ctl_json_count(r->request), "uid", (int)r->uid,
                          "pid", (int)r->pid, "state", nvllm_request_state_name(r->state));

    json_object_set_new(o, "uid", ctl_json_count(r->uid));
    json_object_set_new(o, "priority", json_string(nvllm_priority_name(r->priority)));
    json_object_set_new(o, "place", ctl_json_count(r->place));
    json_object_set_new(o, "choices", ctl_json_count(r->choices));
    json_object_set_new(o, "prompt_tokens", ctl_json_count(r->prompt_tokens));
    json_object_set_new(o, "cached_tokens", ctl_json_count(r->cached_tokens));
    json_object_set_new(o, "computed_tokens", ctl_json_count(r->computed_tokens));
    json_object_set_new(o, "generated_tokens", ctl_json_count(r->generated_tokens));
    json_object_set_new(o, "max_tokens", ctl_json_count(r->max_tokens));
    json_object_set_new(o, "blocks", ctl_json_count(r->blocks));
    json_object_set_new(o, "preemptions", ctl_json_count(r->preemptions));
    json_object_set_new(o, "age_ms", json_real((double)r->age_us / 1000));
    json_object_set_new(o, "run_ms", json_real((double)r->run_us / 1000));
    json_object_set_new(o, "tok_s", ctl_json_number(r->tokens_per_s));
    return o;
}

void requests_print(FILE *to, const struct nvllm_request_list *list, size_t rows)
{
    size_t n = list->n_requests < rows ? list->n_requests : rows;

    fprintf(to, "%8s %-10s %8s %-9s %5s %7s %7s %9s %8s %7s %8s\n", "REQUEST", "USER", "PID",
            "STATE", "PLACE", "PROMPT", "CACHED", "GENERATED", "TOK/S", "BLOCKS", "AGE");
    for (size_t i = 0; i < n; i++) {
        const struct nvllm_request_info *r = list->requests[i];
        char user[33], age[16], place[16];

        snprintf(place, sizeof(place), r->place ? "%u" : "-", r->place);
        fprintf(to, "%8" PRIu64 " %-10.10s %8d %-9s %5s %7u %7u %9u %8.1f %7u %8s\n", r->request,
                ctl_user_name(user, sizeof(user), r->uid), r->pid,
                nvllm_request_state_name(r->state), place, r->prompt_tokens, r->cached_tokens,
                r->generated_tokens, r->tokens_per_s, r->blocks,
                ctl_duration(age, sizeof(age), r->age_us));
    }
    if (list->total > n)
        fprintf(to, "… and %zu more\n", list->total - n);
}

static json_t *list_json(const struct nvllm_request_list *list)
{
    json_t *array = json_array();

    for (size_t i = 0; i < list->n_requests; i++)
        json_array_append_new(array, request_json(list->requests[i]));
    return json_pack("{soso}", "requests", array, "total", ctl_json_count(list->total));
}

static int run_command(struct ctl *ctl, int argc, char **argv)
{
    static const struct option options[] = {
        CTL_COMMON_OPTIONS,
        {"limit", required_argument, NULL, 'l'},
        {"json", no_argument, NULL, 'j'},
        {NULL, 0, NULL, 0},
    };
    const struct nvllm_request_list *list;
    struct nvllm_list_options wanted;
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    bool json = false;
    int c, rc;

    nvllm_list_options_init(&wanted);
    while ((c = ctl_getopt(ctl, argc, argv, options)) != -1) {
        if (c == 'l')
            wanted.limit = (uint32_t)ctl_number(ctl, "limit", optarg, 1, UINT32_MAX);
        else if (c == 'j')
            json = true;
        else
            ctl_usage(ctl, "requests takes no -%c", c);
    }
    if (optind < argc)
        ctl_usage(ctl, "requests takes no “%s”", argv[optind]);
    rc = ctl_connect(&client, ctl);
    if (rc != EXIT_OK)
        return rc;
    if (nvllm_list_requests(client, &wanted, ctl_ask_ms(ctl), &list, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    else if (!json)
        requests_print(stdout, list, list->n_requests);
    else if (!ctl_json_print(STDOUT_FILENO, list_json(list)))
        rc = EXIT_ERROR;
    nvllm_close(client);
    return rc;
}

const struct ctl_command ctl_requests = {
    .name = "requests",
    .about = "what is under way",
    .run = run_command,
    .any_state = true,
    .help =
        "usage: nvllmctl requests [OPTION…]\n\n"
        "Lists requests, those that run first, then those that wait as they will be taken: whose\n"
        "they are, their place in the queue, tokens of the prompt, of it cached, and generated,\n"
        "tokens a second, blocks. Users see their own, administrators all.\n\n"
        "  --limit N                 no more than N\n"
        "  --json                    print one JSON object, with more of each\n",
    .examples = "  nvllmctl requests\n"
                "  nvllmctl requests --json | jq '.requests[] | select(.state == \"waiting\")'\n",
};
