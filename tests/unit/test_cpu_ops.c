/* test_cpu_ops.c - the kernels against loops in double precision at odd sizes, with poisoned
 * outputs, and all instruction sets of this machine against each other, bit for bit. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/util/bf16.h"
#include "engine/cpu/cpu_ops.h"
#include "engine/cpu/cpu_pool.h"
#include "engine/model/packing.h"
#include "engine/util/must.h"
#include "tests/unit/run_suite.h"

enum { BIG = 1 << 17, GUARD = 64 };

static const struct cpu_ops *ops;
static float in[BIG], in2[BIG], out[BIG], first[BIG];
static uint16_t half[BIG];
static uint64_t random_state;

static float uniform(void) /* -1 .. 1 */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(random_state >> 32) / 0x1p31f;
}

static void setup(void)
{
    random_state = 1;
    for (int i = 0; i < BIG; i++) {
        in[i] = uniform() * 3.0f;
        in2[i] = uniform();
        half[i] = bf16_from_f32(uniform());
    }
}

static void poison(void)
{
    memset(out, 0xff, sizeof(out));
}

/* The first n values are written, those after them untouched. */
static void check_written(int n)
{
    for (int i = 0; i < n; i++)
        ck_assert_msg(out[i] == out[i], "%s: %d of %d was not written", ops->name, i, n);
    for (int i = n; i < n + GUARD; i++)
        ck_assert_msg(out[i] != out[i], "%s: %d of %d was written", ops->name, i, n);
}

/* Runs each instruction set; all must give the bits of the first. */
static void each_isa(void (*run)(int size), int size, int n_out)
{
    bool had = false;

    for (int isa = 0; isa < CPU_N_ISAS; isa++) {
        ops = cpu_ops_get((enum cpu_isa)isa);
        if (!ops)
            continue;
        poison();
        run(size);
        check_written(n_out);
        if (had)
            ck_assert_msg(memcmp(first, out, (size_t)n_out * sizeof(*out)) == 0,
                          "%s: other bits at size %d", ops->name, size);
        memcpy(first, out, sizeof(out));
        had = true;
    }
    ck_assert(had);
}

static const int sizes[] = {1, 2, 3, 15, 16, 17, 31, 33, 64, 100, 257, 1024};

enum { N_SIZES = N(sizes), MAX_ROWS = 20, MAX_OUTS = 13 };

/* A matrix as weights may be. */
struct form {
    const char *name;
    enum dtype dtype, scale_dtype;
    int scale_rows, scale_cols; /* scale_cols 0: whole rows */
    bool zeros;
    int padding; /* of rows */
};

static const struct form forms[] = {
    {.name = "bf16"},
    {"rows of E4M3", DTYPE_E4M3, DTYPE_F32, 1, 0, .padding = 5},
    {"blocks of E4M3", DTYPE_E4M3, DTYPE_F32, 128, 128, .padding = 3},
    {"groups of E4M3", DTYPE_E4M3, DTYPE_F32, 1, 128, .padding = 0},
    {"INT4", DTYPE_INT4, DTYPE_BF16, 1, 128, .padding = 0},
    {"INT4 with zeros", DTYPE_INT4, DTYPE_F16, 1, 64, .zeros = true},
    {"INT4 in short groups", DTYPE_INT4, DTYPE_F16, 1, 32, .padding = 0},
};

enum { FIRST = 121 }; /* row of a product, in one block of 128 with some of the others */

static const struct form *form;
static int n_rows, n_outs;
static bool adds;
static struct matrix w;
static float scales[BIG];
static uint8_t data[BIG], zeros[BIG];

/* A matrix [FIRST + n_outs, k] of the form, of random bits; in groups k is a multiple of them. */
static void make_matrix(int k)
{
    w = (struct matrix){.data = form->dtype == DTYPE_BF16 ? (void *)half : data,
                        .dtype = form->dtype,
                        .n = FIRST + n_outs,
                        .k = k - form->padding,
                        .ld = k};
    if (form->dtype == DTYPE_BF16)
        return;
    w.scales = scales;
    w.scale_dtype = form->scale_dtype;
    w.scale_rows = form->scale_rows;
    w.scale_cols = form->scale_cols ? form->scale_cols : w.k;
    w.zeros = form->zeros ? zeros : NULL;
    must(matrix_bytes(&w) <= sizeof(data) && matrix_scales(&w) <= BIG);
    for (size_t i = 0; i < matrix_bytes(&w); i++)
        data[i] = (uint8_t)(int)(uniform() * 128.0f);
    for (int r = 0; r < w.n && form->padding; r++)
        memset((uint8_t *)matrix_row(&w, r) + w.k, 0, (size_t)form->padding);
    for (int64_t i = 0; i < matrix_scales(&w); i++) {
        const float scale = uniform() / 64.0f;

        zeros[i] = (uint8_t)(int)((uniform() + 1.0f) * 8.5f);
        if (w.scale_dtype == DTYPE_F32)
            scales[i] = scale;
        else /* a subnormal or normal f16 of a like size, too */
            ((uint16_t *)(void *)scales)[i] =
                w.scale_dtype == DTYPE_F16 ? (uint16_t)(i * 37 % 0x2400) : bf16_from_f32(scale);
    }
}

