/* cpu_backend.c - see cpu_backend.h: a queue of two steps and the thread that runs them in order.
 *
 * The engine thread calls in. After open only the step thread, and the threads that it has work for
 * it, touch weights, KV and sampler states. The lock guards what both threads use. */
#include "engine/cpu/cpu_backend.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_ranks.h"
#include "engine/cpu/cpu_sampler.h"
#include "engine/util/machine.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

/* A result is valid until the next wait(), while two more steps may be in flight. */
enum { N_RESULTS = BACKEND_IN_FLIGHT + 1 };

/* The default of cache.kv_memory, as its manual states it. */
enum {
    KV_AUTO_LEAST = 512 << 20, /* one sequence of nvllm-tiny's full length */
    KV_AUTO_SHARE = 4,         /* at most 1 / KV_AUTO_SHARE of the available memory */
};

struct result {
    int32_t *ids;        /* [max_seqs] */
    float *logprobs;     /* [max_seqs] */
    int32_t *top_ids;    /* [max_seqs, SAMPLING_MAX_LOGPROBS] */
    float *top_logprobs; /* the same */
    float *sums;         /* [max_seqs, hidden_dim] */
    int32_t n_copies, max_copies;
    struct copy_result *copies; /* [n_copies] */
};

struct backend {
    struct backend_options options;
    struct model_config config;
    const struct model *model;
    struct backend_info info;
    const struct cpu_ops *ops;
    struct cpu_ranks *ranks;
    struct kv_pool kv; /* of all ranks */
    struct region kv_memory;
    struct region tiers[N_TIERS]; /* parts of kv_memory, in order; zeroed: no such tier */
    struct sampler *sampler;
    struct result results[N_RESULTS]; /* of step n: n % N_RESULTS */
    uint32_t *masks;                  /* [max_seqs, mask_words] of one step */
    size_t mask_words;

    /* of the engine thread */
    uint64_t n_waited; /* steps */
    int32_t last_rows; /* n_rows of the last step submitted */

    pthread_mutex_t lock;
    pthread_cond_t changed;
    const struct batch *queue[BACKEND_IN_FLIGHT]; /* of step n: n % BACKEND_IN_FLIGHT */
    uint64_t n_submitted, n_done; /* also the last steps' numbers; the engine thread alone writes
                                   * the former */
    uint64_t masked;              /* the last step that was given masks */
    bool stop;
    bool asleep;
    bool filling; /* the thread allocates pages of the KV pool */
    bool filled;
    bool running; /* the thread has been started */
    pthread_t thread;
};

/* Sampling of some rows of a step. */
struct sampling_job {
    struct backend *b;
    const struct batch *batch;
    const float *logits;
    struct result *result;
    int first; /* wanted row of the first logits */
};

static void sample_task(void *ctx, int task, int thread)
{
    const struct sampling_job *job = ctx;
    const int i = job->first + task;
    const struct batch_row *row = &batch_rows(job->batch)[i];
    const size_t top = (size_t)i * SAMPLING_MAX_LOGPROBS;
    struct sample sample = {.top_ids = job->result->top_ids + top,
                            .top_logprobs = job->result->top_logprobs + top};

    sampler_run(job->b->sampler, thread,
                job->logits + (size_t)task * (size_t)job->b->config.vocab_size, row,
                row->mask >= 0 ? job->b->masks + (size_t)row->mask * job->b->mask_words : NULL,
                &sample);
    job->result->ids[i] = sample.id;
    job->result->logprobs[i] = sample.logprob;
}

static void run_copies(struct backend *b, const struct batch *batch, enum copy_when when)
{
    struct result *r = &b->results[batch->step % N_RESULTS];

    for (int i = 0; i < batch->n_copies; i++) {
        const struct batch_copy *c = &batch_copies(batch)[i];

        if (c->when != when || copy_is_of_disk(c))
            continue;
        memcpy(b->tiers[c->to_tier].base + (size_t)c->to * b->kv.block_bytes,
               b->tiers[c->from_tier].base + (size_t)c->from * b->kv.block_bytes,
               b->kv.block_bytes);
        r->copies[r->n_copies++] = (struct copy_result){c->id, true};
    }
}

