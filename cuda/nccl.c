/* nccl.c - see nccl.h. */
#include "cuda/nccl.h"

#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>

enum { OLDEST = 21800 }; /* 2.18: communicators are split since */

static const struct {
    const char *name;
    size_t at;
} functions[] = {
    {"ncclGetVersion", offsetof(struct nccl, get_version)},
    {"ncclGetErrorString", offsetof(struct nccl, error_string)},
    {"ncclGetUniqueId", offsetof(struct nccl, get_id)},
    {"ncclCommInitRank", offsetof(struct nccl, init_rank)},
    {"ncclCommSplit", offsetof(struct nccl, split)},
    {"ncclCommGetAsyncError", offsetof(struct nccl, async_error)},
    {"ncclCommAbort", offsetof(struct nccl, abort)},
    {"ncclGroupStart", offsetof(struct nccl, group_begin)},
    {"ncclGroupEnd", offsetof(struct nccl, group_end)},
    {"ncclAllReduce", offsetof(struct nccl, all_reduce)},
    {"ncclReduce", offsetof(struct nccl, reduce)},
    {"ncclBroadcast", offsetof(struct nccl, broadcast)},
    {"ncclSend", offsetof(struct nccl, send)},
    {"ncclRecv", offsetof(struct nccl, receive)},
};

int nccl_load(const struct nccl **out, const char *path, struct err *e)
{
    static struct nccl nccl;
    const char *file = path ? path : "libnccl.so.2";
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    int version = 0;

    if (!library)
        return err_set(e, -ENOENT,
                       "cuda.nccl: a cluster needs NCCL, and %s cannot be loaded (%s); install it, "
                       "or set cuda.nccl to the path of libnccl.so.2",
                       file, dlerror());
    for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        void *f = dlsym(library, functions[i].name);

        if (!f)
            return err_set(e, -ENOTSUP, "cuda.nccl: %s has no %s; NCCL 2.18 or newer is needed",
                           file, functions[i].name);
        memcpy((char *)&nccl + functions[i].at, &f, sizeof(f));
    }
    if (nccl.get_version(&version) != 0 || version < OLDEST || version >= 30000)
        return err_set(e, -ENOTSUP, "cuda.nccl: %s is NCCL %d.%d; 2.18 or newer is needed", file,
                       version / 10000, version / 100 % 100);
    *out = &nccl;
    return 0;
}

int nccl_check(const struct nccl *n, int code, const char *what, struct err *e)
{
    return code == 0 ? 0 : err_set(e, -EIO, "NCCL: %s: %s", what, n->error_string(code));
}
