/* tune.c - see tune.h. Small row counts come first: decodes run in them, most steps of all. */
#include "cuda/tune.h"

#include <errno.h>
#include <stdlib.h>

#include "engine/util/must.h"

enum {
    PRODUCT_RUNS = 4, /* timed back to back as in a step, each with another layer's weights */
    PATH_KEYS = 512,  /* of each sequence of a step that is timed */
    PATH_RUNS = 4,
};

static const double LONG_PRODUCT = 2e11; /* multiplications from which one run is timed */

/* cuBLASLt's first choice stays unless another takes less than this part of its time: alone and
 * warm some look faster by a few percent that lose it between other kernels (8B at 16 rows, H200).
 */
static const float FASTER = 0.95f;

/* The pieces of measuring a path: a run that loads kernels, capturing, timed runs. */
enum { PIECE_LOAD, PIECE_CAPTURE, PIECE_RUNS };

struct tune {
    struct ranks *ranks;
    struct rank *rank;           /* the first, which is timed */
    struct algo_records records; /* known ones, then new ones */
    bool unwritten;

    int m;    /* rows of the products that are measured now */
    int what; /* enum forward_product; beyond them, at FIRST_ROWS, steps by path */
    int piece;
    float first_us, best_us;
    struct algo_record best;
    float saved_us;  /* a step of FIRST_ROWS rows, once the best algorithms are chosen */
    unsigned n_runs; /* of products: each takes the next layer's weights */
    cudaGraphExec_t execs[MAX_RANKS]; /* a step, of each rank */
    cudaEvent_t begin, end;
};

/* A step of up to SKINNY_MAX_ROWS rows computes this many by PATH_GEMM. */
enum { FIRST_ROWS = 16, N_SIZES = 5 /* 1, 2, 4, 8, 16 */ };

int tune_new(struct tune **out, struct ranks *ranks, struct err *e)
{
    struct rank *rank = ranks_first(ranks);
    struct tune *t = calloc(1, sizeof(*t));
    int r;

    if (!t)
        return err_set(e, -ENOMEM, "out of memory");
    *t = (struct tune){.ranks = ranks, .rank = rank, .records = rank->known, .m = FIRST_ROWS};
    if ((r = cuda_check(cudaEventCreate(&t->begin), "creating an event", e)) < 0 ||
        (r = cuda_check(cudaEventCreate(&t->end), "creating an event", e)) < 0) {
        tune_free(t);
        return r;
    }
    *out = t;
    return 0;
}

/* A folder that cannot be written costs measuring again at the next start, nothing else. */
static void save(struct tune *t)
{
    const char *folder = t->rank->options.cache_folder;
    struct err ignored;

    if (t->unwritten && folder)
        (void)algo_file_write(folder, t->rank->key, &t->records, &ignored);
    t->unwritten = false;
}

static void drop_graphs(struct tune *t)
{
    for (int i = 0; i < MAX_RANKS; i++) {
        if (t->execs[i])
            (void)cudaGraphExecDestroy(t->execs[i]);
        t->execs[i] = NULL;
    }
}

void tune_free(struct tune *t)
{
    if (!t)
        return;
    save(t);
    drop_graphs(t);
    if (t->begin)
        (void)cudaEventDestroy(t->begin);
    if (t->end)
        (void)cudaEventDestroy(t->end);
    free(t);
}

void tune_pause(struct tune *t)
{
    if (!t)
        return;
    drop_graphs(t);
    t->piece = 0;
}

static int begin_timing(struct tune *t, struct err *e)
{
    return cuda_check(cudaEventRecord(t->begin, t->rank->device.launch.stream), "timing", e);
}

static int end_timing(struct tune *t, float *us, struct err *e)
{
    float ms = 0.0f;
    cudaError_t code;

    if ((code = cudaEventRecord(t->end, t->rank->device.launch.stream)) ||
        (code = cudaEventSynchronize(t->end)) ||
        (code = cudaEventElapsedTime(&ms, t->begin, t->end)))
        return cuda_check(code, "timing", e);
    *us = ms * 1000.0f;
    return 0;
}

static void next(struct tune *t)
{
    drop_graphs(t);
    t->what++;
    t->piece = 0;
}

static void add(struct tune *t, const struct algo_record *r)
{
    if (t->records.n < ALGO_FILE_MAX)
        t->records.all[t->records.n++] = *r;
    t->unwritten = true;
}

/* ---- products */

/* Any numbers but zeros, which take less power and so run at a higher clock. */
static int fill_input(struct tune *t, const struct gemm_product *p, struct err *e)
{
    const struct matrix *from = &t->rank->weights.embed;
    const uint64_t bytes = (uint64_t)p->m * (uint64_t)p->k * (p->in == GEMM_OF_BF16 ? 2 : 1);
    const int r =
        forward_prepare_product(&t->rank->forward, (enum forward_product)t->what, 0, t->m, e);

    if (r < 0)
        return r;
    return cuda_check(cudaMemcpyAsync((void *)(uintptr_t)p->x, from->data,
                                      bytes < matrix_bytes(from) ? bytes : matrix_bytes(from),
                                      cudaMemcpyDeviceToDevice, t->rank->device.launch.stream),
                      "measuring", e);
}

