/* blocks.c - nvllmctl blocks: who holds the KV cache. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ask.h"
#include "client/ctl/json.h"
#include "client/ctl/report_json.h"
#include "client/ctl/terminal.h"

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
    bool coloured = terminal_has_colours(STDOUT_FILENO);
    size_t width, group;
    int columns, rows;

    terminal_size(STDOUT_FILENO, &columns, &rows);
    width = columns > 16 ? (size_t)columns - 1 : 16;
    group = (map.len + width * MAX_MAP_ROWS - 1) / (width * MAX_MAP_ROWS);
    group = group ? group : 1;
    putchar('\n');
    for (size_t i = 0, column = 0; i < map.len; i += group) {
        size_t n = map.len - i < group ? map.len - i : group;
        const struct kind *kind = kind_of(map.data + i, n);

        if (coloured)
            printf("%s%c%s", kind->colour, kind->drawn, COLOUR_END);
        else
            putchar(kind->drawn);
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

static void print_table(const struct nvllm_blocks *b)
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
        printf("%-10.32s %10u %10u\n", ctl_user_name(user, sizeof(user), b->uids[i]->uid),
               b->uids[i]->used, b->uids[i]->requests);
    if (b->n_requests > 0)
        printf("\n%-10s %10s %10s  %s\n", "REQUEST", "USED", "SHARED", "USER");
    for (size_t i = 0; i < b->n_requests; i++)
        printf("%-10" PRIu64 " %10u %10u  %s\n", b->requests[i]->request, b->requests[i]->used,
               b->requests[i]->shared, ctl_user_name(user, sizeof(user), b->requests[i]->uid));
}

int ctl_blocks(struct ctl *ctl)
{
    const struct nvllm_blocks *blocks;
    struct nvllm_blocks_options wanted;
    int rc;

    nvllm_blocks_options_init(&wanted);
    wanted.map = ctl_option(ctl, "map");
    rc = ctl_connect(ctl);
    if (rc == EXIT_OK)
        rc = ctl_outcome(ctl, nvllm_get_blocks(ctl->client, &wanted, ctl_ask_ms(ctl), &blocks,
                                               &ctl->err));
    if (rc != EXIT_OK)
        return rc;
    if (ctl_option(ctl, "json"))
        return ctl_json_answer(report_json_blocks(blocks, wanted.map));
    print_table(blocks);
    if (wanted.map)
        draw_map(blocks->map);
    return EXIT_OK;
}
