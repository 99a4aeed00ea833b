/* test_jinja.c - the interpreter of chat templates does what Jinja does, knows who wrote each byte,
 * and stays within its limits.
 *
 * usage: test_jinja          the tests
 *        test_jinja FILE     only compares the cases of a file: {template, vars, text or error} */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/jinja_impl.h"
#include "engine/util/file.h"
#include "tests/unit/cpu_time.h"
#include "tests/unit/golden.h"
#include "tests/unit/quotes.h"
#include "tests/unit/run_suite.h"

enum { STEPS = 4000000, MEMORY = 64 << 20, OUTPUT = 1 << 20 };

static const struct jinja_limits usual = {STEPS, MEMORY, OUTPUT};

static void set_variables(struct jinja_run *r, void *arg)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)arg, key, v)
        jinja_set(r, key, strlen(key), value_from_json(r, v));
}

static int render(struct jinja_text *out, struct text source, const json_t *vars,
                  const struct jinja_limits *limits, struct err *e)
{
    const struct tm now = {.tm_year = 126,
                           .tm_mon = 10,
                           .tm_mday = 22,
                           .tm_hour = 12,
                           .tm_min = 34,
                           .tm_sec = 56,
                           .tm_wday = 0,
                           .tm_yday = 325};
    const struct jinja_input in = {set_variables, (void *)(uintptr_t)vars, &now, *limits, 100};
    struct jinja *t;
    int r = jinja_compile(&t, source, e);

    if (r)
        return r;
    r = jinja_render(t, &in, out, e);
    jinja_free(t);
    return r;
}

static struct jinja_text rendered(const char *template, const char *vars)
{
    json_t *object = json_loads(quotes(vars), 0, NULL);
    struct jinja_text out;
    struct err e = {""};

    ck_assert_msg(object != NULL, "%s", vars);
    ck_assert_msg(render(&out, (struct text){template, strlen(template)}, object, &usual, &e) == 0,
                  "%s: %s", template, e.text);
    json_decref(object);
    return out;
}

static void expect(const char *template, const char *vars, const char *want)
{
    struct jinja_text out = rendered(template, vars);

    ck_assert_msg(strcmp(out.data, want) == 0, "%s\ngave \"%s\"\nnot  \"%s\"", template, out.data,
                  want);
    jinja_text_deinit(&out);
}

static int error_of(const char *template, const struct jinja_limits *limits, struct err *e)
{
    struct jinja_text out;
    json_t *none = json_object();
    int r = render(&out, (struct text){template, strlen(template)}, none, limits, e);

    if (r == 0)
        jinja_text_deinit(&out);
    json_decref(none);
    return r;
}

static void expect_error(const char *template, const char *want)
{
    struct err e = {""};
    int r = error_of(template, &usual, &e);

    ck_assert_msg(r < 0, "%s is no error", template);
    ck_assert_msg(strstr(e.text, want) != NULL, "%s\nsays \"%s\"\nnot  \"%s\"", template, e.text,
                  want);
}

struct row {
    const char *template, *want;
};

static void expect_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        expect(rows[i].template, "{'s': 'Hello', 'l': [3, 1, 2], 'd': {'b': 1, 'a': 2}, 'n': null}",
               rows[i].want);
}

/* A newline behind a tag goes, as does the whitespace of its line in front; signs change that. */
TEST(whitespace_is_controlled)
{
    static const struct row rows[] = {
        {"a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc"},
        {"a\n  {%+ if true %}\nb{% endif +%}\nc", "a\n  b\nc"},
        {"a \n {%- if true -%} \n b {%- endif %} c", "ab c"},
        {"a {{- 1 -}}  b", "a1b"},
        {"  {{ 1 }}\n", "  1"},
        {"{# c #}\nx\n  {#- d -#}\n y", "xy"},
        {"{% raw %}{{ x }}{% endraw %}\ny", "{{ x }}y"},
        {"{%- raw -%} {% x {%- endraw -%} y", "{% xy"},
        {"a\r\nb\rc\r\n", "a\nb\nc"},
        {"{{ {'a': {'b': 1}}.a.b }}", "1"},
    };

    expect_rows(rows, N(rows));
}

