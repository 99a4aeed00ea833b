/* format.c - see format.h. */
#include "engine/grammar/format.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/tool_calls.h"
#include "engine/text/answer.h"
#include "engine/util/json_util.h"

enum {
    COMPILE_WORK = 400000, /* as many derivatives take some 40 ms */
    MASK_WORK = 400000,
    MAX_CHOICES = 4096,
};

struct format {
    struct grammar grammar;
    struct masks *masks;
};

/* ---- kinds */

static int parse_schema(json_t **out, struct text text, struct err *e)
{
    int r = json_parse_large(out, "$", text.data, text.len,
                             JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, e);

    if (r == 0 && !json_is_object(*out) && !json_is_boolean(*out)) {
        json_decref(*out);
        r = err_set(e, -EINVAL, "$: a schema must be an object, true or false");
    }
    return r;
}

static int compile_schema(struct grammar *g, const struct format_source *s, int32_t *rule,
                          struct err *e)
{
    json_t *schema;
    int r = s->kind == FORMAT_JSON_OBJECT
                ? parse_schema(&schema, (struct text){"{\"type\":\"object\"}", 17}, e)
                : parse_schema(&schema, s->text, e);

    if (r < 0)
        return r;
    r = json_schema_compile(g, schema, rule, e);
    json_decref(schema);
    return r;
}

static int compile_term(struct grammar *g, int32_t term, int32_t *rule)
{
    *rule = grammar_rule(g);
    grammar_define(g, *rule, grammar_text(g, term, LEXER_PLAIN, GRAMMAR_END));
    return 0;
}

static int compile_choice(struct grammar *g, const struct format_source *s, int32_t *rule,
                          struct err *e)
{
    int32_t terms[MAX_CHOICES];
    size_t bytes = 0;

    if (s->n_choices == 0 || s->n_choices > MAX_CHOICES)
        return err_set(e, s->n_choices ? -E2BIG : -EINVAL, "there must be 1 to %d choices",
                       MAX_CHOICES);
    for (size_t i = 0; i < s->n_choices; i++) {
        bytes += s->choices[i].len;
        if (s->choices[i].len > FORMAT_MAX_SOURCE || bytes > FORMAT_MAX_SOURCE)
            return err_set(e, -E2BIG, "longer than %d bytes", FORMAT_MAX_SOURCE);
        terms[i] = regex_text(&g->lexer.regex, s->choices[i]);
    }
    return compile_term(g, regex_or(&g->lexer.regex, terms, s->n_choices), rule);
}

static int compile(struct grammar *g, const struct format_source *s, int32_t *rule, struct err *e)
{
    int32_t term = REGEX_NONE;
    int r;

    if (s->text.len > FORMAT_MAX_SOURCE)
        return err_set(e, -E2BIG, "longer than %d bytes", FORMAT_MAX_SOURCE);
    switch (s->kind) {
    case FORMAT_REGEX:
        r = regex_parse(&term, &g->lexer.regex, s->text, false, e);
        return r < 0 ? r : compile_term(g, term, rule);
    case FORMAT_GRAMMAR:
        return gbnf_compile(g, s->text, rule, e);
    case FORMAT_CHOICE:
        return compile_choice(g, s, rule, e);
    default:
        return compile_schema(g, s, rule, e);
    }
}

/* ---- reasoning and calls around it */

static int32_t tag(struct regex_pool *p, const char *s)
{
    return regex_text(p, (struct text){s, strlen(s)});
}

static int32_t newlines(struct regex_pool *p)
{
    return regex_repeat(p, regex_char(p, '\n'), 0, ANSWER_MOST_NEWLINES);
}

/* Texts in which the tag is not. */
static int32_t without(struct regex_pool *p, int32_t t)
{
    return regex_not(p, regex_concat(p, REGEX_ALL, regex_concat(p, t, REGEX_ALL)));
}

static int32_t plain(struct grammar *g, int32_t term, int32_t next)
{
    return grammar_text(g, term, LEXER_PLAIN, next);
}

static int32_t call(struct grammar *g, int32_t rule, int32_t next)
{
    return grammar_node(g, GRAMMAR_OP_CALL, rule, next);
}

