/* gbnf.c - see gbnf.h. What has no rules in it is one regular expression, however it is written. */
#include "engine/grammar/gbnf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/utf8.h"
#include "engine/util/checked.h"
#include "engine/util/hex.h"

enum { MAX_SOURCE = 1 << 18, MAX_RULES = 2048, MAX_DEPTH = 100, MAX_RANGES = 1024 };

/* A part of a rule: an expression, or a rule of the grammar. */
struct part {
    bool is_rule;
    int32_t a;
};

struct parts {
    struct part *at; /* [n] */
    size_t n, cap;
};

struct name {
    struct text text;
    int32_t rule;
    size_t used_at; /* where it is first used */
    bool defined;
};

struct parser {
    struct grammar *g;
    struct text source;
    size_t at;
    int depth;          /* of groups */
    struct name *names; /* [n_names] in order */
    size_t n_names, names_cap;
    int code; /* negative: *e says why */
    struct err *e;
};

static struct part parse_union(struct parser *s);

static struct part refuse(struct parser *s, int code, const char *what)
{
    int line = 1;

    for (size_t i = 0; i < s->at && i < s->source.len; i++)
        line += s->source.data[i] == '\n';
    if (s->code == 0)
        s->code = err_set(s->e, code, "line %d: %s", line, what);
    return (struct part){.a = REGEX_NONE};
}

