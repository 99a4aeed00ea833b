/* backend_driver.c - see backend_driver.h. */
#include "tests/tools/backend_driver.h"

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
    int32_t *tokens, *positions, *slots, *q_start, *kv_len, *tables, *row_seqs;
    struct batch_row *rows;
    struct batch_part_update *updates;
    struct batch_copy *copies; /* [n_copies[0] + n_copies[1]] */
};

/* One call of drive(). */
struct run {
    struct driver *d;
    const struct backend_options *o;
    struct drive_seq *seqs;
    int n;
    int max_blocks;
    int n_begun;          /* sequences with an id */
    int32_t *free_blocks; /* [n_free] */
    int n_free, n_blocks;
    bool *state_taken; /* [max_seqs] */
    int n_under_way[2];
    uint64_t n_begun_copies[2];
    struct flight flights[BACKEND_IN_FLIGHT];
};

double now_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *take(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    must(p);
    return p;
}

void drive_seq_init(struct drive_seq *s, const int32_t *prompt, int n_prompt, int max_tokens,
                    int n_logprobs)
{
    const size_t n = (size_t)max_tokens;

    *s = (struct drive_seq){
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = max_tokens,
        .end_id = -1,
        .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = n_logprobs},
        .out = take(n, sizeof(int32_t)),
        .logprobs = take(n, sizeof(float)),
        .top_ids = take(n * SAMPLING_MAX_LOGPROBS, sizeof(int32_t)),
        .top_logprobs = take(n * SAMPLING_MAX_LOGPROBS, sizeof(float)),
    };
}

void drive_seq_deinit(struct drive_seq *s)
{
    free(s->out);
    free(s->logprobs);
    free(s->top_ids);
    free(s->top_logprobs);
    *s = (struct drive_seq){0};
}

/* Blocks in mixed order, so that neighbours in a sequence are none in memory. */
static int make_pool(struct run *d, struct err *e)
{
    struct backend_info info;
    uint32_t x = d->d->scatter * 2654435761u + 1;

    d->d->ops->info(d->d->backend, &info);
    d->n_blocks = d->n_free = info.tiers[TIER_DEVICE].n_blocks;
    d->free_blocks = take((size_t)d->n_free, sizeof(*d->free_blocks));
    d->state_taken = take((size_t)d->o->max_seqs, sizeof(*d->state_taken));
    for (int i = 0; i < d->n_free; i++) {
        const int j = (int)((x = x * 1664525u + 1013904223u) % (uint32_t)(i + 1));

        d->free_blocks[i] = d->free_blocks[j];
        d->free_blocks[j] = i;
    }
    for (int i = 0; i < d->n; i++) {
        struct drive_seq *s = &d->seqs[i];

        s->n_blocks = (s->n_prompt + s->max_tokens + d->o->block_len - 1) / d->o->block_len;
        d->max_blocks = s->n_blocks > d->max_blocks ? s->n_blocks : d->max_blocks;
    }
    return d->max_blocks <= d->n_blocks
               ? 0
               : err_set(e, -ENOMEM, "%d blocks are needed, the pool has %d", d->max_blocks,
                         d->n_blocks);
}

/* False: it has to wait. */
static bool admit(struct run *d, struct drive_seq *s)
{
    int state = 0;

    while (state < d->o->max_seqs && d->state_taken[state])
        state++;
    if (state == d->o->max_seqs || s->n_blocks > d->n_free)
        return false;
    s->state = state;
    d->state_taken[state] = true;
    s->blocks = take((size_t)s->n_blocks, sizeof(*s->blocks));
    for (int i = 0; i < s->n_blocks; i++)
        s->blocks[i] = d->free_blocks[--d->n_free];
    return true;
}

/* Takes back what ended sequences have, once no step that they are in is in flight. */
static void release(struct run *d, uint64_t waited)
{
    for (int i = 0; i < d->n; i++) {
        struct drive_seq *s = &d->seqs[i];

        if (!s->ended || !s->blocks || s->last_step > waited)
            continue;
        for (int j = 0; j < s->n_blocks; j++)
            d->free_blocks[d->n_free++] = s->blocks[j];
        d->state_taken[s->state] = false;
        free(s->blocks);
        s->blocks = NULL;
    }
}

