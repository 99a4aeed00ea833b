/* quantization.c - see quantization.h. What a folder asks for and is not computed is refused by
 * name. Lists of modules that are not quantized are not read: the tensors themselves show that. */
#include "engine/model/quantization.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/config_fields.h"
#include "engine/model/model_config.h"
#include "engine/util/json_util.h"

#define QUANT_PREFIX "quantization_config."

/* ---- tensors */

/* Dimensions of a stored tensor of a weight [n, k]. */
enum stored_dim {
    NO_DIM, /* no tensor, or one of rank 1 */
    ONE,
    TWO,
    N,
    K,
    N_WORDS, /* eight elements a word, rounded up */
    K_WORDS,
    SCALE_ROWS,
    SCALE_COLS,
};

struct stored_spec {
    const char *suffix, *types;
    enum stored_dim rows, cols;
};

#define FLOATS "BF16, F16 or F32"
#define HALVES "BF16 or F16"

static const struct {
    const char *name; /* for people, behind the type */
    struct stored_spec stored[N_STORED];
} formats[N_QUANT_FORMATS] = {
    [QUANT_FP8] = {"",
                   {[STORED_ELEMENTS] = {"weight", "F8_E4M3", N, K},
                    [STORED_SCALES] = {"weight_scale_inv", FLOATS, SCALE_ROWS, SCALE_COLS}}},
    [QUANT_CT_BLOCKS] = {" (compressed-tensors)",
                         {[STORED_ELEMENTS] = {"weight", "F8_E4M3", N, K},
                          [STORED_SCALES] = {"weight_scale", FLOATS, SCALE_ROWS, SCALE_COLS}}},
    [QUANT_CT_CHANNELS] = {" (compressed-tensors)",
                           {[STORED_ELEMENTS] = {"weight", "F8_E4M3", N, K},
                            [STORED_SCALES] = {"weight_scale", FLOATS, N, ONE},
                            [STORED_NOTE] = {"input_scale", FLOATS, ONE, NO_DIM}}},
    [QUANT_CT_TENSORS] = {" (compressed-tensors)",
                          {[STORED_ELEMENTS] = {"weight", "F8_E4M3", N, K},
                           [STORED_SCALES] = {"weight_scale", FLOATS, ONE, NO_DIM},
                           [STORED_NOTE] = {"input_scale", FLOATS, ONE, NO_DIM}}},
    [QUANT_CT_PACKED] = {" (compressed-tensors)",
                         {[STORED_ELEMENTS] = {"weight_packed", "I32", N, K_WORDS},
                          [STORED_SCALES] = {"weight_scale", HALVES, N, SCALE_COLS},
                          [STORED_ZEROS] = {"weight_zero_point", "I32", N_WORDS, SCALE_COLS},
                          [STORED_NOTE] = {"weight_shape", "I64", TWO, NO_DIM}}},
    [QUANT_AWQ] = {" (AWQ)",
                   {[STORED_ELEMENTS] = {"qweight", "I32", K, N_WORDS},
                    [STORED_SCALES] = {"scales", HALVES, SCALE_COLS, N},
                    [STORED_ZEROS] = {"qzeros", "I32", SCALE_COLS, N_WORDS}}},
    [QUANT_GPTQ] = {" (GPTQ)",
                    {[STORED_ELEMENTS] = {"qweight", "I32", K_WORDS, N},
                     [STORED_SCALES] = {"scales", HALVES, SCALE_COLS, N},
                     [STORED_ZEROS] = {"qzeros", "I32", SCALE_COLS, N_WORDS},
                     [STORED_NOTE] = {"g_idx", "I32", K, NO_DIM}}},
    [QUANT_AT_LOAD] = {" at load", {[STORED_ELEMENTS] = {"weight", FLOATS, N, K}}},
};

