/* model_config.c - see model_config.h.
 *
 * Checks come in the order in which a person wants their results: the architecture, then features
 * that are not supported, then numbers. */
#include "engine/model/model_config.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/model/config_fields.h"
#include "engine/util/json_util.h"

enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 1024,
    MAX_HIDDEN = 1 << 17,
    MAX_FFN = 1 << 20,
    MAX_EXPERTS = 1024,
    MAX_ALL_FFN = 1 << 24, /* of all experts of a layer, which are one matrix */
    MAX_VOCAB = 1 << 22,
    MAX_SEQ_LEN = 1 << 24,
};

/* ---- config.json */

/* What an architecture implies without a field of config.json that says so. */
struct family {
    const char *arch, *model_type;
    bool qkv_bias, qk_norm;
    bool headless;          /* the same network without an LM head, as embedders are saved */
    const char *expert_dim; /* the field of experts' width; NULL: there are no experts */
    bool norm_topk;         /* whatever norm_topk_prob says */
    bool block_sparse_moe;  /* their names in the files */
    int32_t window;    /* where sliding_window is absent; 0: there is none, whatever that says */
    int32_t head_dim;  /* where the field is absent; 0: hidden_size / num_attention_heads */
    double rope_theta; /* where it is absent; 0: it must not be */
};

static const struct family families[] = {
    {"LlamaForCausalLM", "llama", .rope_theta = 1e4},
    {"MistralForCausalLM", "mistral", .window = 4096, .rope_theta = 1e4},
    {"MixtralForCausalLM", "mixtral", .expert_dim = "intermediate_size", .norm_topk = true,
     .block_sparse_moe = true, .window = MAX_SEQ_LEN, .rope_theta = 1e6},
    {"Qwen2ForCausalLM", "qwen2", .qkv_bias = true},
    {"Qwen3ForCausalLM", "qwen3", .qk_norm = true, .head_dim = 128},
    {"Qwen3MoeForCausalLM", "qwen3_moe", .qk_norm = true, .expert_dim = "moe_intermediate_size",
     .rope_theta = 1e4},
    {"LlamaModel", "llama", .rope_theta = 1e4, .headless = true},
    {"MistralModel", "mistral", .window = 4096, .rope_theta = 1e4, .headless = true},
    {"Qwen2Model", "qwen2", .qkv_bias = true, .headless = true},
    {"Qwen3Model", "qwen3", .qk_norm = true, .head_dim = 128, .headless = true},
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
        PROBLEM(f, "architectures", -EINVAL, "must be an array of one name");
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
        c->headless = y->headless;
        type = field_text(f, "model_type");
        if (!type || strcmp(type, y->model_type) == 0)
            return y;
        PROBLEM(f, "model_type", -EINVAL, "\"%.80s\" contradicts architectures, \"%s\"", type,
                name);
        return NULL;
    }
    PROBLEM(f, "architectures", -ENOTSUP, "\"%.80s\" is not supported; these are: %s", name, known);
    return NULL;
}

/* ---- rotary embedding. transformers 5 writes rope_parameters, 4 wrote rope_theta at the root and
 * rope_scaling; what both say must agree. */

static void parse_theta(double *theta, const struct fields *f)
{
    double inner, partial;

    if (field_real(&partial, f, "partial_rotary_factor", 0.0, 1.0) && partial != 1.0)
        PROBLEM(f, "partial_rotary_factor", -ENOTSUP, "%g is not supported; only 1 is", partial);
    if (!field_real(&inner, f, "rope_theta", 1.0, 1e15))
        return;
    if (*theta != 0.0 && *theta != inner)
        PROBLEM(f, "rope_theta", -EINVAL, "%g contradicts rope_theta, %g", inner, *theta);
    *theta = inner;
}

/* The kind of scaling that an object asks for; before transformers 4.43, by "type". */
static enum rope_kind parse_rope_kind(const struct fields *f)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } kinds[] = {{"default", ROPE_PLAIN},
                 {"linear", ROPE_LINEAR},
                 {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN}};
    const json_t *newer = json_object_get(f->object, "rope_type");
    const char *key = newer && !json_is_null(newer) ? "rope_type" : "type";
    const char *name = field_text(f, key);

    for (size_t i = 0; name && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(name, kinds[i].name) == 0)
            return kinds[i].kind;
    if (name)
        PROBLEM(f, key, -ENOTSUP,
                "\"%.80s\" is not supported; default, linear, llama3 and yarn are", name);
    else if (json_object_get(f->object, "factor"))
        PROBLEM(f, "rope_type", -EINVAL, "is missing beside factor");
    return ROPE_PLAIN;
}

