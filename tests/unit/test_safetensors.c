/* test_safetensors.c - the header of a safetensors file: what passes, and how the rest is refused.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model/safetensors.h"
#include "tests/unit/run_suite.h"

static struct err e;

/* A header as it would lie in a file with so many bytes of data. */
static int parse(struct safetensors *s, const char *json, uint64_t data_bytes)
{
    size_t n = strlen(json);

    strcpy(e.text, "");
    return safetensors_parse(s, "x.safetensors", json, n, SAFETENSORS_LENGTH_BYTES + n + data_bytes,
                             &e);
}

/* Tensors are found by name, with their place in the file. */
TEST(good_header)
{
    const char *json = "{\"__metadata__\":{\"format\":\"pt\"},"
                       "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                       "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                       "\"scalar\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[20,21]},"
                       "\"empty\":{\"dtype\":\"F16\",\"shape\":[0,5],\"data_offsets\":[8,8]}}   ";
    const struct tensor *b;
    struct safetensors s;

    ck_assert_msg(parse(&s, json, 21) == 0, "%s", e.text);
    ck_assert_uint_eq(s.n, 4);
    b = safetensors_find(&s, "b");
    ck_assert_ptr_nonnull(b);
    ck_assert_str_eq(b->type, "BF16");
    ck_assert_int_eq(b->dtype, DTYPE_BF16);
    ck_assert_int_eq(safetensors_find(&s, "scalar")->dtype, N_DTYPES);
    ck_assert_int_eq(b->rank, 2);
    ck_assert_int_eq(b->shape[0], 2);
    ck_assert_int_eq(b->shape[1], 3);
    ck_assert_uint_eq(b->offset, 8 + strlen(json) + 8);
    ck_assert_uint_eq(b->bytes, 12);
    ck_assert_int_eq(safetensors_find(&s, "scalar")->rank, 0);
    ck_assert_uint_eq(safetensors_find(&s, "empty")->bytes, 0);
    ck_assert_ptr_null(safetensors_find(&s, "__metadata__"));
    ck_assert_ptr_null(safetensors_find(&s, "c"));
    safetensors_deinit(&s);
}

/* A tensor of more dimensions than the engine knows is no reason to refuse the file. */
TEST(high_rank_passes)
{
    struct safetensors s;

    ck_assert_msg(parse(&s,
                        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1,2,1,2,1,2],"
                        "\"data_offsets\":[0,8]}}",
                        8) == 0,
                  "%s", e.text);
    ck_assert_int_eq(s.tensors[0].rank, 6);
    safetensors_deinit(&s);
}

/* A file without tensors is right as far as the format goes. */
TEST(no_tensors)
{
    struct safetensors s;

    ck_assert_int_eq(parse(&s, "{}", 0), 0);
    ck_assert_ptr_null(safetensors_find(&s, "a"));
    safetensors_deinit(&s);
}

