/* dying_backend.c - a backend module that fails in the way that cache.block_len asks for: 16 fails
 * as it opens, 32 dies in its first step, 64 never comes back from it, 128 finds no memory when it
 * is to wake and then no device, 256 takes no model, 512 loads slowly. Followers fail as in a
 * step. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/backend.h"

struct backend {
    int32_t block_len;
    int n_wakes;
};

static int dying_probe(const struct backend_options *options, struct err *e)
{
    if (options->block_len != 16)
        return 0;
    snprintf(e->text, sizeof(e->text), "the device is on fire");
    return -EIO;
}

static int dying_check(const struct model *model, const struct backend_options *options,
                       struct err *e)
{
    (void)model;
    if (options->block_len != 256)
        return 0;
    snprintf(e->text, sizeof(e->text), "the device knows no models");
    return -ENOTSUP;
}

static int dying_open(struct backend **out, const struct model *model,
                      const struct backend_options *options, struct err *e)
{
    struct backend *b;

    if (dying_probe(options, e) < 0)
        return -EIO;
    if (dying_check(model, options, e) < 0)
        return -ENOTSUP;
    b = calloc(1, sizeof(*b));
    if (!b)
        return -ENOMEM;
    b->block_len = options->block_len;
    for (int i = 1; b->block_len == 512 && i <= 100; i++) {
        usleep(20000);
        options->progress(options->progress_ctx, i / 100.0);
    }
    *out = b;
    return 0;
}

static void dying_info(const struct backend *b, struct backend_info *out)
{
    *out =
        (struct backend_info){.n_devices = 1,
                              .tp_size = 1,
                              .devices = {{.name = "a dying device"}},
                              .tiers = {{.n_blocks = 1024, .bytes = 1024 * (uint64_t)b->block_len}},
                              .block_bytes = (uint64_t)b->block_len,
                              .kv_dtype = KV_DTYPE_F32};
}

static int dying_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    (void)b;
    (void)batch;
    (void)e;
    return 0;
}

static int dying_wait(struct backend *b, struct step_result *out, struct err *e)
{
    (void)out;
    while (b->block_len == 64)
        pause();
    usleep(200000); /* more requests come meanwhile */
    snprintf(e->text, sizeof(e->text), "the device fell off the bus");
    return -EIO;
}

static int dying_follow(struct backend *b, struct err *e)
{
    struct step_result ignored;

    return dying_wait(b, &ignored, e);
}

static int dying_sleep(struct backend *b, bool keep_blocks, struct err *e)
{
    (void)b;
    (void)keep_blocks;
    (void)e;
    return 0;
}

static int dying_wake(struct backend *b, struct err *e)
{
    const bool first = b->n_wakes++ == 0;

    snprintf(e->text, sizeof(e->text), first ? "others have the memory" : "the device has gone");
    return first ? -ENOMEM : -EIO;
}

static void dying_close(struct backend *b)
{
    while (b) /* a driver that hangs must not keep the process */
        pause();
}

extern const struct backend_ops nvllm_backend;

__attribute__((visibility("default"))) const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "dying",
    .open = dying_open,
    .info = dying_info,
    .submit = dying_submit,
    .wait = dying_wait,
    .sleep = dying_sleep,
    .wake = dying_wake,
    .close = dying_close,
    .follow = dying_follow,
    .probe = dying_probe,
    .check = dying_check,
};
