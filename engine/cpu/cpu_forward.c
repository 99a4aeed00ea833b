/* cpu_forward.c - see cpu_forward.h.
 *
 * A step's rows go through all layers in slices, so that activations stay small whatever
 * max_batch_tokens is. A slice finds the keys and values of the slices before it in the pool. No
 * result depends on where slices, tiles or tasks begin.
 *
 * The ranks of a team have the same residual stream to the bit: what o and down add to it is the
 * sum of all ranks' products, added in the order of ranks. So they choose the same experts.
 *
 * Of a mixture of experts, each row of a slice is copied once for each expert that it goes through,
 * those of one expert side by side. The results are summed by ascending expert, so a row does not
 * depend on what else is computed. */
#include "engine/cpu/cpu_forward.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_experts.h"
#include "engine/model/rope.h"
#include "engine/util/machine.h"
#include "engine/util/must.h"

enum {
    SLICE_ROWS = 512,
    MATMUL_ROWS = 96,        /* rows of a matmul task: their inputs stay in the L2 cache */
    MATMUL_OUTS = 64,        /* most outputs of a matmul task where there are several groups */
    MATMUL_BYTES = 16 << 10, /* least weight bytes of a matmul task */
    TASK_ROWS = 16,          /* rows of a task of the row-wise operations */
};

/* Rows of one sequence that an attention task computes. */
struct tile {
    int seq;
    int row; /* in the batch */
    int n_rows;
    int first_pos;
};

struct forward {
    struct forward_options o;
    struct model_config c;          /* the network as this rank computes it */
    int64_t vocab_first;            /* of the rank's logits */
    int64_t vocab_share;            /* rows of embeddings of each rank; the last have less */
    float *inv_freq;                /* [head_dim / 2] */
    size_t hidden, qkv, heads, ffn; /* row strides of the activations: padded widths */
    float *x;                       /* [SLICE_ROWS, hidden] the residual stream */
    float *normed;                  /* [SLICE_ROWS, hidden] */
    float *qkv_out;                 /* [SLICE_ROWS, qkv] */
    float *attn;                    /* [SLICE_ROWS, heads] */
    int n_picks;                    /* of a row: its experts; 1 where there are none */
    float *gate_up;                 /* [SLICE_ROWS * n_picks, 2 * ffn_dim] */
    float *act;                     /* [SLICE_ROWS * n_picks, ffn] */
    float *scores;                  /* [SLICE_ROWS, n_experts] the router's */
    float *picked;                  /* [SLICE_ROWS * n_picks, hidden] to experts, and from them */
    struct pick *picks;             /* [SLICE_ROWS, n_picks] by ascending expert */
    struct row_groups groups;       /* of the picked rows */
    int *n_picked;                  /* [n_experts] rows */
    float *cos, *sin;               /* [SLICE_ROWS, head_dim / 2] */
    float *wanted;   /* [max_seqs, hidden] final norm of the rows that are sampled from */
    float *parts[2]; /* [SLICE_ROWS, hidden] of a team's sums, see there */
    int turn;        /* of parts */
    float *scratch;  /* [n_threads, scratch_floats] of attention */
    size_t scratch_floats;
    int group; /* query heads of one KV head */
    struct region memory;
    /* of the slice being computed */
    const struct batch *b;
    const int32_t *ids;
    const struct layer_weights *layer;
    const float *norm; /* weights of the norm being computed */
    void (*each)(const struct forward *f, int i);
    int layer_no;
    int row, n_rows; /* rows of the batch */
    int n_tiles;
    struct tile tiles[SLICE_ROWS];
};

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

