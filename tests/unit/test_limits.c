/* test_limits.c - every bound is an option, and a refusal says which, how much and when again. */
#include "daemon/limits.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/run_suite.h"

static struct options o;
static struct refusal e;

static void setup(void)
{
    ck_assert_int_eq(options_init(&o, NULL), 0);
}

static void teardown(void)
{
    options_deinit(&o);
}

/* Each limit is an option of that name and of no other limit: what is set there is its value. */
TEST(each_limit_is_an_option)
{
    struct err why;

    for (int i = 0; i < N_LIMITS; i++) {
        enum limit l = (enum limit)i;

        ck_assert_ptr_nonnull(limit_option(l));
        for (int k = 0; k < i; k++)
            ck_assert_str_ne(limit_option(l), limit_option((enum limit)k));
        /* 1M is in the range of sizes, 8 in that of counts */
        if (options_set(&o, limit_option(l), "1M", &why) == 0) {
            ck_assert_msg(limit_value(&o, l) == 1 << 20, "%s", limit_option(l));
        } else {
            ck_assert_msg(options_set(&o, limit_option(l), "8", &why) == 0, "%s: %s",
                          limit_option(l), why.text);
            ck_assert_msg(limit_value(&o, l) == 8, "%s", limit_option(l));
        }
    }
}

/* A refusal names limit, value and amount; what is busy says when to come again. */
TEST(refusals_name_the_limit)
{
    char number[32];

    for (int i = 0; i < N_LIMITS; i++) {
        enum limit l = (enum limit)i;
        uint64_t value = limit_value(&o, l);

        ck_assert_int_eq(limit_refuse(&e, &o, l, "", value + 1), -EINVAL);
        ck_assert_str_eq(e.limit, limit_option(l));
        ck_assert_uint_eq(e.limit_value, value);
        ck_assert_ptr_nonnull(strstr(e.message.text, limit_option(l)));
        snprintf(number, sizeof(number), "%" PRIu64, value + 1);
        ck_assert_ptr_nonnull(strstr(e.message.text, number));
        ck_assert_int_eq(e.code == NVLLM__V1__ERROR_CODE__ERROR_BUSY, e.retry_after_ms != 0);
        ck_assert_str_eq(e.field, "");
    }
}

/* The field is named with the entry in it, in the text too. */
TEST(refusals_name_the_field)
{
    limit_refuse(&e, &o, LIMIT_STOP_BYTES, "stop[3]", 300);
    ck_assert_str_eq(e.field, "stop[3]");
    ck_assert_ptr_nonnull(strstr(e.message.text, "stop[3]: 300 bytes exceed the limit of 256"));
    refusal_of_field(&e, NVLLM__V1__ERROR_CODE__ERROR_INVALID, "a.b[7].c", "is %d", 5);
    ck_assert_str_eq(e.field, "a.b[7].c");
    ck_assert_str_eq(e.message.text, "a.b[7].c: is 5");
    ck_assert_ptr_null(e.limit);
}

/* Nothing of an earlier refusal is left in the next. */
TEST(refusals_begin_anew)
{
    limit_refuse(&e, &o, LIMIT_STOP_BYTES, "stop[3]", 300);
    refusal_set(&e, NVLLM__V1__ERROR_CODE__ERROR_INTERNAL, "out of %s", "memory");
    ck_assert_str_eq(e.field, "");
    ck_assert_ptr_null(e.limit);
    ck_assert_uint_eq(e.limit_value, 0);
    ck_assert_str_eq(e.message.text, "out of memory");
    limit_refuse_text(&e, &o, LIMIT_FRAME_TIMEOUT_S, "no end came within %d s", 30);
    ck_assert_str_eq(e.message.text, "no end came within 30 s (limits.frame_timeout_s)");
    ck_assert_uint_eq(e.limit_value, 30);
}

RUN_TESTS("limits", setup, teardown)
