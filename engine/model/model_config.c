/* model_config.c - see model_config.h.
 *
 * Checks come in the order in which a person wants their results: the architecture, then features
 * that are not supported, then numbers. */
#include "engine/model/model_config.h"

#include <errno.h>
#include <string.h>

#include "engine/util/json_util.h"

enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 1024,
    MAX_HEAD_DIM = 1024,
    MAX_HIDDEN = 1 << 17,
    MAX_FFN = 1 << 20,
    MAX_VOCAB = 1 << 22,
    MAX_SEQ_LEN = 1 << 24,
};

/* What an architecture implies without a field of config.json that says so. */
struct family {
    const char *arch, *model_type;
    bool qkv_bias, qk_norm;
    int32_t head_dim; /* where the field is absent; 0: hidden_size / num_attention_heads */
};

static const struct family families[] = {
    {"Qwen2ForCausalLM", "qwen2", .qkv_bias = true},
    {"Qwen3ForCausalLM", "qwen3", .qk_norm = true, .head_dim = 128},
};

enum { N_FAMILIES = sizeof(families) / sizeof(families[0]) };

/* NULL: a problem was noted. */
static const struct family *parse_family(struct model_config *c, const struct fields *f)
{
    const json_t *list = json_object_get(f->object, "architectures");
    char known[N_FAMILIES * 40];
    const char *name, *type;
    int n = 0;

    if (!json_is_array(list) || json_array_size(list) != 1 ||
        !json_is_string(json_array_get(list, 0))) {
        field_problem(f, "architectures", -EINVAL, "must be an array of one name");
        return NULL;
    }
    name = json_string_value(json_array_get(list, 0));
    for (const struct family *y = families; y < families + N_FAMILIES; y++) {
        n += snprintf(known + n, sizeof(known) - (size_t)n, "%s%s", n ? ", " : "", y->arch);
        if (strcmp(name, y->arch) != 0)
            continue;
        c->arch = y->arch;
        c->qkv_bias = y->qkv_bias;
        c->qk_norm = y->qk_norm;
        if (field_text(&type, f, "model_type") != FIELD_OK || strcmp(type, y->model_type) == 0)
            return y;
        field_problem(f, "model_type", -EINVAL, "\"%.80s\" contradicts architectures, \"%s\"", type,
                      name);
        return NULL;
    }
    field_problem(f, "architectures", -ENOTSUP, "\"%.80s\" is not supported; these are: %s", name,
                  known);
    return NULL;
}

/* A text field that may be absent, but may not be another text. */
static void need_text(const struct fields *f, const char *key, const char *only, const char *note)
{
    const char *text;

    if (field_text(&text, f, key) == FIELD_OK && strcmp(text, only) != 0)
        field_problem(f, key, -ENOTSUP, "\"%.80s\" is not supported; only \"%s\" is%s", text, only,
                      note);
}

/* Rotary embedding of the plain kind, in the object that holds the fields. transformers 5 writes
 * rope_parameters, 4 wrote rope_theta at the root and rope_scaling; they must agree. */
static void parse_rope_object(double *theta, const struct fields *f)
{
    static const char note[] = " (a longer context by scaling is not computed)";
    double inner, partial;

    if (*f->prefix) {
        need_text(f, "rope_type", "default", note);
        need_text(f, "type", "default", note);
    }
    if (field_real(&partial, f, "partial_rotary_factor", 0.0, 1.0) == FIELD_OK && partial != 1.0)
        field_problem(f, "partial_rotary_factor", -ENOTSUP, "%g is not supported; only 1 is",
                      partial);
    if (field_real(&inner, f, "rope_theta", 1.0, 1e15) != FIELD_OK)
        return;
    if (*theta != 0.0 && *theta != inner)
        field_problem(f, "rope_theta", -EINVAL, "%g contradicts rope_theta, %g", inner, *theta);
    *theta = inner;
}

static void parse_rope(struct model_config *c, const struct fields *root)
{
    uint32_t before = root->problems->n;
    struct fields f = *root;

    c->rope_theta = 0.0;
    parse_rope_object(&c->rope_theta, root);
    f.prefix = "rope_parameters.";
    if (field_object(&f.object, root, "rope_parameters") == FIELD_OK)
        parse_rope_object(&c->rope_theta, &f);
    f.prefix = "rope_scaling.";
    if (field_object(&f.object, root, "rope_scaling") == FIELD_OK)
        parse_rope_object(&c->rope_theta, &f);
    if (c->rope_theta == 0.0 && root->problems->n == before)
        field_problem(root, "rope_theta", -EINVAL,
                      "is missing, and so is rope_parameters.rope_theta");
}