TEST(expressions_are_those_of_python)
{
    static const struct row rows[] = {
        {"{{ 1 + 2 * 3 ** 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }}", "19 -4 2 3.5"},
        {"{{ 1e3 }} {{ 1_000 }} {{ 0x1F }} {{ 1.50 }}", "1000.0 1000 31 1.5"},
        {"{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"},
        {"{{ 'x' if false }}|{{ 1 if l else 2 }}", "|1"},
        {"{{ 1 < 2 < 3 }} {{ 2 in l }} {{ 'z' not in s }}", "True True True"},
        {"{{ s[1:3] }} {{ s[::-1] }} {{ s[-1] }} {{ l[:2] }}", "el olleH o [3, 1]"},
        {"{{ not 1 == 2 and 3 or 4 }}", "3"},
        {"{{ (1,) }} {{ [1, 'a\\'b', none, 1.0] }} {{ {'k': (1, 2)} }}",
         "(1,) [1, \"a'b\", None, 1.0] {'k': (1, 2)}"},
        {"{{ '%s-%03d' % (s, 7) }} {{ '{}/{x:>4}'.format(1, x='y') }}", "Hello-007 1/   y"},
        {"{{ nope }}|{{ nope is defined }}|{{ d.nope is undefined }}", "|False|True"},
        {"{{ d.items() | list }} {{ d.get('a') }} {{ d['b'] }} {{ d.get('c', 9) }}",
         "[('b', 1), ('a', 2)] 2 1 9"},
        {"{{ 'a,b'.split(',') }} {{ ' x '.strip() }} {{ 'aXb'.lower().title() }}",
         "['a', 'b'] x Axb"},
        {"{{ '\\u00e9\\n\\x41' }}", "\xc3\xa9\nA"},
        {"{{ 10 is divisibleby 5 }} {{ s is not string }}", "True False"},
        {"{{ d['copy\\x00'] is defined }} {{ s['strip\\x00s'] is defined }}", "False False"},
    };

    expect_rows(rows, N(rows));
}

TEST(filters_are_those_of_jinja)
{
    static const struct row rows[] = {
        {"{{ l | sort | join('-') }} {{ l | max }} {{ l | sum }}", "1-2-3 3 6"},
        {"{{ d | dictsort }} {{ d | tojson }}", "[('a', 2), ('b', 1)] {\"b\": 1, \"a\": 2}"},
        {"{{ d | tojson(indent=1) }}", "{\n \"b\": 1,\n \"a\": 2\n}"},
        {"{{ d | tojson(separators=(',', ':'), sort_keys=true) }}", "{\"a\":2,\"b\":1}"},
        {"{{ '\\u00e9<' | tojson }} {{ '\\u00e9' | tojson(ensure_ascii=true) }}",
         "\"\xc3\xa9<\" \"\\u00e9\""},
        {"{{ 'a\nb' | indent(2, first=true) }}", "  a\n  b"},
        {"{{ [{'x': 1}, {'x': 2}] | selectattr('x', 'gt', 1) | map(attribute='x') | list }}",
         "[2]"},
        {"{{ n | default('d', true) }} {{ nope | default('e') }}", "d e"},
        {"{{ '<' | safe + '<' }} {{ '<b>' | escape }}", "<&lt; &lt;b&gt;"},
        {"{{ ('a' | escape | title) + '<' }} {{ ('a' | escape | upper) + '<' }}", "A< A&lt;"},
        {"{{ '12x' | int(5) }} {{ '3.7' | float }} {{ 2.5 | round }} {{ '7' | int + 1 }}",
         "5 3.7 2.0 8"},
        {"{{ l | reverse | list }} {{ l | first }} {{ [1, 1, 2] | unique | list }}",
         "[2, 1, 3] 3 [1, 2]"},
        {"{% filter upper %}a{{ s }}{% endfilter %}", "AHELLO"},
        {"{{ '[1, {\"a\": null}]' | from_json }}", "[1, {'a': None}]"},
    };

    expect_rows(rows, N(rows));
}

