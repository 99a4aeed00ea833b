/* fake_backend.c - nvllm-fake.so: a backend without a model, for end-to-end tests.
 *
 * The next token is a hash of the whole prefix, read back through the block table and checked slot
 * by slot (tests/sim/sim_backend.h); a batch or a slot that is wrong kills the backend, as a broken
 * device would. Of the model only the shapes are used. Tokens are printable ASCII in a byte-level
 * vocabulary and never a stop id, so a text has max_tokens characters. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/backend.h"
#include "tests/sim/sim_backend.h"

enum {
    N_PRINTABLE = 94,      /* ids 0 .. 93: '!' .. '~' */
    DEFAULT_BLOCKS = 4096, /* where the options give no bytes */
};

struct backend {
    struct sim_backend *sim;
    struct backend_info info;
};

static void fake_close(struct backend *b)
{
    if (!b)
        return;
    sim_backend_free(b->sim);
    free(b);
}

/* Counts blocks as the CPU backend does with f32, so that tests find pools of the same size. */
static int size_pools(struct backend_info *info, const struct model_config *c,
                      const struct backend_options *o, struct err *e)
{
    info->block_bytes = (uint64_t)c->n_layers * 2 * (uint64_t)c->n_kv_heads *
                        (uint64_t)o->block_len * (uint64_t)c->head_dim * sizeof(float);
    for (int t = 0; t < N_TIERS; t++) {
        uint64_t n = o->tier_bytes[t] / info->block_bytes;

        if (t == TIER_DEVICE && !o->tier_bytes[t])
            n = DEFAULT_BLOCKS;
        if (t == TIER_DEVICE && n == 0)
            return err_set(e, -ENOMEM, "cache.kv_memory is less than one block (%llu bytes)",
                           (unsigned long long)info->block_bytes);
        if (n > (uint64_t)(INT32_MAX / o->block_len))
            n = (uint64_t)(INT32_MAX / o->block_len);
        info->tiers[t] =
            (struct backend_tier){.n_blocks = (int32_t)n, .bytes = n * info->block_bytes};
    }
    info->masks = info->copies = true;
    info->sum_dim = SIM_SUM_DIM;
    return 0;
}

static int fake_open(struct backend **out, const struct model *model,
                     const struct backend_options *options, struct err *e)
{
    const struct model_config *c = model_config(model);
    struct sim_backend_options sim = {
        .block_len = options->block_len,
        .max_batch_tokens = options->max_batch_tokens,
        .max_seqs = options->max_seqs,
        .n_ids = c->vocab_size < N_PRINTABLE ? c->vocab_size : N_PRINTABLE,
        .never_stop = true,
    };
    struct backend *b = calloc(1, sizeof(*b));
    int rc;

    if (!b)
        return err_set(e, -ENOMEM, "fake backend: no memory");
    b->info.n_devices = 1;
    b->info.tp_size = 1;
    snprintf(b->info.devices[0].name, sizeof(b->info.devices[0].name), "fake, hashes of prefixes");
    b->info.kv_dtype = KV_DTYPE_F32;
    rc = size_pools(&b->info, c, options, e);
    if (rc < 0)
        goto fail;
    for (int t = 0; t < N_TIERS; t++)
        sim.n_blocks[t] = b->info.tiers[t].n_blocks;
    rc = sim_backend_new(&b->sim, &sim);
    if (rc < 0) {
        err_set(e, rc, "fake backend: no memory for %d blocks", sim.n_blocks[TIER_DEVICE]);
        goto fail;
    }
    if (options->progress)
        options->progress(options->progress_ctx, 1.0);
    *out = b;
    return 0;
fail:
    fake_close(b);
    return rc;
}

static void fake_info(const struct backend *b, struct backend_info *out)
{
    *out = b->info;
}

static int fake_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    const char *wrong = sim_backend_submit(b->sim, batch);

    return wrong ? err_set(e, -EIO, "fake backend: %s", wrong) : 0;
}

static int fake_mask(struct backend *b, const uint32_t *const *masks, struct err *e)
{
    const char *wrong = sim_backend_mask(b->sim, masks);

    return wrong ? err_set(e, -EIO, "fake backend: %s", wrong) : 0;
}

static int fake_wait(struct backend *b, struct step_result *out, struct err *e)
{
    const char *wrong = sim_backend_wait(b->sim, out);

    return wrong ? err_set(e, -EIO, "fake backend: %s", wrong) : 0;
}

__attribute__((visibility("default"))) extern const struct backend_ops nvllm_backend;
const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "fake",
    .open = fake_open,
    .info = fake_info,
    .submit = fake_submit,
    .mask = fake_mask,
    .wait = fake_wait,
    .close = fake_close,
};