/* False: the backend is being closed. */
static bool wait_for_masks(struct backend *b, const struct batch *batch)
{
    bool masked;

    if (batch->n_masks == 0)
        return true;
    pthread_mutex_lock(&b->lock);
    while (b->masked != batch->step && !b->stop)
        pthread_cond_wait(&b->changed, &b->lock);
    masked = b->masked == batch->step;
    pthread_mutex_unlock(&b->lock);
    return masked;
}

static void run_step(struct backend *b, const struct batch *batch)
{
    struct sampling_job job = {.b = b,
                               .batch = batch,
                               .result = &b->results[batch->step % N_RESULTS]};

    run_copies(b, batch, COPY_BEFORE);
    for (int i = 0; i < batch->n_updates; i++)
        sampler_set(b->sampler, batch, &batch_updates(batch)[i]);
    cpu_ranks_run(b->ranks, batch, b->results[(batch->step - 1) % N_RESULTS].ids, job.result->sums);
    if (!wait_for_masks(b, batch))
        return;
    for (; job.first < batch->n_rows; job.first += FORWARD_LOGIT_ROWS) {
        const int left = batch->n_rows - job.first;
        const int n = left < FORWARD_LOGIT_ROWS ? left : FORWARD_LOGIT_ROWS;

        job.logits = cpu_ranks_logits(b->ranks, job.first, n);
        cpu_pool_run(cpu_ranks_pool(b->ranks), n, sample_task, &job);
    }
    run_copies(b, batch, COPY_AFTER);
}

/* While there is no step it allocates pages of the KV pool: the start does not wait for that, and
 * requests rarely wait for a page. */
static void *step_main(void *arg)
{
    struct backend *b = arg;

    pthread_mutex_lock(&b->lock);
    for (;;) {
        const bool idle = b->n_done == b->n_submitted;
        bool filled = false;

        if (idle && b->stop)
            break;
        if (idle && (b->filled || b->asleep)) {
            pthread_cond_wait(&b->changed, &b->lock);
            continue;
        }
        b->filling = idle;
        pthread_mutex_unlock(&b->lock);
        if (idle)
            filled = !region_fill(&b->tiers[TIER_DEVICE]);
        else
            run_step(b, b->queue[(b->n_done + 1) % BACKEND_IN_FLIGHT]);
        pthread_mutex_lock(&b->lock);
        b->filling = false;
        b->filled |= filled;
        b->n_done += !idle;
        pthread_cond_broadcast(&b->changed);
    }
    pthread_mutex_unlock(&b->lock);
    return NULL;
}

/* As the options say. The default is the size of the weights, so that a larger model gets more, but
 * at most a share of the available memory, for other programs need some. */
static uint64_t kv_bytes(const struct backend_options *o, uint64_t weight_bytes, uint64_t available)
{
    uint64_t bytes = weight_bytes;

    if (o->tier_bytes[TIER_DEVICE])
        return o->tier_bytes[TIER_DEVICE];
    if (o->kv_fraction > 0)
        return (uint64_t)(o->kv_fraction * (double)available);
    if (bytes < KV_AUTO_LEAST)
        bytes = KV_AUTO_LEAST;
    return bytes < available / KV_AUTO_SHARE ? bytes : available / KV_AUTO_SHARE;
}

static int32_t tp_size_of(const struct backend_options *o)
{
    return o->tp_size > 0 ? o->tp_size : 1;
}

/* As many blocks as the memory holds. */
static int plan_kv(struct kv_pool *kv, const struct model_config *c,
                   const struct backend_options *o, uint64_t weight_bytes, uint64_t available,
                   struct err *e)
{
    const uint64_t bytes = kv_bytes(o, weight_bytes, available);
    const uint64_t most = (uint64_t)(INT32_MAX / o->block_len); /* slots are int32 */
    const int32_t tp_size = tp_size_of(o);
    const struct model_config of_rank = shard_config(c, (struct shard){0, tp_size});
    uint64_t n;

