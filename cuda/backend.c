/* backend.c - the CUDA backend behind the contract of engine/backend.h: its rank, and what measures
 * it for the next start. What a rank has chosen never changes once open returns.
 *
 * The engine thread owns all of it; open may run on another thread. */
#include <errno.h>
#include <stdlib.h>

#include "cuda/rank.h"
#include "cuda/tune.h"
#include "engine/backend.h"
#include "engine/util/must.h"

struct backend {
    struct rank rank;
    struct tune *tune; /* measures for the next start; NULL: nothing to */
    bool products_loaded;
    uint64_t n_submitted, n_waited;
    int dead; /* the errno that ended it */
};

static int check_model(const struct model_config *c, struct err *e)
{
    if (c->head_dim != 64 && c->head_dim != 128)
        return err_set(e, -ENOTSUP, "CUDA: head_dim %d is not supported, only 64 and 128 are",
                       c->head_dim);
    if (c->hidden_dim % 32 || c->ffn_dim % 32 || c->vocab_size % 4)
        return err_set(e, -ENOTSUP,
                       "CUDA: hidden_size and intermediate_size must be multiples of 32 and "
                       "vocab_size of 4");
    if (c->vocab_size > 1 << 22)
        return err_set(e, -ENOTSUP, "CUDA: vocab_size %d exceeds %d", c->vocab_size, 1 << 22);
    return 0;
}

/* Measures before the first step, for as long as a start may take, and uses it at once. */
static int tune_first(struct backend *b, struct err *e)
{
    int r = tune_run(b->tune, e);

    return r < 0 ? r : rank_choose(&b->rank, e);
}

static int open_tune(struct backend *b, const struct backend_options *o, struct err *e)
{
    int r;

    if (o->invariant || (!o->cache_folder && !o->tune))
        return 0;
    r = tune_new(&b->tune, &b->rank, e);
    return r == 0 && o->tune ? tune_first(b, e) : r;
}

static void cuda_close(struct backend *b)
{
    if (!b)
        return;
    tune_free(b->tune);
    rank_deinit(&b->rank);
    free(b);
}

static int cuda_open(struct backend **out, const struct model *model,
                     const struct backend_options *options, struct err *e)
{
    struct backend *b;
    int r = check_model(model_config(model), e);

    must(options->block_len >= 16 && options->block_len <= 4096 && options->max_seqs > 0 &&
         options->max_batch_tokens > 0 && options->max_seq_len > 0);
    if (r < 0)
        return r;
    if (options->kv_dtype == KV_DTYPE_F32)
        return err_set(e, -ENOTSUP, "CUDA: keys and values are bf16 on a device, not f32");
    if (options->n_devices > 1 || options->tp_size > 1)
        return err_set(e, -ENOTSUP, "CUDA: one device is supported, not %d",
                       options->n_devices > options->tp_size ? options->n_devices
                                                             : options->tp_size);
    b = calloc(1, sizeof(*b));
    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    r = rank_init(&b->rank, model, options, e);
    if (r == 0)
        r = open_tune(b, options, e);
    if (r < 0) {
        cuda_close(b);
        return r;
    }
    *out = b;
    return 0;
}

static void cuda_info(const struct backend *b, struct backend_info *out)
{
    rank_info(&b->rank, out);
}

static int cuda_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    int r;

    must(b->n_submitted - b->n_waited < BACKEND_IN_FLIGHT);
    if (b->dead)
        return err_set(e, b->dead, "CUDA: the device has failed earlier");
    r = rank_submit(&b->rank, batch, (int)(b->n_submitted % SAMPLER_SLOTS), e);
    b->dead = r;
    b->n_submitted += r == 0;
    return r;
}

static int cuda_wait(struct backend *b, struct step_result *out, struct err *e)
{
    int r;

    must(b->n_waited < b->n_submitted);
    r = rank_wait(&b->rank, (int)(b->n_waited % SAMPLER_SLOTS), out, e);
    b->dead = r;
    b->n_waited += r == 0;
    return r;
}

static int cuda_idle(struct backend *b, struct err *e)
{
    int r;

    must(b->n_submitted == b->n_waited);
    if (b->dead)
        return 0;
    if (b->products_loaded && b->rank.host) { /* before anything is measured beside it */
        host_tier_pin(b->rank.host);
        if (host_tier_wait(b->rank.host))
            return 1;
    }
    if (b->products_loaded && !b->tune)
        return 0;
    r = b->products_loaded ? tune_step(b->tune, e) : rank_load_products(&b->rank, e);
    if (r < 0)
        b->dead = r;
    if (r == 0) { /* all is measured, and written */
        tune_free(b->tune);
        b->tune = NULL;
    }
    b->products_loaded = true;
    return r;
}

static int cuda_sleep(struct backend *b, bool keep_blocks, struct err *e)
{
    must(b->n_submitted == b->n_waited);
    if (b->dead)
        return err_set(e, b->dead, "CUDA: the device has failed earlier");
    tune_pause(b->tune);
    b->dead = rank_sleep(&b->rank, keep_blocks, e);
    return b->dead;
}

static int cuda_wake(struct backend *b, struct err *e)
{
    const int r = rank_wake(&b->rank, e);

    if (r != -ENOMEM)
        b->dead = r;
    return r;
}

const struct rank *cuda_backend_rank(const struct backend *b)
{
    return &b->rank;
}

__attribute__((visibility("default"))) extern const struct backend_ops nvllm_backend;
const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .open = cuda_open,
    .info = cuda_info,
    .submit = cuda_submit,
    .wait = cuda_wait,
    .idle = cuda_idle,
    .sleep = cuda_sleep,
    .wake = cuda_wake,
    .close = cuda_close,
};