static int32_t rule_of(struct grammar *g, int32_t node)
{
    const int32_t rule = grammar_rule(g);

    grammar_define(g, rule, node);
    return rule;
}

/* The rule behind reasoning, whose text is free. */
static int32_t with_reasoning(struct grammar *g, enum format_reasoning how, int32_t rule)
{
    struct regex_pool *p = &g->lexer.regex;
    const int32_t close = tag(p, ANSWER_TAG_THINK_END);
    const int32_t answer = call(g, rule, GRAMMAR_END);
    int32_t thought = regex_concat(p, without(p, close), regex_concat(p, close, newlines(p)));
    int32_t node;

    if (how == FORMAT_DIRECT)
        return rule;
    if (how == FORMAT_MAY_REASON)
        thought = regex_concat(p, tag(p, ANSWER_TAG_THINK), thought);
    node = plain(g, thought, answer);
    return rule_of(g, how == FORMAT_MAY_REASON ? grammar_fork(g, node, answer) : node);
}

/* One call, or more of them. */
static int32_t calls_alone(struct grammar *g, const struct format_source *s, int32_t one)
{
    struct regex_pool *p = &g->lexer.regex;
    const int32_t open = tag(p, ANSWER_TAG_CALL);
    int32_t more;

    if (s->one_call || s->called_tool.len)
        return rule_of(g, plain(g, open, call(g, one, GRAMMAR_END)));
    more = grammar_rule(g);
    grammar_define(g, more,
                   grammar_fork(g,
                                plain(g, regex_concat(p, newlines(p), open),
                                      call(g, one, call(g, more, GRAMMAR_END))),
                                GRAMMAR_END));
    return rule_of(g, plain(g, open, call(g, one, call(g, more, GRAMMAR_END))));
}

/* Any text of these, or such a text, a call, and what comes then. */
static int32_t text_or_call(struct grammar *g, int32_t texts, int32_t one, int32_t then)
{
    struct regex_pool *p = &g->lexer.regex;
    const int32_t open = tag(p, ANSWER_TAG_CALL), content = without(p, open);

    return grammar_fork(g, plain(g, regex_and2(p, texts, content), GRAMMAR_END),
                        plain(g, regex_and2(p, texts, regex_concat(p, content, open)),
                              call(g, one, then)));
}

/* Any answer, in which reasoning and calls are as answer.h finds them. */
static int32_t calls_among_text(struct grammar *g, const struct format_source *s, int32_t one)
{
    static const struct regex_range spaces[] = {{'\t', '\n'}, {'\r', '\r'}, {' ', ' '}};
    struct regex_pool *p = &g->lexer.regex;
    const int32_t content = grammar_rule(g), again = call(g, content, GRAMMAR_END);
    const int32_t then =
        s->one_call ? plain(g, without(p, tag(p, ANSWER_TAG_CALL)), GRAMMAR_END) : again;
    const int32_t close = tag(p, ANSWER_TAG_THINK_END);
    const int32_t begin =
        regex_concat(p, regex_repeat(p, regex_chars(p, spaces, 3), 0, ANSWER_MOST_SPACES),
                     tag(p, ANSWER_TAG_THINK));
    int32_t thought = without(p, close), node;

    grammar_define(g, content, text_or_call(g, REGEX_ALL, one, then));
    if (s->reasoning == FORMAT_DIRECT)
        return content;
    if (s->reasoning == FORMAT_MAY_REASON)
        thought = regex_concat(p, begin, thought);
    node = grammar_fork(g, plain(g, thought, GRAMMAR_END),
                        plain(g, regex_concat(p, thought, close), again));
    if (s->reasoning == FORMAT_MAY_REASON)
        node = grammar_fork(g, node,
                            text_or_call(g, regex_not(p, regex_concat(p, begin, REGEX_ALL)), one,
                                         then));
    return rule_of(g, node);
}

/* The rule of the whole answer. */
static int compile_answer(struct grammar *g, const struct format_source *s, int32_t *rule,
                          struct err *e)
{
    int32_t one, calls;
    size_t bytes = 0;
    int r = 0;

