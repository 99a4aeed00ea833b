/* drafter.c - see drafter.h. */
#include "engine/drafter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

enum {
    CATCH_UP = 2, /* rows of a text at most, where all drafts before were right */
};

/* A text as far as it has been read. */
struct text_read {
    uint64_t request;
    int32_t choice;
    uint64_t last_call; /* that it was asked for in; 0: never */
    int32_t n;          /* positions that hold the text */
    int32_t drafts[CORE_MAX_DRAFTS];
    int32_t n_drafts; /* of these, those whose positions are written behind it */
    int32_t *table;   /* [max_blocks] */
    int32_t n_table;
};

/* A draft request that is being answered. */
struct turn {
    const struct core_draft_request *request;
    struct draft *draft;
    struct text_read *text;
    int32_t first, n_rows;          /* positions that are read in the first step */
    bool ends;                      /* with the text's last */
    bool stopped;                   /* nothing more can be used */
    int32_t row[BACKEND_IN_FLIGHT]; /* of batch.rows of its last steps, by step */
};

struct drafter {
    const struct backend_ops *ops;
    struct backend *backend;
    struct model *model;
    struct backend_options options;
    struct text_read texts[DRAFTER_SEQS];
    uint64_t call, step;

    int32_t max_blocks;   /* of a text */
    int32_t *tables;      /* [DRAFTER_SEQS, max_blocks] */
    int32_t *free_blocks; /* [n_blocks] the first n_free */
    int32_t n_blocks, n_free;

    struct batch *batches[BACKEND_IN_FLIGHT]; /* step n is n % BACKEND_IN_FLIGHT */
    struct batch max;
    int32_t *unread; /* [max_seq_len] tokens of one text */
};

/* ---- opening */

int drafter_check_options(const struct backend_options *o, bool speculate, struct err *e)
{
    if (!speculate)
        return err_set(e, -EINVAL, "model.draft: scheduler.speculation is off");
    if (o->n_processes > 1)
        return err_set(e, -ENOTSUP, "model.draft: not in a cluster (cluster.world_size is %d)",
                       o->n_processes);
    if (o->tp_size > 1)
        return err_set(e, -ENOTSUP, "model.draft: not with model.tensor_parallel = %d; set it to 1",
                       o->tp_size);
    return 0;
}