TEST(statements_keep_their_scopes)
{
    static const struct row rows[] = {
        {"{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}",
         "4 2 3 1"},
        {"{% set ns = namespace(x=1) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ "
         "ns.x }}",
         "7"},
        {"{% if true %}{% set y = 5 %}{% endif %}{{ y }}", "5"},
        {"{% macro m(a, b=a) %}[{{ a }}{{ b }}{{ caller() if caller }}]{% endmacro %}{{ m(1) }}"
         "{% call m(2, 3) %}c{% endcall %}",
         "[11][23c]"},
        {"{% macro v(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, k=3) }}",
         "(2,){'k': 3}"},
        {"{% for a, b in d.items() %}{{ loop.index }}{{ a }}{{ b }}{{ loop.last }};{% endfor %}",
         "1b1False;2a2True;"},
        {"{% for x in [] %}{% else %}none{% endfor %}", "none"},
        {"{% for x in l if x > 1 %}{{ loop.length }}{{ x }}{% endfor %}", "2322"},
        {"{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break "
         "%}{% endif %}{% endfor %}",
         "32"},
        {"{% for x in [[1, [2]]] recursive %}{{ x if x is integer else loop(x) }}{% endfor %}",
         "12"},
        {"{% set b %}x{{ s }}{% endset %}{{ b | upper }}", "XHELLO"},
        {"{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "12"},
        {"{% generation %}g{{ s }}{% endgeneration %}", "gHello"},
        {"{% macro late() %}{{ z }}{% endmacro %}{% set z = 1 %}{{ late() }}", "1"},
        {"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
        {"{{ strftime_now('%d %b %Y') }}", "22 Nov 2026"},
    };

    expect_rows(rows, N(rows));
}

/* What is wrong with a template is said when it is compiled, with line and column. */
TEST(wrong_templates_are_refused_with_line_and_column)
{
    static const struct row rows[] = {
        {"{{ 1 +", "line 1, column 1: {{ has no }}"},
        {"a\n{% if x %}", "line 2"},
        {"\xc3\xa9\xc3\xa9{{ 'a' | shout }}", "line 1, column 12: there is no filter 'shout'"},
        {"\n\n  {{ 1 is odder }}", "line 3, column 11: there is no test 'odder'"},
        {"{{ lookup('x') }}", "line 1, column 4: there is no function 'lookup'"},
        {"{% include 'x' %}", "line 1, column 4: the tag 'include' is not known here"},
        {"{% endif %}", "the tag 'endif'"},
        {"{% set x %}", "the template ends before the tag 'endset'"},
        {"{{ 'a }}", "line 1, column 4: a string has no end"},
        {"{# x", "line 1, column 1: a comment has no #}"},
        {"{% raw %}", "has no {% endraw %}"},
        {"{{ (1] }}", "line 1, column 6: ']' closes nothing"},
        {"{{ 1 2 }}", "line 1, column 6: there is a number where }} is expected"},
        {"{{ 99999999999999999999 }}", "fits in 64 bits"},
        {"{% set 1 = 2 %}", "a name is expected"},
        {"{% break %}", "need a loop"},
        {"{{ f(a=1, 2) }}", "an argument without a name follows"},
        {"{% macro m(a=1, b) %}{% endmacro %}", "a parameter without a default"},
        {"{{ a $ b }}", "'$' is not expected here"},
        {"\xff", "byte 0 is not UTF-8"},
    };

    for (size_t i = 0; i < N(rows); i++)
        expect_error(rows[i].template, rows[i].want);
}

/* What goes wrong while rendering says the line, and Python's name of the error. */
TEST(errors_of_rendering_name_the_line)
{
    static const struct row rows[] = {
        {"\n{{ nope.x }}", "chat template: line 2: UndefinedError: 'nope' is undefined"},
        {"{{ {}.a.b }}", "'dict object' has no attribute 'a'"},
        {"{{ [][3].x }}", "list object has no element 3"},
        {"{{ 'a' + 1 }}", "TypeError: unsupported operand type(s) for +: 'str' and 'int'"},
        {"{{ 1 / 0 }}", "ZeroDivisionError"},
        {"{{ [].append(1) }}", "access to attribute 'append' of 'list' object is unsafe."},
        {"{{ 'a'.index('b') }}", "ValueError: substring not found"},
        {"{{ 9223372036854775807 + 1 }}", "OverflowError"},
        {"{{ range(100001) }}", "OverflowError: range"},
        {"{{ none | length }}", "TypeError: object of type 'NoneType' has no len()"},
        {"{% macro m() %}{% endmacro %}{{ m(1) }}", "takes not more than 0 argument(s)"},
        {"{% set x = 1 %}{% set x.y = 2 %}", "cannot assign attribute on non-namespace object"},
        {"{{ [1, 'a'] | sort }}", "TypeError: '<' not supported"},
        {"{{ '{' | from_json }}", "from_json: not JSON"},
        {"{{ 'abc'.nope() }}", "'str object' has no attribute 'nope'"},
    };
    struct err e = {""};

    for (size_t i = 0; i < N(rows); i++)
        expect_error(rows[i].template, rows[i].want);
    ck_assert_int_eq(error_of("{{ raise_exception('as it ' ~ 'is') }}", &usual, &e), -EINVAL);
    ck_assert_str_eq(e.text, "as it is");
}

/* Marks in the output what came with the variables: [x]. */
static void expect_marked(const char *template, const char *want)
{
    struct jinja_text out = rendered(template, "{'m': 'mess', 'u': 'M\\u00e9', 'n': 5, 'l': "
                                               "['p', 'q'], 'd': {'k': 'v'}}");
    char marked[512];
    size_t n = 0, at = 0;

    for (size_t i = 0; i <= out.n_ranges; i++) {
        const size_t end = i < out.n_ranges ? out.ranges[i].start : out.len;
        const size_t next = i < out.n_ranges ? out.ranges[i].end : out.len;

        if (end > at)
            n += (size_t)snprintf(marked + n, sizeof(marked) - n, "[%.*s]", (int)(end - at),
                                  out.data + at);
        n += (size_t)snprintf(marked + n, sizeof(marked) - n, "%.*s", (int)(next - end),
                              out.data + end);
        at = next;
    }
    ck_assert_msg(strcmp(marked, want) == 0, "%s\ngave %s\nnot  %s", template, marked, want);
    jinja_text_deinit(&out);
}

/* As Markup of Python's MarkupSafe is, and the keys that sort() compares. */
TEST(marked_texts_stay_marked)
{
    static const struct row rows[] = {
        {"{{ [('a b' | safe).center(5).split()] }}", "[[Markup('a'), Markup('b')]]"},
        {"{{ [('aa' | safe).replace('a', '<', 1)] }}", "[Markup('&lt;a')]"},
        {"{{ ('k' | safe).join(['<', '>' | safe, 1]) }}", "&lt;k>k1"},
        {"{{ 'k'.join(['<', '>' | safe]) }}", "<k>"},
        {"{{ ('x' | safe).rjust(3, '-') + '<' }}", "--x&lt;"},
        {"{{ [{'a': 1}, {'a': 1}] | sort }}", "[{'a': 1}, {'a': 1}]"},
        {"{{ ([d.x, d.y] | sort) | length }}", "2"},
    };

    expect_rows(rows, N(rows));
}

/* Each byte keeps who wrote it, through every operation. */
TEST(provenance_survives_operations)
{
    static const struct row rows[] = {
        {"a{{ m }}b", "a[mess]b"},
        {"{{ 'x' + m + 'y' }}", "x[mess]y"},
        {"{% set x = 'x' + m + 'y' %}{{ x[1:4] }}{{ x[-2:] }}", "[mess]y"},
        {"{{ ('<' ~ m ~ '>') | upper }}", "<[MESS]>"},
        {"{{ l | join(', ') }}", "[p], [q]"},
        {"{{ ', '.join(l) }}", "[p], [q]"},
        {"{{ m | replace('ss', '!') }}", "[me]!"},
        {"{{ 'abc' | replace('b', m) }}", "a[mess]c"},
        {"{{ ('a' + m)[::-1] }}", "[ssem]a"},
        {"{{ m.split('e') | join('e') }}", "[m]e[ss]"},
        {"{{ ('  ' + m + ' ') | trim }}", "[mess]"},
        {"{{ d | tojson }}", "[{\"k\": \"v\"}]"},
        {"{{ {'a': m} | tojson }}", "{\"a\": [\"mess\"]}"},
        {"{{ '%s|%s' % (m, n) }}", "[mess]|[5]"},
        {"{{ '{}|{}'.format(m, 1) }}", "[mess]|1"},
        {"{{ n + 1 }} {{ 1 + 1 }} {{ m | length }}", "[6] 2 4"},
        {"{{ m * 2 }}{{ 'x' * n }}", "[messmess]xxxxx"},
        {"{% set b %}<{{ m }}>{% endset %}{{ b | title }}", "<[Mess]>"},
        {"{% macro w(x) %}({{ x }}){% endmacro %}{{ w(m) | upper }}", "([MESS])"},
        {"{% for c in 'a' + m[:1] %}{{ c }},{% endfor %}", "a,[m],"},
        {"{{ ('\n' + m) | indent(2) }}", "\n  [mess]"},
        {"{{ m | center(8) }}", "  [mess]  "},
        {"{{ 'x'.center(3, m[:1]) }}", "[m]x[m]"},
        {"{{ [1, 2] | tojson(separators=(m, ':')) }}", "[1[mess]2]"},
        {"{{ ('{:' + m[:1] + '>3}').format('') }}", "[mmm]"},
        {"{{ u | tojson(ensure_ascii=true) }}", "[\"M\\u00e9\"]"},
        {"{{ l }}", "['p', 'q']"},
        {"{{ '<|im' + '_end|>' }}{{ '<|im' ~ m }}", "<|im_end|><|im[mess]"},
        {"{{ (m | safe) + '<' }}", "[mess]&lt;"},
    };

    for (size_t i = 0; i < N(rows); i++) {
        if (strcmp(rows[i].template, "{{ l }}") == 0)
            expect_marked(rows[i].template, "[['p', 'q']]");
        else
            expect_marked(rows[i].template, rows[i].want);
    }
}

/* Hostile templates end in an error soon, and with little memory. */
TEST(hostile_templates_end)
{
    static const char *const templates[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ n(n) }}{% endmacro %}{{ m(m) }}",
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}{{ ns.s }}",
        "{{ 'x' * 9999999999 }}",
        "{{ ('x' * 100000) | replace('', 'y' * 100000) }}",
        "{{ '%99999s' % 'x' * 99999 }}",
        "{{ 'x'.center(9999999999) }}",
        "{{ [1] * 999999999 }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}"
        "{% endfor %}{{ ns.l }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l] %}"
        "{% endfor %}{{ ns.l == [ns.l] }}{{ ns.l | tojson }}",
        "{% set ns = namespace(l=['x']) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}"
        "{% endfor %}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{% for i in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' }}{% endfor %}",
        "{{ ('ab' * 100000) | list | map('upper') | join('x' * 1000) }}",
        "{{ 2 ** 9999999999 }}",
        "{{ ('a' * 1000000).split('a') | length }}{% for i in range(99999) %}"
        "{{ ('a' * 100000) in 'b' }}{% endfor %}",
        "{% set ns = namespace() %}{% set ns.n = ns %}{{ ns }}",
    };

    for (size_t i = 0; i < N(templates); i++) {
        const double start = cpu_ms();
        struct err e = {""};
        const int r = error_of(templates[i], &usual, &e);

        ck_assert_msg(r == -E2BIG || r == -EINVAL, "%s: %d %s", templates[i], r, e.text);
        ck_assert_msg(cpu_ms() - start < 3000, "%s took %.0f ms", templates[i], cpu_ms() - start);
    }
}