/* Runs the first layer's product so many times, each with the next layer's weights: layers that are
 * not quantized may have another product. us: of a run. 1, or 0 where there is no such candidate.
 */
static int run_candidate(struct tune *t, const struct gemm_product *p, int index, int n_runs,
                         float *us, struct err *e)
{
    const struct forward *f = &t->rank->forward;
    int r = begin_timing(t, e);

    for (int i = 0; i < n_runs && r >= 0; i++) {
        const int layer = (int)(t->n_runs++ % (unsigned)t->rank->config.n_layers);
        const struct gemm_product other =
            forward_product(f, (enum forward_product)t->what, layer, t->m);
        struct gemm_product of_layer = *p;

        if (other.in == p->in) { /* not all layers need be quantized */
            of_layer.w = other.w;
            of_layer.w_scales = other.w_scales;
        }
        r = gemm_try(t->rank->gemm, f->launch->stream, &of_layer, index, e);
        if (r == 0)
            return 0;
    }
    if (r >= 0)
        r = end_timing(t, us, e);
    *us /= (float)n_runs;
    return r < 0 ? r : 1;
}

/* After all candidates: the first was timed when the device may not have had its full clock, and
 * keeps its place where another was only faster than it was then. */
static int time_first_again(struct tune *t, const struct gemm_product *p, int n_runs, struct err *e)
{
    float us = 0.0f;
    int r = run_candidate(t, p, 0, n_runs, &us, e);

    if (r < 0)
        return r;
    t->first_us = us < t->first_us ? us : t->first_us;
    if (t->best_us >= FASTER * t->first_us) {
        t->best_us = t->first_us;
        gemm_record(t->rank->gemm, &t->best, p, 0, t->first_us);
    }
    return 0;
}

/* Each candidate has two pieces: a run that loads its kernel, then timed runs. */
static int measure_product(struct tune *t, struct err *e)
{
    struct rank *rank = t->rank;
    const int index = t->piece / 2;
    const bool timed = t->piece % 2;
    const struct gemm_product p =
        forward_product(&rank->forward, (enum forward_product)t->what, 0, t->m);
    const bool is_short = (double)p.m * p.n * p.k < LONG_PRODUCT;
    float us = 0.0f;
    int r;

    if (!forward_has_product(&rank->forward, (enum forward_product)t->what) ||
        forward_is_ours(&rank->forward, (enum forward_product)t->what, 0, t->m) ||
        (t->what == PRODUCT_LM_HEAD && t->m > gemm_rows(rank->limits.max_seqs)) ||
        gemm_is_known(rank->gemm, &p)) {
        next(t);
        return 1;
    }
    r = fill_input(t, &p, e);
    if (r < 0)
        return r;
    r = run_candidate(t, &p, index, timed && is_short ? PRODUCT_RUNS : 1, &us, e);
    if (r < 0)
        return r;
    if (r == 0) {
        r = time_first_again(t, &p, is_short ? PRODUCT_RUNS : 1, e);
        if (r < 0)
            return r;
        add(t, &t->best);
        if (t->m == FIRST_ROWS)
            t->saved_us += (t->first_us - t->best_us) *
                           (float)(t->what == PRODUCT_LM_HEAD ? 1 : rank->config.n_layers);
        next(t);
        return 1;
    }
    if (timed && index == 0)
        t->first_us = us;
    if (timed && (index == 0 || (us < t->best_us && us < FASTER * t->first_us))) {
        t->best_us = us;
        gemm_record(rank->gemm, &t->best, &p, index, us);
    }
    t->piece++;
    return 1;
}

/* ---- steps */

/* A batch of n decodes whose keys are those of the pool's first blocks and which stores none. */
static struct batch *make_batch(const struct rank *rank, int n)
{
    const struct step_limits *l = &rank->limits;
    struct batch *b, head = {.n_tokens = n, .n_seqs = n, .n_decodes = n, .n_rows = n};
    int kv_len = PATH_KEYS < rank->options.max_seq_len ? PATH_KEYS : rank->options.max_seq_len;

    if (kv_len > rank->n_blocks * l->block_len)
        kv_len = rank->n_blocks * l->block_len;
    head.max_blocks = (kv_len + l->block_len - 1) / l->block_len;
    must(batch_layout(&head) == 0);
    b = calloc(1, head.bytes);
    if (!b)
        return NULL;
    *b = head;
    for (int i = 0; i < n; i++) {
        batch_positions_mut(b)[i] = kv_len - 1;
        batch_slots_mut(b)[i] = -1;
        batch_q_start_mut(b)[i + 1] = i + 1;
        batch_kv_len_mut(b)[i] = kv_len;
        batch_rows_mut(b)[i] = (struct batch_row){.row = i, .mask = -1};
        for (int j = 0; j < b->max_blocks; j++)
            batch_block_table_mut(b)[i * b->max_blocks + j] = j;
    }
    return b;
}