    if (s->kind != FORMAT_NONE && s->calls != FORMAT_MUST_CALL)
        r = compile(g, s, rule, e);
    for (size_t i = 0; i < s->n_tools && s->calls != FORMAT_NO_CALLS && r == 0; i++) {
        bytes += s->tools[i].len;
        if (s->tools[i].len > FORMAT_MAX_SOURCE || bytes > FORMAT_MAX_SOURCE)
            r = err_set(e, -E2BIG, "chat.tools: longer than %d bytes", FORMAT_MAX_SOURCE);
    }
    if (r == 0 && s->calls != FORMAT_NO_CALLS)
        r = tool_calls_compile(g, s->tools, s->n_tools, s->called_tool, &one, e);
    if (r < 0)
        return r;
    if (s->calls == FORMAT_MAY_CALL && s->kind == FORMAT_NONE) {
        *rule = calls_among_text(g, s, one);
        return 0;
    }
    if (s->calls != FORMAT_NO_CALLS) {
        calls = calls_alone(g, s, one);
        *rule = s->calls == FORMAT_MUST_CALL
                    ? calls
                    : rule_of(g, grammar_fork(g, call(g, *rule, GRAMMAR_END),
                                              call(g, calls, GRAMMAR_END)));
    }
    *rule = with_reasoning(g, s->reasoning, *rule);
    return 0;
}

static const char *why(int code)
{
    switch (code) {
    case -EINVAL:
        return "no text is allowed";
    case -ENOTSUP:
        return "minItems and minProperties are not supported beside an element or a property "
               "that requires itself without end";
    case -E2BIG:
        return "too complex";
    default:
        return "out of memory";
    }
}

bool format_is_free(const struct format_source *s)
{
    return s->kind == FORMAT_NONE &&
           (s->calls == FORMAT_NO_CALLS || (s->calls == FORMAT_MAY_CALL && !s->one_call &&
                                            tool_calls_are_strict(s->tools, s->n_tools) == 0));
}

int format_new(struct format **out, const struct format_source *source, const struct vocabulary *v,
               struct err *e)
{
    struct format *f = calloc(1, sizeof(*f));
    int32_t rule = 0;
    int r;

    if (!f)
        return err_set(e, -ENOMEM, "out of memory");
    r = grammar_init(&f->grammar, FORMAT_MAX_BYTES / 2);
    if (r == 0) {
        f->masks = masks_new(v, &f->grammar, FORMAT_MAX_BYTES / 2);
        r = f->masks ? 0 : -ENOMEM;
    }
    if (r < 0) {
        format_free(f);
        return err_set(e, r, "out of memory");
    }
    f->grammar.lexer.regex.max_work = COMPILE_WORK;
    r = compile_answer(&f->grammar, source, &rule, e);
    if (r == 0) {
        r = grammar_close(&f->grammar, rule);
        if (r == 0)
            r = masks_prepare(f->masks, f->grammar.start);
        if (r < 0)
            err_set(e, r, "%s", why(r));
    }
    if (r < 0) {
        format_free(f);
        return r;
    }
    *out = f;
    return 0;
}

void format_free(struct format *f)
{
    if (!f)
        return;
    masks_free(f->masks);
    grammar_deinit(&f->grammar);
    free(f);
}

size_t format_bytes(const struct format *f)
{
    return sizeof(*f) + grammar_bytes(&f->grammar) + masks_bytes(f->masks);
}

/* ---- reading */

/* What a step or a mask may cost; what is known already costs nothing. */
static void allow_work(struct format *f)
{
    f->grammar.lexer.regex.max_work = f->grammar.lexer.regex.work + MASK_WORK;
}

int32_t format_start(const struct format *f)
{
    return f->grammar.start;
}

int32_t format_step(struct format *f, int32_t place, int32_t token)
{
    allow_work(f);
    return masks_step(f->masks, place, token);
}

bool format_accepts(const struct format *f, int32_t place)
{
    return grammar_accepts(&f->grammar, place);
}

bool format_is_over(const struct format *f, int32_t place)
{
    return grammar_is_over(&f->grammar, place);
}

bool format_failed(const struct format *f)
{
    return grammar_failed(&f->grammar) != 0;
}

int format_mask(struct format *f, uint32_t *mask, int32_t place, const int32_t *ends,
                int32_t n_ends)
{
    allow_work(f);
    return masks_fill(f->masks, mask, place, ends, n_ends);
}
