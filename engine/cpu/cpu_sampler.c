/* cpu_sampler.c - see cpu_sampler.h.
 *
 * A few vector passes over the vocabulary; it is never sorted. Ids that can still win become
 * candidates, whose order is that of logits, largest first, lower ids first where they tie. */
#include "engine/cpu/cpu_sampler.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/machine.h"
#include "engine/util/must.h"
#include "engine/philox.h"

enum {
    SEEN_PROMPT = 0x8000, /* the id is in the prompt; the other bits count it in the output */
    SEEN_MAX = 0x7fff,    /* counts stop here */
};

/* The largest g = -log(-log(u)) of a draw: w >= 2^-33 (philox.h). */
#define GUMBEL_MAX 22.9

struct candidate {
    float z;
    int32_t id;
    double weight; /* exp of the scaled logit, relative to the largest */
};

struct state {
    bool set, history;
    struct sampling sampling; /* its arrays are those that follow */
    struct logit_bias bias[SAMPLING_MAX_BIAS];
    int32_t stop_ids[SAMPLING_MAX_STOP_IDS];
};

struct sampler {
    const struct cpu_ops *ops;
    int vocab_size, max_seqs, n_threads;
    size_t row;                   /* vocab_size, rounded up */
    struct state *states;         /* [max_seqs] */
    struct candidate *candidates; /* [n_threads, row] */
    float *logits;                /* [n_threads, row] after penalties and bias */
    uint16_t *seen;               /* [max_seqs, row] */
    struct region memory;         /* of all these */
};

int sampler_new(struct sampler **out, const struct cpu_ops *ops, int vocab_size, int max_seqs,
                int n_threads, struct err *e)
{
    const size_t row = ((size_t)vocab_size + 15) & ~(size_t)15;
    const size_t seqs = (size_t)max_seqs, threads = (size_t)n_threads;
    struct sampler *s = calloc(1, sizeof(*s));
    int r;

    must(vocab_size > 0 && max_seqs > 0);
    if (!s)
        return err_set(e, -ENOMEM, "out of memory");
    *s = (struct sampler){.ops = ops,
                          .vocab_size = vocab_size,
                          .max_seqs = max_seqs,
                          .n_threads = n_threads,
                          .row = row};
    r = region_init(&s->memory, "the sampler (scheduler.max_seqs times the vocabulary)",
                    seqs * (sizeof(*s->states) + row * sizeof(*s->seen)) +
                        threads * row * (sizeof(*s->candidates) + sizeof(*s->logits)),
                    e);
    if (r < 0) {
        sampler_free(s);
        return r;
    }
    s->states = (struct state *)(void *)s->memory.base;
    s->candidates = (struct candidate *)(void *)(s->states + seqs);
    s->logits = (float *)(s->candidates + threads * row);
    s->seen = (uint16_t *)(s->logits + threads * row);
    *out = s;
    return 0;
}

uint64_t sampler_bytes(const struct sampler *s)
{
    return s->memory.bytes;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    region_deinit(&s->memory);
    free(s);
}

static uint16_t *state_seen(struct sampler *s, int32_t state)
{
    return s->seen + (size_t)state * s->row;
}

static void copy(void *to, const void *from, int n, size_t size)
{
    if (n > 0)
        memcpy(to, from, (size_t)n * size);
}

