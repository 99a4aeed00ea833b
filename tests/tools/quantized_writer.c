/* quantized_writer.c - see quantized_writer.h. */
#include "tests/tools/quantized_writer.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/model/model_config.h"
#include "engine/model/safetensors.h"
#include "engine/model/tensor_table.h"
#include "engine/util/bf16.h"
#include "engine/util/json_util.h"
#include "engine/util/must.h"
#include "tests/tools/model_writer.h"

enum { MAX_TENSORS = 4096, BLOCK = 128 };

enum salt { ELEMENT, SCALE, ZERO, PLAIN };

static uint64_t hash(const char *name, enum salt salt, int64_t a, int64_t b)
{
    const int64_t place[] = {salt, a, b};

    return XXH3_64bits_withSeed(place, sizeof(place), XXH3_64bits(name, strlen(name)));
}

bool quantized_has(const struct quantized_form *form, const char *name)
{
    return strstr(name, "_proj.weight") && !(form->plain && strstr(name, form->plain));
}

/* ---- what is stored */

static bool is_int4(const struct quantized_form *form)
{
    return form->kind >= QUANTIZED_PACKED;
}

/* Bits of E4M3, none of NaN, or 0 .. 15. */
static unsigned element(const struct quantized_form *form, const char *name, int64_t row,
                        int64_t col)
{
    const unsigned h = (unsigned)hash(name, ELEMENT, row, col);

    if (is_int4(form))
        return h & 15;
    return (h & 0x7f) == 0x7f ? 0 : h & 0xff;
}

/* The bits of a scale in the type of the file: 2^-9 to 2^-5, for FP8 2^-13 to 2^-9. */
static uint32_t scale_bits(const struct quantized_form *form, const char *name, int64_t row,
                           int64_t group)
{
    const uint64_t h = hash(name, SCALE, row, group);
    const int exponent = (int)(h % 4) - (is_int4(form) ? 9 : 13);
    const uint32_t mantissa = form->powers ? 0 : (uint32_t)(h >> 8);

    if (strcmp(form->scale_type, "F16") == 0)
        return (uint32_t)(exponent + 15) << 10 | (mantissa & 0x3ff);
    if (strcmp(form->scale_type, "BF16") == 0)
        return (uint32_t)(exponent + 127) << 7 | (mantissa & 0x7f);
    return (uint32_t)(exponent + 127) << 23 | (mantissa & 0x7fffff);
}

static int zero(const struct quantized_form *form, const char *name, int64_t row, int64_t group)
{
    return form->symmetric ? 8 : (int)(hash(name, ZERO, row, group) % 16) + form->stored_less;
}

/* ---- what it means */

static double float_of(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> mantissa_bits & ((1u << exponent_bits) - 1));
    const double mantissa = (double)(bits & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
    const double sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1.0 : 1.0;

    return sign * (exponent ? ldexp(1.0 + mantissa, exponent - bias) : ldexp(mantissa, 1 - bias));
}

double quantized_value(const struct quantized_form *form, const char *name, int64_t row,
                       int64_t col)
{
    const unsigned e = element(form, name, row, col);
    const int64_t scale_row = form->kind == QUANTIZED_FP8_BLOCKS   ? row / BLOCK
                              : form->kind == QUANTIZED_FP8_TENSOR ? 0
                                                                   : row;
    const int64_t group = form->group ? col / form->group : 0;
    const uint32_t bits = scale_bits(form, name, scale_row, group);
    const double scale = strcmp(form->scale_type, "F16") == 0    ? float_of(bits, 5, 10)
                         : strcmp(form->scale_type, "BF16") == 0 ? float_of(bits, 8, 7)
                                                                 : float_of(bits, 8, 23);

    return scale * (is_int4(form) ? (int)e - zero(form, name, row, group) : float_of(e, 4, 3));
}

/* ---- tensors */

struct out {
    const struct quantized_form *form;
    struct tensor tensors[MAX_TENSORS];
    char names[MAX_TENSORS][TENSOR_NAME_BYTES];
    uint8_t *data[MAX_TENSORS];
    size_t n;
};

