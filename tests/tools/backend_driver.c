/* backend_driver.c - see backend_driver.h. */
#include "tests/tools/backend_driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"
#include "tests/tools/make_batch.h"

/* A step as it was submitted, with the sequences its rows belong to. */
struct step {
    struct batch_parts parts;
    struct batch *batch;                 /* made of them */
    int32_t *tokens, *positions, *slots; /* [max_rows] */
    int32_t *q_start, *kv_len, *table;
    struct batch_row *rows;
    struct batch_part_update *updates;
    struct drive_seq **owners; /* [n_rows] */
    int max_blocks;
};

static void *take(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    must(p);
    return p;
}

void driver_init(struct driver *d)
{
    struct backend_info info;
    uint32_t x = d->scatter * 2654435761u + 1;

    d->ops->info(d->backend, &info);
    d->n_blocks = d->n_free = info.tiers[TIER_DEVICE].n_blocks;
    d->free_blocks = take((size_t)d->n_free, sizeof(*d->free_blocks));
    for (int i = 0; i < d->n_free; i++) {
        const int j = (int)((x = x * 1664525u + 1013904223u) % (uint32_t)(i + 1));

        d->free_blocks[i] = d->free_blocks[j];
        d->free_blocks[j] = i;
    }
    d->step = 0;
}

void driver_deinit(struct driver *d)
{
    free(d->free_blocks);
    d->free_blocks = NULL;
}

void drive_seq_init(struct drive_seq *s, const int32_t *prompt, int n_prompt, int max_tokens,
                    int n_logprobs)
{
    const size_t n = (size_t)max_tokens;

    *s = (struct drive_seq){
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = max_tokens,
        .stop = -1,
        .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = n_logprobs},
        .ids = take(n, sizeof(int32_t)),
        .logprobs = take(n, sizeof(float)),
        .top_ids = take(n * SAMPLING_MAX_LOGPROBS, sizeof(int32_t)),
        .top_logprobs = take(n * SAMPLING_MAX_LOGPROBS, sizeof(float)),
    };
}

void drive_seq_deinit(struct drive_seq *s)
{
    free(s->ids);
    free(s->logprobs);
    free(s->top_ids);
    free(s->top_logprobs);
    free(s->blocks);
    *s = (struct drive_seq){0};
}

static void step_init(struct step *s, const struct driver *d)
{
    const size_t rows = (size_t)d->max_rows, seqs = (size_t)d->max_seqs;

    *s = (struct step){.max_blocks = d->n_blocks};
    s->tokens = take(rows, sizeof(int32_t));
    s->positions = take(rows, sizeof(int32_t));
    s->slots = take(rows, sizeof(int32_t));
    s->q_start = take(seqs + 1, sizeof(int32_t));
    s->kv_len = take(seqs, sizeof(int32_t));
    s->table = take(seqs * (size_t)s->max_blocks, sizeof(int32_t));
    s->rows = take(seqs, sizeof(*s->rows));
    s->updates = take(seqs, sizeof(*s->updates));
    s->owners = take(seqs, sizeof(struct drive_seq *));
}

static void step_deinit(struct step *s)
{
    free(s->tokens);
    free(s->positions);
    free(s->slots);
    free(s->q_start);
    free(s->kv_len);
    free(s->table);
    free(s->rows);
    free(s->updates);
    free(s->batch);
    free(s->owners);
}

/* Adds n rows of a sequence, whose next token to feed is number n_fed. */
static void step_add(struct step *st, const struct driver *d, struct drive_seq *s, int n)
{
    struct batch_parts *b = &st->parts;
    int32_t *table = st->table + (size_t)b->n_seqs * (size_t)st->max_blocks;

    for (int i = 0; i < st->max_blocks; i++)
        table[i] = i < s->n_blocks ? s->blocks[i] : -1;
    if (s->n_fed == 0)
        st->updates[b->n_updates++] =
            (struct batch_part_update){.state = s->state,
                                       .n_prompt =
                                           sampling_needs_history(&s->sampling) ? s->n_prompt : 0,
                                       .n_history =
                                           sampling_needs_history(&s->sampling) ? s->n_prompt : 0,
                                       .history = s->prompt,
                                       .sampling = &s->sampling};
    for (int i = 0; i < n; i++, s->n_fed++, b->n_tokens++) {
        const int at = s->n_fed - s->n_prompt;

        st->positions[b->n_tokens] = s->n_fed;
        st->slots[b->n_tokens] =
            s->blocks[s->n_fed / d->block_len] * d->block_len + s->n_fed % d->block_len;
        if (at < 0)
            st->tokens[b->n_tokens] = s->prompt[s->n_fed];
        else
            st->tokens[b->n_tokens] = at < s->n_ids ? s->ids[at] : ~s->last_row;
    }
    st->kv_len[b->n_seqs] = s->n_fed;
    st->q_start[++b->n_seqs] = b->n_tokens;
    if (s->n_fed < s->n_prompt)
        return;
    s->last_row = b->n_rows;
    st->owners[b->n_rows] = s;
    st->rows[b->n_rows++] = (struct batch_row){
        .row = b->n_tokens - 1,
        .state = s->state,
        .counter = (uint32_t)s->n_sampled,
        .mask = -1,
        .ban_stops = s->n_sampled < s->sampling.min_tokens,
    };
    s->n_sampled++;
}

