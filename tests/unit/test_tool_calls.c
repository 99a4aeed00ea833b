/* test_tool_calls.c - calls of tools among an answer: which the formats of tools allow, that the
 * answer's parser finds these, and which tools are refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/answer.h"
#include "tests/unit/format_rig.h"
#include "tests/unit/quotes.h"
#include "tests/unit/run_suite.h"

/* add is strict, and takes one member x that is 1, 2 or 3; say is not. */
static const char *const tool_texts[] = {
    "{'type': 'function', 'function': {'name': 'add', 'strict': true, 'parameters': {'type': "
    "'object', 'properties': {'x': {'enum': [1, 2, 3]}}, 'required': ['x'], "
    "'additionalProperties': false}}}",
    "{'name': 'say \\\"é'}",
};

static struct format *format_of_tools(struct format_source source)
{
    static struct text tools[N(tool_texts)];
    struct format *f;
    struct err e = {""};

    for (size_t i = 0; i < N(tool_texts); i++) {
        free((char *)tools[i].data);
        tools[i].data = strdup(quotes(tool_texts[i]));
        tools[i].len = strlen(tools[i].data);
    }
    source.tools = tools;
    source.n_tools = N(tool_texts);
    ck_assert_msg(format_new(&f, &source, rig.vocabulary, &e) == 0, "%s", e.text);
    return f;
}

#define ADD(x) "<tool_call>{\"name\": \"add\", \"arguments\": {\"x\": " x "}}</tool_call>"
#define SAY    "<tool_call>\n{\"name\":\"say \\\"é\",\"arguments\":{\"a\": [{}]} }\n</tool_call>"

static const struct {
    struct format_source source;
    const char *right[8], *wrong[8];
} answers_with_calls[] = {
    {{.calls = FORMAT_MAY_CALL},
     {"", "Hello <tool_ca", ADD("1"), "Wait." ADD("2") "\n" SAY "Done.", SAY, "</tool_call>",
      "<think>" ADD("3")},
     {"<tool_call>", "<tool_call>x", ADD("4"), ADD("1,\"y\":2"), "a<tool_call>{\"name\": \"b\"}",
      "<tool_call>{\"name\": \"add\"}</tool_call>", ADD("1") "<tool_call>{}</tool_call>",
      "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"add\"}</tool_call>"}},
    {{.calls = FORMAT_MAY_CALL, .one_call = true},
     {"", "Hello", "Wait." ADD("2") "\nDone.", SAY},
     {ADD("1") ADD("1"), ADD("4"), "<tool_call>"}},
    {{.calls = FORMAT_MAY_CALL, .reasoning = FORMAT_MAY_REASON},
     {"<think><tool_call>x</think>" ADD("1"), " \n<think>" ADD("4"), "Hello", "x<think>" ADD("1"),
      "<think></think>"},
     {ADD("4"), "x<think>" ADD("4"), "<think></think>" ADD("4"), "<thin>" ADD("4")}},
    {{.calls = FORMAT_MAY_CALL, .reasoning = FORMAT_IS_BEGUN},
     {"", "why" ADD("4"), "why</think>\n" ADD("1") "Done.", ADD("4") "</think>"},
     {"why</think>" ADD("4"), "</think>a<tool_call>{}"}},
    {{.calls = FORMAT_MAY_CALL, .kind = FORMAT_JSON_OBJECT},
     {"{}", "{\"<tool_call>\": 1}", ADD("1"), ADD("1") "\n" SAY},
     {"Hello", "", "{}" ADD("1"), ADD("1") "{}", ADD("4")}},
    {{.calls = FORMAT_MUST_CALL, .reasoning = FORMAT_MAY_REASON},
     {ADD("1"), "<think>" ADD("4") "</think>\n\n" ADD("1") ADD("2") "\n" SAY},
     {"", "Hello", ADD("4"), "a" ADD("1"), ADD("1") "a", ADD("1") "\n", "<think></think>"}},
    {{.calls = FORMAT_MUST_CALL, .one_call = true}, {ADD("1"), SAY}, {"", ADD("1") ADD("1")}},
    {{.calls = FORMAT_MUST_CALL, .called_tool = {"add", 3}},
     {ADD("1")},
     {"", SAY, ADD("1") ADD("1"), ADD("4")}},
};

TEST(calls_are_of_the_tools, .n = N(answers_with_calls))
{
    struct format *f = format_of_tools(answers_with_calls[_i].source);

    for (int i = 0; i < 8 && answers_with_calls[_i].right[i]; i++)
        ck_assert_msg(allows(f, answers_with_calls[_i].right[i]), "“%s” must be allowed",
                      answers_with_calls[_i].right[i]);
    for (int i = 0; i < 8 && answers_with_calls[_i].wrong[i]; i++)
        ck_assert_msg(!allows(f, answers_with_calls[_i].wrong[i]), "“%s” must not be allowed",
                      answers_with_calls[_i].wrong[i]);
    format_free(f);
}
END_TEST

