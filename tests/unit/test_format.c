/* test_format.c - response formats: regular expressions, grammars and choices, the masks of a
 * format, and reasoning before it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/format_rig.h"
#include "tests/unit/quotes.h"
#include "tests/unit/run_suite.h"

/* ---- regular expressions and grammars */

static const struct texts expressions[] = {
    {"a|bc*", {"a", "b", "bcc"}, {"", "ac", "ab"}},
    {"^(a|b)$", {"a", "b"}, {"ab"}},
    {"[^a-y]{2,3}", {"zz", "zzz", "éé"}, {"z", "zzzz", "az"}},
    {"\\d+\\.\\d{2}", {"1.50", "123.00"}, {".50", "1.5", "1.500"}},
    {"(?:ab)?c+?", {"c", "abcc"}, {"ab", "abab"}},
    {"(?!0)\\d+", {"10"}, {"01", "0"}},
    {"(?=.*x).{3}", {"axb", "xxx"}, {"abc", "ax"}},
    {"\\u00e9|\\x41|\\u{1f600}", {"é", "A", "😀"}, {"e"}},
    {"[\\s\\S]*", {"", "a\nb", "日本"}, {NULL}},
    {"a{0}b", {"b"}, {"ab"}},
    {"(a*)*b", {"b", "aaab"}, {"a"}},
};

TEST(expressions_match_all_of_the_text, .n = N(expressions))
{
    check_texts(FORMAT_REGEX, &expressions[_i]);
}
END_TEST

static const struct texts grammars[] = {
    {"root ::= \"(\" root \")\" | [0-9]+", {"7", "((12))"}, {"(7", "()", "a"}},
    {"root ::= item (\",\" item)*\nitem ::= \"a\" | # one\n  \"b\"",
     {"a", "a,b,a"},
     {"", "a,", "c"}},
    {"root ::= pair{2} end?\npair ::= [xy] pair2\npair2 ::= \"z\"\nend ::= \"!\"",
     {"xzyz", "xzxz!"},
     {"xz", "xzyzxz"}},
    {"root ::= a a a\na ::= \"x\"?", {"", "x", "xxx"}, {"xxxx"}},
    {"root ::= e*\ne ::= \"\" | \"x\"", {"", "xxx"}, {"y"}},
    {"root ::= \"\\\"\" [^\"\\n]* \"\\\"\" \"\\u00e9\"", {"\"ab\"é"}, {"\"ab\"", "\"a\nb\"é"}},
    {"root ::= (\"a\"\n  | \"b\"){2,}", {"ab", "bbb"}, {"a"}},
    {"root ::= x{2} | y{2}\nx ::= \"x\" x\ny ::= \"y\" | \"(\" y \")\"",
     {"yy", "(y)y"},
     {"x", "y"}},
};

TEST(grammars_allow_their_texts, .n = N(grammars))
{
    check_texts(FORMAT_GRAMMAR, &grammars[_i]);
}
END_TEST

/* Rules r0 to r(n - 1), each of which begins with the next; the last one first where that is asked
 * for. */
static char *chain_of_rules(int n, bool last_first)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    ck_assert_ptr_nonnull(f);
    fputs("root ::= r0\nx ::= \"x\"\n", f);
    for (int i = 0; i < n; i++) {
        const int rule = last_first ? n - 1 - i : i;

        if (rule == n - 1)
            fprintf(f, "r%d ::= \"a\"\n", rule);
        else
            fprintf(f, "r%d ::= r%d x\n", rule, rule + 1);
    }
    ck_assert_int_eq(fclose(f), 0);
    return text;
}

/* It has texts, and no rule begins with itself. */
TEST(a_chain_of_rules_may_be_too_long)
{
    static const struct {
        int n;
        bool last_first;
    } chains[] = {{1300, false}, {1400, true}, {2000, false}};

    for (int i = 0; i < N(chains); i++) {
        char *text = chain_of_rules(chains[i].n, chains[i].last_first);
        const struct format_source source = source_of(FORMAT_GRAMMAR, text);
        struct format *f;
        struct err e = {""};

        ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), -E2BIG);
        ck_assert_str_eq(e.text, "too complex");
        free(text);
    }
}
END_TEST