static void parse_layer_types(const struct model_config *c, const struct fields *f)
{
    const json_t *types = json_object_get(f->object, "layer_types");
    const json_t *type;
    size_t i;

    if (!types || json_is_null(types))
        return;
    if (!json_is_array(types)) {
        field_problem(f, "layer_types", -EINVAL, "must be an array, not %s", json_type_name(types));
        return;
    }
    json_array_foreach(types, i, type)
    {
        if (json_is_string(type) && strcmp(json_string_value(type), "full_attention") == 0)
            continue;
        field_problem(f, "layer_types", -ENOTSUP,
                      "entry %zu is \"%.80s\"; only \"full_attention\" is supported", i,
                      json_is_string(type) ? json_string_value(type) : json_type_name(type));
        return;
    }
    if (c->n_layers > 0 && json_array_size(types) != (size_t)c->n_layers)
        field_problem(f, "layer_types", -EINVAL, "has %zu entries for %d layers",
                      json_array_size(types), c->n_layers);
}

static bool is_dtype(const char *torch_name)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (strcmp(torch_name, dtype_info[i].torch) == 0)
            return true;
    return false;
}

/* Features that are not supported, by the field that asks for them: with true if it is a flag, else
 * with any value. */
static const struct {
    const char *key;
    bool flag;
    const char *why;
} unsupported[] = {
    {"quantization_config", false,
     "quantized weights are not supported; take the folder with bf16, f16 or f32 weights"},
    {"num_experts", false, "mixtures of experts are not supported"},
    {"num_local_experts", false, "mixtures of experts are not supported"},
    {"moe_intermediate_size", false, "mixtures of experts are not supported"},
    {"use_sliding_window", true, "true is not supported: attention is always full"},
    {"mlp_bias", true, "true is not supported: no known architecture has it"},
};

static void parse_features(const struct model_config *c, const struct fields *f)
{
    const char *text;
    bool on;

    for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
        const json_t *value = json_object_get(f->object, unsupported[i].key);

        if (unsupported[i].flag ? field_bool(&on, f, unsupported[i].key) == FIELD_OK && on
                                : value && !json_is_null(value))
            field_problem(f, unsupported[i].key, -ENOTSUP, "%s", unsupported[i].why);
    }
    need_text(f, "hidden_act", "silu", "");
    if (field_bool(&on, f, "attention_bias") == FIELD_OK && on != c->qkv_bias)
        field_problem(f, "attention_bias", -ENOTSUP,
                      "%s contradicts the architecture: %s %s biases on q, k and v",
                      on ? "true" : "false", c->arch, on ? "has no" : "always has");
    for (int i = 0; i < 2; i++) {
        const char *key = i == 0 ? "dtype" : "torch_dtype";

        if (field_text(&text, f, key) == FIELD_OK && !is_dtype(text))
            field_problem(f, key, -ENOTSUP,
                          "\"%.80s\" is not supported; bfloat16, float16 and float32 are", text);
    }
}

static void parse_dims(struct model_config *c, const struct family *family, const struct fields *f)
{
    struct fields required = *f;
    uint32_t before = f->problems->n;
    double eps = 0.0;

    required.required = true;
    field_int(&c->hidden_dim, &required, "hidden_size", 1, MAX_HIDDEN);
    field_int(&c->n_layers, &required, "num_hidden_layers", 1, MAX_LAYERS);
    field_int(&c->n_heads, &required, "num_attention_heads", 1, MAX_HEADS);
    field_int(&c->ffn_dim, &required, "intermediate_size", 1, MAX_FFN);
    field_int(&c->vocab_size, &required, "vocab_size", 1, MAX_VOCAB);
    field_int(&c->max_seq_len, &required, "max_position_embeddings", 1, MAX_SEQ_LEN);
    /* The smallest bound keeps a float32 from becoming zero. */
    field_real(&eps, &required, "rms_norm_eps", 1e-30, 1.0);
    c->rms_norm_eps = (float)eps;
    field_bool(&c->tied, f, "tie_word_embeddings");
    if (field_int(&c->n_kv_heads, f, "num_key_value_heads", 1, MAX_HEADS) == FIELD_ABSENT)
        c->n_kv_heads = c->n_heads;
    if (f->problems->n == before && c->n_heads % c->n_kv_heads != 0)
        field_problem(f, "num_key_value_heads", -EINVAL,
                      "%d does not divide num_attention_heads, %d", c->n_kv_heads, c->n_heads);
    if (field_int(&c->head_dim, f, "head_dim", 2, MAX_HEAD_DIM) == FIELD_ABSENT) {
        if (family->head_dim && !json_object_get(f->object, "head_dim"))
            c->head_dim = family->head_dim;
        else if (c->n_heads > 0 && c->hidden_dim % c->n_heads == 0 &&
                 c->hidden_dim / c->n_heads <= MAX_HEAD_DIM)
            c->head_dim = c->hidden_dim / c->n_heads;
        else if (c->n_heads > 0)
            field_problem(f, "head_dim", -EINVAL,
                          "is missing, and hidden_size / num_attention_heads (%d / %d) is none",
                          c->hidden_dim, c->n_heads);
    }
    if (c->head_dim % 2 != 0)
        field_problem(f, "head_dim", -EINVAL, "%d is odd; rotary embedding needs pairs",
                      c->head_dim);
}