static void weights_of_row(float *to, int row)
{
    if (form->dtype != DTYPE_BF16)
        matrix_row_f32(to, &w, row);
    for (int i = 0; i < w.k && form->dtype == DTYPE_BF16; i++)
        to[i] = f32_from_bf16(half[row * w.k + i]);
}

static void run_matmul(int k)
{
    const struct matmul m = {.y = out,
                             .x = in,
                             .w = &w,
                             .y_stride = (size_t)n_outs,
                             .x_stride = (size_t)k + 3,
                             .first = FIRST,
                             .n_rows = n_rows,
                             .n_outs = n_outs,
                             .add = adds};
    float row[1024];

    if (adds)
        for (int i = 0; i < n_rows * n_outs; i++)
            out[i] = in2[i];
    ops->matmul(&m);
    for (int o = 0; o < n_outs; o++) {
        weights_of_row(row, FIRST + o);
        for (int r = 0; r < n_rows; r++) {
            double sum = adds ? (double)in2[r * n_outs + o] : 0.0, size = 0.0;

            for (int i = 0; i < w.k; i++) {
                const double term = (double)in[r * (k + 3) + i] * (double)row[i];

                sum += term;
                size += fabs(term);
            }
            ck_assert_msg(fabs((double)out[r * n_outs + o] - sum) <= 1e-6 * (size + 1),
                          "%s, %s: %d rows, %d outs, k %d: %g not %g", ops->name, form->name,
                          n_rows, n_outs, k, (double)out[r * n_outs + o], sum);
        }
    }
}

/* Any number of rows and outputs, written and added. */
TEST(matmul, .n = N(forms))
{
    static const int ks[] = {16, 48, 256, 896};

    form = &forms[_i];
    for (n_rows = 1; n_rows <= MAX_ROWS; n_rows++)
        for (n_outs = 1; n_outs <= MAX_OUTS; n_outs += n_rows > 7 ? 3 : 1)
            for (int i = 0; i < 4; i++) {
                const int group = form->scale_cols && !form->padding ? form->scale_cols : 1;
                const int k = (ks[i] + group - 1) / group * group;

                adds = (n_rows + n_outs + i) % 2;
                make_matrix(k);
                each_isa(run_matmul, k, n_rows * n_outs);
            }
}

/* A row's result is the same bits alone and among others. */
TEST(matmul_rows_are_independent, .n = N(forms))
{
    float alone[MAX_OUTS];

    ops = cpu_ops_best();
    form = &forms[_i];
    n_outs = MAX_OUTS;
    make_matrix(256);
    for (int r = 0; r < MAX_ROWS; r++) {
        struct matmul m = {.y = out,
                           .x = in,
                           .w = &w,
                           .y_stride = MAX_OUTS,
                           .x_stride = 256,
                           .first = FIRST,
                           .n_rows = MAX_ROWS,
                           .n_outs = MAX_OUTS};

        ops->matmul(&m);
        m.y = alone;
        m.x += r * 256;
        m.n_rows = 1;
        ops->matmul(&m);
        ck_assert_mem_eq(alone, out + r * MAX_OUTS, sizeof(alone));
    }
}

static void run_rms_norm(int n)
{
    double squares = 0.0;

    ops->rms_norm(out, in, in2, n, 1e-5f);
    for (int i = 0; i < n; i++)
        squares += (double)in[i] * (double)in[i];
    for (int i = 0; i < n; i++) {
        const double want = (double)in[i] / sqrt(squares / n + 1e-5) * (double)in2[i];

        ck_assert_double_eq_tol((double)out[i], want, 1e-6 * (1 + fabs(want)));
    }
}