static void flight_init(struct flight *f, const struct run *d)
{
    const size_t tokens = (size_t)d->o->max_batch_tokens, seqs = (size_t)d->o->max_seqs;

    f->tokens = take(tokens, 4);
    f->positions = take(tokens, 4);
    f->slots = take(tokens, 4);
    f->q_start = take(seqs + 1, 4);
    f->kv_len = take(seqs, 4);
    f->tables = take(seqs * (size_t)d->max_blocks, 4);
    f->row_seqs = take(seqs, 4);
    f->rows = take(seqs, sizeof(*f->rows));
    f->updates = take(seqs, sizeof(*f->updates));
    f->copies = take((size_t)(d->d->n_copies[0] + d->d->n_copies[1]), sizeof(*f->copies));
}

static void flight_deinit(struct flight *f)
{
    free(f->tokens);
    free(f->positions);
    free(f->slots);
    free(f->q_start);
    free(f->kv_len);
    free(f->tables);
    free(f->row_seqs);
    free(f->rows);
    free(f->updates);
    free(f->copies);
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
static int add_rows(struct run *d, struct flight *f, int index, int n)
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
        f->tables[b->n_seqs * d->max_blocks + i] =
            i < s->n_blocks && i * block_len < s->n_fed ? s->blocks[i] : -1;
    b->n_seqs++;
    f->q_start[b->n_seqs] = b->n_tokens;
    s->row_before = -1;
    s->last_step = b->step;
    if (s->n_fed < s->n_prompt + s->n_sampled)
        return -1; /* what follows is known, or is prompt */
    if (!s->loaded) {
        if (s->restarted)
            memcpy(s->history + s->n_prompt, s->out, (size_t)s->n_out * sizeof(*s->out));
        const bool history = sampling_needs_history(&s->sampling);

        f->updates[b->n_updates++] =
            (struct batch_part_update){.state = s->state,
                                       .n_prompt = history ? s->n_prompt : 0,
                                       .n_history = history ? s->n_prompt + s->n_sampled : 0,
                                       .history = s->restarted ? s->history : s->prompt,
                                       .sampling = &s->sampling};
        s->loaded = true;
    }
    f->row_seqs[b->n_rows] = index;
    f->rows[b->n_rows] = (struct batch_row){.row = b->n_tokens - 1,
                                            .state = s->state,
                                            .counter = (uint32_t)s->n_sampled,
                                            .mask = -1,
                                            .ban_stops = s->n_sampled < s->sampling.min_tokens};
    s->n_sampled++;
    return b->n_rows++;
}

/* Begins copies until as many are under way as there shall be, a quarter at a time. They end in
 * their order. */
static void add_copies(struct run *d, struct flight *f)
{
    for (int down = 0; down < 2; down++)
        for (int n = d->d->n_copies[down], i = n / 4; i-- > 0 && d->n_under_way[down] < n;
             d->n_under_way[down]++) {
            const uint64_t id = d->n_begun_copies[down]++;
            const int32_t place = (int32_t)(id % (uint64_t)n) + down * d->d->n_copies[0];
            const int32_t device = d->free_blocks[place];

            must(place < d->n_free);
            f->copies[f->parts.n_copies++] =
                (struct batch_copy){.id = (uint32_t)id * 2 + (uint32_t)down,
                                    .from_tier = down ? TIER_DEVICE : TIER_HOST,
                                    .to_tier = down ? TIER_HOST : TIER_DEVICE,
                                    .when = COPY_AFTER,
                                    .from = down ? device : place,
                                    .to = down ? place : device};
        }
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
static bool pack(struct run *d, struct flight *f, uint64_t step)
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
                                    .updates = f->updates,
                                    .copies = f->copies};
    for (int i = 0; i < d->n; i++) {
        struct drive_seq *s = &d->seqs[i];

        row_of[i] = -1;
        if (waits_to_restart(s))
            continue;
        if (!s->ended && s->n_fed >= s->n_prompt && s->n_sampled < s->max_tokens &&
            f->parts.n_tokens < d->o->max_batch_tokens)
            row_of[i] = add_rows(d, f, i, 1);
    }
    f->parts.n_decodes = f->parts.n_seqs;
    for (int i = 0; i < d->n && f->parts.n_tokens < d->o->max_batch_tokens; i++) {
        struct drive_seq *s = &d->seqs[i];
        const int room = d->o->max_batch_tokens - f->parts.n_tokens, left = s->n_prompt - s->n_fed;

        if (left > 0 && !s->ended && (s->blocks || admit(d, s)))
            row_of[i] = add_rows(d, f, i, left < room ? left : room);
    }
    for (int i = 0; i < d->n; i++)
        d->seqs[i].row_before = row_of[i];
    free(row_of);
    if (f->parts.n_tokens > 0)
        add_copies(d, f);
    else if (d->n_under_way[0] + d->n_under_way[1] == 0)
        return false;
    free(f->batch);
    f->batch = make_batch(&f->parts);
    return true;
}

