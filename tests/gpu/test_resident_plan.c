/* test_resident_plan.c - for which models the resident kernel is planned, and for how many rows of
 * a step. This needs no GPU. */
#include <string.h>

#include "tests/gpu/resident_rig.h"
#include "tests/unit/run_suite.h"

/* The most rows of a step of a shape, on a device of 132 blocks. fp8: keys and values. */
static int most_rows(int n_heads, int hidden_dim, int ffn_dim, int n_experts,
                     const struct quantization *quant, bool fp8)
{
    const struct model_config c = {.n_layers = 2,
                                   .n_heads = n_heads,
                                   .n_kv_heads = 2,
                                   .head_dim = 128,
                                   .hidden_dim = hidden_dim,
                                   .ffn_dim = ffn_dim,
                                   .n_experts = n_experts,
                                   .n_experts_per_tok = 4,
                                   .quant = quant};
    struct forward f = {0};

    forward_plan_resident(&f, &c, 132, 4, fp8);
    return f.resident_rows;
}

/* A shape that the kernel is not made for is left to the chain. */
TEST(unfit_shapes_are_refused)
{
    static const struct {
        int n_heads, hidden_dim, ffn_dim, most_rows, n_experts;
    } unfit[] = {
        {6, 416, 992, 16, 0},           {18, 416, 992, 0, 0}, /* nine a KV head */
        {6, 416, 200000, 0, 0},                               /* one row leaves no ring */
        {6, 132 * 128 + 32, 992, 0, 0}, /* more columns a block than there is room for */
        {6, 416, 768, 1, 128},          /* rows go through different experts */
        {6, 416, 768, 0, 130},          /* more than the producer chooses of */
        {6, 416, 992, 0, 128},          /* steps of k of other warps than in a row of x */
    };

    for (int i = 0; i < N(unfit); i++)
        ck_assert_int_eq(most_rows(unfit[i].n_heads, unfit[i].hidden_dim, unfit[i].ffn_dim,
                                   unfit[i].n_experts, NULL, false),
                         unfit[i].most_rows);
}
END_TEST

/* So are weights of formats and sizes that it does not take, and mixtures of any. */
TEST(unfit_weights_are_refused)
{
    uint16_t all_but_one[2];
    const struct quantization of_rows = rig_quantization(DTYPE_E4M3, 1, 0, false);
    const struct quantization in_blocks = rig_quantization(DTYPE_E4M3, 128, 128, false);
    const struct quantization in_groups = rig_quantization(DTYPE_INT4, 1, 128, false);
    const struct quantization with_zeros = rig_quantization(DTYPE_INT4, 1, 128, true);
    const struct quantization fine = rig_quantization(DTYPE_INT4, 1, 32, false);
    struct quantization mixed = of_rows;
    const struct {
        const struct quantization *quant;
        int n_heads, hidden_dim, ffn_dim, most_rows;
    } unfit[] = {
        {&of_rows, 6, 448, 1024, 8},
        {&of_rows, 6, 416, 1024, 0}, /* weights that fill no step */
        {&mixed, 6, 448, 1024, 0},   /* a layer in which one product is not quantized */
        {&in_blocks, 4, 512, 1024, 8},
        {&in_blocks, 4, 512, 1280, 0}, /* a row's scales are no multiple of 16 bytes */
        {&in_groups, 8, 1024, 3072, 8},
        {&in_groups, 8, 1024, 2560, 0}, /* the same */
        {&fine, 8, 1024, 3072, 0},      /* groups of 32 */
        {&with_zeros, 16, 2048, 4096, 8},
        {&with_zeros, 16, 2048, 3072, 0}, /* the same of zeros */
    };

    memcpy(all_but_one, mixed.layers, sizeof(all_but_one));
    all_but_one[1] &= (uint16_t) ~(1 << (WEIGHT_O - N_MODEL_WEIGHTS));
    mixed.layers = all_but_one;
    for (int i = 0; i < N(unfit); i++) {
        ck_assert_int_eq(most_rows(unfit[i].n_heads, unfit[i].hidden_dim, unfit[i].ffn_dim, 0,
                                   unfit[i].quant, false),
                         unfit[i].most_rows);
        ck_assert_int_eq(most_rows(unfit[i].n_heads, unfit[i].hidden_dim, unfit[i].ffn_dim, 4,
                                   unfit[i].quant, false),
                         0);
    }
}
END_TEST

/* Keys and values of E4M3 leave steps of more rows to the chain, whatever the weights are. */
TEST(keys_of_e4m3_take_few_rows)
{
    const struct quantization in_groups = rig_quantization(DTYPE_INT4, 1, 128, false);

    ck_assert_int_eq(most_rows(6, 416, 992, 0, NULL, true), RESIDENT_FEW_ROWS);
    ck_assert_int_eq(most_rows(8, 1024, 3072, 0, &in_groups, true), RESIDENT_FEW_ROWS);
    ck_assert_int_eq(most_rows(6, 416, 768, 128, NULL, true), 1);
    ck_assert_int_eq(most_rows(18, 416, 992, 0, NULL, true), 0);
}
END_TEST

RUN_TESTS("resident_plan", NULL, NULL)
