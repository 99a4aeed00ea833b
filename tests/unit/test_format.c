/* test_format.c - response formats: what they allow, byte by byte and token by token; and that what
 * they do not support is refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/grammar/format.h"
#include "engine/text/answer.h"
#include "tests/unit/quotes.h"
#include "tests/unit/run_suite.h"

static struct tokenizer *tokenizer;
static struct vocabulary *vocabulary;
static int32_t n_ids;

static void set_up(void)
{
    struct err e;

    ck_assert_msg(tokenizer_load(&tokenizer, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
    n_ids = tokenizer_n_ids(tokenizer);
    vocabulary = vocabulary_new(tokenizer, n_ids);
    ck_assert_ptr_nonnull(vocabulary);
}

static void tear_down(void)
{
    vocabulary_free(vocabulary);
    tokenizer_free(tokenizer);
}

static struct format_source source_of(enum format_kind kind, const char *text)
{
    return (struct format_source){.kind = kind, .text = {text, strlen(text)}};
}

static struct format *format_of(enum format_kind kind, const char *text)
{
    const struct format_source source = source_of(kind, text);
    struct format *f;
    struct err e = {""};

    ck_assert_msg(format_new(&f, &source, vocabulary, &e) == 0, "%s: %s", text, e.text);
    return f;
}

/* Takes a text as the tokenizer divides it; each token must be in the mask as a step says. */
static int32_t place_behind(struct format *f, const char *text)
{
    uint32_t *mask = calloc((size_t)n_ids / 32 + 1, sizeof(*mask));
    struct token_list ids = {0};
    int32_t place = format_start(f);

    ck_assert_ptr_nonnull(mask);
    ck_assert_int_eq(tokenizer_encode_all(tokenizer, (struct text){text, strlen(text)}, false,
                                          &ids),
                     0);
    for (size_t i = 0; i < ids.n && place != GRAMMAR_DEAD; i++) {
        const int r = format_mask(f, mask, place, NULL, 0);
        const int32_t id = ids.ids[i];
        const bool is_in = r == 0 && mask[id / 32] >> id % 32 & 1;

        ck_assert_msg(r == 0 || r == -ENOENT, "%s: %d", text, r);
        place = format_step(f, place, id);
        ck_assert_msg(is_in == (place != GRAMMAR_DEAD), "“%s” at token %zu", text, i);
    }
    free(ids.ids);
    free(mask);
    return place;
}

static bool allows(struct format *f, const char *text)
{
    const int32_t place = place_behind(f, text);

    return place != GRAMMAR_DEAD && format_accepts(f, place);
}

struct texts {
    const char *format;
    const char *right[8], *wrong[8];
};

static void check(enum format_kind kind, const struct texts *t)
{
    struct format *f = format_of(kind, t->format);

    for (int i = 0; i < 8 && t->right[i]; i++)
        ck_assert_msg(allows(f, t->right[i]), "%s must allow “%s”", t->format, t->right[i]);
    for (int i = 0; i < 8 && t->wrong[i]; i++)
        ck_assert_msg(!allows(f, t->wrong[i]), "%s must not allow “%s”", t->format, t->wrong[i]);
    format_free(f);
}

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
    check(FORMAT_REGEX, &expressions[_i]);
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
    check(FORMAT_GRAMMAR, &grammars[_i]);
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

        ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), -E2BIG);
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
    check(FORMAT_JSON_SCHEMA, &t);
}
END_TEST

TEST(a_number_of_what_never_ends_is_refused)
{
    const char *schema = quotes("{'type': 'object', 'additionalProperties': false, "
                                "'minProperties': 2, 'properties': {'b': true, 'c': true, "
                                "'a': {'$ref': '#/$defs/x'}}, " ENDLESS "}");
    const struct format_source source = source_of(FORMAT_JSON_SCHEMA, schema);
    struct format *f;
    struct err e = {""};

    ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), -ENOTSUP);
    ck_assert_msg(strstr(e.text, "minProperties"), "%s", e.text);
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

    ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), 0);
    ck_assert(allows(f, "yes") && allows(f, "no") && allows(f, "not yet"));
    ck_assert(!allows(f, "nos") && !allows(f, "") && !allows(f, "not"));
    ck_assert(format_is_over(f, place_behind(f, "yes")));
    ck_assert(!format_is_over(f, place_behind(f, "no")));
    format_free(f);
}
END_TEST