    kv->dtype = o->kv_dtype == KV_DTYPE_FP8    ? DTYPE_E4M3
                : o->kv_dtype == KV_DTYPE_BF16 ? DTYPE_BF16
                                               : DTYPE_F32;
    kv->block_shift = __builtin_ctz((unsigned)o->block_len);
    kv->head_bytes = (size_t)o->block_len * (size_t)c->head_dim * dtype_info[kv->dtype].bits / 8;
    if (kv->dtype == DTYPE_E4M3)
        kv->head_bytes += (size_t)o->block_len; /* scales */
    kv->block_bytes =
        (size_t)tp_size * (size_t)c->n_layers * 2 * (size_t)of_rank.n_kv_heads * kv->head_bytes;
    n = bytes / kv->block_bytes < most ? bytes / kv->block_bytes : most;
    if (n == 0)
        return err_set(e, o->tier_bytes[TIER_DEVICE] > 0 ? -EINVAL : -ENOMEM,
                       "cache.kv_memory: one block of %d tokens needs %.1f MiB, but it is %.1f MiB "
                       "(%.1f MiB available); raise it or lower cache.block_len",
                       (int)o->block_len, (double)kv->block_bytes / 0x1p20, (double)bytes / 0x1p20,
                       (double)available / 0x1p20);
    kv->n_blocks = (int32_t)n;
    return 0;
}

/* Both pools: a block id of the host tier, counted on from those of the device, finds its bytes as
 * any other does. */
static int take_kv(struct backend *b, struct err *e)
{
    uint64_t n, most;
    size_t at = 0;
    int r = plan_kv(&b->kv, &b->config, &b->options, b->info.weight_bytes, machine_memory(), e);

    if (r < 0)
        return r;
    most = (uint64_t)(INT32_MAX / b->options.block_len - b->kv.n_blocks);
    n = b->options.tier_bytes[TIER_HOST] / b->kv.block_bytes;
    b->info.tiers[TIER_DEVICE].n_blocks = b->kv.n_blocks;
    b->info.tiers[TIER_HOST].n_blocks = (int32_t)(n < most ? n : most);
    b->info.offloads = b->info.may_offload = b->info.tiers[TIER_HOST].n_blocks > 0;
    for (int t = TIER_DEVICE; t <= TIER_HOST; t++)
        b->info.tiers[t].bytes = (uint64_t)b->info.tiers[t].n_blocks * b->kv.block_bytes;
    r = region_init(&b->kv_memory,
                    b->info.offloads ? "cache.kv_memory and cache.host_memory" : "cache.kv_memory",
                    b->info.tiers[TIER_DEVICE].bytes + b->info.tiers[TIER_HOST].bytes, e);
    if (r < 0)
        return r;
    for (int t = TIER_DEVICE; t <= TIER_HOST; t++) {
        struct backend_tier *tier = &b->info.tiers[t];

        if (tier->n_blocks > 0)
            b->tiers[t] = (struct region){.base = b->kv_memory.base + at, .bytes = tier->bytes};
        tier->memory = b->tiers[t].base;
        at += tier->bytes;
    }
    b->kv.base = b->kv_memory.base;
    cpu_ranks_use(b->ranks, &b->kv);
    return 0;
}

/* What an otherwise idle machine has for the weights and what the options ask for beside them. */
static int cpu_check(const struct model *model, const struct backend_options *o, struct err *e)
{
    const uint64_t all = machine_memory_total();
    struct kv_pool kv = {0};
    uint64_t weights;
    int r = cpu_ranks_measure(&weights, model_config(model), tp_size_of(o), e);

    if (r < 0)
        return r;
    if (weights >= all)
        return err_set(e, -ENOMEM, "the model's weights need %.1f MiB; this machine has %.1f MiB",
                       (double)weights / 0x1p20, (double)all / 0x1p20);
    r = plan_kv(&kv, model_config(model), o, weights, all - weights, e);
    if (r < 0)
        return r;
    if (o->tier_bytes[TIER_HOST] > all - weights)
        return err_set(e, -ENOMEM, "cache.host_memory: %.1f MiB; this machine has %.1f MiB",
                       (double)o->tier_bytes[TIER_HOST] / 0x1p20, (double)all / 0x1p20);
    if ((uint64_t)kv.n_blocks * kv.block_bytes > all - weights - o->tier_bytes[TIER_HOST])
        return err_set(e, -ENOMEM,
                       "cache.kv_memory: %.1f MiB; this machine has %.1f MiB, of which the model's "
                       "weights need %.1f MiB",
                       (double)kv.n_blocks * (double)kv.block_bytes / 0x1p20, (double)all / 0x1p20,
                       (double)weights / 0x1p20);
    return 0;
}

