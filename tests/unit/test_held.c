/* test_held.c - deltas that nobody reads become one a choice, and nothing of them is lost. */
#include "daemon/held.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/run_suite.h"

static struct held *list;
static size_t bytes;

static void setup(void)
{
    list = NULL;
    bytes = 0;
}

static void teardown(void)
{
    while (list)
        held_pop(&list);
}

static void add(int32_t choice, int32_t id, const char *text, enum core_reason reason)
{
    struct engine_event ev = {.type = ENGINE_DELTA,
                              .choice = choice,
                              .n_ids = 1,
                              .ids = &id,
                              .text = {text, strlen(text)},
                              .reason = reason};

    ck_assert_int_eq(held_add(&list, &ev, &bytes), 0);
}

/* Tokens and texts of many deltas follow each other in one, with the last one's reason. */
START_TEST(deltas_follow_each_other)
{
    const struct engine_event *d;

    for (int32_t i = 0; i < 1000; i++)
        add(0, i, i % 2 ? "ab" : "", i == 999 ? CORE_REASON_STOP : CORE_REASON_NONE);
    d = held_delta(list);
    ck_assert_int_eq(d->type, ENGINE_DELTA);
    ck_assert_uint_eq(d->n_ids, 1000);
    for (int32_t i = 0; i < 1000; i++)
        ck_assert_int_eq(d->ids[i], i);
    ck_assert_uint_eq(d->text.len, 1000);
    ck_assert_int_eq(memcmp(d->text.data + 998, "ab", 2), 0);
    ck_assert_int_eq(d->reason, CORE_REASON_STOP);
    ck_assert_ptr_null(d->logprobs);
    held_pop(&list);
    ck_assert_ptr_null(list);
}
END_TEST

/* Each choice has its own, in the order in which they came up. */
START_TEST(choices_are_kept_apart)
{
    static const int32_t order[] = {3, 0, 1};

    for (int round = 0; round < 5; round++)
        for (int i = 0; i < 3; i++)
            add(order[i], order[i] * 100 + round, "x", CORE_REASON_NONE);
    for (int i = 0; i < 3; i++) {
        const struct engine_event *d = held_delta(list);

        ck_assert_int_eq(d->choice, order[i]);
        ck_assert_uint_eq(d->n_ids, 5);
        ck_assert_int_eq(d->ids[4], order[i] * 100 + 4);
        held_pop(&list);
    }
    ck_assert_ptr_null(list);
}
END_TEST

/* What is told of the memory is what comes back with each pop. */
START_TEST(memory_is_counted)
{
    size_t back = 0;

    for (int32_t i = 0; i < 500; i++)
        add(i % 7, i, "some text", CORE_REASON_NONE);
    ck_assert_uint_ge(bytes, 500 * (sizeof(int32_t) + 9));
    while (list) {
        back += held_bytes(list);
        held_pop(&list);
    }
    ck_assert_uint_eq(back, bytes);
}
END_TEST

/* Logprobs stay beside their tokens. */
START_TEST(logprobs_stay_with_their_tokens)
{
    struct engine_logprobs logprobs = {.n_top = 1};
    int32_t id;
    struct engine_event ev = {
        .type = ENGINE_DELTA, .n_ids = 1, .ids = &id, .logprobs = &logprobs, .text = {NULL, 0}};

    for (id = 0; id < 100; id++) {
        logprobs.logprob = (float)-id;
        ck_assert_int_eq(held_add(&list, &ev, &bytes), 0);
    }
    for (int32_t i = 0; i < 100; i++)
        ck_assert_float_eq(held_delta(list)->logprobs[i].logprob, (float)-i);
}
END_TEST

/* A delta without a token, a choice's end alone, is held as well. */
START_TEST(an_end_alone_is_held)
{
    struct engine_event ev = {.type = ENGINE_DELTA,
                              .choice = 2,
                              .reason = CORE_REASON_CANCELLED,
                              .text = {NULL, 0}};

    ck_assert_int_eq(held_add(&list, &ev, &bytes), 0);
    ck_assert_uint_eq(held_delta(list)->n_ids, 0);
    ck_assert_int_eq(held_delta(list)->reason, CORE_REASON_CANCELLED);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("held");
    TCase *t = tcase_create("held");

    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, deltas_follow_each_other);
    tcase_add_test(t, choices_are_kept_apart);
    tcase_add_test(t, memory_is_counted);
    tcase_add_test(t, logprobs_stay_with_their_tokens);
    tcase_add_test(t, an_end_alone_is_held);
    suite_add_tcase(suite, t);
    return run_suite(suite);
}