/* ---- JSON Schemas, with ' for " */

static const struct texts schemas[] = {
    {"true", {"1", "{'a': [null, true]}", "'x'"}, {"{", "tru", "{'a' 1}", "01", "'\\x'"}},
    {"{'type': 'integer'}", {"0", "-12"}, {"1.0", "1e2", "-0", "'1'"}},
    {"{'type': 'number', 'minimum': -1.5, 'exclusiveMaximum': 10}",
     {"-1.5", "9.99", "0", "-0.1"},
     {"-1.51", "10", "10.0", "11"}},
    {"{'multipleOf': 0.25, 'type': 'number'}", {"0.5", "1", "3.750"}, {"0.1", "0.255"}},
    {"{'multipleOf': 7, 'type': 'integer'}", {"0", "-14", "700"}, {"8"}},
    {"{'type': 'string', 'minLength': 2, 'maxLength': 3}",
     {"'ab'", "'日本'", "'\\u00e9\\n'", "'\\ud83d\\ude00x'"},
     {"'a'", "'abcd'", "'\\ud83dx'", "'a\nb'"}},
    {"{'type': 'string', 'pattern': '^\\\\d+$'}", {"'12'", "'\\u0031'"}, {"''", "'a1'"}},
    {"{'type': 'string', 'format': 'date'}", {"'2024-02-29'"}, {"'2023-02-29'", "'2024-13-01'"}},
    {"{'type': 'array', 'items': {'type': 'boolean'}, 'minItems': 1, 'maxItems': 2}",
     {"[true]", "[ true , false ]"},
     {"[]", "[true,]", "[true,true,true]", "[1]"}},
    {"{'prefixItems': [{'const': 1}, {'const': 2}], 'items': false, 'type': 'array'}",
     {"[]", "[1]", "[1, 2]"},
     {"[2]", "[1, 2, 3]"}},
    {"{'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {}}, 'required': ['b'],"
     " 'additionalProperties': false}",
     {"{'a': 1, 'b': 2}", "{'b': null}"},
     {"{}", "{'a': 1}", "{'b': 1, 'a': 1}", "{'b': 1, 'c': 1}", "{'b': 1, 'b': 2}"}},
    {"{'type': 'object', 'properties': {'a': {}, 'b': {}, 'c': {}}, 'additionalProperties': false,"
     " 'minProperties': 2, 'maxProperties': 2}",
     {"{'a': 1, 'b': 2}", "{'a': 1, 'c': 2}", "{'b': 1, 'c': 2}"},
     {"{}", "{'c': 1}", "{'a': 1, 'b': 1, 'c': 1}"}},
    {"{'type': 'object', 'patternProperties': {'^x': {'type': 'integer'}},"
     " 'additionalProperties': {'type': 'string'}}",
     {"{'x1': 1, 'y': 'z'}", "{}"},
     {"{'x1': 'z'}", "{'y': 1}"}},
    {"{'type': 'object', 'propertyNames': {'pattern': '^[a-z]+$'}}", {"{'ab': 1}"}, {"{'A': 1}"}},
    {"{'enum': ['a', 1, null, [1, {'b': 0.5}]]}",
     {"'a'", "'\\u0061'", "1", "null", "[1, {'b': 0.5}]"},
     {"'b'", "2", "[1]"}},
    {"{'enum': [{'a': 1}, {}, {'a': {}}], 'properties': {'a': {'$ref': '#'}}}",
     {"{}", "{'a': {}}"},
     {"{'a': 1}"}},
    {"{'anyOf': [{'type': 'string'}, {'type': 'integer', 'minimum': 5}]}",
     {"'a'", "5"},
     {"4", "null"}},
    {"{'oneOf': [{'multipleOf': 2}, {'multipleOf': 3}], 'type': 'integer'}",
     {"2", "3", "4", "9"},
     {"6", "5", "12"}},
    {"{'allOf': [{'minimum': 3}, {'maximum': 5}], 'type': 'integer'}", {"3", "5"}, {"2", "6"}},
    {"{'not': {'enum': ['a', 3]}, 'type': ['string', 'integer']}",
     {"'b'", "4", "'aa'"},
     {"'a'", "3", "null"}},
    {"{'type': 'object', 'not': {'required': ['a']}}", {"{'b': 1}", "{}"}, {"{'a': 1}"}},
    {"{'type': 'object', 'properties': {'a': {'type': 'string'}, 'b': {}},"
     " 'if': {'properties': {'a': {'const': 'x'}}, 'required': ['a']}, 'then': {'required': "
     "['b']}}",
     {"{'a': 'x', 'b': 1}", "{'a': 'y'}", "{}"},
     {"{'a': 'x'}"}},
    {"{'type': 'object', 'properties': {'a': {}, 'b': {}}, 'dependentRequired': {'a': ['b']}}",
     {"{'a': 1, 'b': 1}", "{'b': 1}", "{}"},
     {"{'a': 1}"}},
    {"{'$ref': '#/$defs/t', '$defs': {'t': {'type': 'array', 'items': {'$ref': '#/$defs/t'}}}}",
     {"[]", "[[], [[]]]"},
     {"[1]", "[["}},
    {"{'type': 'array', 'items': {'type': 'integer'}, 'contains': {'minimum': 5}}",
     {"[5]", "[1, 7]", "[9, 1, 8, 2]"},
     {"[]", "[1]", "[1, 2]", "['x', 5]"}},
    {"{'type': 'array', 'contains': {'const': 1}, 'minItems': 2, 'maxItems': 3}",
     {"[1, 2]", "[2, 1]", "[1, 1, 1]", "[2, 2, 1]"},
     {"[1]", "[2, 2]", "[2, 2, 2]", "[2, 2, 2, 1]"}},
    {"{'type': 'array', 'allOf': [{'contains': {'minimum': 3}}, {'contains': {'maximum': 5}}]}",
     {"[4]", "[7, 1]", "[1, null, 7]", "[null, 3]"},
     {"[]", "[7]", "[1]", "[1, 2]"}},
    {"{'type': 'array', 'contains': {'const': 1}, 'minContains': 0}", {"[]", "[2]"}, {"1"}},
    {"{'type': 'array', 'not': {'items': {'type': 'null'}}}",
     {"[1]", "[null, 1]"},
     {"[]", "[null]"}},
    {"{'type': 'array', 'not': {'prefixItems': [{}, {'type': 'null'}]}}",
     {"[1, 1]", "[null, 1, null]"},
     {"[]", "[1]", "[1, null]"}},
    {"{'type': 'array', 'items': {'enum': ['a', 1, [2]]}, 'uniqueItems': true, 'minItems': 1}",
     {"['a']", "[1, 'a', [2]]", "[[2], 1]"},
     {"[]", "['a', 'a']", "[[2], 1, [2]]", "['a', '\\u0061']", "[1, 3]"}},
    {"{'type': 'array', 'items': {'type': 'boolean'}, 'uniqueItems': true}",
     {"[]", "[true, false]"},
     {"[true, true]", "[true, false, true]"}},
    {"{'type': 'array', 'items': {'$ref': '#/$defs/x'}, 'uniqueItems': true, 'maxItems': 2, "
     "'$defs': "
     "{'x': {'enum': [1, 2, 3, 4], 'maximum': 3}}}",
     {"[3, 1]", "[]"},
     {"[4]", "[1, 1]", "[1, 2, 3]"}},
    {"{'enum': [[1, 1], [1, 2], [2, 2]], 'uniqueItems': true, 'contains': {'const': 1}}",
     {"[1, 2]"},
     {"[1, 1]", "[2, 2]"}},
    {"{'const': [1.0, {'a': 2.0}], 'enum': [[3], [1, {'a': 2}]]}", {"[1, {'a': 2}]"}, {"[3]"}},
    {"{'enum': [{'ab': 1}, {'a': 1}, {}], 'propertyNames': {'maxLength': 1}}",
     {"{'a': 1}", "{}"},
     {"{'ab': 1}"}},
    /* numbers are compared exactly, above 2^53 and in tenths, too */
    {"{'enum': [9007199254740993, 9007199254740992, 9007199254740991.5], 'maximum': "
     "9007199254740992}",
     {"9007199254740992"},
     {"9007199254740993"}},
    {"{'enum': [9007199254740993, 9007199254740992.0, 1], 'exclusiveMinimum': 9007199254740992.0}",
     {"9007199254740993"},
     {"9007199254740992", "1"}},
    {"{'enum': [9007199254740993, 9007199254740992, 4.0, 3.0], 'multipleOf': 2}",
     {"9007199254740992", "4"},
     {"9007199254740993", "3"}},
    {"{'enum': [1, 30000000000], 'multipleOf': 10000000000}", {"30000000000"}, {"1"}},
    {"{'enum': [123456789.1, 0.3, 0.25, 7], 'multipleOf': 0.1}",
     {"123456789.1", "0.3", "7"},
     {"0.25"}},
    {"{'enum': [9007199254740993, 1, 2], 'not': {'enum': [9007199254740992.0, 1.0]}}",
     {"9007199254740993", "2"},
     {"1"}},
    /* what looks like an anchor, and is none */
    {"{'properties': {'const': {'$ref': '#x'}}, '$defs': {'default': {'default': {'$anchor': 'x'}, "
     "'enum': [{'$anchor': 'x'}]}, 'enum': {'$anchor': 'x', 'type': 'integer'}}}",
     {"{'const': 1}"},
     {"{'const': 'a'}"}},
    {"{'$ref': '#x', '$defs': {'a': {'$id': 'http://x/', '$defs': {'b': {'$anchor': 'x', 'type': "
     "'null'}}}, 'b': {'$anchor': 'x', 'type': 'integer'}}}",
     {"1"},
     {"null"}},
    {"{'items': {'$id': 'http://x/', 'default': {'$ref': '#'}}, 'type': 'array'}", {"[1]"}, {"1"}},
    {"{'$schema': 'https://json-schema.org/draft/2020-12/schema', 'properties': {'a': {'id': 'b', "
     "'items': {'$ref': '#'}}}, 'type': 'object'}",
     {"{'a': [{}]}"},
     {"{'a': [1]}"}},
    /* draft 3: properties say that they are required */
    {"{'enum': [{}, {'a': 1}], 'properties': {'a': {'required': true}}}", {"{'a': 1}"}, {"{}"}},
    {"{'type': 'object', 'definitions': {'a': {'required': true}}, 'properties': {'a': {'$ref': "
     "'#/definitions/a'}}}",
     {"{'a': 1}"},
     {"{}"}},
    {"{'type': 'object', 'not': {'properties': {'a': {'required': true}}}}",
     {"{}", "{'b': 1}"},
     {"{'a': 1}"}},
    /* drafts up to 7: what is beside a $ref does not count */
    {"{'$schema': 'http://json-schema.org/draft-07/schema#', 'definitions': {'a': {'type': "
     "'integer'}}, 'oneOf': [{'$ref': '#/definitions/a', 'type': 'string'}, {'type': 'number', "
     "'minimum': 5}]}",
     {"1", "5.5"},
     {"5", "1.5", "'a'"}},
    {"{'$schema': 'http://json-schema.org/draft-07/schema#', 'definitions': {'a': {'type': "
     "'integer'}}, 'enum': [{'a': 1}, {'a': 'b'}], 'properties': {'a': {'$ref': '#/definitions/a', "
     "'format': 3}}}",
     {"{'a': 1}"},
     {"{'a': 'b'}"}},
    {"{'$schema': 'http://json-schema.org/draft-07/schema#', 'definitions': {'a': {'type': "
     "'integer'}}, 'not': {'$ref': '#/definitions/a', 'format': 3}}",
     {"'a'"},
     {"1"}},
    {"{'$schema': 'http://json-schema.org/draft-07/schema#', 'definitions': {'a': {'enum': [1, "
     "2]}}, 'type': 'array', 'uniqueItems': true, 'items': {'$ref': '#/definitions/a', 'enum': "
     "[1]}}",
     {"[2, 1]"},
     {"[1, 1]"}},
};