/* Each limit is met exactly where it is said to be. */
TEST(limits_are_kept)
{
    static const char loop[] = "{% for i in range(1000) %}{{ 'x' }}{% endfor %}";
    struct err e = {""};

    ck_assert_int_eq(error_of(loop, &(struct jinja_limits){1000, MEMORY, OUTPUT}, &e), -E2BIG);
    ck_assert_ptr_nonnull(strstr(e.text, "too many steps"));
    ck_assert_int_eq(error_of(loop, &(struct jinja_limits){STEPS, 1000, OUTPUT}, &e), -E2BIG);
    ck_assert_ptr_nonnull(strstr(e.text, "1000 bytes of memory"));
    ck_assert_int_eq(error_of(loop, &(struct jinja_limits){STEPS, MEMORY, 999}, &e), -E2BIG);
    ck_assert_ptr_nonnull(strstr(e.text, "writes more than 999 bytes"));
    ck_assert_int_eq(error_of(loop, &(struct jinja_limits){STEPS, MEMORY, 1000}, &e), 0);
}

static void repeat(char *to, const char *open, const char *middle, const char *close, int n)
{
    *to = '\0';
    for (int i = 0; i < n; i++)
        to = stpcpy(to, open);
    to = stpcpy(to, middle);
    for (int i = 0; i < n; i++)
        to = stpcpy(to, close);
}

