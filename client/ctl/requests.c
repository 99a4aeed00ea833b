/* requests.c - nvllmctl requests: lists requests. */
#include "client/ctl/requests.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"
#include "client/ctl/report_json.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal.h"

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
    ctl_user_name(t->cells[USER], n, r->uid);
    snprintf(t->cells[PID], n, "%d", r->pid);
    snprintf(t->cells[STATE], n, "%s", nvllm_request_state_name(r->state));
    snprintf(t->cells[PLACE], n, r->place ? "%u" : "-", r->place);
    snprintf(t->cells[PROMPT], n, "%u", r->prompt_tokens);
    snprintf(t->cells[CACHED], n, "%u", r->cached_tokens);
    snprintf(t->cells[GENERATED], n, "%u", r->generated_tokens);
    snprintf(t->cells[RATE], n, "%.1f", r->tokens_per_s);
    snprintf(t->cells[BLOCKS], n, "%u", r->blocks);
    ctl_duration(t->cells[AGE], n, r->age_us);
}

/* Gives user names the room that is left, as far as they need it. */
static void widen_users(struct table *t, const struct nvllm_request_list *list, size_t n, int room)
{
    int longest = 0, *width = &t->widths[USER];

    for (size_t i = 0; i < n && *width; i++) {
        char name[TABLE_CELL_BYTES];
        int length = (int)strlen(ctl_user_name(name, sizeof(name), list->requests[i]->uid));

        longest = length > longest ? length : longest;
    }
    while (*width && -*width < longest && -*width < LONGEST_USER && (!room || t->total < room)) {
        --*width;
        t->total++;
    }
}

void requests_print(FILE *to, const struct nvllm_request_list *list, size_t rows, int columns)
{
    size_t n = list->n_requests < rows ? list->n_requests : rows;
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
    int rc;

    nvllm_list_options_init(&wanted);
    wanted.limit = (uint32_t)ctl_whole(ctl, "limit", 0, 1, UINT32_MAX);
    rc = ctl_connect(ctl);
    if (rc == EXIT_OK)
        rc = ctl_outcome(ctl, nvllm_list_requests(ctl->client, &wanted, ctl_ask_ms(ctl), &list,
                                                  &ctl->err));
    if (rc == EXIT_OK && ctl_option(ctl, "json"))
        return ctl_json_answer(report_json_requests(list));
    if (rc == EXIT_OK)
        requests_print(stdout, list, list->n_requests, terminal_columns(STDOUT_FILENO));
    return rc;
}