TEST(schemas_allow_their_instances, .n = N(schemas))
{
    struct texts t = schemas[_i];
    char *copies[17] = {strdup(quotes(t.format))};
    int n = 1;

    t.format = copies[0];
    for (int i = 0; i < 8 && t.right[i]; i++)
        t.right[i] = copies[n++] = strdup(quotes(t.right[i]));
    for (int i = 0; i < 8 && t.wrong[i]; i++)
        t.wrong[i] = copies[n++] = strdup(quotes(t.wrong[i]));
    check(FORMAT_JSON_SCHEMA, &t);
    while (n > 0)
        free(copies[--n]);
}
END_TEST

/* ---- what is refused */

static const struct {
    enum format_kind kind;
    const char *text;
    int code;
    const char *message;
} refusals[] = {
    {FORMAT_JSON_SCHEMA, "{", -EINVAL, "not JSON"},
    {FORMAT_JSON_SCHEMA, "3", -EINVAL, "a schema must be an object"},
    {FORMAT_JSON_SCHEMA, "false", -EINVAL, "no text is allowed"},
    {FORMAT_JSON_SCHEMA, "{'type': 'strin'}", -EINVAL, "$.type: “strin” is no type"},
    {FORMAT_JSON_SCHEMA, "{'type': 'object', 'required': 'a'}", -EINVAL,
     "$.required: must be an array of names"},
    {FORMAT_JSON_SCHEMA, "{'type': 'object', 'not': {'required': 'a'}}", -EINVAL, "$.required"},
    {FORMAT_JSON_SCHEMA, "{'enum': [{'a': 'b'}], 'properties': {'a': {'format': 3}}}", -EINVAL,
     "format: must be a string"},
    {FORMAT_JSON_SCHEMA, "{'anyOf': [{'items': 3}]}", -EINVAL,
     "$.anyOf[0].items: must be a schema or an array"},
    {FORMAT_JSON_SCHEMA, "{'properties': {'a': {'divisibleBy': 2}}}", -ENOTSUP,
     "$.properties.a.divisibleBy: is not supported"},
    {FORMAT_JSON_SCHEMA, "{'properties': {'a': {'$id': 'http://x/', 'items': {'$ref': '#'}}}}",
     -ENOTSUP, "a.$id"},
    {FORMAT_JSON_SCHEMA, "{'properties': {'a': {'uniqueItems': true}}}", -ENOTSUP,
     "$.properties.a.uniqueItems: true is supported only where"},
    {FORMAT_JSON_SCHEMA, "{'type': 'array', 'contains': {}, 'maxContains': 2}", -ENOTSUP,
     "$.maxContains: is not supported"},
    {FORMAT_JSON_SCHEMA, "{'pattern': '(a)\\\\1', 'type': 'string'}", -ENOTSUP,
     "back references are not supported"},
    {FORMAT_JSON_SCHEMA, "{'$ref': '#/nowhere'}", -EINVAL, "leads nowhere"},
    {FORMAT_JSON_SCHEMA, "{'$ref': '#/allOf/0x', 'allOf': [{}]}", -EINVAL, "leads nowhere"},
    {FORMAT_JSON_SCHEMA, "{'const': 9007199254740993, 'enum': [9007199254740992]}", -EINVAL,
     "no text"},
    {FORMAT_JSON_SCHEMA, "{'$ref': 'http://example.com/x'}", -ENOTSUP, "does not lead into"},
    {FORMAT_JSON_SCHEMA, "{'properties': {'a': {'$ref': '#/nowhere'}}}", -EINVAL,
     "$.properties.a.$ref: “#/nowhere” leads nowhere"},
    {FORMAT_JSON_SCHEMA, "{'type': 'object', 'propertyNames': {'$dynamicRef': '#x'}}", -ENOTSUP,
     "$.propertyNames.$dynamicRef: is not supported"},
    {FORMAT_JSON_SCHEMA,
     "{'$anchor': 'x', 'items': {'$id': 'http://x/', 'items': {'$ref': '#x'}, '$defs': {'a': "
     "{'$anchor': 'x'}}}}",
     -ENOTSUP, "$id: is supported at the root alone"},
    {FORMAT_JSON_SCHEMA, "{'items': {'id': 'http://x/', 'items': {'$ref': '#'}}}", -ENOTSUP,
     ".id: is supported at the root alone"},
    {FORMAT_JSON_SCHEMA, "{'const': 9007199254740993, 'enum': [9007199254740992.0]}", -EINVAL,
     "no text"},
    {FORMAT_JSON_SCHEMA, "{'enum': [1], 'multipleOf': -1}", -EINVAL, "$.multipleOf: must be above"},
    {FORMAT_JSON_SCHEMA, "{'enum': [[1]], 'items': {'minimum': 'x'}}", -EINVAL,
     "$.items.minimum: must be a number"},
    {FORMAT_JSON_SCHEMA,
     "{'enum': [{'a': [1]}], 'properties': {'a': {'prefixItems': [{'anyOf': "
     "[{'enum': 'x'}]}]}}}",
     -EINVAL, "$.properties.a.prefixItems[0].anyOf[0].enum: must be an array"},
    {FORMAT_JSON_SCHEMA, "{'oneOf': [{'type': 'null'}, {'type': 'integer', 'minimum': 'x'}]}",
     -EINVAL, "$.oneOf[1].minimum: must be a number"},
    {FORMAT_JSON_SCHEMA, "{'not': {'propertyNames': {'maxLength': 1}}}", -ENOTSUP,
     "$.not: of propertyNames is not supported"},
    {FORMAT_JSON_SCHEMA, "{'type': 'integer', 'minLength': 'x'}", -EINVAL,
     "$.minLength: must be a number"},
    {FORMAT_JSON_SCHEMA, "{'enum': [{'b': 1}], 'properties': {'a': 3}}", -EINVAL,
     "$.properties: “a” must be a schema"},
    {FORMAT_JSON_SCHEMA, "{'enum': [1], '$ref': '#/a', 'a': 3}", -EINVAL,
     "a schema must be an object"},
    {FORMAT_JSON_SCHEMA, "{'type': 'object', 'not': {'required': ['a', 3]}}", -EINVAL,
     "$.required: element 1 must be a string"},
    {FORMAT_JSON_SCHEMA, "{'dependentRequired': {'a': 'b'}}", -EINVAL,
     "$.dependentRequired: “a” must be an array"},
    {FORMAT_JSON_SCHEMA, "{'dependentSchemas': {'a': ['b']}}", -EINVAL,
     "$.dependentSchemas: “a” must be a schema"},
    {FORMAT_JSON_SCHEMA, "{'dependencies': {'a': [{}]}}", -EINVAL, "required: element 0 must be"},
    {FORMAT_JSON_SCHEMA, "{'minimum': 3, 'maximum': 2, 'type': 'integer'}", -EINVAL, "no text"},
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

TEST(what_cannot_be_kept_is_refused, .n = N(refusals))
{
    const char *text =
        refusals[_i].kind == FORMAT_JSON_SCHEMA ? quotes(refusals[_i].text) : refusals[_i].text;
    const struct format_source source = source_of(refusals[_i].kind, text);
    struct format *f;
    struct err e = {""};

    ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), refusals[_i].code);
    ck_assert_msg(strstr(e.text, refusals[_i].message), "%s: %s", text, e.text);
}
END_TEST

