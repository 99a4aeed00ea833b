/* test_shares.c - scheduler.shares: who is meant, how much, and what is refused. */
#include "daemon/option_values.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/run_suite.h"

static struct shares s;
static struct err e;

/* Users by number and name, with any blanks between; nothing is no share. */
TEST(users_and_shares_are_taken)
{
    ck_assert_int_eq(option_parse_shares(&s, "", &e), 0);
    ck_assert_int_eq(s.n, 0);
    ck_assert_int_eq(option_parse_shares(&s, "  \t ", &e), 0);
    ck_assert_int_eq(s.n, 0);
    ck_assert_int_eq(option_parse_shares(&s, " 1000:300\troot:1  4294967294:10000 ", &e), 0);
    ck_assert_int_eq(s.n, 3);
    ck_assert_uint_eq(s.list[0].client, 1000);
    ck_assert_int_eq(s.list[0].share, 300);
    ck_assert_uint_eq(s.list[1].client, 0);
    ck_assert_int_eq(s.list[1].share, 1);
    ck_assert_uint_eq(s.list[2].client, 4294967294);
    ck_assert_int_eq(s.list[2].share, 10000);
}

/* What cannot be meant is refused by name, and nothing of it is taken. */
TEST(nonsense_is_refused)
{
    static const char *const bad[] = {
        "1000",
        "1000:",
        ":5",
        ":",
        "1000:0",
        "1000:10001",
        "1000:-5",
        "1000:+5",
        "1000:1.5",
        "1000:5x",
        "-1:5",
        "4294967295:5",
        "4294967296:5",
        "1000:5,7:5",
        "1000 : 5",
        "1000:5:6",
        "0:5 root:6",
        "1000:5 1000:5",
        "no-such-user-here:5",
        "99999999999999999999:5",
        "1000:99999999999999999999",
    };

    ck_assert_int_eq(option_parse_shares(&s, "7:8", &e), 0);
    for (size_t i = 0; i < N(bad); i++) {
        ck_assert_msg(option_parse_shares(&s, bad[i], &e) == -EINVAL, "%s", bad[i]);
        ck_assert_ptr_eq(strstr(e.text, "scheduler.shares: "), e.text);
        ck_assert_int_eq(s.n, 1);
        ck_assert_uint_eq(s.list[0].client, 7);
    }
}

/* There is room for so many users, and no more. */
TEST(users_are_bounded)
{
    char text[SHARES_MAX * 16 + 16] = "";

    for (int i = 0; i < SHARES_MAX; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d:50 ", i + 1);
    ck_assert_int_eq(option_parse_shares(&s, text, &e), 0);
    ck_assert_int_eq(s.n, SHARES_MAX);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "5000:50");
    ck_assert_int_eq(option_parse_shares(&s, text, &e), -EINVAL);
}

int main(void)
{
    return run_tests("shares", NULL, NULL);
}