void sampler_set(struct sampler *s, const struct batch *batch, const struct sampler_update *u)
{
    const struct sampling from = batch_sampling(batch, u);
    const int32_t *history = batch_history(batch, u);
    struct state *state;
    uint16_t *seen;

    must(u->state >= 0 && u->state < s->max_seqs && u->n_prompt <= u->n_history);
    must(from.n_bias <= SAMPLING_MAX_BIAS && from.n_stop_ids <= SAMPLING_MAX_STOP_IDS);
    state = &s->states[u->state];
    state->set = true;
    state->history = sampling_needs_history(&from);
    state->sampling = from;
    state->sampling.bias = state->bias;
    state->sampling.stop_ids = state->stop_ids;
    copy(state->bias, from.bias, from.n_bias, sizeof(*from.bias));
    copy(state->stop_ids, from.stop_ids, from.n_stop_ids, sizeof(*from.stop_ids));
    if (!state->history)
        return;
    seen = state_seen(s, u->state);
    memset(seen, 0, (size_t)s->vocab_size * sizeof(*seen));
    for (int32_t k = 0; k < u->n_history; k++) {
        must(history[k] >= 0 && history[k] < s->vocab_size);
        if (k < u->n_prompt)
            seen[history[k]] = SEEN_PROMPT;
        else if ((seen[history[k]] & SEEN_MAX) < SEEN_MAX)
            seen[history[k]]++;
    }
}

/* Keeps penalties and bias from producing infinity or NaN. */
static float bounded(float z)
{
    if (z > FLT_MAX)
        return FLT_MAX;
    return z == z ? z : -INFINITY;
}

static float penalized(float z, uint16_t seen, const struct sampling *p)
{
    const int count = seen & SEEN_MAX;

    z = z > 0.0f ? z / p->repetition_penalty : z * p->repetition_penalty;
    if (count > 0)
        z -= p->presence_penalty + p->frequency_penalty * (float)count;
    return bounded(z);
}

/* The logits to draw from: the row itself if nothing changes them. */
static const float *adjusted(struct sampler *s, float *z, const float *logits,
                             const struct batch_row *row, const uint32_t *mask)
{
    const struct state *state = &s->states[row->state];
    const struct sampling *p = &state->sampling;
    const int n_banned = row->ban_stops ? p->n_stop_ids : 0;

    if (!state->history && p->n_bias == 0 && n_banned == 0 && !mask)
        return logits;
    memcpy(z, logits, (size_t)s->vocab_size * sizeof(*z));
    if (state->history) {
        const uint16_t *seen = state_seen(s, row->state);

        for (int i = 0; i < s->vocab_size; i += 4) { /* the padding is never seen */
            uint64_t four;

            memcpy(&four, seen + i, sizeof(four));
            for (int j = i; four && j < i + 4; j++)
                if (seen[j])
                    z[j] = penalized(z[j], seen[j], p);
        }
    }
    for (int i = 0; i < p->n_bias; i++) {
        must(p->bias[i].id >= 0 && p->bias[i].id < s->vocab_size);
        z[p->bias[i].id] = bounded(z[p->bias[i].id] + p->bias[i].bias);
    }
    for (int i = 0; i < n_banned; i++) /* a stop id may lie outside the vocabulary */
        if (p->stop_ids[i] >= 0 && p->stop_ids[i] < s->vocab_size)
            z[p->stop_ids[i]] = -INFINITY;
    for (int i = 0; mask && i < s->vocab_size; i++)
        if (!(mask[i / 32] >> i % 32 & 1))
            z[i] = -INFINITY;
    return z;
}

static bool precedes(const struct candidate *a, const struct candidate *b)
{
    return a->z > b->z || (a->z == b->z && a->id < b->id);
}

static void swap(struct candidate *a, struct candidate *b)
{
    const struct candidate t = *a;

    *a = *b;
    *b = t;
}

/* Splits c[lo, hi) around a pivot, what precedes it before it, and returns the pivot's place. The
 * pivot is chosen by a hash, so that no order of logits makes the splits bad. */
static int split(struct candidate *c, int lo, int hi)
{
    const uint32_t mixed = ((uint32_t)lo * 0x9E3779B9u ^ (uint32_t)hi * 0x85EBCA6Bu) * 0xC2B2AE35u;
    const int pivot = lo + (int)((uint64_t)mixed * (uint64_t)(hi - lo) >> 32);
    int at = lo;

    swap(&c[pivot], &c[hi - 1]);
    for (int i = lo; i < hi - 1; i++)
        if (precedes(&c[i], &c[hi - 1]))
            swap(&c[i], &c[at++]);
    swap(&c[at], &c[hi - 1]);
    return at;
}

