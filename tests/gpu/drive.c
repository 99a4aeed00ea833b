/* drive.c - see drive.h. */
#include "tests/gpu/drive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/util/must.h"
#include "tests/tools/make_batch.h"

/* One step in flight, with the memory its batch points to. */
struct flight {
    struct batch_parts parts;
    struct batch *batch; /* made of them */
    int32_t *tokens;     /* the first of one piece of memory */
    int32_t *positions, *slots, *q_start, *kv_len, *row_seqs, *tables;
    struct batch_row *rows;
    struct batch_part_update *updates;
};

struct driver {
    const struct backend_options *o;
    struct drive_seq *seqs;
    int n;
    int max_blocks;
    int n_begun; /* sequences with an id */
    struct flight flights[BACKEND_IN_FLIGHT];
};

double now_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct model *open_tiny_model(const char *data_folder)
{
    struct model *model;
    char path[4096];
    struct err e;

    snprintf(path, sizeof(path), "%s/nvllm-tiny", data_folder ? data_folder : TEST_MODEL_DIR "/..");
    err_must(model_open(&model, path, &e), &e);
    return model;
}

static void *take(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    must(p);
    return p;
}

static int blocks_of(const struct driver *d, const struct drive_seq *s)
{
    return (s->n_prompt + s->max_tokens + d->o->block_len - 1) / d->o->block_len;
}

static int give_blocks(struct driver *d, int n_blocks, struct err *e)
{
    uint32_t total = 0, at = 0;

    for (int i = 0; i < d->n; i++) {
        const int blocks = blocks_of(d, &d->seqs[i]);

        total += (uint32_t)blocks;
        d->max_blocks = blocks > d->max_blocks ? blocks : d->max_blocks;
    }
    if (total > (uint32_t)n_blocks)
        return err_set(e, -ENOMEM, "%u blocks are needed, the pool has %d", total, n_blocks);
    for (int i = 0; i < d->n; i++) {
        const int blocks = blocks_of(d, &d->seqs[i]);

        d->seqs[i].blocks = take((size_t)blocks, sizeof(int32_t));
        for (int j = 0; j < blocks; j++)
            d->seqs[i].blocks[j] = scattered(at++, total);
    }
    return 0;
}

static void flight_init(struct flight *f, const struct driver *d)
{
    const size_t tokens = (size_t)d->o->max_batch_tokens, seqs = (size_t)d->o->max_seqs;

    f->tokens = take(3 * tokens + seqs * (size_t)(d->max_blocks + 3) + 1, sizeof(int32_t));
    f->positions = f->tokens + tokens;
    f->slots = f->positions + tokens;
    f->q_start = f->slots + tokens;
    f->kv_len = f->q_start + seqs + 1;
    f->row_seqs = f->kv_len + seqs;
    f->tables = f->row_seqs + seqs;
    f->rows = take(seqs, sizeof(*f->rows));
    f->updates = take(seqs, sizeof(*f->updates));
}

static void flight_deinit(struct flight *f)
{
    free(f->tokens);
    free(f->rows);
    free(f->updates);
    free(f->batch);
}

/* The token at a place of a sequence: known, or what the step before sampled. */
static int32_t token_at(const struct drive_seq *s, int at)
{
    if (at < s->n_prompt)
        return s->prompt[at];
    if (at - s->n_prompt < s->n_out)
        return s->out[at - s->n_prompt];
    must(s->row_before >= 0 && at - s->n_prompt == s->n_out);
    return ~s->row_before;
}

/* Adds n rows of a sequence, and a sampled one if they reach its end. */
static int add_rows(struct driver *d, struct flight *f, int index, int n)
{
    struct drive_seq *s = &d->seqs[index];
    struct batch_parts *b = &f->parts;
    const int block_len = d->o->block_len;

    for (int i = 0; i < n; i++) {
        const int at = s->n_fed + i, row = b->n_tokens + i;

        f->tokens[row] = token_at(s, at);
        f->positions[row] = at;
        f->slots[row] = s->blocks[at / block_len] * block_len + at % block_len;
    }
    s->n_fed += n;
    b->n_tokens += n;
    f->kv_len[b->n_seqs] = s->n_fed;
    for (int i = 0; i < d->max_blocks; i++)
        f->tables[b->n_seqs * d->max_blocks + i] = i * block_len < s->n_fed ? s->blocks[i] : -1;
    b->n_seqs++;
    f->q_start[b->n_seqs] = b->n_tokens;
    s->row_before = -1;
    if (s->n_fed < s->n_prompt + s->n_sampled)
        return -1; /* what follows is known, or is prompt */
    if (!s->loaded) {
        if (s->restarted)
            memcpy(s->history + s->n_prompt, s->out, (size_t)s->n_out * sizeof(*s->out));
        const bool history = sampling_needs_history(&s->sampling);

        f->updates[b->n_updates++] =
            (struct batch_part_update){.state = index,
                                       .n_prompt = history ? s->n_prompt : 0,
                                       .n_history = history ? s->n_prompt + s->n_sampled : 0,
                                       .history = s->restarted ? s->history : s->prompt,
                                       .sampling = &s->sampling};
        s->loaded = true;
    }
    f->row_seqs[b->n_rows] = index;
    f->rows[b->n_rows] = (struct batch_row){.row = b->n_tokens - 1,
                                            .state = index,
                                            .counter = (uint32_t)s->n_sampled,
                                            .mask = -1,
                                            .ban_stops = s->n_sampled < s->sampling.min_tokens};
    s->n_sampled++;
    return b->n_rows++;
}

/* Begins anew with what it has, once nothing of it is in flight; false: not yet. */
static bool restart(struct drive_seq *s)
{
    if (s->n_sampled > s->n_out)
        return false;
    s->n_fed = 0;
    s->loaded = false;
    s->restarted = true;
    return true;
}

