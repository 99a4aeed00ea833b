/* test_packing.c - orders of packed elements and rounding, against tables worked out by hand. */
#include <math.h>
#include <string.h>

#include "engine/model/packing.h"
#include "engine/util/bf16.h"
#include "tests/unit/run_suite.h"

/* 0, 1, … 7 in sequence have the even ones first in a matrix, and both ways are inverse. */
TEST(words_are_reordered)
{
    uint32_t words[] = {0x76543210, 0xfedcba98};

    ck_assert_uint_eq(int4_from_sequence(0x76543210), 0x75316420);
    ck_assert_uint_eq(int4_to_sequence(0x75316420), 0x76543210);
    for (uint32_t x = 1; x; x <<= 1)
        ck_assert_uint_eq(int4_to_sequence(int4_from_sequence(x * 2654435761u)), x * 2654435761u);
    int4_reorder(words, 2);
    ck_assert_uint_eq(words[0], 0x75316420);
    ck_assert_uint_eq(words[1], 0xfdb9eca8);
}

TEST(squares_are_transposed)
{
    uint32_t words[8];

    for (uint32_t i = 0; i < 8; i++)
        words[i] = 0x11111111 * i; /* element j of word i is i */
    int4_transpose(words);
    for (int i = 0; i < 8; i++)
        ck_assert_uint_eq(words[i], 0x76543210);
    words[2] = 0x80000000;
    int4_transpose(words);
    ck_assert_uint_eq(words[7] >> 8 & 15, 8);
}

/* Two words of a column of three rows. */
TEST(gptq_is_transposed)
{
    static const uint32_t in[2][4] = {{0x76543210, 1, 2, 99}, {0xfedcba98, 0x10, 0x20, 99}};
    uint32_t out[3][2];

    int4_from_gptq(&out[0][0], 2, &in[0][0], 4, 2, 3);
    ck_assert_uint_eq(out[0][0], 0x75316420);
    ck_assert_uint_eq(out[0][1], 0xfdb9eca8);
    ck_assert_uint_eq(out[1][0], 1);
    ck_assert_uint_eq(out[1][1], 0x10000); /* element 1 */
    ck_assert_uint_eq(out[2][1], 0x20000);
}

/* Eight columns of sixteen rows, of which rows 1 to 9 are read: element k of row r is r ^ k. */
TEST(awq_is_transposed)
{
    static const int order[] = {0, 2, 4, 6, 1, 3, 5, 7};
    uint32_t in[8][2] = {{0}}, out[9];

    for (uint32_t k = 0; k < 8; k++)
        for (uint32_t r = 0; r < 16; r++)
            for (uint32_t i = 0; i < 8; i++)
                if ((uint32_t)order[i] == r % 8)
                    in[k][r / 8] |= (r ^ k) << 4 * i;
    int4_from_awq(out, 1, &in[0][0], 2, 1, 1, 9);
    for (uint32_t r = 1; r < 10; r++)
        for (uint32_t k = 0; k < 8; k++)
            ck_assert_uint_eq(int4_to_sequence(out[r - 1]) >> 4 * k & 15, r ^ k);
}

TEST(zeros_are_unpacked)
{
    static const uint32_t words[] = {0x76543210, 0, 0xfedcba98, 0};
    uint8_t out[12];

    memset(out, 99, sizeof(out));
    int4_unpack(out, 2, words, 2, 6, 4, 1, false); /* every other word, and every other byte */
    for (int i = 0; i < 4; i++) {
        ck_assert_uint_eq(out[2 * i], (uint8_t)(7 + i));
        ck_assert_uint_eq(out[2 * i + 1], 99);
    }
    int4_unpack(out, 1, words, 2, 0, 8, 0, true);
    ck_assert_mem_eq(out, ((uint8_t[]){0, 4, 1, 5, 2, 6, 3, 7}), 8);
}

static const struct {
    uint8_t bits;
    float value;
} e4m3[] = {{0x00, 0.0f}, {0x80, -0.0f},  {0x01, 0x1p-9f}, {0x07, 0x1.cp-7f}, {0x08, 0x1p-6f},
            {0x38, 1.0f}, {0x39, 1.125f}, {0xb8, -1.0f},   {0x7e, 448.0f},    {0xfe, -448.0f}};

TEST(e4m3_means_what_it_should, .n = N(e4m3))
{
    const float value = f32_from_e4m3(e4m3[_i].bits);

    ck_assert_mem_eq(&value, &e4m3[_i].value, sizeof(value));
}

