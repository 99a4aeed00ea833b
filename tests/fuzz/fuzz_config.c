/* fuzz_config.c - config.json and generation_config.json of a model folder: an input is the one,
 * and behind a NUL the other. What passes must be a network that can be computed. */
#include <math.h>
#include <string.h>

#include "engine/util/json_util.h"
#include "engine/model/model_config.h"
#include "engine/model/quantization.h"
#include "engine/model/rope.h"
#include "engine/model/tensor_table.h"
#include "tests/fuzz/fuzz.h"

static void check_config(const struct model_config *c)
{
    float inv_freq[512], scale = rope_scale(c);

    FUZZ_CHECK(c->arch && !(c->qkv_bias && c->qk_norm));
    FUZZ_CHECK(c->n_layers > 0 && c->n_heads > 0 && c->n_kv_heads > 0);
    FUZZ_CHECK(c->n_heads % c->n_kv_heads == 0);
    FUZZ_CHECK(c->head_dim > 0 && c->head_dim % 2 == 0);
    FUZZ_CHECK(c->n_experts >= 0 && c->n_experts_per_tok <= c->n_experts);
    FUZZ_CHECK((c->n_experts > 0) == (c->n_experts_per_tok > 0));
    FUZZ_CHECK(c->n_experts == 0 || c->ffn_dim <= INT32_MAX / 2 / c->n_experts);
    FUZZ_CHECK(c->hidden_dim > 0 && c->ffn_dim > 0 && c->vocab_size > 0 && c->max_seq_len > 0);
    FUZZ_CHECK(isfinite(c->rms_norm_eps) && c->rms_norm_eps > 0);
    FUZZ_CHECK(isfinite(c->rope_theta) && c->rope_theta >= 1);
    FUZZ_CHECK(c->head_dim / 2 <= 512 && isfinite(scale) && scale > 0);
    rope_frequencies(c, inv_freq);
    for (int i = 0; i < c->head_dim / 2; i++)
        FUZZ_CHECK(isfinite(inv_freq[i]) && inv_freq[i] >= 0);
}

static void check_defaults(const struct model_defaults *d, int32_t vocab_size)
{
    FUZZ_CHECK(isfinite(d->temperature) && d->temperature >= 0);
    FUZZ_CHECK(d->top_k >= 0 && d->top_p > 0 && d->top_p <= 1 && d->min_p >= 0 && d->min_p <= 1);
    FUZZ_CHECK(isfinite(d->repetition_penalty) && d->repetition_penalty > 0);
    FUZZ_CHECK(d->n_eos >= 0 && d->n_eos <= MODEL_MAX_EOS);
    for (int32_t i = 0; i < d->n_eos; i++)
        FUZZ_CHECK(d->eos[i] >= 0 && d->eos[i] < vocab_size);
}

/* Sizes are positive and do not overflow. */
static void check_tensors(const struct model_config *c)
{
    uint64_t n = 0;

    for (int i = 0; i < N_TENSOR_SPECS; i++) {
        const struct tensor t = tensor_of_spec(&tensor_specs[i], c);
        uint64_t elements = (uint64_t)tensor_spec_count(&tensor_specs[i], c);

        if (elements == 0) /* no model of this configuration has it */
            continue;
        FUZZ_CHECK(t.rank > 0 && t.rank <= MODEL_MAX_RANK);
        for (int32_t k = 0; k < t.rank; k++)
            FUZZ_CHECK(t.shape[k] > 0 &&
                       !__builtin_mul_overflow(elements, (uint64_t)t.shape[k], &elements));
        FUZZ_CHECK(!__builtin_add_overflow(n, elements, &n));
    }
}

/* Sizes can be divided by, and the text has room for all. */
static void check_quantization(const struct quantization *q)
{
    char text[QUANT_TEXT_BYTES];
    struct tensor wanted;
    const char *types;

    if (q->format == QUANT_NONE)
        return;
    FUZZ_CHECK(q->dtype == DTYPE_E4M3 || q->dtype == DTYPE_INT4);
    FUZZ_CHECK(q->scale_rows == 1 || q->scale_rows == QUANT_BLOCK);
    FUZZ_CHECK(q->scale_cols == 32 || q->scale_cols == 64 || q->scale_cols == 128 ||
               (q->scale_cols == 0 && q->dtype == DTYPE_E4M3));
    FUZZ_CHECK(quantization_stored(&wanted, &types, q, STORED_ELEMENTS, 256, 512) &&
               quantization_stored(&wanted, &types, q, STORED_SCALES, 256, 512));
    quantization_text(text, q);
    FUZZ_CHECK(strlen(text) + 1 < sizeof(text));
}

static void check_problems(const struct problems *p)
{
    FUZZ_CHECK(p->code < 0 && *p->first.text);
    for (const char *s = p->first.text; *s; s++)
        FUZZ_CHECK((unsigned char)*s >= 0x20 && *s != 0x7f);
}

static void run(const char *config, size_t n_config, const char *generation, size_t n_generation)
{
    struct model_defaults d;
    struct problems p = {0};
    struct model_config c;
    struct quantization q;
    struct err e = {""};
    json_t *root;

    if (json_object_parse(&root, MODEL_CONFIG_FILE, config, n_config, &e) < 0) {
        FUZZ_CHECK(*e.text);
        return;
    }
    model_config_parse(&c, &d, root, &p);
    quantization_parse(&q, root, &p);
    json_decref(root);
    if (p.n) {
        check_problems(&p);
        return;
    }
    check_config(&c);
    check_defaults(&d, c.vocab_size);
    check_tensors(&c);
    check_quantization(&q);
    if (json_object_parse(&root, MODEL_GENERATION_FILE, generation, n_generation, &e) == 0) {
        /* Planted: ids are not checked against the vocabulary. */
        model_defaults_parse(&d, FUZZ_PLANT ? INT32_MAX : c.vocab_size, root, &p);
        json_decref(root);
    }
    if (p.n)
        check_problems(&p);
    else
        check_defaults(&d, c.vocab_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    size_t n = strnlen(text, size);

    if (n < size)
        run(text, n, text + n + 1, size - n - 1);
    else
        run(text, n, "{}", 2);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    size_t n = strnlen((const char *)data, size);

    if (n == size)
        return json_mutate(data, size, max_size, seed);
    if (seed % 2) /* the second in place; of the first, the size may not change */
        return n + 1 + json_mutate(data + n + 1, size - n - 1, max_size - n - 1, seed / 2);
    memmove(data, data + n + 1, size - n - 1); /* they change places, and the tail is lost */
    return json_mutate(data, size - n - 1, max_size, seed / 2);
}