/* Divides the memory among the buffers; with base NULL only adds up their sizes. */
static size_t place(struct forward *f, char *base)
{
    const struct model_config *c = &f->c;
    const size_t rows = SLICE_ROWS, half = (size_t)c->head_dim / 2;
    const size_t n_threads = (size_t)cpu_pool_threads(f->o.pool);
    const size_t part = f->o.team ? rows * f->hidden : 0;
    const size_t n_picked = rows * (size_t)f->n_picks;
    struct {
        float **at;
        size_t n;
    } parts[] = {
        {&f->x, rows * f->hidden},
        {&f->normed, rows * f->hidden},
        {&f->qkv_out, rows * f->qkv},
        {&f->attn, rows * f->heads},
        {&f->gate_up, n_picked * 2 * (size_t)c->ffn_dim},
        {&f->act, n_picked * f->ffn},
        {&f->scores, rows * (size_t)c->n_experts},
        {&f->picked, c->n_experts ? n_picked * f->hidden : 0},
        {&f->cos, rows * half},
        {&f->sin, rows * half},
        {&f->wanted, (size_t)f->o.max_seqs * f->hidden},
        {&f->parts[0], part},
        {&f->parts[1], part},
        {&f->scratch, n_threads * f->scratch_floats},
        {&f->inv_freq, half},
    };
    size_t used = 0;

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        *parts[i].at = base ? (float *)(void *)(base + used) : NULL;
        used += (parts[i].n * sizeof(float) + 63) & ~(size_t)63;
    }
    return used;
}

static void join_team(struct forward *f)
{
    struct forward_team *team = f->o.team;
    const int rank = f->o.shard.rank;

    if (!team)
        return;
    team->weights[rank] = f->o.weights;
    team->parts[0][rank] = f->parts[0];
    team->parts[1][rank] = f->parts[1];
}

/* Widths of the rank and of its activations. */
static void measure(struct forward *f)
{
    const struct model_config *whole = f->o.config;
    int64_t first, n;

    f->c = shard_config(whole, f->o.shard);
    shard_range(&f->vocab_first, &n, whole, DIM_VOCAB, f->o.shard);
    shard_range(&first, &f->vocab_share, whole, DIM_VOCAB, (struct shard){0, f->o.shard.tp_size});
    f->group = f->c.n_heads / f->c.n_kv_heads;
    f->hidden = cpu_padded(f->c.hidden_dim);
    f->qkv = (size_t)(f->c.n_heads + 2 * f->c.n_kv_heads) * (size_t)f->c.head_dim;
    f->heads = cpu_padded(f->c.n_heads * f->c.head_dim);
    f->ffn = cpu_padded(f->c.ffn_dim);
    f->n_picks = f->c.n_experts ? f->c.n_experts_per_tok : 1;
    f->scratch_floats =
        cpu_attend_scratch(f->group > CPU_ATTEND_ROWS ? f->group : CPU_ATTEND_ROWS, f->c.head_dim);
    f->scratch_floats = (f->scratch_floats + 15) & ~(size_t)15;
}

/* False: no memory. */
static bool take_picks(struct forward *f)
{
    const size_t n_experts = (size_t)f->c.n_experts, n = SLICE_ROWS * (size_t)f->n_picks;

    if (n_experts == 0)
        return true;
    f->picks = calloc(n, sizeof(*f->picks));
    f->groups.all = calloc(n_experts + n / MATMUL_ROWS, sizeof(*f->groups.all));
    f->groups.n_experts = f->c.n_experts;
    f->n_picked = calloc(n_experts, sizeof(*f->n_picked));
    return f->picks && f->groups.all && f->n_picked;
}

int forward_new(struct forward **out, const struct forward_options *o, struct err *e)
{
    struct forward *f = calloc(1, sizeof(*f));
    int r;

    if (!f)
        return err_set(e, -ENOMEM, "out of memory");
    f->o = *o;
    measure(f);
    r = region_init(&f->memory, "activations", place(f, NULL), e);
    if (r == 0 && !take_picks(f))
        r = err_set(e, -ENOMEM, "out of memory");
    if (r < 0) {
        forward_free(f);
        return r;
    }
    place(f, f->memory.base);
    rope_frequencies(&f->c, f->inv_freq);
    join_team(f);
    *out = f;
    return 0;
}

uint64_t forward_bytes(const struct forward *f)
{
    return f->memory.bytes;
}

void forward_free(struct forward *f)
{
    if (!f)
        return;
    region_deinit(&f->memory);
    free(f->picks);
    free(f->groups.all);
    free(f->n_picked);
    free(f);
}

/* A matrix product in tasks. */
struct product {
    const struct forward *f;
    struct matmul whole; /* n_outs are those of an expert */
    const struct row_group *groups;
    int outs; /* of a task */
    int n_out_tasks;
};