/* Moves the fewest first candidates whose weights reach mass to the front; returns how many. */
static int nucleus(struct candidate *c, int n, double mass)
{
    int lo = 0, hi = n;
    double before = 0.0; /* weight of c[0, lo), all of which are in */

    while (lo < hi) {
        const int at = split(c, lo, hi);
        double larger = before;

        for (int i = lo; i < at; i++)
            larger += c[i].weight;
        if (larger >= mass && at > 0) { /* reached before the pivot */
            hi = at;
        } else {
            before = larger + c[at].weight;
            lo = at + 1;
            if (before >= mass)
                return lo;
        }
    }
    return lo > 0 ? lo : 1;
}

/* The k first of the ids with z >= floor, in no order; returns how many there are. */
static int select_top(const struct sampler *s, struct candidate *c, const float *z, int k,
                      float floor)
{
    const int n = s->vocab_size, room = k < n / 2 ? 2 * k : n;
    int m = 0;

    for (int i = 0; (i = s->ops->find_ge(z, i, n, floor)) < n; i++) {
        c[m++] = (struct candidate){z[i], i, 1.0};
        if (m == room && m > k) {
            m = nucleus(c, m, k);
            floor = c[0].z;
            for (int j = 1; j < k; j++)
                floor = fminf(floor, c[j].z);
        }
    }
    return m > k ? nucleus(c, m, k) : m;
}

/* One row's draw at a temperature above 0. */
struct draw {
    const struct sampling *p;
    const float *z;
    uint32_t counter;
    float max, scale; /* scaled logit: (z - max) * scale */
    double best;      /* largest scaled logit plus g so far */
    int32_t best_id;
    int32_t quad; /* words belong to ids 4 * quad .. 4 * quad + 3; -1: none */
    struct philox4 words;
};

static float draw_logit(const struct draw *d, float z)
{
    return (z - d->max) * d->scale;
}

/* A lower bound of the logits whose scaled value is at least x, with room for rounding. */
static float draw_floor(const struct draw *d, double x)
{
    const double z = (double)d->max + x / (double)d->scale;

    return (float)(z - 1e-5 * (fabs((double)d->max) + fabs(x / (double)d->scale)));
}

static void draw_try(struct draw *d, int32_t id, float z)
{
    const double x = (double)draw_logit(d, z);
    double value;
    float w;

    if (d->quad != id / 4) {
        d->quad = id / 4;
        d->words = philox_quad(d->p->seed, d->counter, (uint32_t)d->quad);
    }
    w = philox_w(d->words.v[id % 4]);
    if ((double)w > exp(x - d->best)) /* g < -log(w), so it cannot win */
        return;
    value = x - log(-log1p(-(double)w));
    if (value > d->best || (value == d->best && id < d->best_id)) {
        d->best = value;
        d->best_id = id;
    }
}

/* Without filters every id may win, but few are large enough to try. */
static int32_t draw_all(const struct sampler *s, struct draw *d)
{
    const int n = s->vocab_size, top = s->ops->find_ge(d->z, 0, n, d->max);

    draw_try(d, top, d->max);
    for (int i = 0; (i = s->ops->find_ge(d->z, i, n, draw_floor(d, d->best - GUMBEL_MAX))) < n; i++)
        draw_try(d, i, d->z[i]);
    return d->best_id;
}

/* The candidates that top_k, or else top_p or min_p, may keep, with their weights. mass: of all
 * that top_k keeps. */
static int draw_candidates(const struct sampler *s, const struct draw *d, struct candidate *c,
                           double *mass)
{
    const struct sampling *p = d->p;
    double least = p->min_p > 0.0f ? log((double)p->min_p) : -INFINITY;
    double kept = 0.0;
    int n;

    *mass = 0.0;
    if (p->top_k > 0 && p->top_k < s->vocab_size) {
        n = select_top(s, c, d->z, p->top_k, -INFINITY);
    } else {
        if (p->top_p < 1.0f) {
            /* Ids whose total weight is below 1 - top_p are not needed to reach top_p. */
            *mass = s->ops->sum_exp(d->z, s->vocab_size, d->max, d->scale);
            least = log(0.99 * (1.0 - (double)p->top_p) * *mass / s->vocab_size);
        }
        n = select_top(s, c, d->z, s->vocab_size, draw_floor(d, least));
    }
    for (int i = 0; i < n; i++) {
        c[i].weight = exp((double)draw_logit(d, c[i].z));
        kept += c[i].weight;
    }
    if (*mass == 0.0)
        *mass = kept;
    return n;
}