static bool waits_to_restart(struct drive_seq *s)
{
    return s->restart_at > 0 && !s->restarted && !s->ended && s->n_out >= s->restart_at &&
           !restart(s);
}

/* Decodes first, then as much of the prompts as fits. False when there is nothing to run. */
static bool pack(struct driver *d, struct flight *f, uint64_t step)
{
    int *row_of = take((size_t)d->n, sizeof(*row_of));

    f->parts = (struct batch_parts){.step = step,
                                    .max_blocks = d->max_blocks,
                                    .tokens = f->tokens,
                                    .positions = f->positions,
                                    .slots = f->slots,
                                    .q_start = f->q_start,
                                    .kv_len = f->kv_len,
                                    .block_table = f->tables,
                                    .rows = f->rows,
                                    .updates = f->updates};
    for (int i = 0; i < d->n; i++) {
        struct drive_seq *s = &d->seqs[i];

        row_of[i] = -1;
        if (waits_to_restart(s))
            continue;
        if (!s->ended && s->n_fed >= s->n_prompt && s->n_sampled < s->max_tokens)
            row_of[i] = add_rows(d, f, i, 1);
    }
    f->parts.n_decodes = f->parts.n_seqs;
    for (int i = 0; i < d->n && f->parts.n_tokens < d->o->max_batch_tokens; i++) {
        struct drive_seq *s = &d->seqs[i];
        const int room = d->o->max_batch_tokens - f->parts.n_tokens, left = s->n_prompt - s->n_fed;

        if (left > 0 && !s->ended)
            row_of[i] = add_rows(d, f, i, left < room ? left : room);
    }
    for (int i = 0; i < d->n; i++)
        d->seqs[i].row_before = row_of[i];
    free(row_of);
    if (f->parts.n_tokens == 0)
        return false;
    free(f->batch);
    f->batch = make_batch(&f->parts);
    return true;
}

static void commit(struct driver *d, const struct flight *f, const struct step_result *r,
                   struct drive_times *times, double begin)
{
    must(r->step == f->parts.step && r->n_rows == f->parts.n_rows);
    for (int i = 0; i < r->n_rows; i++) {
        struct drive_seq *s = &d->seqs[f->row_seqs[i]];

        if (s->ended)
            continue; /* one row too many, computed before its end was known */
        if (s->logprobs)
            s->logprobs[s->n_out] = r->logprobs[i];
        d->n_begun += s->n_out == 0;
        s->out[s->n_out++] = r->ids[i];
        if (times->output_tokens++ == 0)
            times->first_seconds = now_seconds() - begin;
        s->ended = s->n_out == s->max_tokens || r->ids[i] == s->end_id || r->ids[i] < 0;
    }
}

static int run(struct driver *d, const struct backend_ops *ops, struct backend *b,
               struct drive_times *times, struct err *e)
{
    const double begin = now_seconds();
    double last = 0.0;
    uint64_t submitted = 0, waited = 0;
    int r = 0;

    for (;;) {
        struct flight *next = &d->flights[submitted % BACKEND_IN_FLIGHT];
        struct step_result result;

        if (submitted - waited < BACKEND_IN_FLIGHT && pack(d, next, submitted + 1)) {
            r = ops->submit(b, next->batch, e);
            if (r < 0)
                return r;
            submitted++;
            if (submitted - waited < BACKEND_IN_FLIGHT)
                continue;
        }
        if (waited == submitted)
            break;
        r = ops->wait(b, &result, e);
        if (r < 0)
            return r;
        commit(d, &d->flights[waited % BACKEND_IN_FLIGHT], &result, times, begin);
        waited++;
        if (waited > 1 && now_seconds() - last > times->longest_gap)
            times->longest_gap = now_seconds() - last;
        last = now_seconds();
        if (d->n_begun == d->n && times->begun_steps == 0) {
            times->begun_seconds = now_seconds() - begin;
            times->begun_steps = waited;
            times->begun_tokens = times->output_tokens;
        }
    }
    times->seconds = now_seconds() - begin;
    times->steps = submitted;
    return 0;
}

int drive(const struct backend_ops *ops, struct backend *b, const struct backend_options *o,
          struct drive_seq *seqs, int n, struct drive_times *times, struct err *e)
{
    struct driver d = {.o = o, .seqs = seqs, .n = n};
    struct backend_info info;
    int r;

    must(n <= o->max_seqs && n <= o->max_batch_tokens);
    memset(times, 0, sizeof(*times));
    ops->info(b, &info);
    for (int i = 0; i < n; i++) {
        struct drive_seq *s = &seqs[i];

        s->n_out = s->n_fed = s->n_sampled = 0;
        s->blocks = NULL;
        s->row_before = -1;
        s->loaded = s->ended = s->restarted = false;
        s->history = NULL;
        if (s->restart_at > 0) {
            s->history = take((size_t)(s->n_prompt + s->max_tokens), sizeof(*s->history));
            memcpy(s->history, s->prompt, (size_t)s->n_prompt * sizeof(*s->history));
        }
        times->prompt_tokens += (uint64_t)s->n_prompt;
    }
    r = give_blocks(&d, info.tiers[TIER_DEVICE].n_blocks, e);
    for (int i = 0; i < BACKEND_IN_FLIGHT && r == 0; i++)
        flight_init(&d.flights[i], &d);
    if (r == 0)
        r = run(&d, ops, b, times, e);
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        flight_deinit(&d.flights[i]);
    for (int i = 0; i < n; i++) {
        free(seqs[i].blocks);
        free(seqs[i].history);
    }
    return r;
}
