/* planted_backend.c - the CUDA backend as a module that goes wrong when it is told to, for tests
 * through the daemon: the product itself has no such option.
 *
 * What to do stands in a file `plan` in the folder that the module was loaded from, a word and a
 * number a line:
 *   trap N    the device stops with a sticky error in the N-th step
 *   poison 1  every KV block is filled with NaN at open, and again when a sequence begins it anew,
 *             so whoever reads what was not written for him computes NaN */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cuda/inspect.h"
#include "cuda/kernels/kernels.h"
#include "engine/backend.h"

enum { POISON = 0xff }; /* in every byte: NaN in bf16 */

/* backend.c is compiled once more for this module, with its table under this name. */
extern const struct backend_ops nvllm_planted_inner;

static long trap_step;
static bool poison;
static int32_t block_len;
static uint64_t block_bytes;

static int read_plan(struct err *e)
{
    char path[4096], word[16];
    const char *end;
    Dl_info self;
    long number;
    FILE *f;
    int n;

    if (!dladdr(&trap_step, &self))
        return err_set(e, -EINVAL, "plan: where is this module?");
    end = strrchr(self.dli_fname, '/');
    snprintf(path, sizeof(path), "%.*s/plan", end ? (int)(end - self.dli_fname) : 0,
             self.dli_fname);
    f = fopen(path, "re");
    if (!f)
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    while ((n = fscanf(f, "%15s %ld", word, &number)) == 2) {
        if (strcmp(word, "trap") == 0)
            trap_step = number;
        else if (strcmp(word, "poison") == 0)
            poison = number != 0;
        else
            break;
    }
    fclose(f);
    return n == EOF ? 0 : err_set(e, -EINVAL, "%s: neither trap nor poison", path);
}

static int planted_open(struct backend **out, const struct model *model,
                        const struct backend_options *options, struct err *e)
{
    struct backend_info info;
    struct backend *b;
    int r = read_plan(e);

    if (r == 0)
        r = nvllm_planted_inner.open(&b, model, options, e);
    if (r < 0)
        return r;
    nvllm_planted_inner.info(b, &info);
    block_len = options->block_len;
    block_bytes = info.block_bytes;
    if (poison && (cudaMemset(cuda_backend_blocks(b), POISON,
                              (size_t)info.n_blocks * info.block_bytes) != cudaSuccess ||
                   cudaDeviceSynchronize() != cudaSuccess)) {
        nvllm_planted_inner.close(b);
        return err_set(e, -EIO, "the blocks cannot be poisoned");
    }
    *out = b;
    return 0;
}

/* A row at the first slot of a block begins it: nothing in it is anyone's any more. */
static cudaError_t poison_begun(struct backend *b, const struct batch *batch)
{
    char *blocks = cuda_backend_blocks(b);
    cudaError_t code = cudaSuccess;

    for (int i = 0; i < batch->n_tokens && code == cudaSuccess; i++)
        if (batch->slots[i] % block_len == 0)
            code = cudaMemsetAsync(blocks + (uint64_t)(batch->slots[i] / block_len) * block_bytes,
                                   POISON, block_bytes, cuda_backend_stream(b));
    return code;
}

static int planted_submit(struct backend *b, const struct batch *batch, struct err *e)
{
    const struct launch l = {.stream = cuda_backend_stream(b)};

    if (poison && poison_begun(b, batch) != cudaSuccess)
        return err_set(e, -EIO, "a block cannot be poisoned");
    if (trap_step > 0 && batch->step == (uint64_t)trap_step && trap_device(&l) != cudaSuccess)
        return err_set(e, -EIO, "the trap cannot be planted");
    return nvllm_planted_inner.submit(b, batch, e);
}

static void planted_info(const struct backend *b, struct backend_info *out)
{
    nvllm_planted_inner.info(b, out);
}

static int planted_wait(struct backend *b, struct step_result *out, struct err *e)
{
    return nvllm_planted_inner.wait(b, out, e);
}

static void planted_close(struct backend *b)
{
    nvllm_planted_inner.close(b);
}

extern const struct backend_ops nvllm_backend;

__attribute__((visibility("default"))) const struct backend_ops nvllm_backend = {
    .abi = BACKEND_ABI,
    .name = "cuda",
    .open = planted_open,
    .info = planted_info,
    .submit = planted_submit,
    .wait = planted_wait,
    .close = planted_close,
};