static int64_t divided(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

bool quantization_stored(struct tensor *wanted, const char **types, const struct quantization *q,
                         enum stored which, int64_t n, int64_t k)
{
    const struct stored_spec *s = &formats[q->format].stored[which];
    const int64_t sizes[] = {
        [NO_DIM] = 0,
        [ONE] = 1,
        [TWO] = 2,
        [N] = n,
        [K] = k,
        [N_WORDS] = divided(n, INT4_IN_WORD),
        [K_WORDS] = divided(k, INT4_IN_WORD),
        [SCALE_ROWS] = divided(n, q->scale_rows),
        [SCALE_COLS] = q->scale_cols ? divided(k, q->scale_cols) : 1,
    };

    /* GPTQ has zeros, all the same, where quantization is symmetric. */
    if (!s->suffix || (which == STORED_NOTE && !q->has_note) ||
        (which == STORED_ZEROS && !q->zeros && q->format != QUANT_GPTQ))
        return false;
    *wanted = (struct tensor){.name = s->suffix,
                              .rank = s->cols == NO_DIM ? 1 : 2,
                              .shape = {sizes[s->rows], sizes[s->cols]}};
    *types = s->types;
    return true;
}

bool quantization_may_have(enum weight_role role)
{
    return role == WEIGHT_QKV || role == WEIGHT_O || role == WEIGHT_GATE_UP || role == WEIGHT_DOWN;
}

bool quantization_has(const struct quantization *q, enum weight_role role, int32_t layer)
{
    return q && role >= N_MODEL_WEIGHTS && q->layers[layer] >> (role - N_MODEL_WEIGHTS) & 1;
}

void quantization_text(char out[QUANT_TEXT_BYTES], const struct quantization *q)
{
    char scales[48] = "";

    if (q->scale_rows > 1)
        snprintf(scales, sizeof(scales), "blocks of %d x %d", q->scale_rows, q->scale_cols);
    else if (q->scale_cols)
        snprintf(scales, sizeof(scales), "groups of %d", q->scale_cols);
    else
        snprintf(scales, sizeof(scales), "whole %s",
                 q->format == QUANT_CT_TENSORS ? "tensors" : "rows");
    snprintf(out, QUANT_TEXT_BYTES, "%s%s in %s%s", q->dtype == DTYPE_E4M3 ? "FP8" : "INT4",
             formats[q->format].name, scales, q->zeros ? " with zeros" : "");
}

/* ---- config.json */

enum { PREFIX_BYTES = 160 };

/* The same fields, of which none has to be there. */
static struct fields optional(const struct fields *f)
{
    struct fields rest = *f;

    rest.required = false;
    return rest;
}

/* The fields of a member that is an object; prefix is memory for the beginning of their names. */
static struct fields fields_of(const struct fields *f, const char *key, char prefix[PREFIX_BYTES])
{
    struct fields inner = *f;

    inner.object = field_object(f, key);
    snprintf(prefix, PREFIX_BYTES, "%s%.40s.", f->prefix, key);
    inner.prefix = prefix;
    return inner;
}

static void parse_group_size(struct quantization *q, const struct fields *f)
{
    const json_t *value = field(f, "group_size", 1u << JSON_INTEGER, "an integer");
    const json_int_t n = json_integer_value(value);

    if (n == 32 || n == 64 || n == 128)
        q->scale_cols = (int32_t)n;
    else if (value)
        PROBLEM(f, "group_size", -ENOTSUP,
                "%" JSON_INTEGER_FORMAT " is not supported; 32, 64 and 128 are", n);
}

static void set_int4(struct quantization *q, enum quant_format format, bool zeros)
{
    q->format = format;
    q->dtype = DTYPE_INT4;
    q->scale_dtype = N_DTYPES;
    q->scale_rows = 1;
    q->zeros = zeros;
}

static void set_fp8(struct quantization *q, enum quant_format format)
{
    const bool blocks = format == QUANT_FP8 || format == QUANT_CT_BLOCKS;

    q->format = format;
    q->dtype = DTYPE_E4M3;
    q->scale_dtype = DTYPE_F32;
    q->scale_rows = blocks ? QUANT_BLOCK : 1;
    q->scale_cols = blocks ? QUANT_BLOCK : 0;
}

static void parse_awq(struct quantization *q, const struct fields *f)
{
    set_int4(q, QUANT_AWQ, true);
    field_need_int(f, "bits", 4);
    parse_group_size(q, f);
    field_need_text(f, "version", "gemm");
    field_need_flag(f, "zero_point", true);
}

static void parse_gptq(struct quantization *q, const struct fields *f)
{
    const struct fields rest = optional(f);
    const char *version = field_text(&rest, "checkpoint_format");

    set_int4(q, QUANT_GPTQ, !json_is_true(field_flag(f, "sym")));
    q->has_note = true;
    q->zero_bias = 1;
    field_need_int(f, "bits", 4);
    parse_group_size(q, f);
    if (json_is_true(field_flag(f, "desc_act")))
        PROBLEM(f, "desc_act", -ENOTSUP,
                "true is not supported; folders quantized with desc_act false are");
    if (version && strcmp(version, "gptq_v2") == 0)
        q->zero_bias = 0;
    else if (version && strcmp(version, "gptq") != 0)
        PROBLEM(f, "checkpoint_format", -ENOTSUP,
                "\"%.80s\" is not supported; gptq and gptq_v2 are", version);
    field_need_flag(&rest, "is_marlin_format", false);
    field_need_text(&rest, "pack_dtype", "int32");
    if (json_object_size(field_object(&rest, "dynamic")) > 0)
        PROBLEM(f, "dynamic", -ENOTSUP, "other settings for some modules are not supported");
}

/* An array of two sizes of a block. */
static void parse_block(const struct fields *f, const char *key)
{
    const json_t *size = field(f, key, 1u << JSON_ARRAY, "an array");

    if (size &&
        (json_array_size(size) != 2 || json_integer_value(json_array_get(size, 0)) != QUANT_BLOCK ||
         json_integer_value(json_array_get(size, 1)) != QUANT_BLOCK))
        PROBLEM(f, key, -ENOTSUP, "only blocks of %d x %d are supported", QUANT_BLOCK, QUANT_BLOCK);
}

static void parse_fp8(struct quantization *q, const struct fields *f)
{
    const struct fields rest = optional(f);

    set_fp8(q, QUANT_FP8);
    parse_block(f, "weight_block_size");
    field_need_text(f, "activation_scheme", "dynamic");
    field_need_text(&rest, "fmt", "e4m3");
}

/* Weights of a group of compressed-tensors. */
static void parse_ct_weights(struct quantization *q, bool packed, const struct fields *f)
{
    static const struct {
        const char *name;
        enum quant_format format;
        bool packed;
    } strategies[] = {{"channel", QUANT_CT_CHANNELS, false},
                      {"tensor", QUANT_CT_TENSORS, false},
                      {"block", QUANT_CT_BLOCKS, false},
                      {"group", QUANT_CT_PACKED, true}};
    const struct fields rest = optional(f);
    const char *strategy = field_text(f, "strategy"), *order = field_text(&rest, "actorder");
    enum quant_format format = QUANT_NONE;

    field_need_text(f, "type", packed ? "int" : "float");
    field_need_int(f, "num_bits", packed ? 4 : 8);
    field_need_flag(&rest, "dynamic", false);
    if (order && strcmp(order, "weight") != 0 && strcmp(order, "static") != 0)
        PROBLEM(f, "actorder", -ENOTSUP, "\"%.80s\" is not supported", order);
    for (size_t i = 0; strategy && i < sizeof(strategies) / sizeof(strategies[0]); i++)
        if (strategies[i].packed == packed && strcmp(strategy, strategies[i].name) == 0)
            format = strategies[i].format;
    if (strategy && format == QUANT_NONE)
        PROBLEM(f, "strategy", -ENOTSUP, "\"%.80s\" is not supported; %s", strategy,
                packed ? "group is" : "channel, tensor and block are");
    if (packed) {
        set_int4(q, format, !json_is_true(field_flag(f, "symmetric")));
        q->has_note = true;
        parse_group_size(q, f);
        return;
    }
    set_fp8(q, format);
    field_need_flag(f, "symmetric", true);
    if (format == QUANT_CT_BLOCKS)
        parse_block(f, "block_structure");
}

/* Activations are not quantized whatever it says, so it matters for the files alone. */
static void parse_ct_inputs(struct quantization *q, bool packed, const struct fields *f)
{
    if (packed) {
        PROBLEM(f, "num_bits", -ENOTSUP,
                "quantized activations are not supported with packed weights");
        return;
    }
    field_need_int(f, "num_bits", 8);
    field_need_text(f, "type", "float");
    q->has_note =
        q->format != QUANT_CT_BLOCKS && json_is_false(json_object_get(f->object, "dynamic"));
}

/* Notes an object that is not empty, unless its format is the one that does nothing. */
static void need_nothing(const struct fields *f, const char *key, const char *nothing)
{
    const json_t *v = field_object(f, key);
    const char *format = json_string_value(json_object_get(v, "format"));

    if (json_object_size(v) > 0 && !(format && strcmp(format, nothing) == 0))
        PROBLEM(f, key, -ENOTSUP, "is not supported");
}

static void parse_compressed(struct quantization *q, const struct fields *f)
{
    const char *format = field_text(f, "format");
    const bool packed = format && strcmp(format, "pack-quantized") == 0;
    char prefixes[3][PREFIX_BYTES];
    const struct fields rest = optional(f);
    struct fields groups = fields_of(f, "config_groups", prefixes[0]), group, part;

    if (format && !packed && strcmp(format, "float-quantized") != 0 &&
        strcmp(format, "naive-quantized") != 0)
        PROBLEM(f, "format", -ENOTSUP,
                "\"%.80s\" is not supported; float-quantized, naive-quantized and "
                "pack-quantized are",
                format);
    need_nothing(&rest, "sparsity_config", "dense");
    need_nothing(&rest, "transform_config", "");
    if (!groups.object)
        return;
    if (json_object_size(groups.object) != 1) {
        PROBLEM(f, "config_groups", -ENOTSUP, "%zu groups are not supported; one is",
                json_object_size(groups.object));
        return;
    }
    group = fields_of(&groups,
                      json_object_iter_key(json_object_iter((json_t *)(uintptr_t)groups.object)),
                      prefixes[1]);
    part = fields_of(&group, "weights", prefixes[2]);
    if (part.object)
        parse_ct_weights(q, packed, &part);
    group = optional(&group);
    part = fields_of(&group, "input_activations", prefixes[2]);
    part.required = true;
    if (part.object)
        parse_ct_inputs(q, packed, &part);
    if (field_object(&group, "output_activations"))
        PROBLEM(&group, "output_activations", -ENOTSUP, "quantized outputs are not supported");
}

void quantization_parse(struct quantization *q, const json_t *root, struct problems *p)
{
    static const struct {
        const char *name;
        void (*parse)(struct quantization *q, const struct fields *f);
    } methods[] = {{"fp8", parse_fp8},
                   {"awq", parse_awq},
                   {"gptq", parse_gptq},
                   {"compressed-tensors", parse_compressed}};
    const struct fields top = {MODEL_CONFIG_FILE, "", root, p, false};
    struct fields f = {MODEL_CONFIG_FILE, QUANT_PREFIX, NULL, p, true};
    const char *method;

    *q = (struct quantization){0};
    f.object = field_object(&top, "quantization_config");
    if (!f.object)
        return;
    method = field_text(&f, "quant_method");
    for (size_t i = 0; method && i < sizeof(methods) / sizeof(methods[0]); i++)
        if (strcmp(method, methods[i].name) == 0) {
            methods[i].parse(q, &f);
            return;
        }
    if (method)
        PROBLEM(&f, "quant_method", -ENOTSUP,
                "\"%.80s\" is not supported; fp8, awq, gptq and compressed-tensors are", method);
}

int quantization_at_load(struct quantization *q, const struct model_config *c, enum dtype dtype,
                         struct err *e)
{
    *q = (struct quantization){0};
    if (dtype == DTYPE_E4M3) {
        set_fp8(q, QUANT_FP8);
    } else {
        const int64_t widths[] = {tensor_dim_size(c, DIM_HIDDEN), tensor_dim_size(c, DIM_Q),
                                  tensor_dim_size(c, DIM_FFN)};

        set_int4(q, QUANT_AT_LOAD, false);
        q->scale_dtype = DTYPE_BF16;
        q->scale_cols = 128;
        for (size_t i = 0; i < sizeof(widths) / sizeof(widths[0]); i++)
            while (widths[i] % q->scale_cols != 0)
                q->scale_cols /= 2;
        if (q->scale_cols < 32)
            return err_set(e, -ENOTSUP,
                           "INT4 needs groups of at least 32 columns, but the inputs of "
                           "projections are %d, %d and %d wide: quantize to FP8",
                           (int)widths[0], (int)widths[1], (int)widths[2]);
    }
    q->format = QUANT_AT_LOAD;
    return 0;
}
