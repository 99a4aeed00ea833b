/* test_cpu_golden.c - the CPU backend computes the reference's tokens and logprobs, whatever the
 * batch, chunks, blocks, threads and instruction set. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cpu/cpu_backend.h"
#include "engine/model/model.h"
#include "tests/tools/backend_driver.h"
#include "tests/tools/golden_cases.h"
#include "tests/unit/run_suite.h"

enum {
    MAX_CASES = 64,
    N_TOP = 20,
#ifdef TEST_LIGHT /* sanitizers make the kernels twenty times slower */
    SHORT_PROMPT = 800,
    N_WAYS = 3,
    STRIDE = 3, /* every third case */
#else
    N_WAYS = 7,
    STRIDE = 1,
    SHORT_PROMPT = 2000, /* tokens: longer prompts have their own tests */
#endif
    STOP = 1993, /* <|im_end|> ended the reference's texts */
};

static struct golden *cases;
static int n_cases;
static struct model *model;
static struct err e;

static void setup(void)
{
    n_cases = golden_load(&cases, TEST_DATA_DIR);
    ck_assert_int_le(n_cases, MAX_CASES);
    ck_assert_int_ge(n_cases, 50);
    ck_assert_msg(model_open(&model, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
}

static void teardown(void)
{
    golden_free(cases, n_cases);
    model_close(model);
}

/* How a test runs the cases. */
struct way {
    int block_len, max_rows, max_seqs, n_threads, kv_mib;
    uint32_t scatter;
    bool two_in_flight, poison;
    enum cpu_isa isa; /* CPU_N_ISAS: the best */
    enum kv_dtype kv_dtype;
    int tp_size;
};

static const struct way usual = {16,         4096,          64, 2, 128, 0, false, false,
                                 CPU_N_ISAS, KV_DTYPE_AUTO, 1};

static struct backend_options options; /* of the way that is open */

static struct driver open_way(const struct way *w)
{
    struct driver d = {.ops = &cpu_backend,
                       .options = &options,
                       .one_in_flight = !w->two_in_flight,
                       .scatter = w->scatter};
    const struct cpu_ops *ops = w->isa < CPU_N_ISAS ? cpu_ops_get(w->isa) : cpu_ops_best();
    struct backend_info info;

    options = (struct backend_options){
        .block_len = w->block_len,
        .max_batch_tokens = w->max_rows,
        .max_seqs = w->max_seqs,
        .max_seq_len = model_config(model)->max_seq_len,
        .tier_bytes = {(uint64_t)w->kv_mib << 20},
        .kv_dtype = w->kv_dtype,
        .n_threads = w->n_threads,
        .tp_size = w->tp_size,
    };
    ck_assert_msg(cpu_backend_open_with(&d.backend, model, &options, ops, &e) == 0, "%s", e.text);
    cpu_backend.info(d.backend, &info);
    if (w->poison) /* all bits set: NaN in all dtypes */
        memset(cpu_backend_kv(d.backend), 0xff,
               info.block_bytes * (size_t)info.tiers[TIER_DEVICE].n_blocks);
    return d;
}

static void run_seqs(struct driver *d, struct drive_seq *seqs, int n)
{
    struct drive_times times;

    ck_assert_msg(drive(d, seqs, n, &times, &e) == 0, "%s", e.text);
}

static void seq_of(struct drive_seq *s, const struct golden *c)
{
    drive_seq_init(s, c->prompt, c->n_prompt, c->max_tokens, N_TOP);
    s->end_id = STOP;
}

/* The logprob of an id in a step's top list, or NaN. */
static double top_logprob(const struct drive_seq *s, int step, int32_t id)
{
    for (int k = 0; k < N_TOP; k++)
        if (s->top_ids[step * SAMPLING_MAX_LOGPROBS + k] == id)
            return (double)s->top_logprobs[step * SAMPLING_MAX_LOGPROBS + k];
    return NAN;
}

/* Equal ids if the reference's margin is large enough, equal logprobs as far as the texts agree. */
static double check_golden(const struct golden *c, const struct drive_seq *s, double tolerance,
                           double margin)
{
    double worst = 0.0;
    int n = 0;

    ck_assert(s->n_out > 0 && s->out[s->n_out - 1] != BATCH_NUMERICS);
    while (n < c->n_ids && n < s->n_out && c->ids[n] == s->out[n])
        n++;
    ck_assert_msg(c->min_margin < margin || (n == c->n_ids && n == s->n_out),
                  "%s: token %d is %d, not %d", c->name, n, (int)s->out[n], (int)c->ids[n]);
    for (int i = 0; i < (n < c->n_ids ? n + 1 : n) && i < s->n_out; i++)
        for (int k = 0; k < GOLDEN_TOP; k++) {
            const double off = fabs(top_logprob(s, i, c->top_ids[i][k]) - c->top_logprobs[i][k]);

            ck_assert_msg(off <= tolerance, "%s: logprob of %d in step %d is off by %g", c->name,
                          (int)c->top_ids[i][k], i, off);
            worst = off > worst ? off : worst;
        }
    return worst;
}

static void check_same(const struct golden *c, const struct drive_seq *a, const struct drive_seq *b)
{
    const size_t n = (size_t)a->n_out;

    ck_assert_msg(a->n_out == b->n_out && memcmp(a->out, b->out, n * sizeof(*a->out)) == 0 &&
                      memcmp(a->logprobs, b->logprobs, n * sizeof(*a->logprobs)) == 0,
                  "%s: not the same bits", c->name);
    for (size_t i = 0; i < n * SAMPLING_MAX_LOGPROBS; i++)
        ck_assert_msg(a->top_ids[i] == b->top_ids[i] && a->top_logprobs[i] == b->top_logprobs[i],
                      "%s: not the same best", c->name);
}

/* Runs all cases of up to max_prompt tokens, together or one by one. */
static void run_way(struct drive_seq *seqs, const struct way *w, bool together, int max_prompt)
{
    struct drive_seq *now[MAX_CASES];
    struct drive_seq *some = calloc(MAX_CASES, sizeof(*some));
    struct driver d = open_way(w);
    int n = 0;

    for (int i = 0; i < n_cases; i += STRIDE) {
        if (cases[i].n_prompt > max_prompt)
            continue;
        now[n] = &seqs[i];
        seq_of(&some[n++], &cases[i]);
        if (!together)
            run_seqs(&d, &some[n - 1], 1);
    }
    if (together)
        run_seqs(&d, some, n);
    for (int i = 0; i < n; i++)
        *now[i] = some[i];
    free(some);
    cpu_backend.close(d.backend);
}

static void free_seqs(struct drive_seq *seqs)
{
    for (int i = 0; i < n_cases; i++)
        drive_seq_deinit(&seqs[i]);
}

/* The reference's tokens and logprobs, each prompt by itself. */
TEST(golden_alone, .timeout = 240)
{
    static struct drive_seq seqs[MAX_CASES];
    double worst = 0.0;
    int n = 0;

    run_way(seqs, &usual, false, SHORT_PROMPT);
    for (int i = 0; i < n_cases; i++)
        if (seqs[i].n_out) {
            worst = fmax(worst, check_golden(&cases[i], &seqs[i], 2e-3, 0.005));
            n++;
        }
    ck_assert_int_ge(n, 50 / STRIDE);
    printf("golden: %d prompts, logprobs within %.2g\n", n, worst);
    free_seqs(seqs);
}

/* Block length, chunks, batch, steps in flight, order of blocks, threads and the contents of other
 * memory change no bit of any logprob. */
static const struct way ways[] = {
    {16, 64, 64, 2, 128, 0, false, true, CPU_N_ISAS, KV_DTYPE_AUTO, 1},
    {16, 4096, 64, 3, 128, 7, true, true, CPU_N_ISAS, KV_DTYPE_AUTO, 1},
    {256, 64, 5, 2, 64, 8, true, true, CPU_N_ISAS, KV_DTYPE_AUTO, 1},
    {256, 4096, 64, 1, 256, 0, false, false, CPU_N_ISAS, KV_DTYPE_AUTO, 1},
    {4096, 64, 4, 2, 256, 0, true, true, CPU_N_ISAS, KV_DTYPE_AUTO, 1},
    {4096, 4096, 64, 2, 384, 9, false, false, CPU_N_ISAS, KV_DTYPE_AUTO, 1},
    {32, 37, 64, 2, 128, 3, true, false, CPU_ISA_AVX2, KV_DTYPE_AUTO, 1},
};

_Static_assert(N_WAYS <= N(ways), "N_WAYS is too large");

TEST(way_changes_nothing, .timeout = 240)
{
    static struct drive_seq alone[MAX_CASES], now[MAX_CASES];

    run_way(alone, &usual, false, SHORT_PROMPT / 4);
    for (size_t way = 0; way < N_WAYS; way++) {
        int n = 0;

        if (ways[way].isa < CPU_N_ISAS && !cpu_ops_get(ways[way].isa))
            continue;
        run_way(now, &ways[way], true, SHORT_PROMPT / 4);
        for (int i = 0; i < n_cases; i++)
            if (now[i].n_out) {
                check_same(&cases[i], &alone[i], &now[i]);
                n++;
            }
        ck_assert_int_ge(n, 50 / STRIDE);
        free_seqs(now);
    }
    free_seqs(alone);
}

#ifdef TEST_LIGHT
enum { RANKS_PROMPT = 200, N_TP = 2 };
#else
enum { RANKS_PROMPT = SHORT_PROMPT / 4, N_TP = 3 };
#endif

/* Ranks: the reference's tokens and logprobs from shards, and for each number of ranks no bit
 * depends on the way. nvllm-tiny has 4 KV heads, so each is on two of 8 ranks. */
TEST(golden_with_ranks, .n = N_TP, .timeout = 240)
{
    static struct drive_seq alone[MAX_CASES], now[MAX_CASES];
    struct way w = usual;
    int n = 0;

    w.tp_size = 2 << _i;
    run_way(alone, &w, false, RANKS_PROMPT);
    w = ways[1 + _i];
    w.tp_size = 2 << _i;
    run_way(now, &w, true, RANKS_PROMPT);
    for (int i = 0; i < n_cases; i++)
        if (now[i].n_out) {
            check_golden(&cases[i], &alone[i], 2e-3, 0.005);
            check_same(&cases[i], &alone[i], &now[i]);
            n++;
        }
    ck_assert_int_ge(n, 40 / STRIDE);
    free_seqs(alone);
    free_seqs(now);
}

static const struct {
    enum kv_dtype dtype;
    double tolerance, margin;
} narrow[] = {{KV_DTYPE_BF16, 0.5, 1.0}, {KV_DTYPE_FP8, 4.5, 0.3}};

/* K and V in bf16 and E4M3: the same tokens if the candidates are further apart than the error that
 * this makes, and again no bit depends on the way. (With E4M3 one unlikely id of digits-2 is off by
 * 4.0, all others by less than 1.4.) */
TEST(narrow_kv, .n = N(narrow), .timeout = 240)
{
    static struct drive_seq alone[MAX_CASES], now[MAX_CASES];
    struct way w = usual;

    w.kv_dtype = narrow[_i].dtype;
    run_way(alone, &w, false, SHORT_PROMPT / 4);
    w = ways[2];
    w.kv_dtype = narrow[_i].dtype;
    run_way(now, &w, true, SHORT_PROMPT / 4);
    for (int i = 0; i < n_cases; i++)
        if (now[i].n_out) {
            check_same(&cases[i], &alone[i], &now[i]);
            check_golden(&cases[i], &now[i], narrow[_i].tolerance, narrow[_i].margin);
        }
    free_seqs(alone);
    free_seqs(now);
}

#ifndef TEST_LIGHT
static void golden_long(const char *name, const struct way *w, double tolerance)
{
    struct driver d;
    struct drive_seq s;
    int i = 0;

    while (i < n_cases && strcmp(cases[i].name, name) != 0)
        i++;
    ck_assert_msg(i < n_cases, "%s is missing", name);
    d = open_way(w);
    seq_of(&s, &cases[i]);
    run_seqs(&d, &s, 1);
    check_golden(&cases[i], &s, tolerance, 0.005);
    drive_seq_deinit(&s);
    cpu_backend.close(d.backend);
}

/* A pass-key is found after 1,558 and 5,540 tokens, with small and large blocks and chunks. */
TEST(golden_long_prompts, .timeout = 240)
{
    golden_long("passkey-250-sentences", &ways[2], 2e-3);
    golden_long("passkey-250-sentences", &ways[4], 2e-3);
    golden_long("passkey-900-sentences", &usual, 2e-3);
}

/* The same after 11,052 tokens, and with E4M3. */
TEST(golden_longest_prompt, .n = 2, .timeout = 240)
{
    struct way w = {4096, 1000, 1, 2, 256, 0, true, true, CPU_N_ISAS, KV_DTYPE_AUTO, 1};

    w.kv_dtype = _i ? KV_DTYPE_FP8 : KV_DTYPE_AUTO;
    golden_long("passkey-1800-sentences", &w, _i ? 4.5 : 2e-3);
}
#endif

RUN_TESTS("cpu_golden", setup, teardown)
