/* status.c - nvllmctl status, requests and blocks: what nvllmd does, and who holds the KV cache. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/param.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/show.h"

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

static void print_memory(const struct nvllm_status *s)
{
    printf("%-14s%.1f MiB of weights, %.1f MiB of KV cache, %.1f MiB of workspaces", "memory",
           show_mib(s->weight_bytes), show_mib(s->kv_bytes), show_mib(s->workspace_bytes));
    if (s->draft_bytes > 0)
        printf(", %.1f MiB of the draft model", show_mib(s->draft_bytes));
    if (s->total_bytes > 0)
        printf(", %.1f MiB of graphs, %.1f MiB of other use\n%-14s%.1f MiB of %.1f MiB free",
               show_mib(s->graph_bytes), show_mib(s->other_bytes), "", show_mib(s->free_bytes),
               show_mib(s->total_bytes));
    putchar('\n');
}

static void print_rank(size_t number, const struct nvllm_rank *r)
{
    char name[32];

    snprintf(name, sizeof(name), "  rank %zu", number);
    printf("%-14s%.1f MiB of %.1f MiB free, %.1f %% of the time of steps for exchange\n", name,
           show_mib(r->free_bytes), show_mib(r->total_bytes), r->exchange_share * 100);
}

static void print_tier(const char *name, uint32_t cached, uint32_t total, uint64_t stored,
                       uint64_t loaded, uint64_t bytes)
{
    if (total > 0)
        printf("%-14s%u of %u blocks cached, %" PRIu64 " stored, %" PRIu64 " loaded; %.1f MiB\n",
               name, cached, total, stored, loaded, show_mib(bytes));
}

static void print_numbers(const struct nvllm_status *s)
{
    printf("%-14s%u running, %u waiting, %u connection%s\n", "requests", s->requests_running,
           s->requests_waiting, s->connections, s->connections == 1 ? "" : "s");
    printf("%-14s%u of %u used (%.0f %%), %u cached, %u free; %u tokens each\n", "blocks",
           s->blocks_used, s->blocks_total, show_percent(s->blocks_used, s->blocks_total),
           s->blocks_cached, s->blocks_free, s->block_len);
    print_tier("host memory", s->host_blocks_cached, s->host_blocks_total, s->host_blocks_stored,
               s->host_blocks_loaded, s->host_bytes);
    print_tier("disk", s->disk_blocks_cached, s->disk_blocks_total, s->disk_blocks_stored,
               s->disk_blocks_loaded, s->disk_bytes);
    printf("%-14s%llu of %llu prompt tokens found (%.0f %%)\n", "prefix cache",
           (unsigned long long)s->prefix_hit_tokens, (unsigned long long)s->prefix_queried_tokens,
           show_percent(s->prefix_hit_tokens, s->prefix_queried_tokens));
    printf("%-14s%llu prompt tokens computed, %llu output tokens, %llu steps, %llu preemption%s\n",
           "work", (unsigned long long)s->prompt_tokens, (unsigned long long)s->output_tokens,
           (unsigned long long)s->steps, (unsigned long long)s->preemptions,
           s->preemptions == 1 ? "" : "s");
    if (s->draft_tokens > 0)
        printf("%-14s%llu of %llu drafts were right (%.0f %%)\n", "speculation",
               (unsigned long long)s->accepted_tokens, (unsigned long long)s->draft_tokens,
               show_percent(s->accepted_tokens, s->draft_tokens));
    if (s->model_draft_tokens > 0)
        printf("%-14s%llu of %llu of these by the draft model (%.0f %%)\n", "",
               (unsigned long long)s->model_accepted_tokens,
               (unsigned long long)s->model_draft_tokens,
               show_percent(s->model_accepted_tokens, s->model_draft_tokens));
    print_memory(s);
    put("weights", s->weights);
    put("KV cache", s->kv_dtype);
    printf("%-14s%u tokens\n", "longest", s->max_seq_len);
    if (s->embedding_dim > 0)
        printf("%-14s%u values\n", "embeddings", s->embedding_dim);
}

static void print_status(const struct nvllm_status *s)
{
    const char *colour = s->state == NVLLM_STATE_READY    ? COLOUR_GREEN
                         : s->state == NVLLM_STATE_FAILED ? COLOUR_RED
                                                          : COLOUR_YELLOW;

    printf("%-14s%s%s%s", "state", show_colour(STDOUT_FILENO, colour), nvllm_state_name(s->state),
           show_colour(STDOUT_FILENO, COLOUR_END));
    if (s->state == NVLLM_STATE_LOADING && s->progress >= 0 && s->progress <= 1)
        printf(" (%d %%)", (int)(s->progress * 100));
    if (s->asleep)
        printf(", asleep (%s)", nvllm_sleep_level_name(s->asleep));
    putchar('\n');
    put("model", s->model);
    put("folder", s->model_folder);
    put("backend", s->backend);
    put("device", s->device);
    put("driver", s->driver);
    if (s->processes > 1)
        printf("%-14s%u ranks in %u processes, of which this is the first\n", "parallel",
               s->tensor_parallel, s->processes);
    else if (s->tensor_parallel > 1)
        printf("%-14s%u ranks\n", "parallel", s->tensor_parallel);
    for (size_t i = 0; i < s->n_ranks; i++)
        print_rank(i, s->ranks[i]);
    put("server", s->server);
    put_uptime(s->uptime_ms);
    if (s->blocks_total > 0)
        print_numbers(s);
}

int ctl_status(struct ctl *ctl)
{
    const struct nvllm_status *status;

    ctl_connect(ctl);
    ctl_check(ctl, nvllm_get_status(ctl->client, ctl_ask_ms(ctl), &status, &ctl->err));
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, report_json_status(status));
    print_status(status);
    return EXIT_OK;
}

/* ---- requests */

