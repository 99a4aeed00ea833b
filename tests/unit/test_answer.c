/* test_answer.c - the parts of a chat's answer, however its text is cut; and its tool calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/answer.h"
#include "tests/unit/cpu_time.h"
#include "tests/unit/run_suite.h"

static const struct answer_format none = {false, false};
static const struct answer_format reasoning = {true, false};
static const struct answer_format calls = {false, true};
static const struct answer_format both = {true, true};

static struct text str(const char *text)
{
    return (struct text){text, strlen(text)};
}

/* What the parser says of a text: each kind's parts as one, "R(…) C(…) T(…)". */
struct found {
    char text[4096];
    size_t len;
    char kind;
};

static void note(struct found *f, char kind, struct text text)
{
    if (f->kind != kind || kind == 'T')
        f->len += (size_t)sprintf(f->text + f->len, f->kind ? ")%c(" : "%c(", kind);
    f->kind = kind;
    ck_assert_uint_lt(f->len + text.len + 8, sizeof(f->text));
    memcpy(f->text + f->len, text.data, text.len);
    f->len += text.len;
    f->text[f->len] = '\0';
}

/* Takes what is certain; gives the text that is left. */
static struct text take(struct answer_parser *p, struct text held, bool end, struct found *f)
{
    static const char kinds[] = {[ANSWER_REASONING] = 'R', [ANSWER_CONTENT] = 'C'};
    struct answer_part part;

    while ((part = answer_parser_next(p, held, end)).used) {
        char *name;
        size_t len;
        struct text arguments;

        ck_assert_uint_le(part.used, held.len);
        if (part.kind == ANSWER_REASONING || part.kind == ANSWER_CONTENT)
            note(f, kinds[part.kind], part.text);
        if (part.kind == ANSWER_TOOL_CALL &&
            answer_read_call(part.text, &name, &len, &arguments) == 0) {
            note(f, 'T', (struct text){name, len});
            note(f, 'A', arguments);
            free(name);
        } else if (part.kind == ANSWER_TOOL_CALL) {
            note(f, 'C', (struct text){held.data, part.used});
            answer_parser_reject(p);
        }
        held.data += part.used;
        held.len -= part.used;
    }
    return held;
}

/* The text in two pieces, or where `cut` is 0 byte by byte. Each piece lies in memory of its own,
 * so that sanitizers see a read behind its end. */
static void parse(struct found *f, struct answer_format format, bool is_begun, struct text text,
                  size_t cut)
{
    struct answer_parser p;
    struct text left = {NULL, 0};
    char *memory = NULL;

    *f = (struct found){.text = ""};
    answer_parser_init(&p, format, is_begun);
    for (size_t at = 0, n; at < text.len || at == 0; at += n) {
        char *grown;

        n = !cut ? 1 : at ? text.len - at : cut < text.len ? cut : text.len;
        grown = malloc(left.len + n + 1);
        if (left.len)
            memcpy(grown, left.data, left.len);
        if (text.len)
            memcpy(grown + left.len, text.data + at, n);
        free(memory);
        memory = grown;
        left = take(&p, (struct text){grown, left.len + (text.len ? n : 0)}, false, f);
        if (text.len == 0)
            break;
    }
    left = take(&p, left, true, f);
    ck_assert_uint_eq(left.len, 0);
    if (f->kind)
        strcat(f->text, ")");
    free(memory);
}

static void expect(struct answer_format format, bool is_begun, const char *text,
                   const char *expected)
{
    struct found f;

    for (size_t cut = 0; cut <= strlen(text); cut++) {
        parse(&f, format, is_begun, str(text), cut);
        ck_assert_msg(!strcmp(f.text, expected), "“%s” cut at %zu: %s, not %s", text, cut, f.text,
                      expected);
    }
}

TEST(reasoning_is_apart_from_content)
{
    expect(reasoning, false, "<think>\nwhy\nnot\n</think>\n\nYes.\n", "R(why\nnot)C(Yes.\n)");
    expect(reasoning, false, "<think>\n\n</think>\n\n42", "C(42)");
    expect(reasoning, false, "<think></think>42", "C(42)");
    expect(reasoning, false, "\n <think>a</think>b", "R(a)C(b)");
    expect(reasoning, true, "\nwhy\n</think>\n\nYes.", "R(why)C(Yes.)");
    expect(reasoning, true, "cut off in the mid\n", "R(cut off in the mid\n)");
    expect(reasoning, false, "<think>cut off </thin", "R(cut off </thin)");
    expect(reasoning, false, "<think>a < b </ c\n\n\n</think>d", "R(a < b </ c\n)C(d)");
}