static void product_task(void *ctx, int task, int thread)
{
    const struct product *p = ctx;
    const struct row_group *g = &p->groups[task / p->n_out_tasks];
    const int out = task % p->n_out_tasks * p->outs;
    struct matmul m = p->whole;

    (void)thread;
    m.y += (size_t)g->row * m.y_stride + (size_t)out;
    m.x += (size_t)g->row * m.x_stride;
    m.first = g->expert * m.n_outs + out;
    m.n_rows = g->n_rows;
    m.n_outs = min_int(m.n_outs - out, p->outs);
    p->f->o.ops->matmul(&m);
}

/* y [n_rows, n_outs] (+)= x [n_rows, k] * w for each group's rows and expert. */
static void grouped_product(const struct forward *f, float *y, size_t y_stride, const float *x,
                            size_t x_stride, const struct matrix *w,
                            const struct row_groups *groups, bool add)
{
    const int n_outs = w->n / groups->n_experts, n_threads = cpu_pool_threads(f->o.pool);
    /* Several tasks a thread, but few of one row: each begins with a wait for its first weights. */
    const bool one_row = groups->n > 0 && groups->all[0].n_rows == 1;
    const int n_tasks = (one_row ? 2 : 8) * n_threads;
    const int64_t share = (int64_t)n_outs * groups->n / n_tasks;
    const int64_t least = MATMUL_BYTES / (int64_t)dtype_bytes(w->dtype, (uint64_t)w->ld);
    int64_t outs = ((share > least ? share : least) + 7) & ~7;
    struct product p = {
        .f = f,
        .whole = {.y = y,
                  .x = x,
                  .w = w,
                  .y_stride = y_stride,
                  .x_stride = x_stride,
                  .n_outs = n_outs,
                  .add = add},
        .groups = groups->all,
    };

    if (groups->n > 1 && outs > MATMUL_OUTS)
        outs = MATMUL_OUTS;
    p.outs = outs < 8 ? 8 : (int)outs;
    p.n_out_tasks = (n_outs + p.outs - 1) / p.outs;
    cpu_pool_run(f->o.pool, groups->n * p.n_out_tasks, product_task, &p);
}

/* y [n_rows, n_outs] (+)= x [n_rows, k] * w; n_rows <= SLICE_ROWS */
static void product(const struct forward *f, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const struct matrix *w, int n_rows, bool add)
{
    struct row_group all[SLICE_ROWS / MATMUL_ROWS + 1];
    const struct row_groups groups = {all, row_groups_cut(all, MATMUL_ROWS, 0, 0, n_rows), 1};

    grouped_product(f, y, y_stride, x, x_stride, w, &groups, add);
}

static void rows_task(void *ctx, int task, int thread)
{
    const struct forward *f = ctx;
    const int end = min_int(f->n_rows, (task + 1) * TASK_ROWS);

    (void)thread;
    for (int i = task * TASK_ROWS; i < end; i++)
        f->each(f, i);
}

/* Calls `each` for the rows of the slice, in tasks of TASK_ROWS. */
static void each_row(struct forward *f, void (*each)(const struct forward *f, int i))
{
    f->each = each;
    cpu_pool_run(f->o.pool, (f->n_rows + TASK_ROWS - 1) / TASK_ROWS, rows_task, f);
}

/* The row of an id. Ranks divide the embeddings, but all see all memory. */
static const void *embedding(const struct forward *f, int32_t id)
{
    const int64_t owner = id / f->vocab_share;
    const struct weights *w = f->o.team ? f->o.team->weights[owner] : f->o.weights;

    return matrix_row(&w->embed, id - owner * f->vocab_share);
}

/* Embeddings, and cosines and sines of the positions. */
static void embed_row(const struct forward *f, int i)
{
    const int half = f->c.head_dim / 2;
    const int32_t token = batch_tokens(f->b)[f->row + i];
    /* A row after BATCH_NUMERICS is discarded: any id will do. */
    const int32_t id = token >= 0 ? token : f->ids[~token] >= 0 ? f->ids[~token] : 0;
    const float pos = (float)batch_positions(f->b)[f->row + i], scale = rope_scale(&f->c);

    f->o.ops->from_bf16(f->x + (size_t)i * f->hidden, embedding(f, id), (int)f->hidden);
    for (int j = 0; j < half; j++) {
        const float angle = pos * f->inv_freq[j];

        f->cos[i * half + j] = (float)cos((double)angle) * scale;
        f->sin[i * half + j] = (float)sin((double)angle) * scale;
    }
}