/* Adds a tensor named as a weight but for its suffix; returns its data, of zeros. */
static void *add(struct out *o, const char *weight, const char *suffix, const char *type, int rank,
                 int64_t rows, int64_t cols, size_t size)
{
    const size_t stem = strlen(weight) - strlen("weight"), i = o->n++;

    must(o->n <= MAX_TENSORS);
    snprintf(o->names[i], TENSOR_NAME_BYTES, "%.*s%s", (int)stem, weight, suffix);
    o->tensors[i] =
        (struct tensor){.name = o->names[i], .type = type, .rank = rank, .shape = {rows, cols}};
    o->data[i] = calloc((size_t)(rows * (rank > 1 ? cols : 1)), size);
    must(o->data[i]);
    return o->data[i];
}

static size_t size_of(const char *type)
{
    return strcmp(type, "F32") == 0 ? 4 : 2;
}

/* Scales [rows, cols] by rows and groups, or transposed. */
static void add_scales(struct out *o, const char *name, const char *suffix, int rank, int64_t rows,
                       int64_t cols, bool transposed)
{
    const size_t size = size_of(o->form->scale_type);
    uint8_t *to = add(o, name, suffix, o->form->scale_type, rank, rows, cols, size);

    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < (rank > 1 ? cols : 1); j++) {
            const uint32_t bits = scale_bits(o->form, name, transposed ? j : i, transposed ? i : j);

            memcpy(to + ((size_t)(i * (rank > 1 ? cols : 1) + j)) * size, &bits, size);
        }
}

static void add_fp8(struct out *o, const char *name, int64_t n, int64_t k)
{
    const struct quantized_form *form = o->form;
    uint8_t *to = add(o, name, "weight", "F8_E4M3", 2, n, k, 1);

    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++)
            to[r * k + c] = (uint8_t)element(form, name, r, c);
    if (form->kind == QUANTIZED_FP8_TENSOR)
        add_scales(o, name, form->scale_suffix, 1, 1, 0, false);
    else if (form->kind == QUANTIZED_FP8_ROWS)
        add_scales(o, name, form->scale_suffix, 2, n, 1, false);
    else
        add_scales(o, name, form->scale_suffix, 2, (n + BLOCK - 1) / BLOCK, (k + BLOCK - 1) / BLOCK,
                   false);
    if (form->extra)
        *(float *)add(o, name, form->extra, "F32", 1, 1, 0, 4) = 0.25f;
}

static void add_packed(struct out *o, const char *name, int64_t n, int64_t k)
{
    const struct quantized_form *form = o->form;
    const int64_t groups = k / form->group;
    uint32_t *words = add(o, name, "weight_packed", "I32", 2, n, k / 8, 4), *zeros;
    int64_t *shape = add(o, name, "weight_shape", "I64", 1, 2, 0, 8);

    shape[0] = n;
    shape[1] = k;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++)
            words[r * (k / 8) + c / 8] |= element(form, name, r, c) << 4 * (c % 8);
    add_scales(o, name, "weight_scale", 2, n, groups, false);
    if (form->symmetric)
        return;
    zeros = add(o, name, "weight_zero_point", "I32", 2, (n + 7) / 8, groups, 4);
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < groups; g++)
            zeros[r / 8 * groups + g] |= (uint32_t)zero(form, name, r, g) << 4 * (r % 8);
}

static void add_transposed(struct out *o, const char *name, int64_t n, int64_t k)
{
    static const int awq_order[] = {0, 2, 4, 6, 1, 3, 5, 7}; /* of element i of a word */
    const struct quantized_form *form = o->form;
    const bool awq = form->kind == QUANTIZED_AWQ;
    const int64_t groups = k / form->group;
    uint32_t *words = add(o, name, "qweight", "I32", 2, awq ? k : k / 8, awq ? n / 8 : n, 4);
    uint32_t *zeros = add(o, name, "qzeros", "I32", 2, groups, n / 8, 4);
    int32_t *g_idx = awq ? NULL : add(o, name, "g_idx", "I32", 1, k, 0, 4);

    for (int64_t c = 0; c < k; c++) {
        for (int64_t r = 0; r < n; r++)
            if (!awq)
                words[c / 8 * n + r] |= element(form, name, r, c) << 4 * (c % 8);
        for (int64_t w = 0; awq && w < n / 8; w++)
            for (int i = 0; i < 8; i++)
                words[c * (n / 8) + w] |= element(form, name, w * 8 + awq_order[i], c) << 4 * i;
        if (g_idx)
            g_idx[c] = (int32_t)(c / form->group);
    }
    for (int64_t g = 0; g < groups; g++)
        for (int64_t w = 0; w < n / 8; w++)
            for (int i = 0; i < 8; i++) {
                const int64_t row = w * 8 + (awq ? awq_order[i] : i);

                zeros[g * (n / 8) + w] |= (uint32_t)(zero(form, name, row, g) - form->stored_less)
                                          << 4 * i;
            }
    add_scales(o, name, "scales", 2, groups, n, true);
}