/* A schema x that requires itself has no instance; what else there is, is allowed. */
#define ENDLESS                                                                                    \
    "'$defs': {'x': {'properties': {'a': {'$ref': '#/$defs/x'}}, 'required': ['a'], "              \
    "'type': 'object'}}"

static const struct texts beside_endless[] = {
    {"{'anyOf': [{'$ref': '#/$defs/x'}, {'type': 'array', 'minItems': 2}], " ENDLESS "}",
     {"[1,2]"},
     {"[1]", "{}"}},
    {"{'type': 'array', 'items': {'$ref': '#/$defs/x'}, " ENDLESS "}", {"[]"}, {"[{}]"}},
    {"{'type': ['array', 'null'], 'items': {'$ref': '#/$defs/x'}, 'minItems': 1, " ENDLESS "}",
     {"null"},
     {"[]"}},
};

TEST(what_never_ends_is_left_out, .n = N(beside_endless))
{
    struct texts t = beside_endless[_i];

    t.format = quotes(t.format);
    check_texts(FORMAT_JSON_SCHEMA, &t);
}
END_TEST

TEST(a_number_of_what_never_ends_is_refused)
{
    static const struct refusal r = {FORMAT_JSON_SCHEMA,
                                     "{'type': 'object', 'additionalProperties': false, "
                                     "'minProperties': 2, 'properties': {'b': true, 'c': true, "
                                     "'a': {'$ref': '#/$defs/x'}}, " ENDLESS "}",
                                     -ENOTSUP, "minProperties"};

    check_refusal(&r, quotes(r.text));
}
END_TEST

TEST(a_choice_is_one_of_the_texts)
{
    const struct text choices[] = {{"yes", 3}, {"no", 2}, {"not yet", 7}};
    const struct format_source source = {.kind = FORMAT_CHOICE,
                                         .choices = choices,
                                         .n_choices = N(choices)};
    struct format *f;
    struct err e;

    ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), 0);
    ck_assert(allows(f, "yes") && allows(f, "no") && allows(f, "not yet"));
    ck_assert(!allows(f, "nos") && !allows(f, "") && !allows(f, "not"));
    ck_assert(format_is_over(f, place_behind(f, "yes")));
    ck_assert(!format_is_over(f, place_behind(f, "no")));
    format_free(f);
}
END_TEST

/* As many as there may be, which begin alike: what a mask may cost must suffice for them. */
TEST(a_choice_may_be_of_thousands_of_texts)
{
    enum { N_TEXTS = 4096 };
    static const char *const parts[] = {"the", "ing", "and", "ion", "er", "in", "on", "at",
                                        "re",  "is",  "to",  "or",  "an", "le", "st", "en"};
    static char texts[N_TEXTS][20];
    struct text choices[N_TEXTS];
    const struct format_source source = {.kind = FORMAT_CHOICE,
                                         .choices = choices,
                                         .n_choices = N_TEXTS};
    uint32_t *mask = calloc((size_t)rig.n_ids / 32 + 1, sizeof(*mask));
    struct format *f;
    struct err e;

    for (int i = 0; i < N_TEXTS; i++) {
        for (uint32_t k = 0, hash = (uint32_t)i * 2654435761u; k < 6; k++, hash <<= 4)
            strcat(texts[i], parts[hash >> 28]);
        choices[i] = (struct text){texts[i], strlen(texts[i])};
    }
    ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), 0);
    for (int i = 0; i < N_TEXTS; i += 97) {
        ck_assert_int_eq(format_mask(f, mask, place_behind(f, ""), NULL, 0), 0);
        ck_assert(allows(f, texts[i]));
        texts[i][choices[i].len - 1] ^= 1;
        ck_assert(!allows(f, texts[i]));
    }
    format_free(f);
    free(mask);
}
END_TEST

