/* test_fake_backend.c - the module nvllm-fake.so is opened and drives a request to its end. */
#include <dlfcn.h>
#include <errno.h>
#include <string.h>

#include "engine/backend.h"
#include "engine/core/core.h"
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

/* A request has as many tokens as it asked for, each printable and none a stop id. */
TEST(runs_a_request)
{
    struct backend_info info;
    struct backend *b;
    struct core *c;
    int32_t prompt[100] = {1, 2, 3}, stop_ids[] = {1993, 1991}, n_tokens = 0, n;
    struct sampling s = {.repetition_penalty = 1,
                         .n_logprobs = -1,
                         .n_stop_ids = 2,
                         .stop_ids = stop_ids};
    struct core_request r = {.id = 1,
                             .priority = CORE_NORMAL,
                             .n_prompt = 100,
                             .max_tokens = 200,
                             .n = 2,
                             .prompt = prompt,
                             .sampling = &s};
    const struct batch *batch;
    struct step_result result;

    options.tier_bytes[TIER_DEVICE] = 64 << 20;
    ck_assert_msg(ops->open(&b, model, &options, &e) == 0, "%s", e.text);
    ops->info(b, &info);
    ck_assert_int_eq(info.tiers[TIER_DEVICE].n_blocks, (64 << 20) / (4 * 2 * 4 * 16 * 128 * 4));
    ck_assert_int_eq(core_new(&c,
                              &(struct core_options){.n_blocks = info.tiers[TIER_DEVICE].n_blocks,
                                                     .block_len = 16,
                                                     .max_batch_tokens = 64,
                                                     .max_seqs = 4,
                                                     .max_seq_len = 1024,
                                                     .prefix_cache = true}),
                     0);
    ck_assert_int_eq(core_admit(c, &r, 1), CORE_OK);
    while (core_next(c, &batch, 1) == CORE_OK) {
        const struct core_event *ev;

        ck_assert_msg(ops->submit(b, batch, &e) == 0, "%s", e.text);
        ck_assert_msg(ops->wait(b, &result, &e) == 0, "%s", e.text);
        core_commit(c, &result, 1);
        ev = core_events(c, &n);
        for (int32_t i = 0; i < n; i++) {
            if (ev[i].type != CORE_TOKEN)
                continue;
            ck_assert(ev[i].token >= 0 && ev[i].token < 94);
            n_tokens++;
        }
    }
    ck_assert_int_eq(n_tokens, 400);
    core_free(c);
    ops->close(b);
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

int main(void)
{
    return run_tests("fake_backend", set_up, tear_down);
}
