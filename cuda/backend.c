/* backend.c - the CUDA backend behind the contract of engine/backend.h: its ranks, and what
 * measures the first for the next start. What a rank has chosen never changes once open returns.
 *
 * The engine thread owns all of it; open may run on another thread. */
#include <errno.h>
#include <stdlib.h>

#include "cuda/ranks.h"
#include "cuda/tune.h"
#include "engine/backend.h"
#include "engine/model/quantization.h"
#include "engine/util/must.h"

struct backend {
    struct ranks *ranks;
    struct tune *tune; /* measures for the next start; NULL: nothing to */
    int rows_loaded;   /* products of so many rows and fewer */
    bool asleep;
    uint64_t n_submitted, n_waited;
    bool lacks_masks; /* the last step submitted does */
    int dead;         /* the errno that ended it */
};

/* As a rank computes it, the one with the least. */
static int check_rank(const struct model_config *whole, int tp_size, struct err *e)
{
    const struct shard last = {.rank = tp_size - 1, .tp_size = tp_size};
    const struct model_config c = shard_config(whole, last);
    int64_t first, n_ids;

    shard_range(&first, &n_ids, whole, DIM_VOCAB, last);
    if (tp_size > 1 && c.hidden_dim > 16384)
        return err_set(e, -ENOTSUP,
                       "CUDA: hidden_size %d exceeds 16384, the most for several "
                       "devices",
                       c.hidden_dim);
    if (c.ffn_dim % 32)
        return err_set(
            e, -ENOTSUP,
            "CUDA: intermediate_size %d divided among %d devices is not a multiple of 32",
            whole->ffn_dim, tp_size);
    if (n_ids == 0)
        return err_set(e, -ENOTSUP, "CUDA: vocab_size %d is too small for %d devices",
                       whole->vocab_size, tp_size);
    return 0;
}

static int check_model(const struct model_config *c, int tp_size, struct err *e)
{
    int r;

    r = shard_check(c, tp_size, e);
    if (r < 0)
        return r;
    if (c->head_dim != 64 && c->head_dim != 128)
        return err_set(e, -ENOTSUP, "CUDA: head_dim %d is not supported, only 64 and 128 are",
                       c->head_dim);
    if (c->hidden_dim % 32 || c->vocab_size % 4)
        return err_set(e, -ENOTSUP,
                       "CUDA: hidden_size must be a multiple of 32 and vocab_size of 4");
    if (c->vocab_size > 1 << 22)
        return err_set(e, -ENOTSUP, "CUDA: vocab_size %d exceeds %d", c->vocab_size, 1 << 22);
    return check_rank(c, tp_size, e);
}

/* Every rank's device by number; what several cannot do is refused. */
static int check_options(struct backend_options *o, struct err *e)
{
    const int n = o->n_processes > 1 ? o->n_processes : 1;

    o->tp_size = o->tp_size > 0 ? o->tp_size : o->n_devices > 0 ? n * o->n_devices : n;
    if (o->n_devices == 0)
        for (; o->n_devices < o->tp_size / n && o->n_devices < BACKEND_MAX_DEVICES; o->n_devices++)
            o->devices[o->n_devices] = o->n_devices;
    if (o->kv_dtype == KV_DTYPE_F32)
        return err_set(e, -ENOTSUP,
                       "cache.kv_dtype: keys and values are bf16 or fp8 on a GPU: set auto, bf16 "
                       "or fp8");
    if (o->tp_size > MAX_RANKS || (o->tp_size & (o->tp_size - 1)) != 0)
        return err_set(e, -EINVAL, "model.tensor_parallel: %d is not 1, 2, 4 or 8", o->tp_size);
    if (o->tp_size != n * o->n_devices)
        return err_set(e, -EINVAL,
                       "cuda.devices: %d devices are named in each of %d processes, and "
                       "model.tensor_parallel is %d",
                       o->n_devices, n, o->tp_size);
    if (n > 1 && o->invariant)
        return err_set(e, -ENOTSUP,
                       "cuda.invariant: not in a cluster: how NCCL adds depends on the number of "
                       "rows; turn it off, or set cluster.world_size = 1");
    return 0;
}

