/* test_json_schema.c - JSON Schemas: which instances they allow, byte by byte and token by token;
 * and that what is not supported is refused. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/format_rig.h"
#include "tests/unit/quotes.h"
#include "tests/unit/run_suite.h"

/* With ' for ". */

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
    check_texts(FORMAT_JSON_SCHEMA, &t);
    while (n > 0)
        free(copies[--n]);
}
END_TEST

/* ---- what is refused */

static const struct refusal refusals[] = {
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
};

TEST(schemas_that_cannot_be_kept_to_are_refused, .n = N(refusals))
{
    check_refusal(&refusals[_i], quotes(refusals[_i].text));
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
    ck_assert_int_eq(format_new(&f, &source, rig.vocabulary, &e), -E2BIG);
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

RUN_TESTS("json_schema", format_rig_start, format_rig_end)