/* And the memory of masks. */
static int take_results(struct backend *b, struct err *e)
{
    const size_t n = (size_t)b->options.max_seqs, top = n * SAMPLING_MAX_LOGPROBS;

    for (int i = 0; i < N_RESULTS; i++) {
        struct result *r = &b->results[i];

        r->ids = calloc(n, sizeof(*r->ids));
        r->logprobs = calloc(n, sizeof(*r->logprobs));
        r->top_ids = calloc(top, sizeof(*r->top_ids));
        r->top_logprobs = calloc(top, sizeof(*r->top_logprobs));
        r->max_copies = b->info.tiers[TIER_DEVICE].n_blocks + b->info.tiers[TIER_HOST].n_blocks;
        r->copies = calloc((size_t)r->max_copies, sizeof(*r->copies));
        r->sums = calloc(n, (size_t)b->config.hidden_dim * sizeof(*r->sums));
        if (!r->ids || !r->logprobs || !r->top_ids || !r->top_logprobs || !r->copies || !r->sums)
            return err_set(e, -ENOMEM, "out of memory");
    }
    b->mask_words = ((size_t)b->config.vocab_size + 31) / 32;
    b->masks = calloc(n * b->mask_words, sizeof(*b->masks));
    return b->masks ? 0 : err_set(e, -ENOMEM, "out of memory");
}

static void fill_info(struct backend *b)
{
    const int n_threads = cpu_ranks_threads(b->ranks);
    char cpu[64], ranks[32] = "";

    machine_cpu_name(cpu);
    b->info.n_devices = 1;
    b->info.tp_size = tp_size_of(&b->options);
    if (b->info.tp_size > 1)
        snprintf(ranks, sizeof(ranks), " in %d ranks", b->info.tp_size);
    snprintf(b->info.devices[0].name, sizeof(b->info.devices[0].name), "%s, %d thread%s%s, %s", cpu,
             n_threads, n_threads == 1 ? "" : "s", ranks, b->ops->name);
    b->info.masks = b->info.copies = true;
    b->info.sum_dim = b->config.hidden_dim;
    b->info.block_bytes = b->kv.block_bytes;
    b->info.kv_dtype = b->options.kv_dtype == KV_DTYPE_AUTO ? KV_DTYPE_F32 : b->options.kv_dtype;
    b->info.workspace_bytes = cpu_ranks_work_bytes(b->ranks) + sampler_bytes(b->sampler);
}

static void cpu_close(struct backend *b)
{
    if (!b)
        return;
    if (b->running) {
        pthread_mutex_lock(&b->lock);
        b->stop = true;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->lock);
        pthread_join(b->thread, NULL);
    }
    for (int i = 0; i < N_RESULTS; i++) {
        free(b->results[i].ids);
        free(b->results[i].logprobs);
        free(b->results[i].top_ids);
        free(b->results[i].top_logprobs);
        free(b->results[i].copies);
        free(b->results[i].sums);
    }
    free(b->masks);
    sampler_free(b->sampler);
    cpu_ranks_free(b->ranks);
    region_deinit(&b->kv_memory);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

/* Threads, weights, buffers and, in the remaining memory, blocks. */
static int open_parts(struct backend *b, struct err *e)
{
    const struct backend_options *o = &b->options;
    const struct cpu_ranks_options ranks = {
        .model = b->model,
        .ops = b->ops,
        .tp_size = tp_size_of(o),
        .n_threads = o->n_threads > 0 ? o->n_threads : machine_cores(),
        .max_seqs = o->max_seqs,
        .beat = o->beat,
        .progress = o->progress,
        .progress_ctx = o->progress_ctx,
    };
    int r = cpu_ranks_new(&b->ranks, &ranks, e);

    if (r < 0)
        return r;
    b->info.weight_bytes = cpu_ranks_weight_bytes(b->ranks);
    r = sampler_new(&b->sampler, b->ops, b->config.vocab_size, o->max_seqs,
                    cpu_pool_threads(cpu_ranks_pool(b->ranks)), e);
    if (r == 0)
        r = take_kv(b, e);
    if (r == 0)
        r = take_results(b, e);
    if (r < 0)
        return r;
    fill_info(b);
    r = thread_start(&b->thread, "cpu-step", step_main, b);
    if (r < 0)
        return err_set(e, r, "cannot start the step thread: %s", strerror(-r));
    b->running = true;
    return 0;
}