/* Deep nesting and long chains are refused when they are compiled. */
TEST(deep_templates_are_refused)
{
    static const struct {
        const char *open, *middle, *close;
    } rows[] = {
        {"{{ (", "1", ") }}"},   {"{% if 1 %}", "x", "{% endif %}"},
        {"(", "", ")"},          {"[", "", "]"},
        {"{'a':", "1", "}"},     {"not ", "1", ""},
        {"-", "1", ""},          {"", "x", ".a"},
        {"", "x", "[0]"},        {"", "x", "|upper"},
        {"", "x", "()"},         {"1 if 1 else ", "1", ""},
        {"", "x", " is string"}, {"x(", "", ")"},
    };
    static char inner[1 << 20], text[(1 << 20) + 16];

    for (size_t i = 0; i < N(rows); i++) {
        struct err e = {""};

        repeat(inner, rows[i].open, rows[i].middle, rows[i].close, 20000);
        snprintf(text, sizeof(text), i == 1 ? "%s" : "{{ %s }}", inner);
        ck_assert_int_lt(error_of(text, &usual, &e), 0);
        ck_assert_ptr_nonnull(strstr(e.text, "line 1, column"));
    }
}

/* A text that grows in a loop takes time and memory that grow with it, not with its square. */
TEST(growing_text_is_not_copied_each_time, .n = 2)
{
    static const char *const templates[] = {
        "{% set ns = namespace(s='') %}{% for i in range(30000) %}"
        "{% set ns.s = ns.s + 'abcdefgh' %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='') %}{% for i in range(30000) %}"
        "{% set ns.s = ns.s ~ 'abcd' ~ 'efgh' %}{% endfor %}{{ ns.s }}",
    };
    struct jinja_text out = rendered(templates[_i], "{}");

    ck_assert_uint_eq(out.len, 240000);
    jinja_text_deinit(&out);
}