TEST(tags_elsewhere_are_content)
{
    expect(reasoning, false, "A <think>b</think> c", "C(A <think>b</think> c)");
    expect(reasoning, false, "<thin", "C(<thin)");
    expect(reasoning, false, "\n\n text", "C(\n\n text)");
    expect(reasoning, false, "<think>a</think>b<think>c</think>", "R(a)C(b<think>c</think>)");
    expect(reasoning, false, "                 <think>a</think>",
           "C(                 <think>a</think>)"); /* 17 spaces */
    expect(none, false, "<think>a</think><tool_call>{}</tool_call>",
           "C(<think>a</think><tool_call>{}</tool_call>)");
    expect(reasoning, false, "<think>a</think><tool_call>{\"name\": \"f\"}</tool_call>",
           "R(a)C(<tool_call>{\"name\": \"f\"}</tool_call>)");
    expect(calls, false, "<think>a</think>b", "C(<think>a</think>b)");
    expect(both, false, "", "");
}

TEST(tool_calls_are_whole)
{
    expect(both, false,
           "<think>\nlook\n</think>\n\nI look.\n<tool_call>\n"
           "{\"name\": \"find\", \"arguments\": {\"a\": [1.0, {\"b\": \"}\\\"</tool_call>\"}], "
           "\"c\": null}}\n</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n"
           "</tool_call>",
           "R(look)C(I look.)T(find)A({\"a\": [1.0, {\"b\": \"}\\\"</tool_call>\"}], \"c\": null})"
           "T(g)A({})");
    expect(calls, false, "<tool_call>{\"name\":\"f\"}</tool_call>", "T(f)A({})");
    expect(calls, false, "<tool_call>{\"name\":\"f\"}", "T(f)A({})");
    expect(calls, false, "<tool_call>{\"name\":\"f\"}\n</tool_", "T(f)A({})");
    expect(calls, false, "<tool_call>{\"name\":\"f\"}</tool_call>\n\nDone.", "T(f)A({})C(Done.)");
    /* The text of a number stays as it is. */
    expect(calls, false,
           "<tool_call>{\"name\": \"\\u00e9\" , \"arguments\" : {\"x\":1.50e1} }</tool_call>",
           "T(\xc3\xa9)A({\"x\":1.50e1})");
    expect(calls, false,
           "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":12345678901234567890,"
           "\"y\":\"\\u0000\"}}</tool_call>",
           "T(f)A({\"x\":12345678901234567890,\"y\":\"\\u0000\"})");
}

TEST(what_looks_like_a_call_is_content)
{
    static const char *const texts[] = {
        "a\n<tool_call>f()</tool_call>b",
        "\n\n<tool_call>{\"name\": 7}</tool_call>",
        "<tool_call>{\"name\": \"\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"argum\\u0065nts\": {}}</tool_call>",
        "<tool_call>{name: f}</tool_call> c",
        "<tool_call>{\"name\": \"f\"",
        "<tool_call>{\"name\": \"f\"} trailing </tool_call>",
        "<tool_call>\n",
        "<tool_call",
        "</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1e999}}</tool_call>",
        "<tool_call>{\"x\": 1}</tool_call>\n\nHello",
        "<tool_call>{\"name\": \"f\\u0000\"}</tool_call>",
    };

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        char expected[256];

        snprintf(expected, sizeof(expected), "C(%s)", texts[i]);
        expect(calls, false, texts[i], expected);
    }
    expect(calls, false, "<tool_call><tool_call>{\"name\":\"f\"}</tool_call>",
           "C(<tool_call>)T(f)A({})");
    /* A brace that is missing does not take what follows with it. */
    expect(calls, false,
           "<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call>\n"
           "<tool_call>{\"name\": \"g\"}</tool_call>",
           "C(<tool_call>{\"name\": \"f\", \"arguments\": {}</tool_call>)T(g)A({})");
}