static bool same_bytes(struct text a, struct text b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* The first id that means something else, or -1. */
static int32_t first_difference(const struct tokenizer *a, const struct tokenizer *b)
{
    const int32_t n_a = tokenizer_n_ids(a), n_b = tokenizer_n_ids(b);

    for (int32_t id = 0; id < n_a || id < n_b; id++) {
        const struct text x = tokenizer_token_bytes(a, id), y = tokenizer_token_bytes(b, id);

        if (!same_bytes(x, y) || tokenizer_is_special(a, id) != tokenizer_is_special(b, id))
            return id;
    }
    return -1;
}

int drafter_check_vocabulary(const char *folder, const struct tokenizer *tokenizer, struct err *e)
{
    struct tokenizer *own = NULL;
    struct err why;
    int32_t id;
    int r = tokenizer_load(&own, folder, &why);

    if (r < 0)
        return err_set(e, r, "model.draft: %s", why.text);
    id = first_difference(own, tokenizer);
    tokenizer_free(own);
    return id < 0 ? 0
                  : err_set(e, -EINVAL,
                            "model.draft: %s: token %d is another one than in the model: a draft "
                            "model has the same vocabulary",
                            folder, id);
}

/* Loading, at the start and when it wakes, shows that the engine thread is alive. How far it is
 * says nothing of the first model. */
static void on_progress(void *beat, double done)
{
    (void)done;
    *(_Atomic uint64_t *)beat += 2;
}

/* Of one device, or of the CPU. bf16 keys, of which it is known what they take. */
static struct backend_options options_of(const struct backend_options *of_model,
                                         const struct model_config *c)
{
    struct backend_options o = *of_model;
    uint64_t n_blocks;

    o.max_seqs = CATCH_UP * DRAFTER_SEQS;
    if (o.max_seq_len <= 0 || c->max_seq_len < o.max_seq_len)
        o.max_seq_len = c->max_seq_len;
    n_blocks = ((uint64_t)o.max_seq_len + (uint64_t)o.block_len - 1) / (uint64_t)o.block_len;
    memset(o.tier_bytes, 0, sizeof(o.tier_bytes));
    o.tier_bytes[TIER_DEVICE] = n_blocks * (uint64_t)o.block_len * (uint64_t)c->n_layers *
                                (uint64_t)c->n_kv_heads * (uint64_t)c->head_dim * 2 *
                                sizeof(uint16_t);
    o.kv_fraction = 0;
    o.kv_dtype = KV_DTYPE_BF16;
    o.invariant = false; /* the first model's tokens do not depend on what is drafted */
    o.tune = false;
    o.progress = o.beat ? on_progress : NULL;
    o.progress_ctx = o.beat;
    return o;
}

/* To be closed also after an error. */
static int open_model(struct model **out, const char *folder, struct err *why)
{
    int r = model_open(out, folder, why);

    if (r == 0 && model_config(*out)->headless)
        r = err_set(why, -ENOTSUP, "%s has no LM head: it only embeds", folder);
    return r;
}

int drafter_check_model(const char *folder, const struct backend_ops *ops,
                        const struct backend_options *of_model, struct err *e)
{
    struct model *model = NULL;
    struct err why;
    int r = open_model(&model, folder, &why);

    if (r == 0 && ops->check) {
        const struct backend_options o = options_of(of_model, model_config(model));

        r = ops->check(model, &o, &why);
    }
    model_close(model);
    return r < 0 ? err_set(e, r, "model.draft: %s", why.text) : 0;
}

static void forget_all(struct drafter *d)
{
    for (int32_t i = 0; i < DRAFTER_SEQS; i++)
        d->texts[i] = (struct text_read){.table = d->tables + (size_t)i * (size_t)d->max_blocks};
    for (int32_t i = 0; i < d->n_blocks; i++)
        d->free_blocks[i] = i;
    d->n_free = d->n_blocks;
}

static int take_memory(struct drafter *d)
{
    struct backend_info info;
    int r;

    d->ops->info(d->backend, &info);
    d->n_blocks = info.tiers[TIER_DEVICE].n_blocks;
    d->max_blocks = (d->options.max_seq_len + d->options.block_len - 1) / d->options.block_len;
    d->max = (struct batch){.n_tokens = d->options.max_batch_tokens,
                            .n_seqs = DRAFTER_SEQS,
                            .n_rows = d->options.max_seqs,
                            .n_updates = DRAFTER_SEQS,
                            .max_blocks = d->max_blocks};
    r = batch_layout(&d->max);
    if (r < 0)
        return r;
    d->tables = calloc(DRAFTER_SEQS * (size_t)d->max_blocks, sizeof(*d->tables));
    d->free_blocks = calloc((size_t)d->n_blocks, sizeof(*d->free_blocks));
    d->unread = calloc((size_t)d->options.max_seq_len, sizeof(*d->unread));
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        d->batches[i] = calloc(1, d->max.bytes);
    if (!d->tables || !d->free_blocks || !d->unread || !d->batches[0] || !d->batches[1])
        return -ENOMEM;
    forget_all(d);
    return 0;
}

int drafter_new(struct drafter **out, const char *folder, const struct backend_ops *ops,
                const struct backend_options *of_model, struct err *e)
{
    struct drafter *d = calloc(1, sizeof(*d));
    struct err why;
    int r;

    if (!d)
        return err_set(e, -ENOMEM, "model.draft: out of memory");
    d->ops = ops;
    r = open_model(&d->model, folder, &why);
    if (r == 0) {
        d->options = options_of(of_model, model_config(d->model));
        r = ops->open(&d->backend, d->model, &d->options, &why);
    }
    if (r == 0) {
        r = take_memory(d);
        err_set(&why, r, "%s", strerror(-r));
    }
    if (r < 0) {
        drafter_free(d);
        return err_set(e, r, "model.draft: %s", why.text);
    }
    *out = d;
    return 0;
}

void drafter_free(struct drafter *d)
{
    if (!d)
        return;
    d->ops->close(d->backend); /* before the batches that it reads */
    model_close(d->model);
    free(d->tables);
    free(d->free_blocks);
    free(d->unread);
    for (int i = 0; i < BACKEND_IN_FLIGHT; i++)
        free(d->batches[i]);
    free(d);
}

int32_t drafter_max_len(const struct drafter *d)
{
    return d->options.max_seq_len;
}

uint64_t drafter_bytes(const struct drafter *d)
{
    struct backend_info i;

    d->ops->info(d->backend, &i);
    return i.weight_bytes + i.tiers[TIER_DEVICE].bytes + i.graph_bytes + i.workspace_bytes;
}

bool drafter_has_changed(const struct drafter *d)
{
    return model_has_changed(d->model);
}

int drafter_idle(struct drafter *d, struct err *e)
{
    return d->ops->idle ? d->ops->idle(d->backend, e) : 0;
}

int drafter_sleep(struct drafter *d, struct err *e)
{
    forget_all(d);
    return d->ops->sleep(d->backend, false, e);
}

int drafter_wake(struct drafter *d, struct err *e)
{
    return d->ops->wake(d->backend, e);
}

/* ---- texts and their blocks */

static void let_go(struct drafter *d, struct text_read *t)
{
    while (t->n_table > 0)
        d->free_blocks[d->n_free++] = t->table[--t->n_table];
    *t = (struct text_read){.table = t->table};
}

/* The one that was not asked for in the longest time, and not in this call; or NULL. */
static struct text_read *oldest(struct drafter *d, bool with_blocks)
{
    struct text_read *found = NULL;

    for (int32_t i = 0; i < DRAFTER_SEQS; i++) {
        struct text_read *t = &d->texts[i];

        if (t->last_call != d->call && (t->n_table > 0 || !with_blocks) &&
            (!found || t->last_call < found->last_call))
            found = t;
    }
    return found;
}

static struct text_read *text_of(struct drafter *d, const struct core_draft_request *r)
{
    struct text_read *t;

    for (int32_t i = 0; i < DRAFTER_SEQS; i++) {
        t = &d->texts[i];
        if (t->last_call > 0 && t->request == r->request && t->choice == r->choice)
            return t;
    }
    t = oldest(d, false);
    must(t); /* a call asks for no more */
    let_go(d, t);
    t->request = r->request;
    t->choice = r->choice;
    return t;
}

/* Blocks for n positions. False: others of this call have them. */
static bool take_blocks(struct drafter *d, struct text_read *t, int32_t n)
{
    while (t->n_table * (int64_t)d->options.block_len < n) {
        struct text_read *other = d->n_free == 0 ? oldest(d, true) : NULL;

        if (other)
            let_go(d, other);
        if (d->n_free == 0)
            return false;
        t->table[t->n_table++] = d->free_blocks[--d->n_free];
    }
    return true;
}

/* What is written of a text without a break: as it was read, and the drafts that were right. */
static int32_t n_written(const struct drafter *d, const struct text_read *t,
                         const struct core_draft_request *r)
{
    int32_t n = 0;

    while (n < t->n_drafts && t->n + n < r->n_tokens && t->drafts[n] == d->unread[n])
        n++;
    return t->n + n < r->n_tokens ? t->n + n : r->n_tokens - 1;
}

/* Whether there is room for a request's text and drafts. */
static bool fits(const struct drafter *d, const struct core_draft_request *r)
{
    return r->n_tokens + r->n_drafts <= d->options.max_seq_len;
}

/* Begins to answer a request with at most `room` rows of a step. False: it gets no drafts. */
static bool begin_turn(struct turn *turn, struct drafter *d, const struct core_draft_request *r,
                       struct text_read *t, int32_t room)
{
    const int32_t vocab_size = model_config(d->model)->vocab_size;
    const int32_t before = t->n < r->n_tokens ? t->n : r->n_tokens - 1; /* asked again: the last */

    core_draft_request_tokens(r, before, d->unread);
    t->n = n_written(d, t, r);
    t->n_drafts = 0;
    if (room == 0 || !take_blocks(d, t, r->n_tokens + r->n_drafts))
        return false;
    turn->request = r;
    turn->text = t;
    turn->first = t->n;
    turn->n_rows = r->n_tokens - t->n;
    turn->ends = turn->n_rows <= room;
    turn->n_rows = turn->ends ? turn->n_rows : room;
    for (int32_t i = 0; i < turn->n_rows; i++)
        if (d->unread[turn->first - before + i] >= vocab_size) {
            turn->draft->n_read = -1; /* no embedding for what pads the first model's vocabulary */
            return false;
        }
    return true;
}

/* ---- steps */

/* Puts rows of a turn into a batch that has what f counts: n positions from `first` on with tokens
 * [n], of which the last n_wanted are sampled from. */
static void put(struct batch *b, struct batch *f, const struct drafter *d, struct turn *turn,
                int32_t first, int32_t n, const int32_t *tokens, int32_t n_wanted, uint32_t counter)
{
    const int32_t len = d->options.block_len;
    const struct text_read *t = turn->text;
    int32_t *table = batch_block_table_mut(b) + (size_t)f->n_seqs * (size_t)b->max_blocks;
    struct batch_row *rows = batch_rows_mut(b);

    for (int32_t i = 0; i < n; i++, f->n_tokens++) {
        const int32_t at = first + i;

        batch_tokens_mut(b)[f->n_tokens] = tokens[i];
        batch_positions_mut(b)[f->n_tokens] = at;
        batch_slots_mut(b)[f->n_tokens] = t->table[at / len] * len + at % len;
    }
    for (int32_t i = n_wanted; i > 0; i--) {
        turn->row[b->step % BACKEND_IN_FLIGHT] = f->n_rows;
        rows[f->n_rows++] = (struct batch_row){.row = f->n_tokens - i,
                                               .state = (int32_t)(t - d->texts),
                                               .counter = counter - (uint32_t)(i - 1),
                                               .mask = -1};
    }
    for (int32_t i = 0; i < b->max_blocks; i++)
        table[i] = i < t->n_table ? t->table[i] : -1;
    batch_kv_len_mut(b)[f->n_seqs] = first + n;
    batch_q_start_mut(b)[++f->n_seqs] = f->n_tokens;
}

static enum batch_kind kind_of(const struct turn *t)
{
    return t->n_rows > CATCH_UP ? BATCH_CHUNK
           : t->n_rows == 1     ? BATCH_DECODE
           : t->ends            ? BATCH_DRAFTED
                                : BATCH_CHUNK;
}

/* The first step of a call: what has not been read, and the sampling of those that end. */
static struct batch *build_first(struct drafter *d, struct turn *turns, int32_t n)
{
    struct batch *b = d->batches[d->step % BACKEND_IN_FLIGHT], f = {0};
    struct sampler_update *updates;

    *b = (struct batch){.step = d->step, .n_seqs = n, .max_blocks = d->max_blocks};
    for (int32_t i = 0; i < n; i++) {
        const enum batch_kind kind = kind_of(&turns[i]);

        b->n_tokens += turns[i].n_rows;
        b->n_decodes += kind == BATCH_DECODE;
        b->n_drafted += kind == BATCH_DRAFTED;
        b->n_rows += kind == BATCH_DRAFTED ? turns[i].n_rows : turns[i].ends;
        b->n_updates += turns[i].ends;
    }
    must(batch_layout(b) == 0 && b->bytes <= d->max.bytes);
    batch_q_start_mut(b)[0] = 0;
    updates = batch_updates_mut(b);
    for (enum batch_kind kind = BATCH_DECODE; kind <= BATCH_CHUNK; kind++)
        for (int32_t i = 0; i < n; i++) {
            struct turn *t = &turns[i];

            if (kind_of(t) != kind)
                continue;
            core_draft_request_tokens(t->request, t->first, d->unread);
            put(b, &f, d, t, t->first, t->n_rows, d->unread,
                kind == BATCH_DRAFTED ? t->n_rows : t->ends, t->request->counter);
            if (!t->ends)
                continue;
            updates[f.n_updates] = (struct sampler_update){.state = (int32_t)(t->text - d->texts),
                                                           .sampling = *t->request->sampling};
            updates[f.n_updates].sampling.bias = NULL;
            updates[f.n_updates].sampling.n_bias = 0;
            updates[f.n_updates].sampling.stop_ids = NULL;
            updates[f.n_updates].sampling.n_stop_ids = 0;
            updates[f.n_updates++].sampling.n_logprobs = -1;
        }
    return b;
}

/* The number of a draft in a turn's step: a decode of what the step before sampled. */
static bool goes_on(const struct turn *t, int32_t number)
{
    return t->ends && number < t->request->n_drafts;
}

static struct batch *build_next(struct drafter *d, struct turn *turns, int32_t n, int32_t number)
{
    struct batch *b = d->batches[d->step % BACKEND_IN_FLIGHT], f = {0};
    int32_t n_going = 0;

    for (int32_t i = 0; i < n; i++)
        n_going += goes_on(&turns[i], number);
    *b = (struct batch){.step = d->step,
                        .n_tokens = n_going,
                        .n_seqs = n_going,
                        .n_decodes = n_going,
                        .n_rows = n_going,
                        .max_blocks = d->max_blocks};
    must(batch_layout(b) == 0 && b->bytes <= d->max.bytes);
    batch_q_start_mut(b)[0] = 0;
    for (int32_t i = 0; i < n; i++) {
        struct turn *t = &turns[i];
        const int32_t token = ~t->row[(d->step - 1) % BACKEND_IN_FLIGHT];

        if (goes_on(t, number))
            put(b, &f, d, t, t->request->n_tokens + number - 1, 1, &token, 1,
                t->request->counter + (uint32_t)number);
    }
    return b;
}

/* Takes what the step of drafts of this number has sampled. */
static int finish(struct drafter *d, struct turn *turns, int32_t n, int32_t number,
                  int32_t vocab_size, struct err *e)
{
    struct step_result result;
    int r = d->ops->wait(d->backend, &result, e);

    for (int32_t i = 0; i < n && r == 0; i++) {
        struct turn *t = &turns[i];
        int32_t id;

        if (!goes_on(t, number))
            continue;
        id = result.ids[t->row[result.step % BACKEND_IN_FLIGHT]];
        t->stopped |= id < 0 || id >= vocab_size; /* BATCH_NUMERICS, or padding of its own */
        if (!t->stopped)
            t->draft->tokens[t->draft->n++] = id;
    }
    return r;
}

static int run(struct drafter *d, struct turn *turns, int32_t n, int32_t n_steps,
               int32_t vocab_size, struct err *e)
{
    int r = 0;

    for (int32_t number = 0; number <= n_steps && r == 0; number++) {
        if (number < n_steps) {
            struct batch *b;

            d->step++;
            b = number == 0 ? build_first(d, turns, n) : build_next(d, turns, n, number);
            batch_seal(b);
            r = d->ops->submit(d->backend, b, e);
        }
        if (r == 0 && number > 0)
            r = finish(d, turns, n, number - 1, vocab_size, e);
    }
    return r;
}

int drafter_ask(struct drafter *d, const struct core_draft_request *requests, int32_t n,
                int32_t vocab_size, struct draft *out, struct err *e)
{
    struct text_read *texts[DRAFTER_SEQS];
    struct turn turns[DRAFTER_SEQS];
    int32_t n_turns = 0, n_steps = 0, room = d->max.n_tokens;
    bool reads = false;
    int r;

    must(n <= DRAFTER_SEQS);
    d->call++;
    for (int32_t i = 0; i < n; i++) { /* before any takes another's blocks */
        texts[i] = fits(d, &requests[i]) ? text_of(d, &requests[i]) : NULL;
        if (texts[i])
            texts[i]->last_call = d->call;
    }
    for (int32_t i = 0; i < n; i++) {
        struct turn *t = &turns[n_turns];
        int32_t steps;

        out[i].n = out[i].n_read = 0;
        *t = (struct turn){.draft = &out[i]};
        if (!texts[i] || !begin_turn(t, d, &requests[i], texts[i], room))
            continue;
        n_turns++;
        room -= t->n_rows;
        reads |= t->n_rows > CATCH_UP;
        steps = t->ends ? requests[i].n_drafts : 1;
        n_steps = steps > n_steps ? steps : n_steps;
    }
    r = n_turns > 0 ? run(d, turns, n_turns, n_steps, vocab_size, e) : 0;
    for (int32_t i = 0; i < n_turns && r == 0; i++) {
        const struct turn *t = &turns[i];

        t->text->n = t->first + t->n_rows;
        t->text->n_drafts = t->draft->n > 0 ? t->draft->n - 1 : 0;
        memcpy(t->text->drafts, t->draft->tokens, sizeof(t->text->drafts));
    }
    for (int32_t i = 0; i < n; i++)
        if (texts[i] && out[i].n_read == 0)
            out[i].n_read = texts[i]->n;
    return r < 0 ? r : reads ? 0 : n_steps;
}