/* Keys are found by their hashes, also those of an object that comes whole. */
TEST(large_objects_are_indexed)
{
    enum { KEYS = 200000 };
    const struct text source = {"{{ x|length }} {{ x.k77 }}", 26};
    json_t *vars = json_object(), *x = json_object();
    struct jinja_text out;
    struct err e = {""};
    char key[16];

    for (int i = 0; i < KEYS; i++) {
        snprintf(key, sizeof(key), "k%d", i);
        json_object_set_new(x, key, json_integer(i));
    }
    json_object_set_new(vars, "x", x);
    ck_assert_msg(render(&out, source, vars, &usual, &e) == 0, "%s", e.text);
    ck_assert_str_eq(out.data, "200000 77");
    jinja_text_deinit(&out);
    json_decref(vars);
}

/* map() that calls map() that calls map() ends, however deep its lists are. */
TEST(filters_that_call_filters_are_bounded)
{
    static char text[1 << 16], names[1 << 15];

    repeat(names, ",'map'", "", "", 5000);
    snprintf(text, sizeof(text),
             "{%% set ns = namespace(l=[]) %%}{%% for i in range(6000) %%}"
             "{%% set ns.l = [ns.l] %%}{%% endfor %%}{{ ns.l|map('map'%s)|list }}",
             names);
    expect_error(text, "deep");
}