int cpu_backend_open_with(struct backend **out, const struct model *model,
                          const struct backend_options *o, const struct cpu_ops *ops, struct err *e)
{
    struct backend *b;
    int r;

    must(o->block_len >= 16 && o->block_len <= 4096 && (o->block_len & (o->block_len - 1)) == 0);
    must(o->max_batch_tokens > 0 && o->max_seqs > 0 && o->max_seq_len > 0 && o->n_threads >= 0);
    must(o->tp_size >= 0 && o->tp_size <= SHARD_MAX_RANKS);
    must(o->kv_fraction >= 0.0 && o->kv_fraction <= 1.0);
    b = calloc(1, sizeof(*b));
    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    b->options = *o;
    b->model = model;
    b->config = *model_config(model);
    b->ops = ops;
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
    r = open_parts(b, e);
    if (r < 0) {
        cpu_close(b);
        return r;
    }
    *out = b;
    return 0;
}

static int cpu_open(struct backend **out, const struct model *model,
                    const struct backend_options *options, struct err *e)
{
    return cpu_backend_open_with(out, model, options, cpu_ops_best(), e);
}

void *cpu_backend_kv(struct backend *b)
{
    return b->kv.base;
}

static void cpu_info(const struct backend *b, struct backend_info *out)
{
    *out = b->info;
}

/* The rows of a sequence: positions and slots agree, and all blocks exist. */
static void check_seq(const struct backend *b, const struct batch *batch, int seq)
{
    const int32_t *table = batch_block_table(batch) + (size_t)seq * (size_t)batch->max_blocks;
    const int32_t from = batch_q_start(batch)[seq], to = batch_q_start(batch)[seq + 1];
    const int32_t len = batch_kv_len(batch)[seq], block_len = b->options.block_len;
    const int32_t n_blocks = (len + block_len - 1) / block_len;

    must(from < to && len >= to - from && len <= b->options.max_seq_len);
    must(seq >= batch->n_decodes || to - from == 1);
    must(n_blocks <= batch->max_blocks);
    for (int i = 0; i < n_blocks; i++)
        must(table[i] >= 0 && table[i] < b->kv.n_blocks + b->info.tiers[TIER_HOST].n_blocks);
    for (int32_t row = from; row < to; row++) {
        const int32_t pos = len - (to - row), token = batch_tokens(batch)[row];

        must(batch_positions(batch)[row] == pos);
        must(batch_slots(batch)[row] == table[pos / block_len] * block_len + pos % block_len);
        must(token >= 0 ? token < b->config.vocab_size : ~token < b->last_rows);
    }
}

static void check_rows(const struct backend *b, const struct batch *batch)
{
    const struct batch_row *rows = batch_rows(batch);

    must(batch->n_rows <= b->options.max_seqs);
    for (int i = 0; i < batch->n_rows; i++) {
        must(rows[i].row >= 0 && rows[i].row < batch->n_tokens);
        must(i == 0 || rows[i].row > rows[i - 1].row);
        must(rows[i].state >= 0 && rows[i].state < b->options.max_seqs);
        must(rows[i].mask >= -1 && rows[i].mask < batch->n_masks);
    }
}

static void check_sums(const struct backend *b, const struct batch *batch)
{
    const struct batch_sum *s = batch_sums(batch);

    must(batch->n_sums <= b->options.max_seqs);
    for (int i = 0; i < batch->n_sums; i++)
        must(s[i].row >= 0 && s[i].n_rows > 0 && s[i].n_rows <= batch->n_tokens - s[i].row);
}

static void check_copies(const struct backend *b, const struct batch *batch)
{
    must(batch->n_copies <= b->results[0].max_copies);
    for (int i = 0; i < batch->n_copies; i++) {
        const struct batch_copy *c = &batch_copies(batch)[i];

        must(c->from_tier < N_TIERS && c->to_tier < N_TIERS && c->from_tier != c->to_tier);
        if (copy_is_of_disk(c))
            continue;
        must(c->from >= 0 && c->from < b->info.tiers[c->from_tier].n_blocks);
        must(c->to >= 0 && c->to < b->info.tiers[c->to_tier].n_blocks);
    }
}

static void check_batch(const struct backend *b, const struct batch *batch)
{
    must(!batch_check(batch, batch->bytes) && batch->step == b->n_submitted + 1);
    must(batch->n_tokens <= b->options.max_batch_tokens && batch->n_seqs <= b->options.max_seqs);
    must((batch->n_tokens == 0) == (batch->n_seqs == 0) && batch->n_decodes <= batch->n_seqs);
    must(batch_q_start(batch)[0] == 0 && batch_q_start(batch)[batch->n_seqs] == batch->n_tokens);
    for (int i = 0; i < batch->n_seqs; i++)
        check_seq(b, batch, i);
    check_rows(b, batch);
    check_sums(b, batch);
    check_copies(b, batch);
}