/* Measures before the first step, for as long as a start may take, and uses it at once. */
static int tune_first(struct backend *b, struct err *e)
{
    int r = tune_run(b->tune, e);

    return r < 0 ? r : ranks_choose(b->ranks, e);
}

static int open_tune(struct backend *b, const struct backend_options *o, struct err *e)
{
    int r;

    if (o->invariant || (!o->cache_folder && !o->tune))
        return 0;
    r = cuda_check(cudaSetDevice(ranks_first(b->ranks)->device.id), "choosing the device", e);
    if (r == 0)
        r = tune_new(&b->tune, b->ranks, e);
    return r == 0 && o->tune ? tune_first(b, e) : r;
}

static void cuda_close(struct backend *b)
{
    if (!b)
        return;
    tune_free(b->tune);
    ranks_free(b->ranks);
    free(b);
}

/* Whether the model can be computed; what memory it needs only a device can tell. */
static int cuda_check_model(const struct model *model, const struct backend_options *options,
                            struct err *e)
{
    struct backend_options o = *options;
    const int r = check_options(&o, e);

    return r < 0 ? r : check_model(model_config(model), o.tp_size, e);
}

static int cuda_open(struct backend **out, const struct model *model,
                     const struct backend_options *options, struct err *e)
{
    struct backend_options o = *options;
    struct backend *b;
    int r = check_options(&o, e);

    must(options->block_len >= 16 && options->block_len <= 4096 && options->max_seqs > 0 &&
         options->max_batch_tokens > 0 && options->max_seq_len > 0);
    if (r == 0)
        r = check_model(model_config(model), o.tp_size, e);
    if (r < 0)
        return r;
    b = calloc(1, sizeof(*b));
    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    if (o.n_processes > 1) /* before CUDA reads it: queues that streams of NCCL's rarely share */
        (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    r = ranks_new(&b->ranks, model, &o, e);
    if (r == 0)
        r = open_tune(b, &o, e);
    if (r < 0) {
        cuda_close(b);
        return r;
    }
    *out = b;
    return 0;
}

static int cuda_probe(const struct backend_options *options, struct err *e)
{
    struct backend_options o = *options;
    const struct nccl *ignored;
    int r = check_options(&o, e);

    if (r == 0 && o.n_processes > 1)
        r = nccl_load(&ignored, o.nccl, e);
    for (int32_t i = 0; r == 0 && i < o.n_devices; i++) {
        struct device d;

        r = device_open(&d, o.devices[i], e);
        device_close(&d);
    }
    return r;
}

static void cuda_info(const struct backend *b, struct backend_info *out)
{
    ranks_info(b->ranks, out);
}

static int cuda_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    int r;

    must(b->n_submitted - b->n_waited < BACKEND_IN_FLIGHT && !b->lacks_masks);
    must(batch->n_masks >= 0 && batch->n_masks <= batch->n_rows);
    if (b->dead)
        return err_set(e, b->dead, "CUDA: the device has failed earlier");
    r = ranks_submit(b->ranks, batch, (int)(b->n_submitted % SAMPLER_SLOTS), e);
    b->dead = r;
    b->n_submitted += r == 0;
    b->lacks_masks = r == 0 && batch->n_masks > 0;
    return r;
}

static int cuda_mask(struct backend *b, const uint32_t *const *masks, struct err *e)
{
    must(b->n_waited + 1 == b->n_submitted && b->lacks_masks);
    b->dead = ranks_mask(b->ranks, masks, (int)(b->n_waited % SAMPLER_SLOTS), e);
    b->lacks_masks = false;
    return b->dead;
}