static void parse_yarn(struct rope_scaling *s, const struct fields *f)
{
    double mscale = 0.0, all_dim = 0.0;

    if (json_is_false(field_flag(f, "truncate")))
        PROBLEM(f, "truncate", -ENOTSUP, "false is not supported");
    s->beta_fast = 32.0;
    s->beta_slow = 1.0;
    field_real(&s->beta_fast, f, "beta_fast", 1e-3, 1e6);
    field_real(&s->beta_slow, f, "beta_slow", 1e-3, 1e6);
    field_real(&mscale, f, "mscale", 0.0, 100.0);
    field_real(&all_dim, f, "mscale_all_dim", 0.0, 100.0);
    s->attention_factor = 0.1 * log(s->factor) + 1.0;
    if (mscale > 0.0 && all_dim > 0.0)
        s->attention_factor =
            (0.1 * mscale * log(s->factor) + 1.0) / (0.1 * all_dim * log(s->factor) + 1.0);
    field_real(&s->attention_factor, f, "attention_factor", 1e-3, 1e3);
}

static void parse_scaling(struct rope_scaling *s, int32_t max_seq_len, const struct fields *f)
{
    struct fields required = *f;

    *s = (struct rope_scaling){.kind = parse_rope_kind(f)};
    if (s->kind == ROPE_PLAIN)
        return;
    required.required = true;
    s->factor = 1.0;
    field_real(&s->factor, &required, "factor", 1.0, 1e4);
    if (s->kind == ROPE_LLAMA3) {
        field_real(&s->original_len, &required, "original_max_position_embeddings", 1, MAX_SEQ_LEN);
        if (field_real(&s->low_freq_factor, &required, "low_freq_factor", 1e-3, 1e6) &&
            field_real(&s->high_freq_factor, &required, "high_freq_factor", 1e-3, 1e6) &&
            s->high_freq_factor <= s->low_freq_factor)
            PROBLEM(f, "high_freq_factor", -EINVAL, "%g is not above low_freq_factor, %g",
                    s->high_freq_factor, s->low_freq_factor);
    } else if (s->kind == ROPE_YARN) {
        s->original_len = max_seq_len;
        field_real(&s->original_len, f, "original_max_position_embeddings", 1, MAX_SEQ_LEN);
        parse_yarn(s, f);
    }
}

static bool same_scaling(const struct rope_scaling *a, const struct rope_scaling *b)
{
    return a->kind == b->kind && a->factor == b->factor && a->original_len == b->original_len &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->beta_fast == b->beta_fast && a->beta_slow == b->beta_slow &&
           a->attention_factor == b->attention_factor;
}

static void parse_rope(struct model_config *c, const struct family *family,
                       const struct fields *root)
{
    uint32_t before = root->problems->n;
    struct fields newer = *root, older = *root;
    struct rope_scaling s;

    newer.prefix = "rope_parameters.";
    newer.object = field_object(root, "rope_parameters");
    older.prefix = "rope_scaling.";
    older.object = field_object(root, "rope_scaling");
    c->rope_theta = 0.0;
    parse_theta(&c->rope_theta, root);
    parse_theta(&c->rope_theta, &newer);
    parse_theta(&c->rope_theta, &older);
    parse_scaling(&c->rope, c->max_seq_len, newer.object ? &newer : &older);
    if (newer.object && older.object) {
        parse_scaling(&s, c->max_seq_len, &older);
        if (root->problems->n == before && !same_scaling(&s, &c->rope))
            PROBLEM(root, "rope_scaling", -EINVAL, "contradicts rope_parameters");
    }
    /* Folders keep the original length, and ask for YaRN to go beyond it. */
    if (c->rope.kind == ROPE_YARN && c->rope.factor * c->rope.original_len > c->max_seq_len)
        c->max_seq_len = (int32_t)fmin(c->rope.factor * c->rope.original_len, MAX_SEQ_LEN);
    if (c->rope_theta == 0.0)
        c->rope_theta = family->rope_theta;
    if (c->rope_theta == 0.0 && root->problems->n == before)
        PROBLEM(root, "rope_theta", -EINVAL, "is missing, and so is rope_parameters.rope_theta");
}

/* Full attention is the same as that over a window of the last tokens while there are no more. */
static void parse_window(struct model_config *c, const struct family *family,
                         const struct fields *f)
{
    const bool is_given = json_object_get(f->object, "sliding_window");
    int32_t window = family->window;

    if (!window || (is_given && !field_int(&window, f, "sliding_window", 1, MAX_SEQ_LEN)))
        return;
    if (window < c->max_seq_len)
        c->max_seq_len = window;
}

