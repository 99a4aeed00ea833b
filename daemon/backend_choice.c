/* backend_choice.c - see backend_choice.h. */
#include "daemon/backend_choice.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool is_in(const char *folder, const char *node)
{
    char path[256];

    snprintf(path, sizeof(path), "%s/%s", folder, node);
    return access(path, F_OK) == 0;
}

static int load_module(const struct backend_ops **out, const char *path, struct err *e)
{
    const struct backend_ops *ops;
    void *module;
    int r = 0;

    if (path[0] != '/') /* dlopen would search for it */
        return err_set(e, -EINVAL, "backend.module: \"%s\" is not an absolute path", path);
    if (access(path, F_OK) < 0)
        return err_set(e, -errno, "%s: %s; install it, set backend.module, or choose --backend cpu",
                       path, strerror(errno));
    module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module)
        return err_set(e, -ENOEXEC, "cannot load the backend: %s", dlerror());
    ops = dlsym(module, BACKEND_SYMBOL);
    if (!ops)
        r = err_set(e, -ENOEXEC, "%s: is not an nvllm backend: it has no symbol %s", path,
                    BACKEND_SYMBOL);
    else if (ops->abi != BACKEND_ABI)
        r = err_set(e, -ENOEXEC,
                    "%s: has backend interface %u, nvllmd has %d; install the same version of both",
                    path, ops->abi, BACKEND_ABI);
    if (r < 0) {
        dlclose(module);
        return r;
    }
    *out = ops;
    return 0;
}

static int32_t n_processes(const struct options *o)
{
    return o->world_size > 1 ? (int32_t)o->world_size : 1;
}

/* A device for each rank of this process. */
static int check_devices(const struct options *o, struct err *e)
{
    const int32_t n = o->cuda_devices.n, tp_size = options_tp_size(o);

    if (n == 0 || n * n_processes(o) == tp_size)
        return 0;
    if (n_processes(o) > 1)
        return err_set(e, -EINVAL,
                       "cuda.devices: %d device%s named, but model.tensor_parallel is %d in %d "
                       "processes: name one for each rank of this process, or none",
                       n, n == 1 ? " is" : "s are", tp_size, n_processes(o));
    return err_set(e, -EINVAL,
                   "cuda.devices: %d device%s named, but model.tensor_parallel is %d: name one for "
                   "each rank, or none",
                   n, n == 1 ? " is" : "s are", tp_size);
}

int backend_choose(struct backend_choice *out, const struct options *o,
                   const struct backend_ops *cpu, const char *device_folder, struct err *e)
{
    const char *module = o->backend_module;
    struct backend_choice c = {.ops = cpu};
    bool present = o->backend == OPTION_BACKEND_AUTO &&
                   (is_in(device_folder, "nvidia0") || is_in(device_folder, "nvidiactl"));
    int r;

    if (present && access(module, F_OK) < 0 && errno == ENOENT) {
        err_set(&c.warning, 0,
                "there is an NVIDIA device, but %s is not installed: running on the CPU", module);
    } else if (present || o->backend == OPTION_BACKEND_CUDA) {
        r = check_devices(o, e);
        if (r == 0)
            r = load_module(&c.ops, module, e);
        if (r < 0)
            return r;
    }
    if (n_processes(o) > 1 && !c.ops->follow)
        return err_set(e, -ENOTSUP,
                       "cluster.world_size: the %s backend runs in one process alone%s%s",
                       c.ops->name, *c.warning.text ? "; " : "", c.warning.text);
    *out = c;
    return 0;
}

struct backend_options backend_options_of(const struct options *o)
{
    struct backend_options b = {
        .block_len = (int32_t)o->block_len,
        .max_batch_tokens = (int32_t)o->max_batch_tokens,
        .max_seqs = (int32_t)o->max_seqs,
        .max_seq_len = (int32_t)o->max_seq_len,
        .tier_bytes = {o->kv_memory.bytes, o->prefix_cache ? (uint64_t)o->host_memory : 0},
        .kv_fraction = o->kv_memory.fraction,
        .kv_dtype = (enum kv_dtype)o->kv_dtype,
        .n_threads = (int32_t)o->cpu_threads,
        .n_devices = options_tp_size(o) / n_processes(o),
        .tp_size = options_tp_size(o),
        .n_processes = n_processes(o),
        .process = (int32_t)o->cluster_rank,
        .rendezvous = *o->rendezvous ? o->rendezvous : NULL,
        .nccl = *o->nccl ? o->nccl : NULL,
        .eager = o->cuda_graphs == 0,
        .invariant = o->cuda_invariant != 0,
        .cache_folder = *o->cuda_cache_folder ? o->cuda_cache_folder : NULL,
        .tune = o->cuda_tune != 0,
    };

    for (int32_t i = 0; i < b.n_devices; i++)
        b.devices[i] = o->cuda_devices.n > 0 ? o->cuda_devices.list[i] : i;
    return b;
}
