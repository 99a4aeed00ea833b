/* tool_calls.c - see tool_calls.h. */
#include "engine/grammar/tool_calls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/json_schema.h"
#include "engine/text/answer.h"
#include "engine/util/json_util.h"

struct tool {
    json_t *json;
    const json_t *function;
    const char *path; /* of the function: "function." or "" */
};

/* tool.json is to be freed in any case. */
static int read_tool(struct tool *tool, struct text text, size_t i, size_t flags, struct err *e)
{
    char what[40];
    int r;

    snprintf(what, sizeof(what), "chat.tools[%zu]", i);
    *tool = (struct tool){.path = "function."};
    r = json_parse_large(&tool->json, what, text.data, text.len, flags, e);
    if (r < 0)
        return r;
    tool->function = json_object_get(tool->json, "function");
    if (!json_is_object(tool->function)) {
        tool->function = tool->json;
        tool->path = "";
    }
    return 0;
}

static bool is_strict(const struct tool *tool)
{
    return json_is_true(json_object_get(tool->function, "strict"));
}

/* Reads them as the chat template does: one that tool_calls_compile() refuses may be strict. */
int tool_calls_are_strict(const struct text *tools, size_t n)
{
    struct tool tool;
    struct err e;
    int strict = 0;

    for (size_t i = 0; i < n && strict == 0; i++) {
        const int r = read_tool(&tool, tools[i], i, JSON_ALLOW_NUL, &e);

        strict = r == -ENOMEM ? r : r == 0 && is_strict(&tool);
        json_decref(tool.json);
    }
    return strict;
}

/* The rule of a tool's arguments: always an object, for else it is no call. */
static int arguments_of(struct grammar *g, const struct tool *tool, size_t i, int32_t *rule,
                        struct err *e)
{
    const json_t *given = json_object_get(tool->function, "parameters");
    const char *type = json_string_value(json_object_get(given, "type"));
    json_t *any = json_pack("{s:s, s:b}", "type", "object", "additionalProperties",
                            !is_strict(tool)); /* as a tool without parameters takes none */
    struct err why = {""};
    int r;

    if (!any)
        return err_set(e, -ENOMEM, "out of memory");
    if (!is_strict(tool) || !given)
        r = json_schema_compile(g, any, rule, &why);
    else if (!type || strcmp(type, "object") != 0)
        r = err_set(&why, -EINVAL, "$.type: must be “object” in a strict tool");
    else
        r = json_schema_compile(g, given, rule, &why);
    json_decref(any);
    return r < 0 ? err_set(e, r, "chat.tools[%zu].%sparameters: %s", i, tool->path, why.text) : 0;
}

static int32_t text(struct regex_pool *p, const char *s)
{
    return regex_text(p, (struct text){s, strlen(s)});
}

/* Marks of JSON, each with white space before and behind it. */
static int32_t spaced(struct regex_pool *p, const char *const *marks, size_t n)
{
    const int32_t space = json_space(p);
    int32_t term = space;

    while (n-- > 0)
        term = regex_concat(p, space, regex_concat(p, text(p, marks[n]), term));
    return term;
}

/* From a tool's name to the end of the call. */
static int call_node(struct grammar *g, const struct tool *tool, size_t i, int32_t *node,
                     struct err *e)
{
    static const char *const between[] = {",", "\"arguments\"", ":"}, *const behind[] = {"}"};
    struct regex_pool *p = &g->lexer.regex;
    char *name = json_text(json_object_get(tool->function, "name"), JSON_ENCODE_ANY);
    int32_t rule, end;
    int r = name ? arguments_of(g, tool, i, &rule, e) : err_set(e, -ENOMEM, "out of memory");

    if (r == 0) {
        end = regex_concat(p, spaced(p, behind, 1), text(p, ANSWER_TAG_CALL_END));
        *node =
            grammar_node(g, GRAMMAR_OP_CALL, rule, grammar_text(g, end, LEXER_PLAIN, GRAMMAR_END));
        *node = grammar_text(g, regex_concat(p, text(p, name), spaced(p, between, 3)), LEXER_PLAIN,
                             *node);
    }
    free(name);
    return r;
}

int tool_calls_compile(struct grammar *g, const struct text *tools, size_t n, struct text only,
                       int32_t *rule, struct err *e)
{
    static const char *const before[] = {"{", "\"name\"", ":"};
    int32_t nodes = GRAMMAR_DEAD, node;
    bool found = false;
    int r = 0;

    for (size_t i = 0; i < n && r == 0; i++) {
        struct tool tool;
        const json_t *name;

        r = read_tool(&tool, tools[i], i, JSON_REJECT_DUPLICATES, e);
        name = json_object_get(tool.function, "name");
        if (r == 0 && json_string_length(name) == 0)
            r = err_set(e, -EINVAL, "chat.tools[%zu].%sname: must be a string that is not empty", i,
                        tool.path);
        if (r == 0 &&
            (only.len == 0 || (json_string_length(name) == only.len &&
                               memcmp(json_string_value(name), only.data, only.len) == 0))) {
            found = true;
            r = call_node(g, &tool, i, &node, e);
            nodes = r == 0 ? grammar_fork(g, node, nodes) : nodes;
        }
        json_decref(tool.json);
    }
    if (r == 0 && !found)
        r = err_set(e, -EINVAL, "chat.tool_choice: no tool has the name “%.*s”", (int)only.len,
                    only.data ? only.data : "");
    if (r < 0)
        return r;
    *rule = grammar_rule(g);
    grammar_define(g, *rule,
                   grammar_text(g, spaced(&g->lexer.regex, before, 3), LEXER_PLAIN, nodes));
    return 0;
}