static void run_rope(int dim)
{
    const int n = dim / 2;

    memcpy(out, in, (size_t)dim * sizeof(*out));
    ops->rope(out, in2, in2 + 2000, n);
    for (int i = 0; i < n; i++) {
        const double a = (double)in[i], b = (double)in[n + i], c = (double)in2[i];
        const double s = (double)in2[2000 + i];

        ck_assert_double_eq_tol((double)out[i], a * c - b * s, 1e-6);
        ck_assert_double_eq_tol((double)out[n + i], b * c + a * s, 1e-6);
    }
}

static void run_silu_mul(int n)
{
    ops->silu_mul(out, in, in2, n);
    for (int i = 0; i < n; i++)
        ck_assert_double_eq_tol((double)out[i],
                                (double)in[i] / (1 + exp(-(double)in[i])) * (double)in2[i], 1e-6);
}

static void run_add(int n)
{
    memcpy(out, in2, (size_t)n * sizeof(*out));
    ops->add(out, in, n);
    for (int i = 0; i < n; i++)
        ck_assert(out[i] == in[i] + in2[i]);
}

static void run_add_scaled(int n)
{
    memcpy(out, in2, (size_t)n * sizeof(*out));
    ops->add_scaled(out, in, 0.37f, n);
    for (int i = 0; i < n; i++)
        ck_assert(out[i] == fmaf(in[i], 0.37f, in2[i]));
}

static void run_from_bf16(int n)
{
    ops->from_bf16(out, half, n);
    for (int i = 0; i < n; i++)
        ck_assert(out[i] == f32_from_bf16(half[i]));
}

static void run_to_bf16(int n)
{
    static uint16_t to[2048];

    memset(to, 0x55, sizeof(to));
    ops->to_bf16(to, in, n);
    for (int i = 0; i < n; i++) {
        ck_assert_uint_eq(to[i], bf16_from_f32(in[i]));
        out[i] = f32_from_bf16(to[i]);
    }
    ck_assert_uint_eq(to[n], 0x5555);
}

static void run_scans(int n)
{
    double sum = 0.0;
    float max;

    ck_assert(ops->row_max(&max, in, n));
    out[0] = -INFINITY;
    for (int i = 0; i < n; i++)
        out[0] = fmaxf(out[0], in[i]);
    ck_assert(max == out[0]);
    for (int i = 0; i < n; i++)
        sum += exp((double)(in[i] - max) * 0.7);
    out[1] = (float)ops->sum_exp(in, n, max, 0.7f);
    ck_assert_double_eq_tol((double)out[1], sum, 1e-6 * sum);
    for (int i = 0; i < n; i++) { /* every element is found from wherever one looks */
        const int from = i > 20 ? i - 20 : 0;
        int want = from;

        while (in[want] < in[i])
            want++;
        ck_assert_int_eq(ops->find_ge(in, from, n, in[i]), want);
    }
    ck_assert_int_eq(ops->find_ge(in, 0, n, 4.0f), n);
    ck_assert_int_eq(ops->find_ge(in, n, n, -4.0f), n);
}

/* Norm, rotation, activation, conversions and scans over a row of any length. */
TEST(rows, .n = N_SIZES)
{
    const int n = sizes[_i];

    each_isa(run_rms_norm, n, n);
    each_isa(run_rope, 2 * n, 2 * n);
    each_isa(run_silu_mul, n, n);
    each_isa(run_add, n, n);
    each_isa(run_add_scaled, n, n);
    each_isa(run_from_bf16, n, n);
    each_isa(run_to_bf16, n, n);
    each_isa(run_scans, n, 2);
}

static float exp_of(float x)
{
    return (float)ops->sum_exp(&x, 1, 0.0f, 1.0f);
}

static void run_exp(int n)
{
    for (int i = 0; i < n; i++)
        out[i] = exp_of(in[i]);
    for (int i = 0; i < n; i++)
        if (in[i] > -87.0f && in[i] < 88.0f)
            ck_assert_msg(fabs((double)out[i] / exp((double)in[i]) - 1) < 1.5e-7, "exp(%a) is %a",
                          (double)in[i], (double)out[i]);
}

/* exp is good to 1.5e-7 over its range; 1 at 0, 0 below it and finite above; NaN stays. */
TEST(exponential)
{
    for (int i = 0; i < 100000; i++)
        in[i] = -90.0f + 180.0f * (float)i / 100000.0f;
    each_isa(run_exp, 100000, 100000);
    for (int isa = 0; isa < CPU_N_ISAS; isa++) {
        ops = cpu_ops_get((enum cpu_isa)isa);
        if (!ops)
            continue;
        ck_assert(exp_of(0.0f) == 1.0f && exp_of(-0.0f) == 1.0f);
        ck_assert(exp_of(-INFINITY) == 0.0f && exp_of(-1000.0f) == 0.0f);
        ck_assert(isfinite(exp_of(1000.0f)) && exp_of(1000.0f) > 1e38f);
        ck_assert(isnan(exp_of(NAN)));
    }
}