/* What a text is cut at is the text's, though the template knows it, too. */
TEST(separators_of_a_text_are_its_own)
{
    struct jinja_text out =
        rendered("{{ x.partition('<|end|>')[1] }}{{ x.rpartition('<|end|>')[1] }}",
                 "{'x': 'a<|end|>b'}");

    ck_assert_str_eq(out.data, "<|end|><|end|>");
    ck_assert_uint_eq(out.n_ranges, 0);
    jinja_text_deinit(&out);
}

/* Numbers at the ends of what there is. */
TEST(extreme_numbers_are_right_or_refused)
{
    static const struct row rows[] = {
        {"{{ range(-9223372036854775807, 9223372036854775807, 4611686018427387904)|list }}",
         "[-9223372036854775807, -4611686018427387903, 1, 4611686018427387905]"},
        {"{{ [0.1, 1e22, 5e-324, 2.5e-323, 123456789012345680.0, 1.7976931348623157e308, "
         "9007199254740993.0,"
         " 5e15, 100.0] }}",
         "[0.1, 1e+22, 5e-324, 2.5e-323, 1.2345678901234568e+17, 1.7976931348623157e+308, "
         "9007199254740992.0, 5000000000000000.0, 100.0]"},
        {"{{ '%.1f' % 1e18 }}", "1000000000000000000.0"},
        {"{{ 'inf' | int(3) }} {{ 'nan' | float | int(4) }}", "3 4"},
    };

    expect_rows(rows, N(rows));
    expect_error("{{ '%i' % 1e300 }}", "OverflowError");
    expect_error("{{ '1e20' | int(3) }}", "a number does not fit in 64 bits");
    expect_error("{{ 'inf' | float | int(3) }}", "cannot convert float infinity to integer");
}

/* ---- the cases of files */

static int n_cases, n_wrong;

/* A limit of ours ended the rendering. */
static bool is_beyond(int r, const struct err *e)
{
    return r == -E2BIG || (r < 0 && strstr(e->text, " in 64 bits"));
}

static void check_case(const json_t *entry, void *ctx)
{
    const struct text source = golden_text(entry, "template");
    const json_t *want = json_object_get(entry, "text");
    struct jinja_text out = {0};
    struct err e = {""};
    const int r = render(&out, source, json_object_get(entry, "vars"), &usual, &e);

    (void)ctx;
    n_cases++;
    if (is_beyond(r, &e) || (r != 0) == (want == NULL)) {
        if (r == 0 && (out.len != json_string_length(want) ||
                       memcmp(out.data, json_string_value(want), out.len) != 0))
            n_wrong++;
        else
            want = NULL;
    } else {
        n_wrong++;
        want = want ? want : json_object_get(entry, "error");
    }
    if (want && n_wrong < 10)
        printf("---- template:\n%.*s\n---- variables: %s\n---- gave %s:\n%s\n---- wanted:\n%s\n",
               (int)source.len, source.data, json_dumps(json_object_get(entry, "vars"), 0),
               r ? "the error" : "the text", r ? e.text : out.data, json_string_value(want));
    fflush(stdout);
    if (r == 0)
        jinja_text_deinit(&out);
}

/* The templates of the tree, with what Jinja makes of them. */
TEST(golden_cases)
{
    ck_assert_int_gt(golden_each(TEST_DATA_DIR "/jinja-cases.jsonl", check_case, NULL), 100);
    ck_assert_int_eq(n_wrong, 0);
}

static const char *file_path;

/* The cases of the file named on the command line, if one is. */
TEST(cases_of_file, .timeout = 7 * 86400)
{
    if (!file_path)
        return;
    golden_each(file_path, check_case, NULL);
    printf("%d cases, %d differ\n", n_cases, n_wrong);
    fflush(stdout);
    ck_assert_int_eq(n_wrong, 0);
}

int main(int argc, char **argv)
{
    if (argc == 2) {
        file_path = argv[1];
        setenv("CK_RUN_CASE", "cases_of_file", 1);
    }
    return run_tests("jinja", NULL, NULL);
}