static void norm_row(const struct forward *f, int i)
{
    f->o.ops->rms_norm(f->normed + (size_t)i * f->hidden, f->x + (size_t)i * f->hidden, f->norm,
                       f->c.hidden_dim, f->c.rms_norm_eps);
}

static void norm_rows(struct forward *f, const struct matrix *w)
{
    f->norm = w->data;
    each_row(f, norm_row);
}

/* The keys (0) or values (1) of a head in block 0. */
static char *kv_plane(const struct forward *f, int values, int head)
{
    const size_t plane = ((size_t)f->layer_no * 2 + (size_t)values) * (size_t)f->c.n_kv_heads;

    return f->o.kv->base + (plane + (size_t)head) * f->o.kv->head_bytes;
}

static void store_kv(const struct forward *f, int values, int head, int32_t slot, const float *x)
{
    const struct kv_pool *kv = f->o.kv;
    const size_t offset = (size_t)slot & (((size_t)1 << kv->block_shift) - 1);
    const size_t dim = (size_t)f->c.head_dim;
    char *at = kv_plane(f, values, head) + (size_t)(slot >> kv->block_shift) * kv->block_bytes;

    if (kv->dtype == DTYPE_E4M3)
        at[(dim << kv->block_shift) + offset] =
            (char)f->o.ops->to_e4m3((uint8_t *)at + offset * dim, x, f->c.head_dim);
    else if (kv->dtype == DTYPE_BF16)
        f->o.ops->to_bf16((uint16_t *)(void *)at + offset * dim, x, f->c.head_dim);
    else
        memcpy(at + offset * dim * sizeof(float), x, dim * sizeof(float));
}

/* Adds biases, normalizes and rotates heads, and stores keys and values in their slots. */
static void heads_row(const struct forward *f, int i)
{
    const struct cpu_ops *ops = f->o.ops;
    const struct layer_weights *y = f->layer;
    const int dim = f->c.head_dim, n_rotated = f->c.n_heads + f->c.n_kv_heads;
    const int32_t slot = batch_slots(f->b)[f->row + i];
    float *row = f->qkv_out + (size_t)i * f->qkv;

    if (y->qkv_bias.data)
        ops->add(row, y->qkv_bias.data, (int)f->qkv);
    for (int h = 0; h < n_rotated; h++) {
        float *x = row + (size_t)h * (size_t)dim;

        if (y->q_norm.data)
            ops->rms_norm(x, x, h < f->c.n_heads ? y->q_norm.data : y->k_norm.data, dim,
                          f->c.rms_norm_eps);
        ops->rope(x, f->cos + i * (dim / 2), f->sin + i * (dim / 2), dim / 2);
    }
    for (int h = 0; h < f->c.n_kv_heads; h++) {
        const float *k = row + (size_t)(f->c.n_heads + h) * (size_t)dim;

        store_kv(f, 0, h, slot, k);
        store_kv(f, 1, h, slot, k + (size_t)f->c.n_kv_heads * (size_t)dim);
    }
}

static void attend_task(void *ctx, int task, int thread)
{
    struct forward *f = ctx;
    /* The last tiles of a prompt have the most keys, so they go first. */
    const struct tile *t = &f->tiles[f->n_tiles - 1 - task / f->c.n_kv_heads];
    const int head = task % f->c.n_kv_heads, in_slice = t->row - f->row;
    const size_t column = (size_t)head * (size_t)f->group * (size_t)f->c.head_dim;
    const struct attend a = {
        .q = f->qkv_out + (size_t)in_slice * f->qkv + column,
        .out = f->attn + (size_t)in_slice * f->heads + column,
        .q_stride = f->qkv,
        .out_stride = f->heads,
        .n_rows = t->n_rows,
        .n_group = f->group,
        .first_pos = t->first_pos,
        .head_dim = f->c.head_dim,
        .scale = 1.0f / sqrtf((float)f->c.head_dim),
        .block_table = batch_block_table(f->b) + (size_t)t->seq * (size_t)f->b->max_blocks,
        .block_shift = f->o.kv->block_shift,
        .k = kv_plane(f, 0, head),
        .v = kv_plane(f, 1, head),
        .block_bytes = f->o.kv->block_bytes,
        .dtype = f->o.kv->dtype,
        .scratch = f->scratch + (size_t)thread * f->scratch_floats,
    };

    f->o.ops->attend(&a);
}