/* NaN and Inf are found at any place. */
TEST(row_max_notices)
{
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    float max;

    for (int isa = 0; isa < CPU_N_ISAS; isa++) {
        ops = cpu_ops_get((enum cpu_isa)isa);
        for (int i = 0; ops && i < 100; i++)
            for (int k = 0; k < 3; k++) {
                const float saved = in[i];

                in[i] = wrong[k];
                ck_assert(!ops->row_max(&max, in, 100));
                in[i] = saved;
                ck_assert(ops->row_max(&max, in, 100));
            }
    }
}

/* A key or value with one NaN or infinity is NaN. */
TEST(e4m3_rows_keep_nan)
{
    const float wrong[] = {NAN, INFINITY, -INFINITY};
    uint8_t row[20];

    for (int isa = 0; isa < CPU_N_ISAS; isa++) {
        ops = cpu_ops_get((enum cpu_isa)isa);
        for (int i = 0; ops && i < 20 * 3; i++) {
            const float saved = in[i % 20];

            in[i % 20] = wrong[i / 20];
            ck_assert_int_eq(ops->to_e4m3(row, in, 20), 255);
            in[i % 20] = saved;
            ck_assert_int_lt(ops->to_e4m3(row, in, 20), 255);
        }
    }
}

/* Attention over blocks of 16 in descending order; all other blocks are poisoned. */
struct shape {
    int rows, group, first_pos, dim;
    enum dtype dtype;
};

static struct shape shape;
static char kv[1 << 22];
static float stored[1 << 19]; /* [keys, 2, dim] what was stored */

static size_t plane_bytes(void)
{
    return 16 * (size_t)shape.dim * dtype_info[shape.dtype].bits / 8 +
           (shape.dtype == DTYPE_E4M3 ? 16 : 0);
}

/* A row as the backend stores it, and as it is read. */
static void fill_row(char *plane, int at, float *row, const uint16_t *from)
{
    char *to = plane + (size_t)(at * shape.dim) * dtype_info[shape.dtype].bits / 8;
    float x[128];
    uint8_t scale;

    for (int d = 0; d < shape.dim; d++)
        row[d] = x[d] = f32_from_bf16(from[d]);
    if (shape.dtype == DTYPE_BF16)
        memcpy(to, from, (size_t)shape.dim * sizeof(*from));
    else if (shape.dtype == DTYPE_F32)
        memcpy(to, x, (size_t)shape.dim * sizeof(*x));
    if (shape.dtype != DTYPE_E4M3)
        return;
    scale = cpu_ops_best()->to_e4m3((uint8_t *)to, x, shape.dim);
    plane[16 * shape.dim + at] = (char)scale;
    for (int d = 0; d < shape.dim; d++) {
        row[d] = ldexpf(f32_from_e4m3((uint8_t)to[d]), scale - 127);
        ck_assert(fabsf(row[d] - x[d]) <= fabsf(x[d]) / 16 + ldexpf(1, scale - 127 - 10));
    }
}

static void fill_kv(int n_keys)
{
    memset(kv, 0xff, sizeof(kv));
    for (int row = 0; row < 2 * n_keys; row++) {
        const size_t block = (size_t)(100 - row / 2 / 16);

        fill_row(kv + (2 * block + (size_t)(row % 2)) * plane_bytes(), row / 2 % 16,
                 stored + row * shape.dim, half + row * shape.dim);
    }
}