static int32_t draw_filtered(const struct sampler *s, struct draw *d, struct candidate *c)
{
    double mass;
    int n = draw_candidates(s, d, c, &mass);

    if (d->p->top_p < 1.0f)
        n = nucleus(c, n, (double)d->p->top_p * mass);
    for (int i = 0; i < n; i++)
        if (c[i].weight >= (double)d->p->min_p)
            draw_try(d, c[i].id, c[i].z);
    return d->best_id;
}

static int32_t choose(const struct sampler *s, struct candidate *c, const float *z, float max,
                      const struct batch_row *row)
{
    const struct sampling *p = &s->states[row->state].sampling;
    struct draw d = {.p = p,
                     .z = z,
                     .counter = row->counter,
                     .max = max,
                     .scale = 1.0f / fmaxf(p->temperature, 1e-30f),
                     .best = -INFINITY,
                     .best_id = INT32_MAX,
                     .quad = -1};

    if (p->temperature == 0.0f || max == -INFINITY)
        return s->ops->find_ge(z, 0, s->vocab_size, max);
    if (p->top_k == 0 && p->top_p >= 1.0f && p->min_p <= 0.0f)
        return draw_all(s, &d);
    return draw_filtered(s, &d, c);
}

/* Log-softmax of the raw row at the sampled id and at the largest. */
static void logprobs(const struct sampler *s, struct candidate *c, const float *logits, float max,
                     int n_top, struct sample *out)
{
    const float log_sum = (float)log(s->ops->sum_exp(logits, s->vocab_size, max, 1.0f));
    int n;

    out->logprob = logits[out->id] - max - log_sum;
    if (n_top <= 0)
        return;
    n = select_top(s, c, logits, n_top < SAMPLING_MAX_LOGPROBS ? n_top : SAMPLING_MAX_LOGPROBS,
                   -INFINITY);
    for (int i = 0; i < n; i++) { /* selection sort: they are few */
        int best = i;

        for (int j = i + 1; j < n; j++)
            best = precedes(&c[j], &c[best]) ? j : best;
        swap(&c[i], &c[best]);
        out->top_ids[i] = c[i].id;
        out->top_logprobs[i] = c[i].z - max - log_sum;
    }
}

void sampler_run(struct sampler *s, int thread, const float *logits, const struct batch_row *row,
                 const uint32_t *mask, struct sample *out)
{
    struct candidate *c = s->candidates + (size_t)thread * s->row;
    const struct state *state = &s->states[row->state];
    float raw_max, max;
    const float *z;

    must(thread < s->n_threads && row->state >= 0 && row->state < s->max_seqs && state->set);
    out->logprob = 0.0f;
    out->id = BATCH_NUMERICS;
    if (!s->ops->row_max(&raw_max, logits, s->vocab_size))
        return;
    z = adjusted(s, s->logits + (size_t)thread * s->row, logits, row, mask);
    max = raw_max;
    if (z != logits)
        (void)s->ops->row_max(&max, z, s->vocab_size);
    if (mask && max == -INFINITY)
        return; /* the mask allows no id */
    out->id = choose(s, c, z, max, row);
    if (state->sampling.n_logprobs >= 0)
        logprobs(s, c, logits, raw_max, state->sampling.n_logprobs, out);
    if (state->history) {
        uint16_t *seen = state_seen(s, row->state) + out->id;

        if ((*seen & SEEN_MAX) < SEEN_MAX)
            ++*seen;
    }
}