static int cuda_wait(struct backend *b, struct step_result *out, struct err *e)
{
    int r;

    must(b->n_waited + b->lacks_masks < b->n_submitted);
    r = ranks_wait(b->ranks, (int)(b->n_waited % SAMPLER_SLOTS), out, e);
    b->dead = r;
    b->n_waited += r == 0;
    return r;
}

static int cuda_idle(struct backend *b, struct err *e)
{
    struct rank *first = ranks_first(b->ranks);
    int r;

    must(b->n_submitted == b->n_waited);
    if (b->dead)
        return 0;
    r = ranks_beat(b->ranks, e);
    b->dead = r;
    if (r < 0 || b->asleep)
        return r;
    if (b->rows_loaded < first->limits.max_tokens) { /* else steps would wait for them */
        b->rows_loaded = gemm_rows(b->rows_loaded + 1);
        b->dead = ranks_load_products(b->ranks, b->rows_loaded, e);
        return b->dead < 0 ? b->dead : 1;
    }
    if (ranks_pin(b->ranks)) /* before anything is measured beside it */
        return 1;
    if (!b->tune)
        return 0;
    r = cuda_check(cudaSetDevice(first->device.id), "choosing the device", e);
    if (r == 0)
        r = tune_step(b->tune, e);
    if (r < 0)
        b->dead = r;
    if (r == 0) { /* all is measured, and written */
        tune_free(b->tune);
        b->tune = NULL;
    }
    return r;
}

static int cuda_sleep(struct backend *b, bool keep_blocks, struct err *e)
{
    must(b->n_submitted == b->n_waited);
    if (b->dead)
        return err_set(e, b->dead, "CUDA: the device has failed earlier");
    tune_pause(b->tune);
    b->dead = ranks_sleep(b->ranks, keep_blocks, e);
    b->asleep = true;
    return b->dead;
}

static int cuda_wake(struct backend *b, struct err *e)
{
    const int r = ranks_wake(b->ranks, e);

    if (r != -ENOMEM)
        b->dead = r;
    b->asleep = r < 0;
    b->rows_loaded = 0;
    return r;
}

/* As the leader's engine has called it there. An order comes behind the steps before it, which have
 * ended. */
static int carry_out(struct backend *b, const struct order *o, struct err *e)
{
    struct step_result ignored;
    int r = 0;

    while (r == 0 && b->n_submitted > b->n_waited)
        r = cuda_wait(b, &ignored, e);
    if (r < 0)
        return r;
    switch (o->kind) {
    case ORDER_STEP:
        return cuda_submit(b, o->batch, e);
    case ORDER_SLEEP:
        return cuda_sleep(b, o->keep_blocks, e);
    case ORDER_WAKE:
        r = cuda_wake(b, e);
        return r == -ENOMEM ? 0 : r; /* all sleep on */
    default:
        return ranks_answer(b->ranks, o, e);
    }
}

static int cuda_follow(struct backend *b, struct err *e)
{
    struct order order = {.kind = ORDER_BEAT};
    int r = 0;

    must(ranks_follow(b->ranks));
    while (r == 0 && order.kind != ORDER_CLOSE) {
        r = ranks_next_order(b->ranks, &order, e);
        if (r == 0)
            r = carry_out(b, &order, e);
    }
    return order.kind == ORDER_CLOSE ? 0 : r; /* the leader may be gone before it has the answer */
}

const struct rank *cuda_backend_rank(const struct backend *b)
{
    return ranks_first(b->ranks);
}

const struct ranks *cuda_backend_ranks(const struct backend *b)
{
    return b->ranks;
}

__attribute__((visibility("default"))) extern const struct backend_ops nvllm_backend;
const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .open = cuda_open,
    .info = cuda_info,
    .submit = cuda_submit,
    .mask = cuda_mask,
    .wait = cuda_wait,
    .idle = cuda_idle,
    .sleep = cuda_sleep,
    .wake = cuda_wake,
    .close = cuda_close,
    .follow = cuda_follow,
    .probe = cuda_probe,
    .check = cuda_check_model,
};