static bool decodes(const struct drive_seq *s)
{
    return s->n_fed >= s->n_prompt;
}

/* Fills a step; false when there is nothing to run. */
static bool step_fill(struct step *st, struct driver *d, struct drive_seq *seqs, int n)
{
    struct batch_parts *b = &st->parts;
    int running = 0;

    *b = (struct batch_parts){.step = d->step + 1, .max_blocks = st->max_blocks};
    for (int i = 0; i < n; i++) {
        struct drive_seq *s = &seqs[i];

        if (!s->blocks || s->over)
            continue;
        running++;
        if (decodes(s) && s->n_sampled < s->max_tokens && b->n_tokens < d->max_rows)
            step_add(st, d, s, 1);
    }
    b->n_decodes = b->n_seqs;
    for (int i = 0; i < n; i++) {
        struct drive_seq *s = &seqs[i];
        const int need = (s->n_prompt + s->max_tokens + d->block_len - 1) / d->block_len;
        const int room = d->max_rows - b->n_tokens;

        if (s->over || decodes(s) || room == 0)
            continue;
        if (!s->blocks) {
            bool taken[1024] = {false};

            if (running == d->max_seqs || need > d->n_free)
                continue;
            running++;
            s->n_blocks = need;
            s->blocks = take((size_t)need, sizeof(int32_t));
            for (int j = 0; j < need; j++)
                s->blocks[j] = d->free_blocks[--d->n_free];
            for (int j = 0; j < n; j++)
                if (seqs[j].blocks && j != i && !seqs[j].over)
                    taken[seqs[j].state] = true;
            for (s->state = 0; taken[s->state];)
                s->state++;
        }
        step_add(st, d, s, s->n_prompt - s->n_fed < room ? s->n_prompt - s->n_fed : room);
    }
    b->tokens = st->tokens;
    b->positions = st->positions;
    b->slots = st->slots;
    b->q_start = st->q_start;
    b->kv_len = st->kv_len;
    b->block_table = st->table;
    b->rows = st->rows;
    b->updates = st->updates;
    free(st->batch);
    st->batch = b->n_tokens > 0 ? make_batch(b) : NULL;
    return st->batch;
}

static void commit(struct driver *d, const struct step *st)
{
    struct step_result r;
    struct err e;

    if (d->ops->wait(d->backend, &r, &e) < 0) {
        fprintf(stderr, "wait: %s\n", e.text);
        exit(1);
    }
    must(r.step == st->batch->step && r.n_rows == st->batch->n_rows);
    for (int i = 0; i < r.n_rows; i++) {
        struct drive_seq *s = st->owners[i];
        const size_t top = (size_t)s->n_ids * SAMPLING_MAX_LOGPROBS;

        if (s->over)
            continue; /* a discarded row */
        if (r.ids[i] == BATCH_NUMERICS) {
            s->numerics = s->over = true;
        } else {
            memcpy(s->top_ids + top, r.top_ids + i * SAMPLING_MAX_LOGPROBS,
                   SAMPLING_MAX_LOGPROBS * sizeof(int32_t));
            memcpy(s->top_logprobs + top, r.top_logprobs + i * SAMPLING_MAX_LOGPROBS,
                   SAMPLING_MAX_LOGPROBS * sizeof(float));
            s->logprobs[s->n_ids] = r.logprobs[i];
            s->ids[s->n_ids++] = r.ids[i];
            s->over = r.ids[i] == s->stop || s->n_ids == s->max_tokens;
        }
    }
}

/* Blocks of what is over and in no step under way. */
static void give_back(struct driver *d, struct drive_seq *seqs, int n)
{
    for (int i = 0; i < n; i++) {
        if (!seqs[i].over || !seqs[i].n_blocks)
            continue;
        while (seqs[i].n_blocks > 0)
            d->free_blocks[d->n_free++] = seqs[i].blocks[--seqs[i].n_blocks];
    }
}

void drive(struct driver *d, struct drive_seq *seqs, int n)
{
    struct step steps[BACKEND_IN_FLIGHT];
    int in_flight = 0;
    struct err e;

    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        step_init(&steps[i], d);
    for (;;) {
        struct step *next = &steps[(d->step + 1) % BACKEND_IN_FLIGHT];
        const bool filled = step_fill(next, d, seqs, n);

        if (!filled && in_flight == 0)
            break;
        if (filled) {
            if (d->ops->submit(d->backend, next->batch, &e) < 0) {
                fprintf(stderr, "submit: %s\n", e.text);
                exit(1);
            }
            d->step++;
            in_flight++;
        }
        while (in_flight > (filled && d->two_in_flight ? 1 : 0)) {
            commit(d, &steps[(d->step - (uint64_t)in_flight + 1) % BACKEND_IN_FLIGHT]);
            in_flight--;
        }
        if (in_flight == 0)
            give_back(d, seqs, n);
    }
    give_back(d, seqs, n);
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        step_deinit(&steps[i]);
}
