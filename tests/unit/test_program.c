/* test_program.c - proto/program.c: near words, words for a shell, closed streams. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/program.h"
#include "tests/unit/run_suite.h"

/* The distance is how many letters differ, are missing or too many. */
TEST(distance_counts_edits)
{
    ck_assert_int_eq(program_distance("", ""), 0);
    ck_assert_int_eq(program_distance("status", "status"), 0);
    ck_assert_int_eq(program_distance("", "abc"), 3);
    ck_assert_int_eq(program_distance("abc", ""), 3);
    ck_assert_int_eq(program_distance("statsu", "status"), 2);
    ck_assert_int_eq(program_distance("sttus", "status"), 1);
    ck_assert_int_eq(program_distance("sstatus", "status"), 1);
    ck_assert_int_eq(program_distance("kitten", "sitting"), 3);
    ck_assert_int_eq(program_distance("sitting", "kitten"), 3);
}

/* Words of the longest length count; longer ones are far from everything, themselves included. */
TEST(long_words_are_far)
{
    char a[PROGRAM_LONGEST_WORD + 2], b[PROGRAM_LONGEST_WORD + 2];

    memset(a, 'a', sizeof(a));
    a[PROGRAM_LONGEST_WORD] = '\0';
    strcpy(b, a);
    b[0] = 'b';
    ck_assert_int_eq(program_distance(a, b), 1);
    ck_assert_int_eq(program_distance(a, ""), PROGRAM_LONGEST_WORD);
    strcat(a, "a");
    ck_assert_int_eq(program_distance(a, a), PROGRAM_FAR);
    ck_assert_int_eq(program_distance("a", a), PROGRAM_FAR);
}

/* Numbers come one after the other, with blanks and commas between, to the end or to what is none.
 */
TEST(numbers_are_read_one_by_one)
{
    static const char text[] = " 7,,08\t\n2147483648 99999999999999999999999 5x";
    size_t at = 0;
    int64_t v;

    ck_assert_int_eq(program_next_number(&v, text, strlen(text), &at), PROGRAM_NUMBER);
    ck_assert_int_eq(v, 7);
    ck_assert_int_eq(program_next_number(&v, text, strlen(text), &at), PROGRAM_NUMBER);
    ck_assert_int_eq(v, 8);
    ck_assert_int_eq(program_next_number(&v, text, strlen(text), &at), PROGRAM_NUMBER);
    ck_assert_int_eq(v, INT64_C(1) << 31);
    ck_assert_int_eq(program_next_number(&v, text, strlen(text), &at), PROGRAM_NUMBER);
    ck_assert_int_ge(v, INT64_C(1) << 31);
    ck_assert_int_eq(program_next_number(&v, text, strlen(text), &at), PROGRAM_NUMBER);
    ck_assert_int_eq(v, 5);
    ck_assert_int_eq(program_next_number(&v, text, strlen(text), &at), PROGRAM_NONE);
    ck_assert_uint_eq(at, strlen(text) - 1);
    at = 0;
    ck_assert_int_eq(program_next_number(&v, " , ", 3, &at), PROGRAM_END);
    ck_assert_uint_eq(at, 3);
    at = 0;
    ck_assert_int_eq(program_next_number(&v, "-1", 2, &at), PROGRAM_NONE);
    ck_assert_int_eq(program_next_number(&v, "1\0002", 3, &(size_t){1}), PROGRAM_NONE);
    ck_assert_int_eq(program_next_number(&v, NULL, 0, &(size_t){0}), PROGRAM_END);
}

/* What a shell makes of it is the text, whatever is in it. */
TEST(shell_reads_quoted_text_back)
{
    static const char *const texts[] = {
        "", "/srv/a b", "it's", "'", "''", "$(id)`id`\\\"*?~!#&;|<>", "line\nline\ttab", "größe",
    };
    char quoted[100], command[200], back[100];

    for (size_t i = 0; i < N(texts); i++) {
        FILE *f;
        size_t n;

        ck_assert_ptr_eq(program_quote(quoted, sizeof(quoted), texts[i]), quoted);
        snprintf(command, sizeof(command), "printf %%s %s", quoted);
        f = popen(command, "r");
        ck_assert_ptr_nonnull(f);
        n = fread(back, 1, sizeof(back) - 1, f);
        back[n] = '\0';
        ck_assert_int_eq(pclose(f), 0);
        ck_assert_str_eq(back, texts[i]);
    }
}

/* Where there is too little room it is still one word, with what there is room for. */
TEST(quoted_text_is_cut_inside_the_quotes)
{
    char quoted[8];

    memset(quoted, 'x', sizeof(quoted));
    ck_assert_str_eq(program_quote(quoted, 3, "abc"), "''");
    ck_assert_int_eq(quoted[3], 'x');
    ck_assert_str_eq(program_quote(quoted, 5, "abc"), "'ab'");
    ck_assert_str_eq(program_quote(quoted, 6, "abc"), "'abc'");
    ck_assert_str_eq(program_quote(quoted, 6, "a'bc"), "'a'"); /* no half of a quote's stand-in */
    ck_assert_str_eq(program_quote(quoted, 8, "a'bc"), "'a'\\'''");
}

/* What is opened after closed streams were held has none of their numbers; open ones stay. */
TEST(closed_streams_are_held)
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        int out = open("/dev/null", O_WRONLY), fd;

        dup2(out, STDOUT_FILENO);
        close(out); /* the next one free, now and then again */
        close(STDIN_FILENO);
        close(STDERR_FILENO);
        program_hold_streams();
        fd = open("/dev/null", O_RDONLY);
        if (fd != out)
            _exit(1);
        if (write(STDERR_FILENO, "x", 1) != -1 || write(STDOUT_FILENO, "x", 1) != 1)
            _exit(2);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 0);
}

RUN_TESTS("program", NULL, NULL)