enum { REQUEST, USER, PID, STATE, PLACE, PROMPT, CACHED, GENERATED, RATE, BLOCKS, AGE, N_COLUMNS };

enum { LONGEST_USER = 32 };

static const struct table_column columns_of_all[N_COLUMNS] = {
    [REQUEST] = {"REQUEST", 7, 0}, [USER] = {"USER", -10, 8},
    [PID] = {"PID", 7, 3},         [STATE] = {"STATE", -9, 0},
    [PLACE] = {"PLACE", 5, 2},     [PROMPT] = {"PROMPT", 7, 5},
    [CACHED] = {"CACHED", 7, 1},   [GENERATED] = {"GENERATED", 9, 9},
    [RATE] = {"TOK/S", 8, 7},      [BLOCKS] = {"BLOCKS", 7, 4},
    [AGE] = {"AGE", 7, 6},
};

static void fill_cells(struct table *t, const struct nvllm_request_info *r)
{
    const size_t n = TABLE_CELL_BYTES;

    snprintf(t->cells[REQUEST], n, "%" PRIu64, r->request);
    show_user(t->cells[USER], n, r->uid);
    snprintf(t->cells[PID], n, "%d", r->pid);
    snprintf(t->cells[STATE], n, "%s", nvllm_request_state_name(r->state));
    snprintf(t->cells[PLACE], n, r->place ? "%u" : "-", r->place);
    snprintf(t->cells[PROMPT], n, "%u", r->prompt_tokens);
    snprintf(t->cells[CACHED], n, "%u", r->cached_tokens);
    snprintf(t->cells[GENERATED], n, "%u", r->generated_tokens);
    snprintf(t->cells[RATE], n, "%.1f", r->tokens_per_s);
    snprintf(t->cells[BLOCKS], n, "%u", r->blocks);
    show_duration(t->cells[AGE], n, r->age_us);
}

/* Gives user names the room that is left, as far as they need it. */
static void widen_users(struct table *t, const struct nvllm_request_list *list, size_t n, int room)
{
    int longest = 0, *width = &t->widths[USER];

    for (size_t i = 0; i < n && *width; i++) {
        char name[TABLE_CELL_BYTES];
        int length = (int)strlen(show_user(name, sizeof(name), list->requests[i]->uid));

        longest = MAX(longest, length);
    }
    while (*width && -*width < longest && -*width < LONGEST_USER && (!room || t->total < room)) {
        --*width;
        t->total++;
    }
}

void show_requests(FILE *to, const struct nvllm_request_list *list, size_t rows, int columns)
{
    size_t n = MIN(list->n_requests, rows);
    struct table t;

    table_init(&t, columns_of_all, N_COLUMNS, columns);
    widen_users(&t, list, n, columns);
    for (size_t i = 0; i <= n; i++) {
        table_print(&t, to);
        fputc('\n', to);
        if (i < n)
            fill_cells(&t, list->requests[i]);
    }
    if (list->total > n)
        fprintf(to, "… and %zu more\n", list->total - n);
}

