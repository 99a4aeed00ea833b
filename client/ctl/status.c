/* status.c - nvllmctl status: what nvllmd is doing, for people and as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"
#include "client/ctl/report_json.h"
#include "client/ctl/terminal.h"

static const char *colour_of(enum nvllm_state state)
{
    switch (state) {
    case NVLLM_STATE_READY:
        return COLOUR_GREEN;
    case NVLLM_STATE_FAILED:
        return COLOUR_RED;
    default:
        return COLOUR_YELLOW;
    }
}

/* A text from the daemon; nothing if it is empty. */
static void put(const char *name, const char *value)
{
    if (!value[0])
        return;
    printf("%-14s", name);
    ctl_put_line(stdout, value, 0);
    putchar('\n');
}

static void put_uptime(uint64_t ms)
{
    uint64_t s = ms / 1000;

    printf("%-14s", "up");
    if (s >= 86400)
        printf("%llu d ", (unsigned long long)(s / 86400));
    if (s >= 3600)
        printf("%llu h ", (unsigned long long)(s / 3600 % 24));
    if (s >= 60)
        printf("%llu min ", (unsigned long long)(s / 60 % 60));
    printf("%llu s\n", (unsigned long long)(s % 60));
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static void print_memory(const struct nvllm_status *s)
{
    printf("%-14s%.1f MiB of weights, %.1f MiB of KV cache, %.1f MiB of workspaces", "memory",
           mib(s->weight_bytes), mib(s->kv_bytes), mib(s->workspace_bytes));
    if (s->total_bytes > 0)
        printf(", %.1f MiB of graphs, %.1f MiB of others\n%-14s%.1f MiB of %.1f MiB free",
               mib(s->graph_bytes), mib(s->other_bytes), "", mib(s->free_bytes),
               mib(s->total_bytes));
    putchar('\n');
}

static void print_numbers(const struct nvllm_status *s)
{
    printf("%-14s%u running, %u waiting, %u connection%s\n", "requests", s->requests_running,
           s->requests_waiting, s->connections, s->connections == 1 ? "" : "s");
    printf("%-14s%u of %u used (%.0f %%), %u cached, %u free; %u tokens each\n", "blocks",
           s->blocks_used, s->blocks_total, ctl_percent(s->blocks_used, s->blocks_total),
           s->blocks_cached, s->blocks_free, s->block_len);
    printf("%-14s%llu of %llu prompt tokens found (%.0f %%)\n", "prefix cache",
           (unsigned long long)s->prefix_hit_tokens, (unsigned long long)s->prefix_queried_tokens,
           ctl_percent(s->prefix_hit_tokens, s->prefix_queried_tokens));
    printf("%-14s%llu prompt tokens computed, %llu output tokens, %llu steps, %llu preemption%s\n",
           "work", (unsigned long long)s->prompt_tokens, (unsigned long long)s->output_tokens,
           (unsigned long long)s->steps, (unsigned long long)s->preemptions,
           s->preemptions == 1 ? "" : "s");
    print_memory(s);
    printf("%-14s%u tokens\n", "longest", s->max_seq_len);
}

static void print_table(const struct nvllm_status *s)
{
    printf("%-14s%s%s%s", "state", terminal_colour(STDOUT_FILENO, colour_of(s->state)),
           nvllm_state_name(s->state), terminal_colour(STDOUT_FILENO, COLOUR_END));
    if (s->state == NVLLM_STATE_LOADING && s->progress >= 0 && s->progress <= 1)
        printf(" (%d %%)", (int)(s->progress * 100));
    putchar('\n');
    put("model", s->model);
    put("folder", s->model_folder);
    put("backend", s->backend);
    put("device", s->device);
    put("driver", s->driver);
    put("server", s->server);
    put_uptime(s->uptime_ms);
    if (s->blocks_total > 0)
        print_numbers(s);
}

int ctl_status(struct ctl *ctl)
{
    const struct nvllm_status *status;
    int rc = ctl_connect(ctl);

    if (rc == EXIT_OK)
        rc = ctl_outcome(ctl, nvllm_get_status(ctl->client, ctl_ask_ms(ctl), &status, &ctl->err));
    if (rc == EXIT_OK && ctl_option(ctl, "json"))
        return ctl_json_answer(report_json_status(status));
    if (rc == EXIT_OK)
        print_table(status);
    return rc;
}
