/* safetensors.c - see safetensors.h. */
#include "engine/model/safetensors.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/checked.h"
#include "engine/util/json_util.h"
#include "engine/util/must.h"

const struct dtype_info dtype_info[N_DTYPES] = {
    [DTYPE_BF16] = {"bf16", "BF16", "bfloat16", 16}, [DTYPE_F16] = {"f16", "F16", "float16", 16},
    [DTYPE_F32] = {"f32", "F32", "float32", 32},     [DTYPE_E4M3] = {"fp8", "F8_E4M3", NULL, 8},
    [DTYPE_INT4] = {"int4", NULL, NULL, 4},
};

/* Every type of the format, those of weights first, in their order: a file may hold tensors that
 * the model does not need. */
static const struct {
    const char *name;
    uint32_t bits;
} types[] = {
    {"BF16", 16},       {"F16", 16},        {"F32", 32},    {"F8_E4M3", 8}, {"F64", 64},
    {"F8_E5M2", 8},     {"F8_E8M0", 8},     {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
    {"I64", 64},        {"I32", 32},        {"I16", 16},    {"I8", 8},      {"U64", 64},
    {"U32", 32},        {"U16", 16},        {"U8", 8},      {"BOOL", 8},    {"C64", 64},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
};

enum { N_TYPES = sizeof(types) / sizeof(types[0]) };

_Static_assert(DTYPE_INT4 == N_DTYPES - 1, "of the types of weights only the last is in no file");

static const char *const metadata_key = "__metadata__";

int safetensors_header_bytes(size_t *out, const char *file, const void *first, uint64_t file_bytes,
                             struct err *e)
{
    uint64_t n;

    if (file_bytes < SAFETENSORS_LENGTH_BYTES)
        return err_set(e, -EINVAL, "%s: %" PRIu64 " bytes are too few for a safetensors file", file,
                       file_bytes);
    if (memcmp(first, "version ", SAFETENSORS_LENGTH_BYTES) == 0)
        return err_set(e, -EINVAL,
                       "%s: is a git-lfs pointer and not the weights; fetch them with `git lfs "
                       "pull`",
                       file);
    memcpy(&n, first, sizeof(n));
    n = le64toh(n);
    if (n > SAFETENSORS_MAX_HEADER)
        return err_set(e, -EINVAL, "%s: a header of %" PRIu64 " bytes; the format allows %d", file,
                       n, SAFETENSORS_MAX_HEADER);
    if (n > file_bytes - SAFETENSORS_LENGTH_BYTES)
        return err_set(e, -EINVAL,
                       "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64
                       ": truncated? Download it again",
                       file, n, file_bytes);
    *out = (size_t)n;
    return 0;
}

/* A problem with entry t of the header. */
#define REFUSE(code, fmt, ...) err_set(e, code, "%s: %.120s: " fmt, file, t->name, ##__VA_ARGS__)

static bool is_size(const json_t *value)
{
    return json_is_integer(value) && json_integer_value(value) >= 0;
}

static int parse_dtype(struct tensor *t, uint32_t *bits, const char *file, const json_t *value,
                       struct err *e)
{
    const char *name = json_string_value(value);
    size_t i = 0;

    if (!name)
        return REFUSE(-EINVAL, "dtype: must be a string");
    while (i < N_TYPES && strcmp(types[i].name, name) != 0)
        i++;
    if (i == N_TYPES)
        return REFUSE(-ENOTSUP, "dtype: \"%.40s\" is not a known type", name);
    t->type = types[i].name;
    t->dtype = i < DTYPE_INT4 ? (enum dtype)i : N_DTYPES;
    *bits = types[i].bits;
    return 0;
}

static int parse_shape(struct tensor *t, uint64_t *n_elements, const char *file,
                       const json_t *value, struct err *e)
{
    const json_t *dim;
    size_t i;

    *n_elements = 1;
    if (!json_is_array(value) || json_array_size(value) > INT32_MAX)
        return REFUSE(-EINVAL, "shape: must be an array");
    t->rank = (int32_t)json_array_size(value);
    json_array_foreach(value, i, dim)
    {
        if (!is_size(dim))
            return REFUSE(-EINVAL, "shape: each dimension must be a non-negative integer");
        if (i < MODEL_MAX_RANK)
            t->shape[i] = json_integer_value(dim);
        if (__builtin_mul_overflow(*n_elements, json_integer_value(dim), n_elements))
            return REFUSE(-EINVAL, "shape: the number of elements overflows");
    }
    return 0;
}

static int parse_offsets(struct tensor *t, const char *file, const json_t *value,
                         uint64_t data_start, uint64_t data_bytes, struct err *e)
{
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    uint64_t begin, end;

    if (json_array_size(value) != 2 || !is_size(first) || !is_size(last))
        return REFUSE(-EINVAL, "data_offsets: must be an array of two non-negative integers");
    begin = (uint64_t)json_integer_value(first);
    end = (uint64_t)json_integer_value(last);
    if (begin > end || end > data_bytes)
        return REFUSE(-EINVAL,
                      "data_offsets: %" PRIu64 " .. %" PRIu64 " lies outside the file's %" PRIu64
                      " bytes of data%s",
                      begin, end, data_bytes, begin <= end ? ": truncated? Download it again" : "");
    t->offset = data_start + begin;
    t->bytes = end - begin;
    return 0;
}

static int parse_entry(struct tensor *t, const char *file, const json_t *value, uint64_t data_start,
                       uint64_t data_bytes, struct err *e)
{
    uint64_t n_elements = 0, n_bits;
    uint32_t bits = 0;
    int rc;

    if (!json_is_object(value))
        return REFUSE(-EINVAL, "must be an object");
    rc = parse_dtype(t, &bits, file, json_object_get(value, "dtype"), e);
    if (rc == 0)
        rc = parse_shape(t, &n_elements, file, json_object_get(value, "shape"), e);
    if (rc == 0)
        rc = parse_offsets(t, file, json_object_get(value, "data_offsets"), data_start, data_bytes,
                           e);
    if (rc < 0)
        return rc;
    if (__builtin_mul_overflow(n_elements, bits, &n_bits) || n_bits % 8 != 0 ||
        n_bits / 8 != t->bytes)
        return REFUSE(-EINVAL, "data_offsets: %" PRIu64 " bytes for %" PRIu64 " elements of %s",
                      t->bytes, n_elements, t->type);
    return 0;
}

static int parse_metadata(const char *file, json_t *value, struct err *e)
{
    const char *key;
    json_t *v;

    if (!json_is_object(value))
        return err_set(e, -EINVAL, "%s: %s: must be an object", file, metadata_key);
    json_object_foreach(value, key, v)
    {
        if (!json_is_string(v))
            return err_set(e, -EINVAL, "%s: %s: %.120s: must be a string", file, metadata_key, key);
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

/* An empty tensor comes before another one at the same offset. */
static int by_offset(const void *a, const void *b)
{
    const struct tensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The tensors must cover the data from its first to its last byte, each byte once. */
static int check_layout(struct tensor *tensors, size_t n, const char *file, uint64_t data_start,
                        uint64_t file_bytes, struct err *e)
{
    uint64_t end = data_start;

    qsort(tensors, n, sizeof(*tensors), by_offset);
    for (size_t i = 0; i < n; i++) {
        const struct tensor *t = &tensors[i];

        if (t->offset < end)
            return REFUSE(-EINVAL, "data_offsets: overlaps %.120s", tensors[i - 1].name);
        if (t->offset > end)
            return REFUSE(-EINVAL, "data_offsets: a gap of %" PRIu64 " bytes before it",
                          (t->offset - end));
        end = t->offset + t->bytes;
    }
    if (end != file_bytes)
        return err_set(e, -EINVAL, "%s: %" PRIu64 " bytes after the last tensor", file,
                       (file_bytes - end));
    qsort(tensors, n, sizeof(*tensors), by_name);
    return 0;
}

int safetensors_parse(struct safetensors *out, const char *file, const char *json,
                      size_t json_bytes, uint64_t file_bytes, struct err *e)
{
    struct safetensors s = {0};
    uint64_t data_start = SAFETENSORS_LENGTH_BYTES + (uint64_t)json_bytes;
    const char *name;
    json_t *value;
    int rc;

    if (data_start > file_bytes)
        return err_set(e, -EINVAL, "%s: the header is longer than the file", file);
    if (json_bytes == 0 || json[0] != '{')
        return err_set(e, -EINVAL, "%s: the header does not begin with {: not a safetensors file",
                       file);
    rc = json_object_parse(&s.header, file, json, json_bytes, e);
    if (rc < 0)
        return rc;
    s.tensors = calloc(json_object_size(s.header) + 1, sizeof(*s.tensors));
    if (!s.tensors) {
        rc = err_set(e, -ENOMEM, "%s: no memory for %zu tensors", file, json_object_size(s.header));
        goto fail;
    }
    json_object_foreach(s.header, name, value)
    {
        if (strcmp(name, metadata_key) == 0) {
            rc = parse_metadata(file, value, e);
        } else {
            s.tensors[s.n] = (struct tensor){.name = name, .file = -1};
            rc =
                parse_entry(&s.tensors[s.n++], file, value, data_start, file_bytes - data_start, e);
        }
        if (rc < 0)
            goto fail;
    }
    rc = check_layout(s.tensors, s.n, file, data_start, file_bytes, e);
fail:
    if (rc < 0)
        safetensors_deinit(&s);
    else
        *out = s;
    return rc;
}

void safetensors_deinit(struct safetensors *s)
{
    json_decref(s->header);
    free(s->tensors);
    *s = (struct safetensors){0};
}

struct tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    const struct tensor key = {.name = name};

    return s->n ? bsearch(&key, s->tensors, s->n, sizeof(key), by_name) : NULL;
}

/* The bytes of one of the types above. */
static uint64_t tensor_bytes(const struct tensor *t)
{
    uint64_t n = 1;

    for (int i = 0; i < t->rank; i++)
        n *= (uint64_t)t->shape[i];
    for (size_t i = 0; i < N_TYPES; i++)
        if (strcmp(types[i].name, t->type) == 0)
            return n * types[i].bits / 8;
    must(false);
    return 0;
}

/* A name as JSON, which may have to escape characters of it. */
static void put_name(FILE *f, const char *name)
{
    json_t *string = json_string(name);

    fputc(',', f);
    json_dumpf(string, f, JSON_ENCODE_ANY);
    json_decref(string);
}

int safetensors_header(char **text, size_t *bytes, struct tensor *tensors, size_t n)
{
    FILE *f = open_memstream(text, bytes);
    uint64_t at = 0, length;

    if (!f)
        return -ENOMEM;
    fprintf(f, "%*s{\"%s\":{\"format\":\"pt\"}", SAFETENSORS_LENGTH_BYTES, "", metadata_key);
    for (size_t i = 0; i < n; i++) {
        struct tensor *t = &tensors[i];

        t->bytes = tensor_bytes(t);
        t->offset = at;
        at += t->bytes;
        put_name(f, t->name);
        fprintf(f, ":{\"dtype\":\"%s\",\"shape\":[", t->type);
        for (int d = 0; d < t->rank; d++)
            fprintf(f, "%s%" PRId64, d ? "," : "", t->shape[d]);
        fprintf(f, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", t->offset, at);
    }
    fputc('}', f);
    fflush(f);
    fprintf(f, "%*s", (int)(-*bytes % 8), ""); /* the data begin at a multiple of eight */
    if (fclose(f) != 0) {
        free(*text);
        return -ENOMEM;
    }
    length = htole64(*bytes - SAFETENSORS_LENGTH_BYTES);
    memcpy(*text, &length, sizeof(length));
    for (size_t i = 0; i < n; i++)
        tensors[i].offset += *bytes;
    return 0;
}
