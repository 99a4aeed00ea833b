/* test_fake_backend.c - what the module nvllm-fake.so refuses. That it drives requests to their
 * ends is what the end-to-end tests stand on. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/model/model.h"
#include "tests/unit/run_suite.h"

static void *module;
static const struct backend_ops *ops;
static struct model *model;
static struct backend_options options;
static struct err e;

static void set_up(void)
{
    module = dlopen(FAKE_BACKEND, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(module, "%s", dlerror());
    ops = dlsym(module, BACKEND_SYMBOL);
    ck_assert_ptr_nonnull(ops);
    ck_assert_uint_eq(ops->abi, BACKEND_ABI);
    ck_assert_msg(model_open(&model, TEST_MODEL_DIR, &e) == 0, "%s", e.text);
    options = (struct backend_options){.block_len = 16,
                                       .max_batch_tokens = 64,
                                       .max_seqs = 4,
                                       .max_seq_len = 1024};
}

static void tear_down(void)
{
    model_close(model);
    dlclose(module);
}

/* A batch that breaks the contract is an error with its reason. */
TEST(refuses_a_wrong_batch)
{
    struct batch batch[2] = {{.step = 2}};
    struct backend *b;

    ck_assert_int_eq(batch_layout(&batch[0]), 0);
    ck_assert_uint_le(batch[0].bytes, sizeof(batch));
    batch_seal(&batch[0]);
    ck_assert_msg(ops->open(&b, model, &options, &e) == 0, "%s", e.text);
    ck_assert_int_eq(ops->submit(b, batch, &e), -EIO);
    ck_assert_ptr_nonnull(strstr(e.text, "numbered"));
    ops->close(b);
}

/* Memory for less than one block is refused. */
TEST(refuses_too_little_memory)
{
    struct backend *b;

    options.tier_bytes[TIER_DEVICE] = 1000;
    ck_assert_int_eq(ops->open(&b, model, &options, &e), -ENOMEM);
    ck_assert_ptr_nonnull(strstr(e.text, "kv_memory"));
}

RUN_TESTS("fake_backend", set_up, tear_down)
