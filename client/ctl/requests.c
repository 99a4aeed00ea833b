/* requests.c - nvllmctl requests: what is under way. */
#include "client/ctl/requests.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"
#include "client/ctl/terminal.h"

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

/* ---- the table */

enum {
    REQUEST,
    USER,
    PID,
    STATE,
    PLACE,
    PROMPT,
    CACHED,
    GENERATED,
    RATE,
    BLOCKS,
    AGE,
    N_COLUMNS,
};

enum {
    CELL_BYTES = 33,
    LONGEST_USER = 32,
};

static const struct {
    const char *head;
    int width; /* below 0: begins at the left */
} columns_of_all[N_COLUMNS] = {
    [REQUEST] = {"REQUEST", 7}, [USER] = {"USER", -10},
    [PID] = {"PID", 7},         [STATE] = {"STATE", -9},
    [PLACE] = {"PLACE", 5},     [PROMPT] = {"PROMPT", 7},
    [CACHED] = {"CACHED", 7},   [GENERATED] = {"GENERATED", 9},
    [RATE] = {"TOK/S", 8},      [BLOCKS] = {"BLOCKS", 7},
    [AGE] = {"AGE", 7},
};

/* Where there is too little room, in this order; the rest is always shown. */
static const int left_out[] = {CACHED, PLACE, PID, BLOCKS, PROMPT, AGE, RATE, USER, GENERATED};

static void fill_cells(char cells[N_COLUMNS][CELL_BYTES], const struct nvllm_request_info *r)
{
    snprintf(cells[REQUEST], CELL_BYTES, "%" PRIu64, r->request);
    ctl_user_name(cells[USER], CELL_BYTES, r->uid);
    snprintf(cells[PID], CELL_BYTES, "%d", r->pid);
    snprintf(cells[STATE], CELL_BYTES, "%s", nvllm_request_state_name(r->state));
    snprintf(cells[PLACE], CELL_BYTES, r->place ? "%u" : "-", r->place);
    snprintf(cells[PROMPT], CELL_BYTES, "%u", r->prompt_tokens);
    snprintf(cells[CACHED], CELL_BYTES, "%u", r->cached_tokens);
    snprintf(cells[GENERATED], CELL_BYTES, "%u", r->generated_tokens);
    snprintf(cells[RATE], CELL_BYTES, "%.1f", r->tokens_per_s);
    snprintf(cells[BLOCKS], CELL_BYTES, "%u", r->blocks);
    ctl_duration(cells[AGE], CELL_BYTES, r->age_us);
}

/* Which columns there is room for, and how wide they are; 0: not shown. Names of users get what is
 * left over, as far as they need it. */
static void fit_columns(int widths[N_COLUMNS], const struct nvllm_request_list *list, size_t n,
                        int columns)
{
    int total = -1, longest = 0, *user = &widths[USER];

    for (int i = 0; i < N_COLUMNS; i++) {
        widths[i] = columns_of_all[i].width;
        total += abs(widths[i]) + 1;
    }
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++) {
        if (columns == 0 || total <= columns)
            break;
        total -= abs(widths[left_out[i]]) + 1;
        widths[left_out[i]] = 0;
    }
    for (size_t i = 0; i < n && *user; i++) {
        char name[CELL_BYTES];
        int length = (int)strlen(ctl_user_name(name, sizeof(name), list->requests[i]->uid));

        longest = length > longest ? length : longest;
    }
    while (*user && -*user < longest && -*user < LONGEST_USER && (!columns || total < columns)) {
        --*user;
        total++;
    }
}

static void print_row(FILE *to, const int widths[N_COLUMNS], char cells[N_COLUMNS][CELL_BYTES])
{
    const char *blank = "";

    for (int i = 0; i < N_COLUMNS; i++) {
        if (widths[i] == 0)
            continue;
        fprintf(to, "%s%*.*s", blank, widths[i], i == USER ? abs(widths[i]) : CELL_BYTES, cells[i]);
        blank = " ";
    }
    fputc('\n', to);
}

void requests_print(FILE *to, const struct nvllm_request_list *list, size_t rows, int columns)
{
    size_t n = list->n_requests < rows ? list->n_requests : rows;
    char cells[N_COLUMNS][CELL_BYTES];
    int widths[N_COLUMNS];

    fit_columns(widths, list, n, columns);
    for (int i = 0; i < N_COLUMNS; i++)
        snprintf(cells[i], CELL_BYTES, "%s", columns_of_all[i].head);
    print_row(to, widths, cells);
    for (size_t i = 0; i < n; i++) {
        fill_cells(cells, list->requests[i]);
        print_row(to, widths, cells);
    }
    if (list->total > n)
        fprintf(to, "… and %zu more\n", list->total - n);
}

/* ---- the command */

static json_t *list_json(const struct nvllm_request_list *list)
{
    json_t *array = json_array();

    for (size_t i = 0; i < list->n_requests; i++)
        json_array_append_new(array, request_json(list->requests[i]));
    return json_pack("{soso}", "requests", array, "total", ctl_json_count(list->total));
}

int ctl_requests(struct ctl *ctl)
{
    const struct nvllm_request_list *list;
    struct nvllm_list_options wanted;
    struct nvllm_client *client = NULL;
    struct nvllm_error err;
    bool json = ctl_option(ctl, "json");
    int rc;

    nvllm_list_options_init(&wanted);
    wanted.limit = (uint32_t)ctl_whole(ctl, "limit", 0, 1, UINT32_MAX);
    rc = ctl_connect(&client, ctl);
    if (rc != EXIT_OK)
        return rc;
    if (nvllm_list_requests(client, &wanted, ctl_ask_ms(ctl), &list, &err) != NVLLM_OK)
        rc = ctl_report(ctl, &err);
    else if (!json)
        requests_print(stdout, list, list->n_requests, terminal_columns(STDOUT_FILENO));
    else if (!ctl_json_print(STDOUT_FILENO, list_json(list)))
        rc = EXIT_ERROR;
    nvllm_close(client);
    return rc;
}