static void silu_row(const struct forward *f, int i)
{
    const size_t ffn = (size_t)f->c.ffn_dim;
    const float *row = f->gate_up + (size_t)i * 2 * ffn;

    f->o.ops->silu_mul(f->act + (size_t)i * f->ffn, row, row + ffn, f->c.ffn_dim);
}

static void add_parts_row(const struct forward *f, int i)
{
    const size_t at = (size_t)i * f->hidden;

    for (int rank = 0; rank < f->o.shard.tp_size; rank++)
        f->o.ops->add(f->x + at, f->o.team->parts[f->turn][rank] + at, f->c.hidden_dim);
}

/* Adds to the residual stream the sum of all ranks' parts. */
static void add_parts(struct forward *f)
{
    cpu_barrier_wait(&f->o.team->barrier);
    each_row(f, add_parts_row);
    f->turn ^= 1;
}

/* Adds to the residual stream x * w, where the ranks divide the columns of x and w: the sum over
 * all ranks. */
static void add_product(struct forward *f, const float *x, size_t x_stride, const struct matrix *w)
{
    if (!f->o.team) {
        product(f, f->x, f->hidden, x, x_stride, w, f->n_rows, true);
        return;
    }
    product(f, f->parts[f->turn], f->hidden, x, x_stride, w, f->n_rows, false);
    add_parts(f);
}

static struct pick *picks_of_row(const struct forward *f, int i)
{
    return f->picks + (size_t)i * (size_t)f->n_picks;
}

/* Chooses a row's experts. */
static void route_row(const struct forward *f, int i)
{
    route(picks_of_row(f, i), f->n_picks, f->scores + (size_t)i * (size_t)f->c.n_experts,
          f->c.n_experts, f->c.norm_topk, f->o.ops);
}

static void copy_row(const struct forward *f, int i)
{
    const struct pick *picks = picks_of_row(f, i);

    for (int k = 0; k < f->n_picks; k++)
        memcpy(f->picked + (size_t)picks[k].at * f->hidden, f->normed + (size_t)i * f->hidden,
               f->hidden * sizeof(float));
}

static void silu_picks_row(const struct forward *f, int i)
{
    const struct pick *picks = picks_of_row(f, i);

    for (int k = 0; k < f->n_picks; k++)
        silu_row(f, picks[k].at);
}

/* Sums what a row's experts give, and adds it to the residual stream or hands it to the team. */
static void sum_picks_row(const struct forward *f, int i)
{
    const struct pick *picks = picks_of_row(f, i);
    const size_t at = (size_t)i * f->hidden;
    float *sum = (f->o.team ? f->parts[f->turn] : f->normed) + at;

    memset(sum, 0, f->hidden * sizeof(*sum));
    for (int k = 0; k < f->n_picks; k++)
        f->o.ops->add_scaled(sum, f->picked + (size_t)picks[k].at * f->hidden, picks[k].weight,
                             f->c.hidden_dim);
    if (!f->o.team)
        f->o.ops->add(f->x + at, sum, f->c.hidden_dim);
}

/* All rows of an expert are multiplied together. */
static void run_experts(struct forward *f)
{
    const struct layer_weights *y = f->layer;

    product(f, f->scores, (size_t)f->c.n_experts, f->normed, f->hidden, &y->router, f->n_rows,
            false);
    each_row(f, route_row);
    row_groups_of_picks(&f->groups, MATMUL_ROWS, f->picks, f->n_rows * f->n_picks, f->n_picked);
    each_row(f, copy_row);
    grouped_product(f, f->gate_up, 2 * (size_t)f->c.ffn_dim, f->picked, f->hidden, &y->gate_up,
                    &f->groups, false);
    each_row(f, silu_picks_row);
    grouped_product(f, f->picked, f->hidden, f->act, f->ffn, &y->down, &f->groups, false);
    each_row(f, sum_picks_row);
    if (f->o.team)
        add_parts(f);
}