static void run_attend(int n_keys)
{
    static int32_t table[100];
    const size_t plane = plane_bytes();
    const size_t stride = (size_t)(shape.group * shape.dim);
    const size_t n_scratch = cpu_attend_scratch(shape.rows * shape.group, shape.dim);
    float *scratch = calloc(n_scratch + GUARD, sizeof(*scratch));

    for (int i = 0; i < 100; i++)
        table[i] = i < (n_keys + 15) / 16 ? 100 - i : -1;
    memset(scratch, 0xff, (n_scratch + GUARD) * sizeof(*scratch));
    ops->attend(&(struct attend){.q = in,
                                 .out = out,
                                 .q_stride = stride + 5,
                                 .out_stride = stride,
                                 .n_rows = shape.rows,
                                 .n_group = shape.group,
                                 .first_pos = shape.first_pos,
                                 .head_dim = shape.dim,
                                 .scale = 0.5f,
                                 .block_table = table,
                                 .block_shift = 4,
                                 .k = kv,
                                 .v = kv + plane,
                                 .block_bytes = 2 * plane,
                                 .dtype = shape.dtype,
                                 .scratch = scratch});
    for (size_t i = n_scratch; i < n_scratch + GUARD; i++)
        ck_assert(scratch[i] != scratch[i]);
    free(scratch);
    for (int r = 0; r < shape.rows * shape.group; r++) {
        const float *q =
            in + (size_t)(r / shape.group) * (stride + 5) + r % shape.group * shape.dim;
        double p[2000], sum = 0.0;
        const int n = shape.first_pos + r / shape.group + 1;

        for (int j = 0; j < n; j++) {
            double dot = 0.0;

            for (int d = 0; d < shape.dim; d++)
                dot += (double)q[d] * (double)stored[j * 2 * shape.dim + d];
            sum += p[j] = exp(dot * 0.5 - 20);
        }
        for (int d = 0; d < shape.dim; d++) {
            double want = 0.0;

            for (int j = 0; j < n; j++)
                want += p[j] / sum * (double)stored[(j * 2 + 1) * shape.dim + d];
            ck_assert_msg(fabs((double)out[r * shape.dim + d] - want) < 1e-5,
                          "%s: row %d, dim %d: %g not %g", ops->name, r, d,
                          (double)out[r * shape.dim + d], want);
        }
    }
}

/* Decode and prefill around the edges of key groups and blocks, with groups of 1 to 64 heads and
 * dimensions that fill no vector; only the sequence's slots are read. */
TEST(attention, .n = 13)
{
    static const int firsts[] = {0, 1, 15, 16, 62, 63, 64, 65, 127, 300};
    static const struct shape shapes[] = {
        {1, 1, 0, 64, DTYPE_F32},  {1, 2, 0, 128, DTYPE_F32},  {1, 7, 0, 64, DTYPE_F32},
        {5, 3, 0, 16, DTYPE_F32},  {24, 2, 0, 128, DTYPE_F32}, {48, 1, 0, 32, DTYPE_BF16},
        {3, 2, 0, 10, DTYPE_F32},  {7, 5, 0, 6, DTYPE_BF16},   {1, 64, 0, 2, DTYPE_F32},
        {70, 1, 0, 80, DTYPE_F32}, {1, 4, 0, 128, DTYPE_E4M3}, {9, 2, 0, 64, DTYPE_E4M3},
        {5, 3, 0, 10, DTYPE_E4M3},
    };

    shape = shapes[_i];
    for (int i = 0; i < 10; i++) {
        shape.first_pos = firsts[i];
        fill_kv(shape.first_pos + shape.rows);
        each_isa(run_attend, shape.first_pos + shape.rows, shape.rows * shape.group * shape.dim);
    }
}

enum { MAX_TASKS = 300 };

struct tally {
    _Atomic int runs[MAX_TASKS];
    _Atomic int busy[4]; /* by thread number */
    int plain[MAX_TASKS];
};

static void tally_task(void *ctx, int task, int thread)
{
    struct tally *t = ctx;

    ck_assert_int_eq(atomic_fetch_add(&t->busy[thread], 1), 0);
    atomic_fetch_add(&t->runs[task], 1);
    t->plain[task] += task; /* no lock: the pool orders one loop before the next */
    atomic_fetch_sub(&t->busy[thread], 1);
}

/* Each task runs once a loop with any number of threads, also after the pool has slept. */
TEST(pool_runs_each_task_once, .n = 4)
{
    static struct tally t;
    struct cpu_pool *pool;
    int loops = 0;

    ck_assert_int_eq(cpu_pool_new(&pool, _i + 1), 0);
    ck_assert_int_eq(cpu_pool_threads(pool), _i + 1);
    for (; loops < 3000; loops++) {
        cpu_pool_run(pool, loops % 10 ? loops % 7 : MAX_TASKS, tally_task, &t);
        if (loops % 1000 == 0)
            nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    for (int i = 0; i < MAX_TASKS; i++) {
        int want = 0;

        for (int l = 0; l < loops; l++)
            want += i < (l % 10 ? l % 7 : MAX_TASKS);
        ck_assert_int_eq(t.runs[i], want);
        ck_assert_int_eq(t.plain[i], want * i);
    }
    cpu_pool_free(pool);
    cpu_pool_free(NULL);
}

RUN_TESTS("cpu_ops", setup, NULL)