#define T(name, dtype, shape, offsets)                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *json;
    uint64_t data_bytes;
    int code;
    const char *text;
} refused[] = {
    {"", 0, -EINVAL, "does not begin with {"},
    {" {}", 0, -EINVAL, "does not begin with {"},
    {"{", 0, -EINVAL, "line 1"},
    {"{}x", 0, -EINVAL, "line 1"},
    {"{} {}", 0, -EINVAL, "line 1"},
    {"{}", 3, -EINVAL, "3 bytes after the last tensor"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("a", "U8", "[1]", "[0,1]") "}", 1, -EINVAL,
     "duplicate"},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, -EINVAL,
     "duplicate"},
    {"{\"a\":1}", 0, -EINVAL, "x.safetensors: a: must be an object"},
    {"{\"a\":{}}", 0, -EINVAL, "a: dtype: must be a string"},
    {"{\"a\\u0000b\":{}}", 0, -EINVAL, "line 1"},
    {"{\"__metadata__\":[]}", 0, -EINVAL, "__metadata__: must be an object"},
    {"{\"__metadata__\":{\"k\":1}}", 0, -EINVAL, "__metadata__: k: must be a string"},
    {"{" T("a", "Q4", "[1]", "[0,1]") "}", 1, -ENOTSUP, "a: dtype: \"Q4\" is not a known type"},
    {"{" T("a", "bf16", "[1]", "[0,2]") "}", 2, -ENOTSUP, "a: dtype: \"bf16\""},
    {"{" T("a", "U8", "1", "[0,1]") "}", 1, -EINVAL, "a: shape: must be an array"},
    {"{" T("a", "U8", "[-1]", "[0,1]") "}", 1, -EINVAL, "a: shape: each dimension"},
    {"{" T("a", "U8", "[1.0]", "[0,1]") "}", 1, -EINVAL, "a: shape: each dimension"},
    {"{" T("a", "U8", "[\"1\"]", "[0,1]") "}", 1, -EINVAL, "a: shape: each dimension"},
    {"{" T("a", "U8", "[4294967296,4294967296]", "[0,0]") "}", 0, -EINVAL, "overflows"},
    {"{" T("a", "U8", "[9223372036854775807,9223372036854775807,0]", "[0,0]") "}", 0, -EINVAL,
     "overflows"},
    {"{" T("a", "F64", "[4611686018427387904]", "[0,0]") "}", 0, -EINVAL, "0 bytes for"},
    {"{" T("a", "U8", "[99999999999999999999]", "[0,0]") "}", 0, -EINVAL, "too big"},
    {"{" T("a", "U8", "[1]", "[0]") "}", 1, -EINVAL, "a: data_offsets: must be an array of two"},
    {"{" T("a", "U8", "[1]", "[0,1,2]") "}", 1, -EINVAL, "a: data_offsets: must be an array"},
    {"{" T("a", "U8", "[1]", "[-1,0]") "}", 1, -EINVAL, "a: data_offsets: must be an array"},
    {"{" T("a", "U8", "[1]", "{}") "}", 1, -EINVAL, "a: data_offsets: must be an array"},
    {"{" T("a", "U8", "[1]", "[1,0]") "}", 1, -EINVAL, "a: data_offsets: 1 .. 0 lies outside"},
    {"{" T("a", "U8", "[2]", "[0,2]") "}", 1, -EINVAL, "a: data_offsets: 0 .. 2 lies outside"},
    {"{" T("a", "U8", "[1]", "[9223372036854775806,9223372036854775807]") "}", 1, -EINVAL,
     "lies outside"},
    {"{" T("a", "BF16", "[2]", "[0,2]") "}", 2, -EINVAL, "2 bytes for 2 elements of BF16"},
    {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, -EINVAL, "1 bytes for 3 elements of F4"},
    {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[1,3]") "}", 3, -EINVAL,
     "b: data_offsets: overlaps a"},
    {"{" T("a", "U8", "[2]", "[0,2]") "," T("b", "U8", "[2]", "[0,2]") "}", 2, -EINVAL, "overlaps"},
    {"{" T("a", "U8", "[1]", "[0,1]") "," T("b", "U8", "[1]", "[2,3]") "}", 3, -EINVAL,
     "b: data_offsets: a gap of 1 bytes before it"},
    {"{" T("a", "U8", "[1]", "[1,2]") "}", 2, -EINVAL, "a: data_offsets: a gap of 1 bytes"},
    {"{" T("a", "U8", "[1]", "[0,1]") "}", 2, -EINVAL, "1 bytes after the last tensor"},
};

/* Each fault of a header is refused, and the message says where it is. */
TEST(bad_header_is_refused, .n = N(refused))
{
    struct safetensors s;
    int rc = parse(&s, refused[_i].json, refused[_i].data_bytes);

    ck_assert_msg(rc == refused[_i].code, "%s: %d %s", refused[_i].json, rc, e.text);
    ck_assert_msg(strstr(e.text, refused[_i].text), "%s: %s", refused[_i].json, e.text);
    ck_assert_ptr_nonnull(strstr(e.text, "x.safetensors: "));
}

/* The length in the first eight bytes is checked against the file and the format's limit. */
TEST(header_length, .n = 8)
{
    static const struct {
        const char *first;
        uint64_t file_bytes;
        const char *text; /* NULL: it passes */
    } cases[] = {
        {"\x02\0\0\0\0\0\0\0", 10, NULL},
        {"\x02\0\0\0\0\0\0\0", 9, "in a file of 9: truncated? Download it again"},
        {"\x02\0\0\0\0\0\0\0", 7, "too few"},
        {"\x02\0\0\0\0\0\0\0", 0, "too few"},
        {"\x00\xe1\xf5\x05\0\0\0\0", UINT64_MAX, NULL},
        {"\x01\xe1\xf5\x05\0\0\0\0", UINT64_MAX, "the format allows 100000000"},
        {"\xff\xff\xff\xff\xff\xff\xff\xff", UINT64_MAX, "the format allows"},
        {"version ", 134, "git-lfs"},
    };
    size_t n = 0;
    int rc = safetensors_header_bytes(&n, "x", cases[_i].first, cases[_i].file_bytes, &e);

    if (cases[_i].text) {
        ck_assert_int_eq(rc, -EINVAL);
        ck_assert_msg(strstr(e.text, cases[_i].text), "%s", e.text);
    } else {
        ck_assert_msg(rc == 0, "%s", e.text);
    }
}

RUN_TESTS("safetensors", NULL, NULL)