/* Every value is its own nearest; between two the nearer, in the middle the even one. */
TEST(e4m3_is_rounded)
{
    uint16_t x[3];
    uint8_t out[3];

    for (int bits = 0; bits < 0x7e; bits++) {
        const float a = f32_from_e4m3((uint8_t)bits), b = f32_from_e4m3((uint8_t)(bits + 1));
        const float middle = (a + b) / 2;

        x[0] = bf16_from_f32(a);
        x[1] = bf16_from_f32(middle);
        x[2] = (uint16_t)(bf16_from_f32(middle) + 1);
        ck_assert(f32_from_bf16(x[0]) == a && f32_from_bf16(x[1]) == middle);
        e4m3_from_bf16(out, x, 3, 1.0f);
        ck_assert_uint_eq(out[0], (unsigned)bits);
        ck_assert_uint_eq(out[1], (unsigned)(bits + bits % 2));
        ck_assert_uint_eq(out[2], (unsigned)bits + 1);
        for (int i = 0; i < 3; i++)
            x[i] |= 0x8000;
        e4m3_from_bf16(out, x, 3, 1.0f);
        ck_assert_uint_eq(out[2], 0x80u | ((unsigned)bits + 1));
    }
}

/* The largest magnitude becomes 448, whatever its sign, and nothing becomes more. */
TEST(blocks_are_scaled)
{
    const uint16_t x[2][4] = {{bf16_from_f32(1.0f), bf16_from_f32(-7.0f), 0, bf16_from_f32(99.0f)},
                              {bf16_from_f32(0.0f), bf16_from_f32(3.5f), 0x8000,
                               bf16_from_f32(99.0f)}};
    const float scale = e4m3_scale(&x[0][0], 4, 2, 3);
    uint8_t out[4];

    ck_assert(scale == 7.0f / 448.0f);
    e4m3_from_bf16(out, x[0], 4, scale);
    ck_assert_mem_eq(out, ((uint8_t[]){0x68, 0xfe, 0x00, 0x7e}), 4); /* 64, -448, 0, 448 */
    ck_assert(e4m3_scale(&x[1][2], 4, 1, 1) == 1.0f);
}

/* Rounded to the nearest of -8 to 7 times the scale, which is the reach over 7.5. */
TEST(groups_are_quantized)
{
    static const float in[8] = {7.5f, -7.5f, 0.0f, 0.5f, 1.5f, 2.6f, -0.4f, -6.6f};
    uint16_t x[8], scale;
    uint32_t word;

    for (int i = 0; i < 8; i++)
        x[i] = bf16_from_f32(in[i]);
    int4_from_bf16(&word, &scale, x, 8);
    ck_assert(f32_from_bf16(scale) == 1.0f);
    /* 7, -8, 0, 0, 2, 3, 0, -7 plus 8 */
    ck_assert_uint_eq(int4_to_sequence(word), 0x18ba880f);
    memset(x, 0, sizeof(x));
    int4_from_bf16(&word, &scale, x, 8);
    ck_assert(f32_from_bf16(scale) == 1.0f);
    ck_assert_uint_eq(word, 0x88888888);
}

/* One weight that is no number, or infinite, is not lost to the scale of its group or block. */
TEST(broken_weights_break_their_scale)
{
    static const float broken[] = {NAN, -NAN, INFINITY, -INFINITY};

    for (size_t i = 0; i < N(broken); i++) {
        uint16_t x[8] = {0x3f80, 0xbf80, 0x3f80}, scale;
        uint32_t word;

        x[5] = bf16_from_f32(broken[i]);
        int4_from_bf16(&word, &scale, x, 8);
        ck_assert(!isfinite(f32_from_bf16(scale)));
        ck_assert(!isfinite(e4m3_scale(x, 4, 2, 4)));
    }
}

/* A row with a zero and a scale for each group. */
TEST(rows_become_floats)
{
    uint32_t words[8] = {int4_from_sequence(0xfedcba98), 0, 0, 0, int4_from_sequence(0x00000010)};
    uint16_t scales[2] = {0x3c00, 0x3800}; /* 1 and 0.5 as f16 */
    uint8_t zeros[2] = {9, 16};
    struct matrix m = {.data = words,
                       .dtype = DTYPE_INT4,
                       .n = 1,
                       .k = 64,
                       .ld = 64,
                       .scales = scales,
                       .scale_dtype = DTYPE_F16,
                       .zeros = zeros,
                       .scale_rows = 1,
                       .scale_cols = 32};
    float out[64];

    matrix_row_f32(out, &m, 0);
    ck_assert(out[0] == -1.0f && out[1] == 0.0f && out[7] == 6.0f && out[8] == -9.0f);
    ck_assert(out[32] == -8.0f && out[33] == -7.5f);
    m.zeros = NULL;
    matrix_row_f32(out, &m, 0);
    ck_assert(out[0] == 0.0f && out[33] == -3.5f);
}

RUN_TESTS("packing", NULL, NULL)
