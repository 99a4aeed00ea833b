/* format.c - see format.h. */
#include "engine/grammar/format.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/gbnf.h"
#include "engine/grammar/json_schema.h"
#include "engine/util/json_util.h"

enum {
    COMPILE_WORK = 400000, /* derivatives: some 30 ms */
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

/* The rule behind reasoning, whose text is free. */
static int32_t with_reasoning(struct grammar *g, enum format_reasoning how, int32_t rule)
{
    struct regex_pool *p = &g->lexer.regex;
    const int32_t open = regex_text(p, (struct text){"<think>", 7});
    const int32_t close = regex_text(p, (struct text){"</think>", 8});
    const int32_t closed = regex_concat(p, REGEX_ALL, regex_concat(p, close, REGEX_ALL));
    const int32_t newlines = regex_repeat(p, regex_char(p, '\n'), 0, 2);
    const int32_t answer = grammar_node(g, GRAMMAR_OP_CALL, rule, GRAMMAR_END);
    int32_t thought = regex_concat(p, regex_not(p, closed), regex_concat(p, close, newlines));
    int32_t outer, node;

    if (how == FORMAT_DIRECT)
        return rule;
    if (how == FORMAT_MAY_REASON)
        thought = regex_concat(p, open, thought);
    node = grammar_text(g, thought, LEXER_PLAIN, answer);
    outer = grammar_rule(g);
    grammar_define(g, outer, how == FORMAT_MAY_REASON ? grammar_fork(g, node, answer) : node);
    return outer;
}

static const char *why(int code)
{
    switch (code) {
    case -EINVAL:
        return "no text is allowed";
    case -ENOTSUP:
        return "a rule begins with itself, or never ends where a number of them is asked for";
    case -E2BIG:
        return "too complex";
    default:
        return "out of memory";
    }
}

int format_new(struct format **out, const struct format_source *source, const struct vocabulary *v,
               struct err *e)
{
    struct format *f = calloc(1, sizeof(*f));
    int32_t rule = 0, wrong;
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
    r = compile(&f->grammar, source, &rule, e);
    if (r == 0) {
        rule = with_reasoning(&f->grammar, source->reasoning, rule);
        r = grammar_close(&f->grammar, rule, &wrong);
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

int format_mask(struct format *f, uint32_t *mask, int32_t place, const int32_t *ends,
                int32_t n_ends)
{
    allow_work(f);
    return masks_fill(f->masks, mask, place, ends, n_ends);
}
