/* test_model.c - a model folder opened, refused and read. */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/bf16.h"
#include "engine/model.h"

static struct err e;

/* The bundled model opens, and its shape and defaults are what its files say. */
START_TEST(bundled_model_opens)
{
    struct model *m = NULL;
    const struct model_config *c;
    const struct model_defaults *d;

    ck_assert_msg(model_open(&m, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
    c = model_config(m);
    ck_assert_int_eq(c->arch, MODEL_QWEN3);
    ck_assert_int_eq(c->n_layers, 4);
    ck_assert_int_eq(c->n_heads, 8);
    ck_assert_int_eq(c->n_kv_heads, 4);
    ck_assert_int_eq(c->head_dim, 128);
    ck_assert_int_eq(c->hidden_dim, 256);
    ck_assert_int_eq(c->ffn_dim, 768);
    ck_assert_int_eq(c->vocab_size, 2048);
    ck_assert_int_eq(c->max_seq_len, 32768);
    ck_assert(c->rms_norm_eps == 1e-6f);
    ck_assert(c->rope_theta == 1e6);
    ck_assert(c->tied);
    d = model_defaults(m);
    ck_assert(d->temperature == 0.6f && d->top_p == 0.95f && d->top_k == 20);
    ck_assert(d->min_p == 0.0f && d->repetition_penalty == 1.0f);
    ck_assert_int_eq(d->n_eos, 2);
    ck_assert_int_eq(d->eos[0], 1993);
    ck_assert_int_eq(d->eos[1], 1991);
    ck_assert_str_eq(model_name(m), "nvllm-tiny");
    ck_assert_str_eq(model_folder(m), TEST_MODEL_DIR);
    ck_assert_uint_eq(model_weight_bytes(m), 12070240 - 8 - 4952);
    model_close(m);
}
END_TEST

static Suite *model_suite(void)
{
    Suite *s = suite_create("model");
    TCase *t = tcase_create("open");

    tcase_add_test(t, bundled_model_opens);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    SRunner *r = srunner_create(model_suite());
    int failed;

    srunner_run_all(r, CK_NORMAL);
    failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