int ctl_requests(struct ctl *ctl)
{
    const struct nvllm_request_list *list;
    struct nvllm_list_options wanted;

    nvllm_list_options_init(&wanted);
    wanted.limit = (uint32_t)ctl_whole(ctl, "limit", 0, 1, UINT32_MAX);
    ctl_connect(ctl);
    ctl_check(ctl, nvllm_list_requests(ctl->client, &wanted, ctl_ask_ms(ctl), &list, &ctl->err));
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, report_json_request_list(list));
    show_requests(stdout, list, list->n_requests, show_width(STDOUT_FILENO));
    return EXIT_OK;
}

/* ---- blocks */

enum { MAX_MAP_ROWS = 32 };

/* A kind of block in the daemon's map and in ours. A character that stands for several blocks shows
 * the first of these kinds among them. */
static const struct kind {
    char letter;
    char drawn;
    const char *colour;
    const char *meaning;
} kinds[] = {
    {'s', '@', COLOUR_RED, "used by several"}, {'u', '#', COLOUR_YELLOW, "used"},
    {'p', 'P', COLOUR_BOLD, "pinned"},         {'c', '-', COLOUR_GREEN, "cached"},
    {'o', 'o', COLOUR_DIM, "another user's"},  {'f', '.', COLOUR_DIM, "free"},
};

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static const struct kind *kind_of(const char *map, size_t n)
{
    for (size_t k = 0; k < N_KINDS; k++)
        if (memchr(map, kinds[k].letter, n))
            return &kinds[k];
    return &kinds[N_KINDS - 1];
}

static void draw_map(struct nvllm_text map)
{
    size_t width = (size_t)MAX(show_columns(STDOUT_FILENO, NULL) - 1, 16);
    size_t group = MAX((map.len + width * MAX_MAP_ROWS - 1) / (width * MAX_MAP_ROWS), 1);

    putchar('\n');
    for (size_t i = 0, column = 0; i < map.len; i += group) {
        const struct kind *kind = kind_of(map.data + i, MIN(map.len - i, group));

        printf("%s%c%s", show_colour(STDOUT_FILENO, kind->colour), kind->drawn,
               show_colour(STDOUT_FILENO, COLOUR_END));
        column = (column + 1) % width;
        if (column == 0 || i + group >= map.len)
            putchar('\n');
    }
    for (size_t k = 0; k < N_KINDS; k++)
        printf("%s%c %s", k ? ", " : "", kinds[k].drawn, kinds[k].meaning);
    if (group > 1)
        printf("; a character is %zu blocks, and shows the first of these kinds among them", group);
    putchar('\n');
}

static void print_blocks(const struct nvllm_blocks *b)
{
    double mib = (double)b->block_bytes / (1 << 20);
    char user[33];

    printf("%-10s %10s %12s\n", "", "BLOCKS", "MIB");
    printf("%-10s %10u %12.1f  (%u pinned)\n", "used", b->used, b->used * mib, b->pinned);
    printf("%-10s %10u %12.1f\n", "cached", b->cached, b->cached * mib);
    printf("%-10s %10u %12.1f\n", "free", b->free, b->free * mib);
    printf("%-10s %10u %12.1f  of %u tokens each\n", "total", b->total, b->total * mib,
           b->block_len);
    if (b->n_uids > 0)
        printf("\n%-10s %10s %10s\n", "USER", "USED", "REQUESTS");
    for (size_t i = 0; i < b->n_uids; i++)
        printf("%-10.32s %10u %10u\n", show_user(user, sizeof(user), b->uids[i]->uid),
               b->uids[i]->used, b->uids[i]->requests);
    if (b->n_requests > 0)
        printf("\n%-10s %10s %10s  %s\n", "REQUEST", "USED", "SHARED", "USER");
    for (size_t i = 0; i < b->n_requests; i++)
        printf("%-10" PRIu64 " %10u %10u  %s\n", b->requests[i]->request, b->requests[i]->used,
               b->requests[i]->shared, show_user(user, sizeof(user), b->requests[i]->uid));
}

int ctl_blocks(struct ctl *ctl)
{
    const struct nvllm_blocks *blocks;
    struct nvllm_blocks_options wanted;

    nvllm_blocks_options_init(&wanted);
    wanted.map = ctl_option(ctl, "map");
    ctl_connect(ctl);
    ctl_check(ctl, nvllm_get_blocks(ctl->client, &wanted, ctl_ask_ms(ctl), &blocks, &ctl->err));
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, report_json_blocks(blocks));
    print_blocks(blocks);
    if (wanted.map)
        draw_map(blocks->map);
    return EXIT_OK;
}