/* Whether in the parts of an answer each opening tag begins a call, which has its closing tag. */
static bool has_whole_calls(struct text text, enum format_reasoning how)
{
    const struct answer_format format = {.reasoning = how != FORMAT_DIRECT, .tool_calls = true};
    struct answer_parser p;
    struct answer_part part;
    bool ok = true;

    answer_parser_init(&p, format, how == FORMAT_IS_BEGUN);
    while (ok && (part = answer_parser_next(&p, text, true)).used) {
        if (part.kind == ANSWER_CONTENT)
            ok = !memmem(part.text.data, part.text.len, "<tool_call>", 11);
        if (part.kind == ANSWER_TOOL_CALL) {
            struct text arguments;
            size_t len;
            char *name;

            ok = memcmp(text.data + part.used - 12, "</tool_call>", 12) == 0 &&
                 answer_read_call(part.text, &name, &len, &arguments) == 0;
            if (ok)
                free(name);
        }
        text.data += part.used;
        text.len -= part.used;
    }
    return ok;
}

/* Random texts made of pieces that matter. */
TEST(calls_are_where_the_parser_finds_them)
{
    static const char *const pieces[] = {
        "<think>", "</think>", "<tool_call>", "</tool_call>", "\n", " ",      "a", "<",
        "<tool_",  "<thin",    "{",           "\"",           SAY,  ADD("1"), SAY, ADD("2"),
    };
    const enum format_reasoning ways[] = {FORMAT_DIRECT, FORMAT_MAY_REASON, FORMAT_IS_BEGUN};
    unsigned seed = 1;
    int n_right = 0;

    for (size_t way = 0; way < N(ways); way++) {
        struct format *f = format_of_tools(
            (struct format_source){.calls = FORMAT_MAY_CALL, .reasoning = ways[way]});

        for (int i = 0; i < 3000; i++) {
            char text[1024] = "";
            bool right;

            for (int k = 0; k < 1 + i % 8; k++) {
                seed = seed * 1103515245 + 12345;
                strcat(text, pieces[(seed >> 16) % N(pieces)]);
            }
            right = has_whole_calls((struct text){text, strlen(text)}, ways[way]);
            n_right += right;
            ck_assert_msg(allows(f, text) == right, "“%s” must%s be allowed", text,
                          right ? "" : " not");
        }
        format_free(f);
    }
    ck_assert_int_gt(n_right, 1000);
}
END_TEST

static const struct {
    const char *tool;
    enum format_calls calls;
    const char *only, *message;
    int code;
} wrong_tools[] = {
    {"{'name': ''}", FORMAT_MUST_CALL, "", "chat.tools[0].name: must be a string", -EINVAL},
    {"{'function': {}}", FORMAT_MUST_CALL, "", "chat.tools[0].function.name: must be", -EINVAL},
    {"{'name': 'f'}", FORMAT_MUST_CALL, "g", "chat.tool_choice: no tool has the name “g”", -EINVAL},
    {"{'name': 'f', 'strict': true, 'parameters': {}}", FORMAT_MAY_CALL, "",
     "chat.tools[0].parameters: $.type: must be “object”", -EINVAL},
    {"{'function': {'name': 'f', 'strict': true, 'parameters': {'type': 'object', 'properties': "
     "{'a': {'unevaluatedItems': false}}}}}",
     FORMAT_MAY_CALL, "",
     "chat.tools[0].function.parameters: $.properties.a.unevaluatedItems: is not supported",
     -ENOTSUP},
};

TEST(tools_that_cannot_be_kept_to_are_refused, .n = N(wrong_tools))
{
    const char *text = quotes(wrong_tools[_i].tool), *only = wrong_tools[_i].only;
    const struct text tool = {text, strlen(text)};
    const struct format_source source = {.calls = wrong_tools[_i].calls,
                                         .tools = &tool,
                                         .n_tools = 1,
                                         .called_tool = {only, strlen(only)}};
    struct format *f;
    struct err e = {""};

    ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), wrong_tools[_i].code);
    ck_assert_msg(strstr(e.text, wrong_tools[_i].message), "%s", e.text);
}
END_TEST

TEST(tools_that_are_not_strict_ask_for_nothing)
{
    static const char loose[] = "{\"name\": \"f\"}";
    static const char strict[] = "{\"function\": {\"name\": \"g\", \"strict\": true}}";
    const struct text tools[] = {{loose, sizeof(loose) - 1}, {strict, sizeof(strict) - 1}};
    struct format_source source = {.calls = FORMAT_MAY_CALL, .tools = tools, .n_tools = 1};

    ck_assert(format_is_free(&source));
    source.one_call = true;
    ck_assert(!format_is_free(&source));
    source.one_call = false;
    source.n_tools = 2;
    ck_assert(!format_is_free(&source));
    source.calls = FORMAT_NO_CALLS;
    ck_assert(format_is_free(&source));
}
END_TEST

/* What the chat template reads, but a strict tool must not have. */
static const struct {
    const char *tool, *message;
} unclear_tools[] = {
    {"{'name': 'f', 'strict': true, 'a': 1, 'a': 2}", "chat.tools[0]: not JSON: "},
    {"{'name': 'f', 'strict': true, 'description': '\\u0000'}", "chat.tools[0]: not JSON: "},
    {"{'name': '', 'strict': true}", "chat.tools[0].name: must be a string"},
};

TEST(unclear_strict_tools_are_refused, .n = N(unclear_tools))
{
    const char *text = quotes(unclear_tools[_i].tool);
    const struct text tool = {text, strlen(text)};
    const struct format_source source = {.calls = FORMAT_MAY_CALL, .tools = &tool, .n_tools = 1};
    struct format *f;
    struct err e = {""};

    ck_assert(!format_is_free(&source));
    ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), -EINVAL);
    ck_assert_msg(strstr(e.text, unclear_tools[_i].message), "%s", e.text);
}
END_TEST

RUN_TESTS("tool_calls", format_rig_start, format_rig_end)