/* Schemas made of a part that comes up n times, and of another one. */
static const struct {
    const char *begin, *part;
    int n;
    const char *between, *other;
    int n_others;
    const char *end;
} costly[] = {
    {"{'$defs': {'e': {'enum': ['", "x", 200000, "', 'y']}}, 'anyOf': [",
     "{'$ref': '#/$defs/e', 'pattern': '^x*y$'}, ", 1000, "{}]}"},
    {"{'enum': [", "{}, ", 15000, "{}], 'required': ['", "k", 190000, "']}"},
    {"{'$defs': {'e': {'enum': [[", "[], ", 15000, "[]]]}}, 'anyOf': [",
     "{'$ref': '#/$defs/e', 'minItems': 1}, ", 30, "{}]}"},
    {"{'$defs': {'e': {'enum': [{'", "k", 190000, "': 1}]}}, 'anyOf': [",
     "{'$ref': '#/$defs/e', 'minProperties': 1, 'properties': {'a': {}}}, ", 1000, "{}]}"},
    {"{'oneOf': [", "{}, ", 20000, "{}]}", "", 0, ""},
    {"{'$defs': {'a': {'type': 'object', 'required': ['", "k", 190000, "']}}, 'oneOf': [",
     "{'$ref': '#/$defs/a'}, ", 300, "{'type': 'null'}]}"},
    {"{'$defs': {'e': {'type': [", "'string', ", 20000, "'string']}}, 'anyOf': [",
     "{'$ref': '#/$defs/e', 'minLength': 1}, ", 1000, "{}]}"},
    {"{'not': {'prefixItems': [", "{}, ", 60000, "{}]}}", "", 0, ""},
    {"{'not': {'enum': [", "1, ", 60000, "1]}}", "", 0, ""},
    {"{'multipleOf': 1e-290, 'enum': [", "1.5e-290, ", 20000, "0]}", "", 0, ""},
};