static void parse_layer_types(const struct model_config *c, const struct fields *f)
{
    const json_t *types = field(f, "layer_types", 1u << JSON_ARRAY, "an array"), *type;
    size_t i;

    json_array_foreach(types, i, type)
    {
        if (json_is_string(type) && strcmp(json_string_value(type), "full_attention") == 0)
            continue;
        PROBLEM(f, "layer_types", -ENOTSUP,
                "entry %zu is \"%.80s\"; only \"full_attention\" is supported", i,
                json_is_string(type) ? json_string_value(type) : json_type_name(type));
        return;
    }
    if (types && c->n_layers > 0 && json_array_size(types) != (size_t)c->n_layers)
        PROBLEM(f, "layer_types", -EINVAL, "has %zu entries for %d layers", json_array_size(types),
                c->n_layers);
}

static bool is_dtype(const char *torch_name)
{
    for (int i = 0; i < N_DTYPES; i++)
        if (dtype_info[i].torch && strcmp(torch_name, dtype_info[i].torch) == 0)
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
    {"use_sliding_window", true, "true is not supported: attention is always full"},
    {"use_bidirectional_attention", true, "true is not supported: attention is always causal"},
    {"dual_chunk_attention_config", false, "dual chunk attention is not supported"},
    {"mlp_bias", true, "true is not supported: no known architecture has it"},
};

/* Each layer must be a mixture: in one that is not, FFNs have another width. */
static void need_experts_everywhere(const struct fields *f)
{
    const json_t *dense = field(f, "mlp_only_layers", 1u << JSON_ARRAY, "an array");
    int32_t step;

    if (json_array_size(dense) > 0)
        PROBLEM(f, "mlp_only_layers", -ENOTSUP, "layers without experts are not supported");
    if (field_int(&step, f, "decoder_sparse_step", 1, MAX_LAYERS) && step != 1)
        PROBLEM(f, "decoder_sparse_step", -ENOTSUP, "%d is not supported; only 1 is", step);
}

/* transformers 4 wrote num_experts for Qwen's models and num_local_experts for Mixtral, 5 writes
 * the latter for both. */
static void parse_experts(struct model_config *c, const struct family *family,
                          const struct fields *f)
{
    static const char *const of_experts[] = {"num_experts", "num_local_experts",
                                             "moe_intermediate_size"};
    const uint32_t before = f->problems->n;
    struct fields required = *f;
    int32_t n;

    if (!family->expert_dim) {
        for (size_t i = 0; i < sizeof(of_experts) / sizeof(of_experts[0]); i++) {
            const json_t *value = json_object_get(f->object, of_experts[i]);

            if (value && !json_is_null(value))
                PROBLEM(f, of_experts[i], -ENOTSUP, "%s with experts is not supported", c->arch);
        }
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (!field_int(&n, f, of_experts[i], 1, MAX_EXPERTS))
            continue;
        if (c->n_experts && c->n_experts != n)
            PROBLEM(f, of_experts[i], -EINVAL, "%d contradicts %s, %d", n, of_experts[0],
                    c->n_experts);
        c->n_experts = n;
    }
    if (c->n_experts == 0 && f->problems->n == before)
        PROBLEM(f, of_experts[0], -EINVAL, "is missing, and so is %s", of_experts[1]);
    required.required = true;
    field_int(&c->n_experts_per_tok, &required, "num_experts_per_tok", 1,
              c->n_experts ? c->n_experts : MAX_EXPERTS);
    c->block_sparse_moe = family->block_sparse_moe;
    c->norm_topk = family->norm_topk || json_is_true(field_flag(f, "norm_topk_prob"));
    need_experts_everywhere(f);
}

static void parse_features(const struct model_config *c, const struct fields *f)
{
    const json_t *bias;

    for (size_t i = 0; i < sizeof(unsupported) / sizeof(unsupported[0]); i++) {
        const json_t *value = json_object_get(f->object, unsupported[i].key);

        if (unsupported[i].flag ? json_is_true(field_flag(f, unsupported[i].key))
                                : value && !json_is_null(value))
            PROBLEM(f, unsupported[i].key, -ENOTSUP, "%s", unsupported[i].why);
    }
    field_need_text(f, "hidden_act", "silu");
    if (json_is_false(field_flag(f, "is_causal")))
        PROBLEM(f, "is_causal", -ENOTSUP, "false is not supported: attention is always causal");
    bias = field_flag(f, "attention_bias");
    if (bias && json_is_true(bias) != c->qkv_bias)
        PROBLEM(f, "attention_bias", -ENOTSUP,
                "%s contradicts the architecture: %s %s biases on q, k and v", json_type_name(bias),
                c->arch, c->qkv_bias ? "always has" : "has no");
    for (int i = 0; i < 2; i++) {
        const char *key = i == 0 ? "dtype" : "torch_dtype", *text = field_text(f, key);

        if (text && !is_dtype(text))
            PROBLEM(f, key, -ENOTSUP,
                    "\"%.80s\" is not supported; bfloat16, float16 and float32 are", text);
    }
}