static void run_layer(struct forward *f)
{
    const struct layer_weights *y = f->layer;
    const int n = f->n_rows;

    norm_rows(f, &y->attn_norm);
    product(f, f->qkv_out, f->qkv, f->normed, f->hidden, &y->qkv, n, false);
    each_row(f, heads_row);
    cpu_pool_run(f->o.pool, f->n_tiles * f->c.n_kv_heads, attend_task, f);
    add_product(f, f->attn, f->heads, &y->o);

    norm_rows(f, &y->mlp_norm);
    if (f->c.n_experts) {
        run_experts(f);
        return;
    }
    product(f, f->gate_up, 2 * (size_t)f->c.ffn_dim, f->normed, f->hidden, &y->gate_up, n, false);
    each_row(f, silu_row);
    add_product(f, f->act, f->ffn, &y->down);
}

/* Cuts the slice into tiles, each within one sequence. */
static void cut_tiles(struct forward *f)
{
    const struct batch *b = f->b;
    const int32_t *q_start = batch_q_start(b);
    const int most = f->group > CPU_ATTEND_ROWS ? 1 : CPU_ATTEND_ROWS / f->group;

    f->n_tiles = 0;
    for (int s = 0; s < b->n_seqs; s++) {
        const int end = min_int(q_start[s + 1], f->row + f->n_rows);

        for (int row = q_start[s] > f->row ? q_start[s] : f->row; row < end; row += most)
            f->tiles[f->n_tiles++] = (struct tile){
                .seq = s,
                .row = row,
                .n_rows = min_int(end - row, most),
                .first_pos = batch_positions(b)[row],
            };
    }
}

/* Final norm of the slice's wanted rows. */
static void keep_wanted(struct forward *f)
{
    for (int i = 0; i < f->b->n_rows; i++) {
        const int row = batch_rows(f->b)[i].row - f->row;

        if (row >= 0 && row < f->n_rows)
            f->o.ops->rms_norm(f->wanted + (size_t)i * f->hidden, f->x + (size_t)row * f->hidden,
                               f->o.weights->norm.data, f->c.hidden_dim, f->c.rms_norm_eps);
    }
}

/* Adds the final norm of the slice's rows to their sums, row by row: where slices begin makes no
 * difference. */
static void add_to_sums(const struct forward *f, float *sums)
{
    for (int i = 0; i < f->b->n_sums; i++) {
        const struct batch_sum *s = &batch_sums(f->b)[i];
        float *sum = sums + (size_t)i * (size_t)f->c.hidden_dim;
        const int end = min_int(s->row + s->n_rows, f->row + f->n_rows);

        for (int row = s->row > f->row ? s->row : f->row; row < end; row++) {
            float *normed = f->normed + (size_t)(row - f->row) * f->hidden;

            f->o.ops->rms_norm(normed, f->x + (size_t)(row - f->row) * f->hidden,
                               f->o.weights->norm.data, f->c.hidden_dim, f->c.rms_norm_eps);
            if (row == s->row)
                memcpy(sum, normed, (size_t)f->c.hidden_dim * sizeof(*sum));
            else
                f->o.ops->add(sum, normed, f->c.hidden_dim);
        }
    }
}

void forward_run(struct forward *f, const struct batch *b, const int32_t *ids, float *sums)
{
    f->b = b;
    f->ids = ids;
    for (f->row = 0; f->row < b->n_tokens; f->row += SLICE_ROWS) {
        f->n_rows = min_int(b->n_tokens - f->row, SLICE_ROWS);
        cut_tiles(f);
        each_row(f, embed_row);
        for (f->layer_no = 0; f->layer_no < f->c.n_layers; f->layer_no++) {
            f->layer = &f->o.weights->layers[f->layer_no];
            run_layer(f);
            if (f->o.beat)
                *f->o.beat += 2;
        }
        keep_wanted(f);
        if (sums)
            add_to_sums(f, sums);
    }
}

void forward_logits(struct forward *f, int first, int n)
{
    must(first >= 0 && n >= 0 && n <= FORWARD_LOGIT_ROWS);
    product(f, f->o.logits + f->vocab_first, (size_t)f->c.vocab_size,
            f->wanted + (size_t)first * f->hidden, f->hidden, &f->o.weights->lm_head, n, false);
}
