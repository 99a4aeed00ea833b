/* test_bf16.c - conversions against references by value. */
#include <math.h>
#include <stdlib.h>

#include "engine/util/bf16.h"
#include "tests/unit/run_suite.h"

static float f32_of(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

/* The value of a bf16 pattern; for infinity the next power of two. */
static double bf16_value(uint32_t bits)
{
    if ((bits & 0x7fff) == 0x7f80)
        return bits & 0x8000 ? -0x1p128 : 0x1p128;
    return f32_of(bits << 16);
}

/* The nearer of the two patterns around x; of two as near the even one. */
static uint16_t reference(float x)
{
    uint32_t bits, low, high;
    double to_low, to_high;

    memcpy(&bits, &x, sizeof(bits));
    low = bits >> 16;
    if (isinf(x))
        return (uint16_t)low;
    high = low + 1;
    to_low = fabs(x - bf16_value(low));
    to_high = fabs(bf16_value(high) - x);
    if (to_low == to_high)
        return (uint16_t)(low & 1 ? high : low);
    return (uint16_t)(to_low < to_high ? low : high);
}

static void check_f32(uint32_t bits)
{
    float x = f32_of(bits);
    uint16_t got;

    bf16_from_f32_array(&got, &x, 1);
    if (isnan(x))
        ck_assert_msg(isnan(f32_from_bf16(got)) && got >> 15 == bits >> 31, "%08x", bits);
    else
        ck_assert_msg(got == reference(x), "%08x: %04x, not %04x", bits, got, reference(x));
}

/* Each exponent and sign, with every pattern of the bits that decide rounding. */
TEST(f32_rounds_to_nearest_even)
{
    static const uint32_t tails[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0x8002, 0xfffe, 0xffff};

    for (uint32_t head = 0; head < 0x10000; head++)
        for (size_t i = 0; i < N(tails); i++)
            check_f32(head << 16 | tails[i]);
}

/* All 65,536 f16 patterns, in one array as weights are converted. */
TEST(every_f16)
{
    static uint16_t from[0x10000], to[0x10000];

    for (uint32_t i = 0; i < 0x10000; i++)
        from[i] = (uint16_t)i;
    bf16_from_f16_array(to, from, 0x10000);
    for (uint32_t i = 0; i < 0x10000; i++) {
        int exponent = i >> 10 & 31, mantissa = i & 1023;
        double x = exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);

        if (exponent == 31 && mantissa) {
            ck_assert_msg(isnan(f32_from_bf16(to[i])), "%04x", i);
            continue;
        }
        if (exponent == 31)
            x = INFINITY;
        x = i & 0x8000 ? -x : x;
        ck_assert_msg(to[i] == reference((float)x), "%04x: %04x", i, to[i]);
    }
}

/* Each E4M3 value survives the way to float32 and back; what lies between two goes to the nearer
 * one, halfway to the even one; what is beyond the largest becomes that. */
TEST(every_e4m3)
{
    for (int i = 0; i < 0x7f; i++) {
        const double exact = i >> 3 ? ldexp(8 + (i & 7), (i >> 3) - 10) : ldexp(i, -9);
        const float x = f32_from_e4m3((uint8_t)i), next = f32_from_e4m3((uint8_t)(i + 1));
        const float half = (x + next) / 2;

        ck_assert((double)x == exact);
        ck_assert(f32_from_e4m3((uint8_t)(i | 0x80)) == -x);
        ck_assert_int_eq(e4m3_from_f32(x), i);
        ck_assert_int_eq(e4m3_from_f32(-x), i | 0x80);
        if (i == 0x7e)
            break;
        ck_assert_int_eq(e4m3_from_f32(nextafterf(half, 0)), i);
        ck_assert_int_eq(e4m3_from_f32(half), i + i % 2);
        ck_assert_int_eq(e4m3_from_f32(nextafterf(half, 1e3f)), i + 1);
    }
    ck_assert_int_eq(e4m3_from_f32(449), 0x7e);
    ck_assert_int_eq(e4m3_from_f32(-INFINITY), 0xfe);
    ck_assert_int_eq(e4m3_from_f32(0x1p-10f), 0);
    ck_assert_int_eq(e4m3_from_f32(0x1.8p-10f), 1);
    ck_assert_int_eq(e4m3_from_f32(1e-40f), 0);
}

/* Each bf16 value survives the way to float32 and back. */
TEST(bf16_survives_f32)
{
    for (uint32_t i = 0; i < 0x10000; i++)
        if (!isnan(f32_from_bf16((uint16_t)i)))
            ck_assert_uint_eq(bf16_from_f32(f32_from_bf16((uint16_t)i)), i);
}

/* Arrays of every short length are converted to the end and no further. */
TEST(arrays_of_odd_lengths)
{
    for (size_t n = 0; n < 70; n++) {
        float f32[70];
        uint16_t f16[70], to[71];

        for (size_t i = 0; i < 70; i++) {
            f32[i] = (float)i + 1;
            f16[i] = 0x3c00; /* 1 */
        }
        memset(to, 0xaa, sizeof(to));
        bf16_from_f32_array(to, f32, n);
        for (size_t i = 0; i < n; i++)
            ck_assert(f32_from_bf16(to[i]) == (float)i + 1);
        ck_assert_uint_eq(to[n], 0xaaaa);
        memset(to, 0xaa, sizeof(to));
        bf16_from_f16_array(to, f16, n);
        for (size_t i = 0; i < n; i++)
            ck_assert_uint_eq(to[i], 0x3f80);
        ck_assert_uint_eq(to[n], 0xaaaa);
    }
}

RUN_TESTS("bf16", NULL, NULL)