/* A step of n rows by a path, as each rank takes part in it; us: what it took on the first. */
struct measured_step {
    struct tune *tune;
    struct forward_shape shape;
    float *us;
};

static int pack_step(struct rank *rank, int n, struct step_view *view, struct err *e)
{
    const struct step_room room = step_room_of_graph(&rank->limits, n);
    struct batch *b = make_batch(rank, n);
    size_t bytes;
    int r = 0;

    if (!b)
        return err_set(e, -ENOMEM, "out of memory");
    bytes = step_pack(rank->slots[0].pinned, view, rank->step_memory, &rank->limits, &room, b, 0);
    free(b);
    if (rank->forward.resident_rows > 0)
        r = rank_take_tags(rank, &((struct step_counts *)(void *)rank->slots[0].pinned)->tag, e);
    return r < 0 ? r
                 : cuda_check(cudaMemcpyAsync(rank->step_memory, rank->slots[0].pinned, bytes,
                                              cudaMemcpyHostToDevice, rank->device.launch.stream),
                              "measuring", e);
}

static int time_step(struct rank *rank, const struct measured_step *m, struct err *e)
{
    cudaStream_t stream = rank->device.launch.stream;
    const bool timed = rank == m->tune->rank;
    int r = timed ? begin_timing(m->tune, e) : 0;

    if (r == 0)
        r = cuda_check(cudaGraphLaunch(m->tune->execs[rank->local], stream), "timing", e);
    if (r == 0 && timed)
        return end_timing(m->tune, m->us, e);
    return r < 0 ? r : cuda_check(cudaStreamSynchronize(stream), "timing", e);
}

/* A rank's part of one piece of measuring. */
static int measure_piece(struct rank *rank, const void *arg, struct err *e)
{
    const struct measured_step *m = arg;
    struct step_view view;
    int r = cuda_check(cudaSetDevice(rank->device.id), "choosing the device", e);

    if (r == 0)
        r = pack_step(rank, m->shape.n_tokens, &view, e);
    if (r < 0)
        return r;
    if (m->tune->piece == PIECE_CAPTURE)
        return forward_capture(&m->tune->execs[rank->local], &rank->forward, &view, &m->shape, e);
    if (m->tune->piece >= PIECE_RUNS)
        return time_step(rank, m, e);
    r = forward_run(&rank->forward, &view, &m->shape, e);
    return r < 0 ? r
                 : cuda_check(cudaStreamSynchronize(rank->device.launch.stream), "measuring", e);
}

static int measure_step(struct tune *t, int n, enum forward_path path, struct err *e)
{
    struct rank *rank = t->rank;
    const struct algo_shape measured = algo_step_shape(n, path);
    float us = 0.0f;
    const struct measured_step step = {.tune = t,
                                       .shape = {.n_tokens = n,
                                                 .n_decodes = n,
                                                 .n_rows = n,
                                                 .attn_blocks = step_graph_blocks(&rank->limits, n),
                                                 .path = path,
                                                 .logits_only = true},
                                       .us = &us};
    int r;

    if (n > rank->limits.max_seqs || algo_find(&t->records, &measured) ||
        (path == PATH_RESIDENT && n > rank->forward.resident_rows)) {
        next(t);
        return 1;
    }
    r = ranks_load_products(t->ranks, n, e);
    if (r == 0)
        r = ranks_run(t->ranks, measure_piece, &step, e);
    if (r < 0)
        return r;
    if (t->piece == PIECE_RUNS || (t->piece > PIECE_RUNS && us < t->best_us))
        t->best_us = us;
    if (++t->piece == PIECE_RUNS + PATH_RUNS) {
        add(t, &(struct algo_record){
                   .shape = measured,
                   .us = t->best_us - (path == PATH_GEMM ? t->saved_us : 0.0f),
               });
        next(t);
    }
    return 1;
}

int tune_step(struct tune *t, struct err *e)
{
    /* A step of several processes cannot be run by one alone. */
    const bool whole = t->rank->shard.tp_size == t->rank->n_local;
    const int n_steps = t->m == FIRST_ROWS && whole ? N_SIZES * N_PATHS : 0;
    const int step = t->what - N_PRODUCTS;

    if (t->m > gemm_rows(t->rank->limits.max_tokens)) {
        save(t);
        return 0;
    }
    if (t->what < N_PRODUCTS)
        return measure_product(t, e);
    if (step < n_steps)
        return measure_step(t, 1 << step / N_PATHS, (enum forward_path)(step % N_PATHS), e);
    t->what = 0;
    t->m = gemm_rows(t->m + 1);
    return 1;
}

int tune_run(struct tune *t, struct err *e)
{
    const double begin = monotonic_seconds();
    int r = 1;

    while (r == 1 && monotonic_seconds() - begin < TUNE_SECONDS)
        r = tune_step(t, e);
    if (r < 0)
        return r;
    save(t);
    t->rank->known = t->records;
    return 0;
}