static const struct refusal refusals[] = {
    {FORMAT_REGEX, "(a", -EINVAL, "a group without its )"},
    {FORMAT_REGEX, "a{3,2}", -EINVAL, "out of order"},
    {FORMAT_REGEX, "a\\b", -ENOTSUP, "\\b"},
    {FORMAT_REGEX, "[b-a]", -EINVAL, "out of order"},
    {FORMAT_GRAMMAR, "root ::=\n y x\ny ::= \"\"", -EINVAL, "line 2: there is no rule “x”"},
    {FORMAT_GRAMMAR, "a ::= \"x\"", -EINVAL, "no rule “root”"},
    {FORMAT_GRAMMAR, "root ::= \"a\"\nroot ::= \"b\"", -EINVAL, "line 2"},
    {FORMAT_GRAMMAR, "root ::= x\nx ::= y? (x \"a\" | \"b\")\ny ::= \"y\"", -ENOTSUP,
     "line 1: the rule “x” begins with itself"},
    {FORMAT_GRAMMAR, "root ::= \"a\" root", -EINVAL, "no text is allowed"},
    {FORMAT_GRAMMAR, "root ::= [a", -EINVAL, "a class without its ]"},
};

TEST(what_cannot_be_kept_to_is_refused, .n = N(refusals))
{
    check_refusal(&refusals[_i], refusals[_i].text);
}
END_TEST

/* ---- masks */

TEST(a_mask_has_exactly_the_tokens_that_go_on)
{
    static const char *const formats[] = {
        "{'type': 'object', 'properties': {'name': {'type': 'string'}, 'n': {'type': 'number'}}}",
        "{'type': 'string', 'maxLength': 40, 'pattern': '^[a-zé]'}",
        "{'type': 'array', 'items': {'enum': ['one', 'two', 3]}}",
    };
    const size_t words = ((size_t)rig.n_ids + 31) / 32;
    uint32_t *mask = calloc(words, sizeof(*mask));

    for (int i = 0; i < N(formats); i++) {
        struct format *f = format_of(FORMAT_JSON_SCHEMA, quotes(formats[i]));
        int32_t place = format_start(f);
        uint32_t random = 1;

        for (int step = 0; step < 60; step++) {
            int32_t n = 0, pick;

            if (format_mask(f, mask, place, NULL, 0) == -ENOENT)
                break;
            for (int32_t id = 0; id < rig.n_ids; id++) {
                const bool goes_on = format_step(f, place, id) != GRAMMAR_DEAD;

                ck_assert_int_eq(mask[id / 32] >> id % 32 & 1, goes_on);
                n += goes_on;
            }
            ck_assert_int_gt(n, 0);
            random = random * 1664525 + 1013904223;
            pick = (int32_t)(random >> 8) % n;
            for (int32_t id = 0; id < rig.n_ids; id++)
                if (mask[id / 32] >> id % 32 & 1 && pick-- == 0) {
                    place = format_step(f, place, id);
                    break;
                }
        }
        format_free(f);
    }
    free(mask);
}
END_TEST

TEST(the_end_is_in_the_mask_where_the_text_may_end)
{
    const int32_t ends[] = {rig.n_ids - 1};
    uint32_t *mask = calloc((size_t)rig.n_ids / 32 + 1, sizeof(*mask));
    struct format *f = format_of(FORMAT_REGEX, "ab?");

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(format_mask(f, mask, place_behind(f, i ? "a" : ""), ends, 1), 0);
        ck_assert_int_eq(mask[ends[0] / 32] >> ends[0] % 32 & 1, i);
    }
    format_free(f);
    free(mask);
}
END_TEST

TEST(reasoning_before_the_text_is_free)
{
    struct format_source source = source_of(FORMAT_REGEX, "x+");
    struct format *f;
    struct err e;

    source.reasoning = FORMAT_MAY_REASON;
    ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), 0);
    ck_assert(allows(f, "xx") && allows(f, "<think>\nany < text</think>\n\nx"));
    ck_assert(!allows(f, "<think>any") && !allows(f, "any</think>x"));
    format_free(f);
    source.reasoning = FORMAT_IS_BEGUN;
    ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), 0);
    ck_assert(allows(f, "any</think>\n\nx") && !allows(f, "x"));
    format_free(f);
}
END_TEST

RUN_TESTS("format", format_rig_start, format_rig_end)