static void parse_dims(struct model_config *c, const struct family *family, const struct fields *f)
{
    struct fields required = *f;
    uint32_t before = f->problems->n;

    required.required = true;
    field_int(&c->hidden_dim, &required, "hidden_size", 1, MAX_HIDDEN);
    field_int(&c->n_layers, &required, "num_hidden_layers", 1, MAX_LAYERS);
    field_int(&c->n_heads, &required, "num_attention_heads", 1, MAX_HEADS);
    field_int(&c->ffn_dim, &required, family->expert_dim ? family->expert_dim : "intermediate_size",
              1, c->n_experts > MAX_ALL_FFN / MAX_FFN ? MAX_ALL_FFN / c->n_experts : MAX_FFN);
    field_int(&c->vocab_size, &required, "vocab_size", 1, MAX_VOCAB);
    field_int(&c->max_seq_len, &required, "max_position_embeddings", 1, MAX_SEQ_LEN);
    /* The smallest bound keeps a float32 from becoming zero. */
    field_float(&c->rms_norm_eps, &required, "rms_norm_eps", 1e-30, 1.0);
    c->tied = json_is_true(field_flag(f, "tie_word_embeddings")) || c->headless;
    if (!field_int(&c->n_kv_heads, f, "num_key_value_heads", 1, MAX_HEADS))
        c->n_kv_heads = c->n_heads;
    if (f->problems->n == before && c->n_heads % c->n_kv_heads != 0)
        PROBLEM(f, "num_key_value_heads", -EINVAL, "%d does not divide num_attention_heads, %d",
                c->n_kv_heads, c->n_heads);
    before = f->problems->n;
    if (!field_int(&c->head_dim, f, "head_dim", 2, MODEL_MAX_HEAD_DIM) &&
        f->problems->n == before) {
        if (family->head_dim && !json_object_get(f->object, "head_dim"))
            c->head_dim = family->head_dim;
        else if (c->n_heads > 0 && c->hidden_dim % c->n_heads == 0 &&
                 c->hidden_dim / c->n_heads <= MODEL_MAX_HEAD_DIM)
            c->head_dim = c->hidden_dim / c->n_heads;
        else if (c->n_heads > 0)
            PROBLEM(f, "head_dim", -EINVAL,
                    "is missing, and hidden_size / num_attention_heads (%d / %d) is not valid",
                    c->hidden_dim, c->n_heads);
    }
    if (c->head_dim % 2 != 0)
        PROBLEM(f, "head_dim", -EINVAL, "%d is odd; rotary embedding needs pairs", c->head_dim);
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
        PROBLEM(f, "eos_token_id", -ENOTSUP, "has %zu ids; at most %d are supported", n,
                MODEL_MAX_EOS);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        json_int_t v = json_integer_value(id);

        if (!json_is_integer(id)) {
            PROBLEM(f, "eos_token_id", -EINVAL, "must be an id or an array of ids, not %s",
                    json_type_name(id));
            return;
        }
        if (v < 0 || v >= vocab_size) {
            PROBLEM(f, "eos_token_id", -EINVAL,
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
    parse_experts(c, family, &f);
    parse_dims(c, family, &f);
    parse_rope(c, family, &f);
    parse_window(c, family, &f);
    parse_layer_types(c, &f);
    if (c->vocab_size > 0)
        parse_eos(d, c->vocab_size, &f);
}

void model_defaults_parse(struct model_defaults *d, int32_t vocab_size, const json_t *root,
                          struct problems *p)
{
    const struct fields f = {MODEL_GENERATION_FILE, "", root, p, false};
    field_float(&d->temperature, &f, "temperature", 0.0, 100.0);
    if (json_is_false(field_flag(&f, "do_sample")))
        d->temperature = 0.0f;
    field_int(&d->top_k, &f, "top_k", 0, INT32_MAX);
    field_float(&d->top_p, &f, "top_p", 1e-6, 1.0);
    field_float(&d->min_p, &f, "min_p", 0.0, 1.0);
    field_float(&d->repetition_penalty, &f, "repetition_penalty", 1e-3, 1e3);
    parse_eos(d, vocab_size, &f);
}
