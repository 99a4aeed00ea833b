/* sim_restart.c - records of what is on disk, a process that is killed at any step, and the next
 * one that finds what they tell. Plays the part of engine_disk.c and disk_tier.c. */
#include <stdlib.h>
#include <string.h>

#include "tests/sim/sim_world_impl.h"

struct disk {
    size_t record_bytes;
    char *records;             /* [blocks] depth -1: none */
    char *pending;             /* [max_copies] of the copies under way */
    int32_t *blocks;           /* [max_copies] of these, or -1 */
    struct node_record *found; /* of the process before, while it is given to the core; [blocks] */
    int32_t n_blocks, next_depth;
};

static struct node_record *record_at(const struct disk *d, char *records, int32_t i)
{
    return (void *)(records + (size_t)i * d->record_bytes);
}

static void erase(const struct disk *d, int32_t block)
{
    record_at(d, d->records, block)->depth = -1;
}

void sim_disk_open(struct world *w)
{
    const size_t tokens = (size_t)w->options.block_len * sizeof(int32_t);
    struct disk *d = calloc(1, sizeof(*d));
    const size_t max = (size_t)core_max_copies(w->core) + 1;

    must(d);
    d->record_bytes = (sizeof(struct node_record) + tokens + 15) / 16 * 16;
    d->n_blocks = w->options.tier_blocks[TIER_DISK];
    d->records = calloc((size_t)d->n_blocks + 1, d->record_bytes);
    d->pending = calloc(max, d->record_bytes);
    d->blocks = calloc(max, sizeof(*d->blocks));
    must(d->records && d->pending && d->blocks);
    for (int32_t i = 0; i < d->n_blocks; i++)
        erase(d, i);
    for (size_t i = 0; i < max; i++)
        d->blocks[i] = -1;
    w->disk = d;
}

void sim_disk_close(struct world *w)
{
    free(w->disk->records);
    free(w->disk->pending);
    free(w->disk->blocks);
    free(w->disk->found);
    free(w->disk);
}

void sim_disk_submitted(struct world *w, const struct batch *batch)
{
    struct disk *d = w->disk;

    for (int32_t i = 0; i < batch->n_copies; i++) {
        const struct batch_copy *c = &batch_copies(batch)[i];
        struct node_record *r = record_at(d, d->pending, (int32_t)c->id);

        d->blocks[c->id] = -1;
        if (!copy_is_of_disk(c))
            continue;
        d->blocks[c->id] = c->to_tier == TIER_DISK ? c->to : c->from;
        r->depth = -1;
        if (c->to_tier != TIER_DISK)
            continue;
        erase(d, c->to);
        if (!core_record(w->core, c->id, r))
            r->depth = -1;
    }
}

void sim_disk_waited(struct world *w, const struct step_result *result)
{
    struct disk *d = w->disk;

    for (int32_t i = 0; i < result->n_copies; i++) {
        const struct copy_result *c = &result->copies[i];
        const struct node_record *r = record_at(d, d->pending, (int32_t)c->id);

        if (c->ok && d->blocks[c->id] >= 0 && r->depth >= 0)
            memcpy(record_at(d, d->records, d->blocks[c->id]), r, d->record_bytes);
    }
}

void sim_disk_committed(struct world *w, const struct step_result *result)
{
    struct disk *d = w->disk;

    for (int32_t i = 0; i < result->n_copies; i++) {
        int32_t *block = &d->blocks[result->copies[i].id];

        if (*block >= 0 && !core_keeps(w->core, *block))
            erase(d, *block);
        *block = -1;
    }
}

void sim_disk_cleared(struct world *w)
{
    for (int32_t i = 0; i < w->disk->n_blocks; i++)
        if (!core_keeps(w->core, i))
            erase(w->disk, i);
}

void sim_disk_restore(struct world *w)
{
    struct disk *d = w->disk;
    const int32_t deepest = w->options.max_seq_len / w->options.block_len;

    for (int32_t i = 0; i < d->n_blocks; i++) {
        struct node_record *r = record_at(d, (char *)d->found, i);

        if (r->depth != d->next_depth)
            continue;
        if (core_restore(w->core, r, i, w->now_us)) {
            memcpy(record_at(d, d->records, i), r, d->record_bytes);
            w->counts->restored++;
        }
    }
    if (d->next_depth++ <= deepest)
        return;
    core_restored(w->core);
    free(d->found);
    d->found = NULL;
    w->restoring = false;
}

const char *sim_restart(struct world *w, const char *(*end)(struct world *w))
{
    struct disk *old = w->disk;
    struct sim_backend *next;
    const char *wrong;

    must(sim_backend_new(&next, &w->backend_options) == 0);
    sim_backend_copy_disk(next, w->backend);
    old->found = malloc((size_t)(old->n_blocks + 1) * old->record_bytes);
    must(old->found);
    memcpy(old->found, old->records, (size_t)old->n_blocks * old->record_bytes);
    /* What this process does from here on did not happen; it only shows that it can end. */
    wrong = end(w);
    if (wrong)
        return wrong;
    core_free(w->core);
    sim_backend_free(w->backend);
    w->backend = next;
    w->options.restores = true;
    must(core_new(&w->core, &w->options) == 0);
    core_set_cost(w->core, &w->cost);
    sim_disk_open(w);
    w->disk->found = old->found;
    old->found = NULL;
    free(old->records);
    free(old->pending);
    free(old->blocks);
    free(old);
    w->n_pins = 0;
    w->restoring = true;
    w->counts->restarts++;
    return NULL;
}
