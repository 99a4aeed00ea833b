/* engine_disk.c - the disk tier beside the backend's: its copies, its records, restart and stop.
 *
 * A batch asks for copies between the disk and the tier above it as for others. The backend leaves
 * them alone; they need no step, since blocks that are copied were written by steps before, and
 * their results join those of the step that is read back next. */
#include "engine/engine_private.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/clock.h"

enum {
    /* By which an index may delay READY, until it is read, and then until it is restored: before,
     * requests find little. A million records take 0.12 s to read and 0.32 s to restore. */
    READ_MS = 1000,
    RESTORE_US = 10000,
};

/* What blocks must have in common to be found again; their layout is the ABI's. */
static int describe(char *out, size_t size, const struct engine *g, struct err *e)
{
    const struct backend_options *o = &g->options.backend_options;
    const struct backend_info *info = &g->status.backend;
    XXH128_hash_t model;
    int r = model_fingerprint(g->model, MODEL_AS_OPENED, &model, e);

    if (r == 0) /* devices round differently; the CPU's instruction sets do not */
        snprintf(out, size,
                 "nvllm=%s model=%016llx%016llx backend=%s device=%s dtype=%d block_len=%d "
                 "abi=%d bytes=%llu devices=%d ranks=%d invariant=%d shared=%d",
                 NVLLM_VERSION, (unsigned long long)model.high64, (unsigned long long)model.low64,
                 g->options.backend->name, *info->driver ? info->devices[0].name : "",
                 (int)info->kv_dtype, (int)o->block_len, BACKEND_ABI,
                 (unsigned long long)info->block_bytes, (int)info->n_devices, (int)info->tp_size,
                 o->invariant, g->options.share_all);
    return r;
}

int engine_open_disk(struct engine *g, struct err *e)
{
    const struct backend_info *info = &g->status.backend;
    const int above = info->tiers[TIER_HOST].n_blocks > 0 ? TIER_HOST : TIER_DEVICE;
    char contents[512];
    struct disk_options o = {.folder = g->options.disk_folder,
                             .bytes = g->options.disk_bytes,
                             .block_bytes = info->block_bytes,
                             .block_len = g->options.backend_options.block_len,
                             .contents = contents,
                             .secret = g->options.cache_secret,
                             .warn = g->options.warn};
    int r = 0;

    if (!info->copies || !info->tiers[above].memory)
        r = err_set(e, -ENOTSUP, "cache.disk: needs cache.host_memory with the %s backend",
                    g->options.backend->name);
    if (r == 0)
        r = describe(contents, sizeof(contents), g, e);
    if (r == 0)
        r = disk_tier_open(&g->disk, &o, e);
    if (r == 0)
        g->above_disk = info->tiers[above].memory;
    return r;
}

int engine_start_disk(struct engine *g, struct err *e)
{
    const int32_t max = core_max_copies(g->core);
    int r = disk_tier_start(g->disk, max, e);

    g->copies = calloc(2 * (size_t)max, sizeof(*g->copies));
    g->disk_blocks = calloc((size_t)max, sizeof(*g->disk_blocks));
    g->record = calloc(1, sizeof(*g->record) + (size_t)g->options.backend_options.block_len *
                                                   sizeof(*g->record->tokens));
    if (r == 0 && (!g->copies || !g->disk_blocks || !g->record))
        r = err_set(e, -ENOMEM, "cache.disk: out of memory");
    for (int32_t i = 0; r == 0 && i < max; i++)
        g->disk_blocks[i] = -1;
    g->restoring = r == 0;
    if (r == 0 && disk_tier_is_read(g->disk, READ_MS))
        (void)engine_restore(g, clock_us() + RESTORE_US);
    return r;
}

bool engine_restore(struct engine *g, uint64_t until_us)
{
    int32_t block;

    if (!g->restoring)
        return false;
    if (!disk_tier_is_read(g->disk, g->in_flight > 0 ? 0 : 1))
        return true;
    while (g->restoring && clock_us() < until_us) {
        const uint64_t now_us = clock_us();

        for (int i = 0; i < 64 && g->restoring; i++) {
            const struct node_record *r = disk_tier_next_record(g->disk, &block);

            if (r && !core_restore(g->core, r, block, now_us))
                disk_tier_forget(g->disk, block);
            g->restoring = r != NULL;
        }
        if (!g->restoring)
            core_restored(g->core);
    }
    return true;
}

void engine_begin_copies(struct engine *g, const struct batch *batch)
{
    const size_t bytes = g->status.backend.block_bytes;

    for (int32_t i = 0; i < batch->n_copies; i++) {
        const struct batch_copy *c = &batch_copies(batch)[i];
        const bool store = c->to_tier == TIER_DISK;
        char *memory = g->above_disk + (size_t)(store ? c->from : c->to) * bytes;

        if (!copy_is_of_disk(c))
            continue;
        g->disk_blocks[c->id] = store ? c->to : c->from;
        if (!store)
            disk_tier_load(g->disk, c->id, c->from, memory);
        else /* making room for it can have removed the node itself */
            disk_tier_store(g->disk, c->id, c->to,
                            core_record(g->core, c->id, g->record) ? memory : NULL, g->record);
    }
}

void engine_end_copies(struct engine *g, struct step_result *r, int wait_ms)
{
    const int32_t n = r->n_copies;

    if (n > 0)
        memcpy(g->copies, r->copies, (size_t)n * sizeof(*g->copies));
    r->copies = g->copies;
    r->n_copies +=
        disk_tier_ended(g->disk, g->copies + n, core_max_copies(g->core), n == 0 ? wait_ms : 0);
}

void engine_forget_ended(struct engine *g, const struct step_result *r)
{
    for (int32_t i = 0; i < r->n_copies; i++) {
        int32_t *block = &g->disk_blocks[r->copies[i].id];

        if (*block >= 0 && !core_keeps(g->core, *block))
            disk_tier_forget(g->disk, *block);
        *block = -1;
    }
}

void engine_forget_cleared(struct engine *g)
{
    for (int32_t i = 0; i < disk_tier_blocks(g->disk); i++)
        if (!core_keeps(g->core, i))
            disk_tier_forget(g->disk, i);
    for (int32_t id = 0; id < core_max_copies(g->core); id++) /* copies under way hold theirs */
        if (g->disk_blocks[id] >= 0 && !core_record(g->core, (uint32_t)id, g->record))
            disk_tier_forget(g->disk, g->disk_blocks[id]);
}

void engine_close_disk(struct engine *g)
{
    disk_tier_close(g->disk);
    free(g->copies);
    free(g->disk_blocks);
    free(g->record);
    g->disk = NULL;
    g->copies = NULL;
    g->disk_blocks = NULL;
    g->record = NULL;
    g->restoring = false;
}
