/* json_nodes.c - nodes of a grammar for JSON: its marks, words, strings, and whole values. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/json_impl.h"

/* What printers of JSON write. More would only be a place for a model to get lost in. */
enum { MAX_NEWLINES = 2, MAX_INDENT = 32 };

int32_t node_plain(struct compiler *c, int32_t term, int32_t next)
{
    return grammar_text(c->g, term, LEXER_PLAIN, next);
}

int32_t node_word(struct compiler *c, const char *text, int32_t next)
{
    return node_plain(c, regex_text(&c->g->lexer.regex, (struct text){text, strlen(text)}), next);
}

int32_t node_string(struct compiler *c, int32_t term, int32_t next)
{
    return grammar_text(c->g, term, LEXER_JSON, next);
}

int32_t node_call(struct compiler *c, int32_t rule, int32_t next)
{
    return grammar_node(c->g, GRAMMAR_OP_CALL, rule, next);
}

int32_t node_from(struct compiler *c, int32_t least, int32_t node)
{
    return least <= 0 ? node : grammar_node(c->g, GRAMMAR_OP_FROM, least, node);
}

/* A character between white space. */
static int32_t mark(struct compiler *c, char m, bool before, bool behind_it)
{
    struct regex_pool *p = &c->g->lexer.regex;
    const int32_t term = regex_char(p, (uint32_t)m);
    const int32_t with = before ? regex_concat(p, c->ws, term) : term;

    return behind_it ? regex_concat(p, with, c->ws) : with;
}

int32_t json_space(struct regex_pool *p)
{
    static const struct regex_range blanks[] = {{'\t', '\t'}, {' ', ' '}};
    const int32_t lines = regex_repeat(p, regex_char(p, '\n'), 1, MAX_NEWLINES);
    const int32_t indent = regex_repeat(p, regex_chars(p, blanks, 2), 0, MAX_INDENT);

    return regex_repeat(p, regex_or2(p, regex_char(p, ' '), regex_concat(p, lines, indent)), 0, 1);
}

void node_marks(struct compiler *c)
{
    c->none = grammar_rule(c->g);
    c->ws = json_space(&c->g->lexer.regex);
    c->open_object = mark(c, '{', false, true);
    c->close_object = mark(c, '}', true, false);
    c->open_array = mark(c, '[', false, true);
    c->close_array = mark(c, ']', true, false);
    c->comma = mark(c, ',', true, true);
    c->colon = mark(c, ':', true, true);
}

int32_t node_empty(struct compiler *c, int32_t open, char close, int32_t next)
{
    struct regex_pool *p = &c->g->lexer.regex;

    return node_plain(c, regex_concat(p, open, regex_char(p, (uint32_t)close)), next);
}

/* A number with the fewest digits that mean it. */
static int32_t real_node(struct compiler *c, double x, int32_t next)
{
    char text[40];

    (void)json_step(c, 20);
    (void)json_real_text(text, sizeof(text), x);
    return node_word(c, text, next);
}

/* One value, as it is. */
int32_t node_literal(struct compiler *c, const json_t *v, int32_t next)
{
    struct regex_pool *p = &c->g->lexer.regex;
    const char *key;
    const json_t *one;
    char *text;
    int32_t node;

    if (!json_step(c, 3))
        return GRAMMAR_DEAD;
    switch (json_typeof(v)) {
    case JSON_STRING:
        return node_string(
            c, regex_text(p, (struct text){json_string_value(v), json_string_length(v)}), next);
    case JSON_ARRAY:
        node = node_plain(c, c->close_array, next);
        for (size_t i = json_array_size(v); i-- > 0;) {
            node = node_literal(c, json_array_get(v, i), node);
            node = i > 0 ? node_plain(c, c->comma, node) : node;
        }
        return json_array_size(v) ? node_plain(c, c->open_array, node)
                                  : node_empty(c, c->open_array, ']', next);
    case JSON_OBJECT: {
        const size_t n = json_object_size(v);
        const char **keys = calloc(n + 1, sizeof(*keys));
        size_t i = 0;

        if (!keys)
            json_refuse(c, -ENOMEM, "", "out of memory");
        json_object_foreach((json_t *)(uintptr_t)v, key, one)
        {
            if (keys)
                keys[i++] = key;
        }
        node = node_plain(c, c->close_object, next);
        while (i-- > 0) {
            node = node_literal(c, json_object_get(v, keys[i]), node);
            node = node_plain(c, c->colon, node);
            node = node_string(c, regex_text(p, (struct text){keys[i], strlen(keys[i])}), node);
            node = i > 0 ? node_plain(c, c->comma, node) : node;
        }
        free(keys);
        return n ? node_plain(c, c->open_object, node) : node_empty(c, c->open_object, '}', next);
    }
    case JSON_REAL:
        return real_node(c, json_real_value(v), next);
    default:
        text = json_dumps(v, JSON_ENCODE_ANY);
        if (!text) {
            json_refuse(c, -ENOMEM, "", "out of memory");
            return GRAMMAR_DEAD;
        }
        node = node_word(c, text, next);
        free(text);
        return node;
    }
}

/* Any number of the same, with commas between: between these marks. */
static int32_t any_list(struct compiler *c, int32_t open, int32_t close, const char *closed,
                        bool named)
{
    struct grammar *g = c->g;
    const int32_t members = grammar_rule(g);
    int32_t first = node_call(c, c->any, node_call(c, members, GRAMMAR_END));

    if (named)
        first = node_string(c, REGEX_ALL, node_plain(c, c->colon, first));
    grammar_define(g, members,
                   grammar_fork(g, node_plain(c, c->comma, first),
                                node_plain(c, close, GRAMMAR_END)));
    return node_plain(c, open, grammar_fork(g, first, node_word(c, closed, GRAMMAR_END)));
}

/* The rule of any value, which is made once. */
int32_t node_any(struct compiler *c)
{
    static const char *const words[] = {"true", "false", "null"};
    struct grammar *g = c->g;
    const json_t *none = NULL;
    int32_t node;

    if (c->any >= 0)
        return c->any;
    c->any = grammar_rule(g);
    node = node_plain(c, json_numbers(c, &none, 0, JSON_BIT_INTEGER | JSON_BIT_REAL), GRAMMAR_END);
    node = grammar_fork(g, node_string(c, REGEX_ALL, GRAMMAR_END), node);
    for (size_t i = 0; i < 3; i++)
        node = grammar_fork(g, node_word(c, words[i], GRAMMAR_END), node);
    node = grammar_fork(g, any_list(c, c->open_array, c->close_array, "]", false), node);
    node = grammar_fork(g, any_list(c, c->open_object, c->close_object, "}", true), node);
    grammar_define(g, c->any, node);
    return c->any;
}