/* The step has the masks that it needs. */
static bool is_masked(const struct backend *b, uint64_t step)
{
    return b->queue[step % BACKEND_IN_FLIGHT]->n_masks == 0 || b->masked == step;
}

static int cpu_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    (void)e;
    must(b->n_submitted - b->n_waited < BACKEND_IN_FLIGHT);
    must(b->n_submitted == b->n_waited || is_masked(b, b->n_waited + 1));
    check_batch(b, batch);
    must(batch->n_seqs == 0 || !b->asleep);
    b->last_rows = batch->n_rows;
    b->results[batch->step % N_RESULTS].n_copies = 0;
    pthread_mutex_lock(&b->lock);
    b->queue[batch->step % BACKEND_IN_FLIGHT] = batch;
    b->n_submitted++;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return 0;
}

static int cpu_mask(struct backend *b, const uint32_t *const *masks, struct err *e)
{
    const uint64_t step = b->n_waited + 1;
    const struct batch *batch = b->queue[step % BACKEND_IN_FLIGHT];

    (void)e;
    must(step <= b->n_submitted && !is_masked(b, step));
    batch_join_masks(b->masks, masks, batch->n_masks, b->mask_words);
    pthread_mutex_lock(&b->lock);
    b->masked = step;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return 0;
}

static int cpu_wait(struct backend *b, struct step_result *out, struct err *e)
{
    const struct result *r;
    const struct batch *batch;

    (void)e;
    must(b->n_waited < b->n_submitted && is_masked(b, b->n_waited + 1));
    b->n_waited++;
    pthread_mutex_lock(&b->lock);
    while (b->n_done < b->n_waited)
        pthread_cond_wait(&b->changed, &b->lock);
    batch = b->queue[b->n_waited % BACKEND_IN_FLIGHT];
    pthread_mutex_unlock(&b->lock);
    r = &b->results[b->n_waited % N_RESULTS];
    *out = (struct step_result){
        .step = b->n_waited,
        .n_rows = batch->n_rows,
        .ids = r->ids,
        .logprobs = r->logprobs,
        .top_ids = r->top_ids,
        .top_logprobs = r->top_logprobs,
        .n_sums = batch->n_sums,
        .sum_dim = b->config.hidden_dim,
        .sums = r->sums,
        .n_copies = r->n_copies,
        .copies = r->copies,
    };
    return 0;
}

static int cpu_sleep(struct backend *b, bool keep_blocks, struct err *e)
{
    (void)e;
    must(b->n_waited == b->n_submitted);
    pthread_mutex_lock(&b->lock);
    b->asleep = true;
    while (b->filling)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
    cpu_ranks_drop_weights(b->ranks);
    b->info.weight_bytes = 0;
    if (keep_blocks)
        return 0;
    region_empty(&b->tiers[TIER_DEVICE]);
    b->info.tiers[TIER_DEVICE].bytes = 0;
    return 0;
}

static int cpu_wake(struct backend *b, struct err *e)
{
    const uint64_t there = machine_memory();
    const uint64_t needed =
        cpu_ranks_weight_bytes(b->ranks) +
        (b->info.tiers[TIER_DEVICE].bytes == 0 ? b->tiers[TIER_DEVICE].bytes : 0);
    int r;

    if (needed > there)
        return err_set(e, -ENOMEM, "%.1f MiB of memory needed, %.1f MiB available",
                       (double)needed / 0x1p20, (double)there / 0x1p20);
    r = cpu_ranks_read_weights(b->ranks, e);
    if (r < 0)
        return r;
    b->info.weight_bytes = cpu_ranks_weight_bytes(b->ranks);
    b->info.tiers[TIER_DEVICE].bytes = b->tiers[TIER_DEVICE].bytes;
    pthread_mutex_lock(&b->lock);
    b->asleep = b->filled = false;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
    return 0;
}

const struct backend_ops cpu_backend = {
    .abi = BACKEND_ABI,
    .name = "cpu",
    .open = cpu_open,
    .info = cpu_info,
    .submit = cpu_submit,
    .mask = cpu_mask,
    .wait = cpu_wait,
    .sleep = cpu_sleep,
    .wake = cpu_wake,
    .close = cpu_close,
    .check = cpu_check,
};