static int order_of(struct text a, struct text b)
{
    const int order = memcmp(a.data, b.data, a.len < b.len ? a.len : b.len);

    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static bool ended(const struct parser *s)
{
    return s->code < 0 || s->at >= s->source.len;
}

static char look(const struct parser *s)
{
    return ended(s) ? '\0' : s->source.data[s->at];
}

static bool take(struct parser *s, const char *text)
{
    const size_t n = strlen(text);
    const bool there =
        !ended(s) && s->source.len - s->at >= n && memcmp(s->source.data + s->at, text, n) == 0;

    s->at += there ? n : 0;
    return there;
}

/* White space and comments; lines: over the ends of lines, too. */
static void skip(struct parser *s, bool lines)
{
    while (!ended(s)) {
        const char c = look(s);

        if (c == '#')
            while (!ended(s) && look(s) != '\n')
                s->at++;
        else if (c == ' ' || c == '\t' || (lines && (c == '\n' || c == '\r')))
            s->at++;
        else
            break;
    }
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static struct text take_word(struct parser *s)
{
    const size_t first = s->at;

    while (is_word(look(s)))
        s->at++;
    return (struct text){s->source.data + first, s->at - first};
}

/* The rule of a name, which may be defined later. The pointer holds until the next one. */
static struct name *name_of(struct parser *s, struct text text)
{
    size_t at = 0, end = s->n_names;

    while (at < end) {
        const size_t mid = (at + end) / 2;
        const int order = order_of(s->names[mid].text, text);

        if (order == 0)
            return &s->names[mid];
        if (order < 0)
            at = mid + 1;
        else
            end = mid;
    }
    if (s->n_names == MAX_RULES) {
        refuse(s, -E2BIG, "too many rules");
        return NULL;
    }
    if (!array_reserve(&s->names, &s->names_cap, s->n_names + 1, sizeof(*s->names))) {
        refuse(s, -ENOMEM, "out of memory");
        return NULL;
    }
    memmove(s->names + at + 1, s->names + at, (s->n_names - at) * sizeof(*s->names));
    s->names[at] = (struct name){.text = text, .rule = grammar_rule(s->g), .used_at = s->at};
    s->n_names++;
    return &s->names[at];
}

/* ---- characters */

static uint32_t read_code(struct parser *s, int digits)
{
    uint32_t point = 0;

    for (int i = 0; i < digits; i++, s->at++) {
        const int digit = hex_digit((unsigned char)look(s));

        if (digit < 0)
            refuse(s, -EINVAL, "an escape has too few digits");
        else
            point = point * 16 + (uint32_t)digit;
    }
    if (point > REGEX_MAX_POINT || (point >= 0xd800 && point <= 0xdfff))
        refuse(s, -EINVAL, "no such character");
    return point;
}

/* One character of a string or a class. */
static uint32_t read_char(struct parser *s)
{
    static const char names[] = "nrt\\\"[]-/'", values[] = "\n\r\t\\\"[]-/'";
    const char *name;
    uint32_t point = UTF8_BROKEN;
    char c;

    if (!take(s, "\\")) {
        s->at += utf8_read(s->source.data + s->at, s->source.len - s->at, &point);
        if (point == UTF8_BROKEN)
            refuse(s, -EINVAL, "the text is not UTF-8");
        return point;
    }
    c = look(s);
    s->at++;
    name = c ? strchr(names, c) : NULL;
    if (name)
        return (unsigned char)values[name - names];
    if (c == 'x' || c == 'u' || c == 'U')
        return read_code(s, c == 'x' ? 2 : c == 'u' ? 4 : 8);
    refuse(s, -EINVAL, "no such escape");
    return 0;
}

static struct part parse_string(struct parser *s)
{
    struct regex_pool *p = &s->g->lexer.regex;
    int32_t *list = NULL, term = REGEX_EMPTY;
    size_t n = 0, cap = 0;

    while (!ended(s) && look(s) != '"' && look(s) != '\n') {
        if (!array_reserve(&list, &cap, n + 1, sizeof(*list))) {
            refuse(s, -ENOMEM, "out of memory");
            break;
        }
        list[n++] = regex_char(p, read_char(s));
    }
    if (!take(s, "\""))
        refuse(s, -EINVAL, "a string without its end");
    while (n > 0)
        term = regex_concat(p, list[--n], term);
    free(list);
    return (struct part){.a = term};
}

static struct part parse_class(struct parser *s)
{
    struct regex_pool *p = &s->g->lexer.regex;
    struct regex_range ranges[MAX_RANGES];
    const bool others = take(s, "^");
    size_t n = 0;

    while (!ended(s) && look(s) != ']' && look(s) != '\n') {
        const uint32_t lo = read_char(s);
        uint32_t hi = lo;

        if (look(s) == '-' && s->at + 1 < s->source.len && s->source.data[s->at + 1] != ']') {
            s->at++;
            hi = read_char(s);
        }
        if (hi < lo)
            refuse(s, -EINVAL, "a range out of order");
        else if (n == MAX_RANGES)
            refuse(s, -E2BIG, "too many ranges in a class");
        else
            ranges[n++] = (struct regex_range){lo, hi};
    }
    if (!take(s, "]"))
        return refuse(s, -EINVAL, "a class without its ]");
    return (struct part){.a = others ? regex_other_chars(p, ranges, n) : regex_chars(p, ranges, n)};
}

/* ---- parts */

/* A node for a part, then next. */
static int32_t node_of(struct parser *s, struct part part, int32_t next)
{
    return part.is_rule ? grammar_node(s->g, GRAMMAR_OP_CALL, part.a, next)
                        : grammar_text(s->g, part.a, LEXER_PLAIN, next);
}

static struct part rule_of(struct parser *s, int32_t node)
{
    const int32_t rule = grammar_rule(s->g);

    grammar_define(s->g, rule, node);
    return (struct part){.is_rule = true, .a = rule};
}

static struct part parse_atom(struct parser *s)
{
    struct part part;
    struct name *name;
    struct text word;

    if (take(s, "\""))
        return parse_string(s);
    if (take(s, "["))
        return parse_class(s);
    if (take(s, "."))
        return (struct part){.a = REGEX_ANY};
    if (take(s, "(")) {
        if (++s->depth > MAX_DEPTH)
            return refuse(s, -E2BIG, "nested too deeply");
        part = parse_union(s);
        s->depth--;
        return take(s, ")") ? part : refuse(s, -EINVAL, "a group without its )");
    }
    word = take_word(s);
    if (word.len == 0)
        return refuse(s, -EINVAL, "here must be a string, a class, a group or the name of a rule");
    name = name_of(s, word);
    return name ? (struct part){.is_rule = true, .a = name->rule} : (struct part){.a = REGEX_NONE};
}

static int32_t read_number(struct parser *s, int32_t fallback)
{
    int32_t n = 0;
    const size_t first = s->at;

    for (; look(s) >= '0' && look(s) <= '9'; s->at++)
        if (n <= REGEX_MAX_REPEAT)
            n = n * 10 + (look(s) - '0');
    if (n > REGEX_MAX_REPEAT)
        refuse(s, -E2BIG, "repeated too often");
    return s->at > first ? n : fallback;
}

/* A rule again and again: what follows each is the end, or one more. The first is there where one
 * must be: so nothing begins that cannot be ended. */
static struct part repeat_rule(struct parser *s, struct part part, int32_t min, int32_t max)
{
    struct grammar *g = s->g;
    const int32_t most = max == REGEX_INFINITE ? min : max;
    const int32_t end = min > 0 ? grammar_node(g, GRAMMAR_OP_FROM, min, GRAMMAR_END) : GRAMMAR_END;
    const int32_t loop = grammar_node(g, GRAMMAR_OP_FORK, end, end);
    int32_t first, more;

    if (max == 0 || loop == GRAMMAR_DEAD)
        return (struct part){.a = REGEX_EMPTY};
    first = more = node_of(s, part, grammar_node(g, GRAMMAR_OP_RAISE, most, loop));
    if (max != REGEX_INFINITE)
        more = grammar_node(g, GRAMMAR_OP_BELOW, max, more);
    if (more != GRAMMAR_DEAD)
        g->nodes[loop].a = more;
    return rule_of(s, min > 0 ? first : loop);
}

static struct part parse_repeat(struct parser *s)
{
    struct part part = parse_atom(s);

    while (!ended(s)) {
        int32_t min = 0, max = REGEX_INFINITE;

        skip(s, s->depth > 0);
        if (take(s, "?")) {
            max = 1;
        } else if (take(s, "+")) {
            min = 1;
        } else if (take(s, "{")) {
            min = read_number(s, 0);
            max = take(s, ",") ? read_number(s, REGEX_INFINITE) : min;
            if (!take(s, "}") || min > max)
                return refuse(s, -EINVAL, "a repetition is {2}, {2,} or {2,5}");
        } else if (!take(s, "*")) {
            break;
        }
        part = part.is_rule
                   ? repeat_rule(s, part, min, max)
                   : (struct part){.a = regex_repeat(&s->g->lexer.regex, part.a, min, max)};
    }
    return part;
}

static bool ends_sequence(const struct parser *s)
{
    const char c = look(s);

    return ended(s) || c == '|' || c == ')' || c == '\n' || c == '\r';
}

static bool add(struct parser *s, struct parts *list, struct part part)
{
    if (!array_reserve(&list->at, &list->cap, list->n + 1, sizeof(*list->at))) {
        refuse(s, -ENOMEM, "out of memory");
        return false;
    }
    list->at[list->n++] = part;
    return true;
}

/* Parts one behind the other; expressions side by side are one. */
static struct part parse_sequence(struct parser *s)
{
    struct regex_pool *p = &s->g->lexer.regex;
    struct parts list = {0};
    int32_t node = GRAMMAR_END, term = REGEX_EMPTY; /* what follows, from the end on */
    bool has_rules = false;

    for (skip(s, s->depth > 0); !ends_sequence(s); skip(s, s->depth > 0))
        if (!add(s, &list, parse_repeat(s)))
            break;
    while (list.n > 0) {
        const struct part last = list.at[--list.n];

        if (last.is_rule) {
            node = term == REGEX_EMPTY ? node : node_of(s, (struct part){.a = term}, node);
            node = node_of(s, last, node);
        }
        term = last.is_rule ? REGEX_EMPTY : regex_concat(p, last.a, term);
        has_rules = has_rules || last.is_rule;
    }
    free(list.at);
    if (!has_rules)
        return (struct part){.a = term};
    return rule_of(s, term == REGEX_EMPTY ? node : node_of(s, (struct part){.a = term}, node));
}

static struct part parse_union(struct parser *s)
{
    struct parts list = {0};
    int32_t *terms = NULL, node = GRAMMAR_DEAD;
    size_t n = 0, cap = 0;

    do {
        skip(s, true);
        if (!add(s, &list, parse_sequence(s)))
            break;
    } while (take(s, "|"));
    for (size_t i = 0; i < list.n; i++) { /* expressions are one, whose order makes no difference */
        if (list.at[i].is_rule) {
            node = grammar_fork(s->g, node_of(s, list.at[i], GRAMMAR_END), node);
        } else if (!array_reserve(&terms, &cap, n + 1, sizeof(*terms))) {
            refuse(s, -ENOMEM, "out of memory");
        } else {
            terms[n++] = list.at[i].a;
        }
    }
    free(list.at);
    if (n == list.n) {
        struct part one = {.a = regex_or(&s->g->lexer.regex, terms, n)};

        free(terms);
        return one;
    }
    if (n > 0)
        node = grammar_fork(s->g,
                            node_of(s, (struct part){.a = regex_or(&s->g->lexer.regex, terms, n)},
                                    GRAMMAR_END),
                            node);
    free(terms);
    return rule_of(s, node);
}

/* ---- rules */

static void parse_rule(struct parser *s)
{
    const struct text word = take_word(s);
    struct name *name;
    struct part body;
    int32_t rule;

    if (word.len == 0) {
        refuse(s, -EINVAL, "here must be the name of a rule");
        return;
    }
    name = name_of(s, word);
    skip(s, false);
    if (name && name->defined)
        refuse(s, -EINVAL, "this rule is there already");
    else if (!take(s, "::="))
        refuse(s, -EINVAL, "behind the name of a rule must be ::=");
    if (s->code < 0)
        return;
    name->defined = true;
    rule = name->rule;
    skip(s, true);
    body = parse_union(s);
    if (!ended(s) && look(s) != '\n' && look(s) != '\r')
        refuse(s, -EINVAL, "this does not belong to the rule");
    grammar_define(s->g, rule, node_of(s, body, GRAMMAR_END));
}

/* With the line at which the rule comes up first. */
static void refuse_rule(struct parser *s, int code, const char *before, const struct name *n,
                        const char *behind)
{
    char what[200];

    snprintf(what, sizeof(what), "%s “%.*s”%s", before,
             (int)(n->text.len < 100 ? n->text.len : 100), n->text.data, behind);
    s->at = n->used_at;
    refuse(s, code, what);
}

static int32_t check_names(struct parser *s)
{
    int32_t root = -1;

    for (size_t i = 0; i < s->n_names && s->code == 0; i++) {
        const struct name *n = &s->names[i];

        if (order_of(n->text, (struct text){"root", 4}) == 0)
            root = n->rule;
        if (!n->defined)
            refuse_rule(s, -EINVAL, "there is no rule", n, "");
    }
    if (s->code == 0 && root < 0)
        s->code = err_set(s->e, -EINVAL, "there is no rule “root”");
    return root;
}

static void check_recursion(struct parser *s)
{
    const int32_t rule = grammar_failed(s->g) ? -1 : grammar_left_recursion(s->g);

    for (size_t i = 0; i < s->n_names; i++)
        if (s->names[i].rule == rule)
            refuse_rule(s, -ENOTSUP, "the rule", &s->names[i],
                        " begins with itself, which is not supported");
}

int gbnf_compile(struct grammar *g, struct text source, int32_t *rule, struct err *e)
{
    struct parser s = {.g = g, .source = source, .e = e};

    if (source.len > MAX_SOURCE)
        return err_set(e, -E2BIG, "longer than %d bytes", MAX_SOURCE);
    for (skip(&s, true); !ended(&s); skip(&s, true))
        parse_rule(&s);
    if (s.code == 0)
        *rule = check_names(&s);
    if (s.code == 0)
        check_recursion(&s);
    free(s.names);
    return s.code;
}
