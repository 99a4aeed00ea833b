/* test_client_format.c - response formats of JSON requests, and the JSON text of values. */
#include <string.h>

#include "client/json/format.h"
#include "tests/unit/run_suite.h"

static struct nvllm_request request;
static struct format_reading reading;
static void *pieces[8];
static size_t n_pieces, max_pieces;
static json_t *source;

static void *take(void *owner, size_t n, size_t size)
{
    ck_assert_ptr_eq(owner, &request);
    if (n_pieces == max_pieces)
        return NULL;
    return pieces[n_pieces++] = calloc(n, size);
}

static void begin(void)
{
    max_pieces = N(pieces);
    nvllm_request_init(&request);
    reading = (struct format_reading){.take = take, .owner = &request};
}

static void end(void)
{
    while (n_pieces > 0)
        free(pieces[--n_pieces]);
    json_decref(source);
    source = NULL;
}

static bool read_format(const char *json)
{
    end();
    source = json_loads(json, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    ck_assert_ptr_nonnull(source);
    return format_read(&reading, &request, "response_format", source);
}

static void expect_text(const char *text)
{
    ck_assert_uint_eq(request.format_text.len, strlen(text));
    ck_assert_mem_eq(request.format_text.data, text, strlen(text));
}

/* Each type with its member; what is null is absent. */
TEST(types_are_read)
{
    static const struct {
        const char *json;
        enum nvllm_format format;
        const char *text;
    } rows[] = {
        {"{'type': 'json_schema', 'json_schema': {'name': 'x', 'strict': false, 'description': '',"
         " 'schema': {'b': 1, 'a': [true]}}}",
         NVLLM_FORMAT_JSON_SCHEMA, "{\"b\": 1, \"a\": [true]}"},
        {"{'type': 'json_schema', 'json_schema': {'schema': false}}", NVLLM_FORMAT_JSON_SCHEMA,
         "false"},
        {"{'type': 'json_schema', 'json_schema': {'schema': '{ }'}}", NVLLM_FORMAT_JSON_SCHEMA,
         "{ }"},
        {"{'type': 'regex', 'regex': 'a+', 'grammar': null}", NVLLM_FORMAT_REGEX, "a+"},
        {"{'type': 'grammar', 'grammar': 'root ::= [a]'}", NVLLM_FORMAT_GRAMMAR, "root ::= [a]"},
    };
    char json[200];

    for (int i = 0; i < N(rows); i++) {
        strcpy(json, rows[i].json);
        for (char *p = json; *p; p++)
            *p = *p == '\'' ? '"' : *p;
        ck_assert_msg(read_format(json), "%s: %s", json, reading.where);
        ck_assert_int_eq(request.format, rows[i].format);
        expect_text(rows[i].text);
    }
    ck_assert(read_format("{\"type\": \"json_object\", \"json_schema\": null}"));
    ck_assert_int_eq(request.format, NVLLM_FORMAT_JSON);
    ck_assert(read_format("{\"type\": \"choice\", \"choices\": [\"a\\u0000b\", \"\"]}"));
    ck_assert_int_eq(request.format, NVLLM_FORMAT_CHOICE);
    ck_assert_uint_eq(request.n_format_choices, 2);
    ck_assert_uint_eq(request.format_choices[0].len, 3);
    ck_assert_uint_eq(request.format_choices[1].len, 0);
    ck_assert_ptr_nonnull(request.format_choices[1].data);
    ck_assert(read_format("{\"type\": \"text\"}"));
    ck_assert_int_eq(request.format, NVLLM_FORMAT_TEXT);
}

/* Anything else is refused by the name of what is wrong. */
TEST(wrong_formats_are_named)
{
    static const struct {
        const char *json, *where;
    } rows[] = {
        {"[]", ""},
        {"\"text\"", ""},
        {"{}", ".type"},
        {"{\"type\": 3}", ".type"},
        {"{\"type\": \"xml\"}", ".type"},
        {"{\"type\": \"json_object\", \"schema\": {}}", ".schema"},
        {"{\"type\": \"text\", \"regex\": \"a\"}", ".regex"},
        {"{\"type\": \"regex\"}", ".regex"},
        {"{\"type\": \"regex\", \"regex\": 1}", ".regex"},
        {"{\"type\": \"grammar\", \"grammar\": []}", ".grammar"},
        {"{\"type\": \"json_schema\"}", ".json_schema"},
        {"{\"type\": \"json_schema\", \"schema\": {}}", ".schema"},
        {"{\"type\": \"json_schema\", \"json_schema\": \"{}\"}", ".json_schema"},
        {"{\"type\": \"json_schema\", \"json_schema\": {}}", ".json_schema.schema"},
        {"{\"type\": \"json_schema\", \"json_schema\": {\"schema\": []}}", ".json_schema.schema"},
        {"{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {}, \"x\": 1}}",
         ".json_schema.x"},
        {"{\"type\": \"choice\"}", ".choices"},
        {"{\"type\": \"choice\", \"choices\": \"a\"}", ".choices"},
        {"{\"type\": \"choice\", \"choices\": [\"a\", 1]}", ".choices[1]"},
    };

    for (int i = 0; i < N(rows); i++) {
        ck_assert_msg(!read_format(rows[i].json), "%s", rows[i].json);
        ck_assert_int_eq(strncmp(reading.where, "response_format", 15), 0);
        ck_assert_str_eq(reading.where + 15, rows[i].where);
        ck_assert_ptr_nonnull(reading.wanted);
        ck_assert_int_eq(request.format, NVLLM_FORMAT_TEXT);
    }
    max_pieces = 0;
    ck_assert(!read_format("{\"type\": \"json_schema\", \"json_schema\": {\"schema\": {}}}"));
    ck_assert_ptr_null(reading.wanted);
    ck_assert(!read_format("{\"type\": \"choice\", \"choices\": []}"));
    ck_assert_ptr_null(reading.wanted);
}

/* What OpenAI's interface has; anything else is refused. */
TEST(tool_choices_are_read)
{
    static const struct {
        const char *json;
        enum nvllm_tool_choice choice;
        const char *tool;
    } rows[] = {
        {"\"auto\"", NVLLM_TOOLS_AUTO, ""},
        {"\"none\"", NVLLM_TOOLS_NONE, ""},
        {"\"required\"", NVLLM_TOOLS_REQUIRED, ""},
        {"{\"type\": \"function\", \"function\": {\"name\": \"f\"}}", NVLLM_TOOLS_REQUIRED, "f"},
    };
    static const char *const wrong[] = {
        "1",
        "\"any\"",
        "{}",
        "{\"function\": {\"name\": \"f\"}}",
        "{\"type\": \"function\"}",
        "{\"type\": \"function\", \"function\": {\"name\": \"\"}}",
        "{\"type\": \"allowed_tools\", \"function\": {\"name\": \"f\"}}",
    };
    struct nvllm_chat chat;

    for (int i = 0; i < N(rows); i++) {
        nvllm_chat_init(&chat);
        source = json_loads(rows[i].json, JSON_DECODE_ANY, NULL);
        ck_assert(format_read_tool_choice(&reading, &chat, "tool_choice", source));
        ck_assert_int_eq(chat.tool_choice, rows[i].choice);
        ck_assert_uint_eq(chat.called_tool.len, strlen(rows[i].tool));
        end();
    }
    for (int i = 0; i < N(wrong); i++) {
        source = json_loads(wrong[i], JSON_DECODE_ANY, NULL);
        ck_assert(!format_read_tool_choice(&reading, &chat, "tool_choice", source));
        ck_assert_str_eq(reading.where, "tool_choice");
        ck_assert_ptr_nonnull(reading.wanted);
        end();
    }
}

/* A number keeps its value, and in the digits that it was written with if these are few. */
TEST(numbers_are_dumped_as_they_were_written)
{
    static const char *const rows[] = {
        "[0.1, -0.01, 1.0, -0.0, 123456.7, 1e-07, 0.30000000000000004, 9007199254740993]",
        "{\"0.10\\\\\": 0.7, \"\\\"0.10\": true, \"e\": false, \"+-.\": null, \"1.50\": \"2.50\"}",
        "5e-324",
        "1.7976931348623157e308",
        "[[], {}, \"\", -9223372036854775808]",
    };

    for (int i = 0; i < N(rows); i++) {
        struct nvllm_text text;
        json_t *again;

        end();
        source = json_loads(rows[i], JSON_DECODE_ANY, NULL);
        ck_assert_ptr_nonnull(source);
        text = format_dump(&reading, source);
        ck_assert_uint_eq(text.len, strlen(text.data));
        again = json_loads(text.data, JSON_DECODE_ANY, NULL);
        ck_assert_msg(json_equal(source, again), "%s", text.data);
        json_decref(again);
        if (i < 2)
            ck_assert_str_eq(text.data, rows[i]);
    }
}

RUN_TESTS("client format", begin, end)