/* eos_token_id: null, an id or an array of ids. */
static void parse_eos(struct model_defaults *d, int32_t vocab_size, const struct fields *f)
{
    const json_t *value = json_object_get(f->object, "eos_token_id");
    size_t n = json_is_array(value) ? json_array_size(value) : 1;

    if (!value || json_is_null(value))
        return;
    d->n_eos = 0;
    if (n > MODEL_MAX_EOS) {
        field_problem(f, "eos_token_id", -ENOTSUP, "has %zu ids; at most %d are supported", n,
                      MODEL_MAX_EOS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        json_int_t v = json_integer_value(id);

        if (!json_is_integer(id)) {
            field_problem(f, "eos_token_id", -EINVAL, "must be an id or an array of ids, not %s",
                          json_type_name(id));
            return;
        }
        if (v < 0 || v >= vocab_size) {
            field_problem(f, "eos_token_id", -EINVAL,
                          "%" JSON_INTEGER_FORMAT " is not in 0 .. %d, the vocabulary", v,
                          vocab_size - 1);
            return;
        }
        d->eos[d->n_eos++] = (int32_t)v;
    }
}

void model_config_parse(struct model_config *c, struct model_defaults *d, const json_t *root,
                        struct problems *p)
{
    const struct fields f = {MODEL_CONFIG_FILE, "", root, p, false};
    const struct family *family;

    *c = (struct model_config){0};
    *d = (struct model_defaults){.temperature = 1.0f, .top_p = 1.0f, .repetition_penalty = 1.0f};
    if (!root)
        return;
    family = parse_family(c, &f);
    if (!family)
        return; /* in another architecture the other fields mean something else */
    parse_features(c, &f);
    parse_dims(c, family, &f);
    parse_rope(c, &f);
    parse_layer_types(c, &f);
    if (c->vocab_size > 0)
        parse_eos(d, c->vocab_size, &f);
}

void model_defaults_parse(struct model_defaults *d, int32_t vocab_size, const json_t *root,
                          struct problems *p)
{
    const struct fields f = {MODEL_GENERATION_FILE, "", root, p, false};
    double x;
    bool sample;

    if (field_real(&x, &f, "temperature", 0.0, 100.0) == FIELD_OK)
        d->temperature = (float)x;
    if (field_bool(&sample, &f, "do_sample") == FIELD_OK && !sample)
        d->temperature = 0.0f;
    field_int(&d->top_k, &f, "top_k", 0, INT32_MAX);
    if (field_real(&x, &f, "top_p", 1e-6, 1.0) == FIELD_OK)
        d->top_p = (float)x;
    if (field_real(&x, &f, "min_p", 0.0, 1.0) == FIELD_OK)
        d->min_p = (float)x;
    if (field_real(&x, &f, "repetition_penalty", 1e-3, 1e3) == FIELD_OK)
        d->repetition_penalty = (float)x;
    parse_eos(d, vocab_size, &f);
}

/* The object in a file of the folder, or NULL with a problem noted. */
static json_t *read_file(int dir, const char *name, bool optional, struct problems *p)
{
    json_t *root = NULL;
    struct err e;
    int rc = json_object_read(&root, dir, name, MODEL_CONFIG_MAX_BYTES, &e);

    if (rc < 0 && !(rc == -ENOENT && optional))
        problems_add(p, rc, "%s", e.text);
    return root;
}

void model_config_read(struct model_config *c, struct model_defaults *d, int dir,
                       struct problems *p)
{
    json_t *root = read_file(dir, MODEL_CONFIG_FILE, false, p);

    model_config_parse(c, d, root, p);
    json_decref(root);
}

void model_defaults_read(struct model_defaults *d, int32_t vocab_size, int dir, struct problems *p)
{
    json_t *root = read_file(dir, MODEL_GENERATION_FILE, true, p);

    model_defaults_parse(d, vocab_size, root, p);
    json_decref(root);
}