static void add_floats(struct out *o, const char *name, int64_t n, int64_t k)
{
    float *to = add(o, name, "weight", "F32", 2, n, k, 4);

    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++)
            to[r * k + c] = (float)quantized_value(o->form, name, r, c);
}

/* A weight that no format quantizes. */
static void add_plain(struct out *o, const struct tensor *t)
{
    const bool is_norm = strstr(t->name, "norm");
    const size_t n = (size_t)tensor_elements(t), i = o->n;
    uint16_t *to;

    must(strlen(t->name) < TENSOR_NAME_BYTES);
    to = add(o, "weight", t->name, "BF16", t->rank, t->shape[0], t->shape[1], 2);
    must(strcmp(o->names[i], t->name) == 0);
    for (size_t k = 0; k < n; k++) {
        const double x = (double)(int32_t)hash(t->name, PLAIN, (int64_t)k, 0) / 0x1p31;

        to[k] = bf16_from_f32((float)(is_norm ? 1.0 + 0.25 * x : 0.1 * x));
    }
}

/* ---- the folder */

static void write_weights(const char *folder, struct out *o)
{
    char path[256], *header;
    size_t bytes;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", folder, MODEL_WEIGHTS_FILE);
    must(safetensors_header(&header, &bytes, o->tensors, o->n) == 0);
    f = fopen(path, "w");
    must(f && fwrite(header, 1, bytes, f) == bytes);
    for (size_t i = 0; i < o->n; i++) {
        must(fwrite(o->data[i], 1, o->tensors[i].bytes, f) == o->tensors[i].bytes);
        free(o->data[i]);
    }
    must(fclose(f) == 0);
    free(header);
}

/* Adds quantization_config to config.json. */
static void write_config(const char *folder, const char *config)
{
    char *text = strdup(config), path[256];
    json_t *root, *quant = NULL;
    int dir = open(folder, O_RDONLY | O_DIRECTORY);
    struct err e;

    must(text && dir >= 0);
    for (char *at = text; (at = strchr(at, '\''));)
        *at = '"';
    must(json_object_read(&root, dir, MODEL_CONFIG_FILE, MODEL_CONFIG_MAX_BYTES, &e) == 0);
    must(json_parse(&quant, "config", text, strlen(text), 0, &e) == 0);
    json_object_set_new(root, "quantization_config", quant);
    snprintf(path, sizeof(path), "%s/%s", folder, MODEL_CONFIG_FILE);
    must(json_dump_file(root, path, 0) == 0);
    json_decref(root);
    free(text);
    close(dir);
}

void quantized_write(const char *folder, const struct model_config *c,
                     const struct quantized_form *form, bool dequantized)
{
    static void (*const adders[])(struct out * o, const char *name, int64_t n, int64_t k) = {
        [QUANTIZED_FP8_BLOCKS] = add_fp8, [QUANTIZED_FP8_ROWS] = add_fp8,
        [QUANTIZED_FP8_TENSOR] = add_fp8, [QUANTIZED_PACKED] = add_packed,
        [QUANTIZED_AWQ] = add_transposed, [QUANTIZED_GPTQ] = add_transposed,
    };
    struct writer w = {.folder = folder,
                       .tokenizer = TEST_MODEL_DIR,
                       .config = *c,
                       .dtype = DTYPE_BF16,
                       .n_shards = 1};
    struct out *o = calloc(1, sizeof(*o));
    struct err e;

    must(o && writer_open(&w, &e) == 0);
    o->form = form;
    for (size_t i = 0; i < w.tensors.n; i++) {
        const struct tensor *t = &w.tensors.all[i];

        if (!quantized_has(form, t->name))
            add_plain(o, t);
        else if (dequantized)
            add_floats(o, t->name, t->shape[0], t->shape[1]);
        else
            adders[form->kind](o, t->name, t->shape[0], t->shape[1]);
    }
    must(writer_close(&w, &e) == 0);
    write_weights(folder, o);
    if (!dequantized)
        write_config(folder, form->config);
    free(o);
}