static void append(char **at, const char *part, int n)
{
    for (int i = 0; i < n; i++)
        *at = stpcpy(*at, part);
}

TEST(what_costs_too_much_is_refused, .n = N(costly))
{
    char *text = malloc(FORMAT_MAX_SOURCE + 1), *at = text;
    struct format_source source;
    struct format *f;
    struct err e = {""};

    append(&at, costly[_i].begin, 1);
    append(&at, costly[_i].part, costly[_i].n);
    append(&at, costly[_i].between, 1);
    append(&at, costly[_i].other, costly[_i].n_others);
    append(&at, costly[_i].end, 1);
    for (char *c = strchr(text, '\''); c; c = strchr(c, '\''))
        *c = '"';
    source = source_of(FORMAT_JSON_SCHEMA, text);
    ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), -E2BIG);
    ck_assert_msg(strstr(e.text, "too complex"), "%s", e.text);
    free(text);
}
END_TEST

TEST(one_of_many_constants_is_no_great_cost)
{
    char text[16384] = "{\"oneOf\": [", *at = text + strlen(text);
    struct format *f;

    for (int i = 0; i < 249; i++)
        at += sprintf(at, "%s{\"const\": \"c%d\", \"title\": \"t\"}", i ? ", " : "", i);
    strcpy(at, "]}");
    f = format_of(FORMAT_JSON_SCHEMA, text);
    ck_assert(allows(f, "\"c0\"") && allows(f, "\"c248\"") && !allows(f, "\"c249\""));
    format_free(f);
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
    const size_t words = ((size_t)n_ids + 31) / 32;
    uint32_t *mask = calloc(words, sizeof(*mask));

    for (int i = 0; i < N(formats); i++) {
        struct format *f = format_of(FORMAT_JSON_SCHEMA, quotes(formats[i]));
        int32_t place = format_start(f);
        uint32_t random = 1;

        for (int step = 0; step < 60; step++) {
            int32_t n = 0, pick;

            if (format_mask(f, mask, place, NULL, 0) == -ENOENT)
                break;
            for (int32_t id = 0; id < n_ids; id++) {
                const bool goes_on = format_step(f, place, id) != GRAMMAR_DEAD;

                ck_assert_int_eq(mask[id / 32] >> id % 32 & 1, goes_on);
                n += goes_on;
            }
            ck_assert_int_gt(n, 0);
            random = random * 1664525 + 1013904223;
            pick = (int32_t)(random >> 8) % n;
            for (int32_t id = 0; id < n_ids; id++)
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
    const int32_t ends[] = {n_ids - 1};
    uint32_t *mask = calloc((size_t)n_ids / 32 + 1, sizeof(*mask));
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
    ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), 0);
    ck_assert(allows(f, "xx") && allows(f, "<think>\nany < text</think>\n\nx"));
    ck_assert(!allows(f, "<think>any") && !allows(f, "any</think>x"));
    format_free(f);
    source.reasoning = FORMAT_IS_BEGUN;
    ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), 0);
    ck_assert(allows(f, "any</think>\n\nx") && !allows(f, "x"));
    format_free(f);
}
END_TEST

/* ---- calls of tools */

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
    ck_assert_msg(format_new(&f, &source, vocabulary, &e) == 0, "%s", e.text);
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

    ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), wrong_tools[_i].code);
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
    ck_assert_int_eq(format_new(&f, &source, vocabulary, &e), -EINVAL);
    ck_assert_msg(strstr(e.text, unclear_tools[_i].message), "%s", e.text);
}
END_TEST

RUN_TESTS("format", set_up, tear_down)
