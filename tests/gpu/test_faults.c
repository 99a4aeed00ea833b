/* test_faults.c - failures are reported: a fault of the device, too little memory, impossible
 * options. */
#include <errno.h>
#include <string.h>

#include "cuda/rank.h"
#include "tests/gpu/drive.h"
#include "tests/gpu/trap.h"
#include "tests/unit/run_suite.h"

extern const struct backend_ops nvllm_backend;

static const char *data_folder; /* the program's argument: where the tree is no longer there */
static struct model *model;

static const struct backend_options options = {.block_len = 16,
                                               .max_batch_tokens = 512,
                                               .max_seqs = 8,
                                               .max_seq_len = 4096,
                                               .tier_bytes = {64 << 20}};

static void set_up(void)
{
    model = open_tiny_model(data_folder);
}

static void tear_down(void)
{
    model_close(model);
}

/* More blocks than memory, no block at all, a device that is not there, keys in float32; more than
 * grids and indices hold; a host tier that is too small or too large; one on disk. */
TEST(refusals_say_why)
{
    enum { WRONGS = 9 };
    struct backend_options o[WRONGS];
    const int codes[WRONGS] = {-ENOMEM, -EINVAL, -ENODEV, -ENOTSUP, -EINVAL,
                               -EINVAL, -EINVAL, -EINVAL, -ENOMEM};
    const char *const words[WRONGS] = {"KV blocks",
                                       "one block",
                                       "device 77",
                                       "bf16",
                                       "scheduler.max_seqs: 65536 exceeds 65008",
                                       "scheduler.max_batch_tokens",
                                       "scheduler.max_seq_len: 1048561 exceeds 1048560",
                                       "cache.host_memory",
                                       "cache.host_memory"};

    for (int i = 0; i < WRONGS; i++)
        o[i] = options;
    o[0].tier_bytes[TIER_DEVICE] = 1ull << 45;
    o[1].tier_bytes[TIER_DEVICE] = 100;
    o[2].n_devices = 1;
    o[2].devices[0] = 77;
    o[3].kv_dtype = KV_DTYPE_F32;
    o[4].max_seqs = 65536;
    o[5].max_batch_tokens = INT32_MAX;
    o[6].max_seq_len = 1048561;
    o[7].tier_bytes[TIER_HOST] = 100;
    o[8].tier_bytes[TIER_HOST] = 1ull << 45;
    for (int i = 0; i < WRONGS; i++) {
        struct backend *b = NULL;
        struct err e = {{0}};

        ck_assert_int_eq(nvllm_backend.open(&b, model, &o[i], &e), codes[i]);
        ck_assert_msg(strstr(e.text, words[i]), "%s", e.text);
        ck_assert_ptr_null(b);
    }
}
END_TEST

/* After refusals the same process can open, and open again. */
TEST(opens_after_refusals)
{
    for (int i = 0; i < 3; i++) {
        struct backend *b;
        struct err e;

        ck_assert_msg(nvllm_backend.open(&b, model, &options, &e) == 0, "%s", e.text);
        nvllm_backend.close(b);
    }
}
END_TEST

/* A trap fails the wait of the step it hit, within seconds, and close returns. The last test:
 * nothing works on the device afterwards. */
TEST(a_trap_is_told)
{
    const int32_t prompt[3] = {1, 2, 3};
    int32_t out[100];
    struct drive_seq s = {.prompt = prompt,
                          .n_prompt = 3,
                          .max_tokens = 100,
                          .end_id = -1,
                          .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f},
                          .out = out};
    struct drive_times times;
    struct backend *b;
    struct err e = {{0}};
    const double begin = now_seconds();

    ck_assert_msg(nvllm_backend.open(&b, model, &options, &e) == 0, "%s", e.text);
    ck_assert_int_eq(
        drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = &options}, &s, 1,
              &times, &e),
        0);
    ck_assert_int_eq(trap_device(cuda_backend_rank(b)->device.launch.stream), cudaSuccess);
    ck_assert_int_lt(
        drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = &options}, &s, 1,
              &times, &e),
        0);
    ck_assert_msg(strstr(e.text, "CUDA"), "%s", e.text);
    nvllm_backend.close(b);
    ck_assert_double_lt(now_seconds() - begin, 5.0);
}
END_TEST

int main(int argc, char **argv)
{
    data_folder = argc > 1 ? argv[1] : NULL;
    return run_tests_here("faults", set_up, tear_down);
}