static void commit(struct run *d, const struct flight *f, const struct step_result *r,
                   struct drive_times *times, double begin)
{
    must(r->step == f->parts.step && r->n_rows == f->parts.n_rows);
    for (int i = 0; i < r->n_copies; i++)
        d->n_under_way[r->copies[i].id & 1]--;
    d->d->n_copied += (uint64_t)r->n_copies;
    for (int i = 0; i < r->n_rows; i++) {
        struct drive_seq *s = &d->seqs[f->row_seqs[i]];

        if (s->ended)
            continue; /* one row too many, computed before its end was known */
        if (s->logprobs)
            s->logprobs[s->n_out] = r->logprobs[i];
        if (s->top_ids) {
            const size_t top = SAMPLING_MAX_LOGPROBS, at = (size_t)s->n_out * top;

            memcpy(s->top_ids + at, r->top_ids + (size_t)i * top, top * sizeof(*s->top_ids));
            memcpy(s->top_logprobs + at, r->top_logprobs + (size_t)i * top,
                   top * sizeof(*s->top_logprobs));
        }
        d->n_begun += s->n_out == 0;
        s->out[s->n_out++] = r->ids[i];
        if (times->output_tokens++ == 0)
            times->first_seconds = now_seconds() - begin;
        s->ended = s->n_out == s->max_tokens || r->ids[i] == s->end_id || r->ids[i] < 0;
    }
}

static int run(struct run *d, struct drive_times *times, struct err *e)
{
    const struct backend_ops *ops = d->d->ops;
    const uint64_t in_flight = d->d->one_in_flight ? 1 : BACKEND_IN_FLIGHT, before = d->d->step;
    const double begin = now_seconds();
    double last = 0.0;
    uint64_t waited = before;
    int r = 0;

    for (;;) {
        struct flight *next = &d->flights[d->d->step % BACKEND_IN_FLIGHT];
        struct step_result result;

        if (d->d->step - waited < in_flight && pack(d, next, d->d->step + 1)) {
            r = ops->submit(d->d->backend, next->batch, e);
            if (r < 0)
                return r;
            d->d->step++;
            if (d->d->step - waited < in_flight)
                continue;
        }
        if (waited == d->d->step)
            break;
        r = ops->wait(d->d->backend, &result, e);
        if (r < 0)
            return r;
        commit(d, &d->flights[waited % BACKEND_IN_FLIGHT], &result, times, begin);
        waited++;
        release(d, waited);
        if (waited > before + 1 && now_seconds() - last > times->longest_gap)
            times->longest_gap = now_seconds() - last;
        last = now_seconds();
        if (d->n_begun == d->n && times->begun_steps == 0) {
            times->begun_seconds = now_seconds() - begin;
            times->begun_steps = waited - before;
            times->begun_tokens = times->output_tokens;
        }
    }
    must(d->n_free == d->n_blocks);
    times->seconds = now_seconds() - begin;
    times->steps = d->d->step - before;
    return 0;
}

int drive(struct driver *driver, struct drive_seq *seqs, int n, struct drive_times *times,
          struct err *e)
{
    struct run d = {.d = driver, .o = driver->options, .seqs = seqs, .n = n};
    int r;

    memset(times, 0, sizeof(*times));
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
    r = make_pool(&d, e);
    for (int i = 0; i < BACKEND_IN_FLIGHT && r == 0; i++)
        flight_init(&d.flights[i], &d);
    if (r == 0)
        r = run(&d, times, e);
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        flight_deinit(&d.flights[i]);
    for (int i = 0; i < n; i++) {
        free(seqs[i].blocks);
        free(seqs[i].history);
        seqs[i].blocks = seqs[i].history = NULL;
    }
    free(d.free_blocks);
    free(d.state_taken);
    return r;
}