TEST(format_is_that_of_the_template)
{
    struct answer_format f = answer_format_of(str("{{ '<think>' }} … split('</think>')"));

    ck_assert(f.reasoning && !f.tool_calls);
    f = answer_format_of(str("<tool_call>{\"name\": …, \"arguments\": …}</tool_call>"));
    ck_assert(!f.reasoning && f.tool_calls);
    f = answer_format_of(
        str("{{ \"<tool_call>{\\\"name\\\": …, \\\"arguments\\\": …}</tool_call>\" }}"));
    ck_assert(f.tool_calls);
    f = answer_format_of(str("<tool_call><function={{ f.name }}>{{ f.arguments }}</tool_call>"));
    ck_assert(!f.tool_calls);
    f = answer_format_of((struct text){NULL, 0});
    ck_assert(!f.reasoning && !f.tool_calls);
    ck_assert(answer_is_begun(str("<|im_start|>assistant\n<think>\n")));
    ck_assert(!answer_is_begun(str("<|im_start|>assistant\n<think>\n\n</think>\n\n")));
    ck_assert(!answer_is_begun(str("think>")));
    ck_assert(!answer_is_begun((struct text){NULL, 0}));
}

/* The text without tags of reasoning, spaces and newlines. */
static void squeeze(char *out, const char *text)
{
    while (*text) {
        if (strncmp(text, "<think>", 7) == 0)
            text += 7;
        else if (strncmp(text, "</think>", 8) == 0)
            text += 8;
        else if (*text == ' ' || *text == '\n')
            text++;
        else
            *out++ = *text++;
    }
    *out = '\0';
}

/* All that a text's parts are made of. */
static void gather(char *out, struct answer_format format, bool is_begun, struct text text)
{
    struct answer_parser p;
    struct answer_part part;

    answer_parser_init(&p, format, is_begun);
    while ((part = answer_parser_next(&p, text, true)).used) {
        const struct text from =
            part.kind == ANSWER_TOOL_CALL ? (struct text){text.data, part.used} : part.text;

        if (part.kind != ANSWER_DROPPED)
            out = (char *)memcpy(out, from.data, from.len) + from.len;
        text.data += part.used;
        text.len -= part.used;
    }
    *out = '\0';
}

/* Random texts made of pieces that matter: each cut gives the same parts, and nothing is lost but
 * tags of reasoning, spaces and newlines. */
TEST(parts_do_not_depend_on_cuts)
{
    static const char *const pieces[] = {
        "<think>", "</think>", "<tool_call>", "</tool_call>",
        "\n",      "\n\n",     " ",           "a",
        "<",       "{",        "}",           "{\"name\": \"f\"}",
        "\"",      "\\",       "<tool_",      "{\"name\":\"g\",\"arguments\":{\"x\":{}}}",
    };
    unsigned seed = 1;

    for (int i = 0; i < 20000; i++) {
        const struct answer_format format = {i & 1, i & 2};
        struct found whole, cut;
        char text[512] = "", parts[512], want[512], got[512];

        for (int k = 0; k < 12; k++) {
            seed = seed * 1103515245 + 12345;
            strcat(text, pieces[(seed >> 16) % (sizeof(pieces) / sizeof(*pieces))]);
        }
        parse(&whole, format, i & 4, str(text), strlen(text));
        parse(&cut, format, i & 4, str(text), 0);
        ck_assert_msg(!strcmp(whole.text, cut.text), "“%s”: %s, but byte by byte %s", text,
                      whole.text, cut.text);
        parse(&cut, format, i & 4, str(text), 1 + (seed >> 16) % strlen(text));
        ck_assert_str_eq(whole.text, cut.text);
        gather(parts, format, i & 4, str(text));
        squeeze(want, text);
        squeeze(got, parts);
        ck_assert_msg(!strcmp(got, want), "of “%s” only “%s” is left", text, parts);
    }
}

/* A hundred thousand tags, each of which may be a call, byte by byte: a parser that went back to
 * each would take minutes. */
TEST(time_is_linear)
{
    static const char *const endless[] = {"<tool_call>{", "<tool_call>", "</tool_call>",
                                          "\n",           " ",           "<tool_call>{}x"};

    for (size_t i = 0; i < sizeof(endless) / sizeof(*endless); i++) {
        const double began = cpu_ms();
        const size_t n = 1000000;
        char *text = malloc(n);
        struct answer_parser p;
        size_t from = 0;

        for (size_t k = 0; k < n; k++)
            text[k] = endless[i][k % strlen(endless[i])];
        answer_parser_init(&p, both, false);
        for (size_t k = 1; k <= n; k++) {
            struct answer_part part;

            while (
                (part = answer_parser_next(&p, (struct text){text + from, k - from}, k == n)).used)
                from += part.used;
        }
        ck_assert_uint_eq(from, n);
        ck_assert_double_lt(cpu_ms() - began, 20000);
        free(text);
    }
}

RUN_TESTS("answer", NULL, NULL)
