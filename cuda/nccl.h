/* nccl.h - what clusters use of NCCL, a library that is loaded when there is one: a host without it
 * runs all the rest.
 *
 * Declared here are the functions, types and numbers of its C interface, which NCCL 2 keeps, so
 * that its headers are not needed to build. Every function returns one of its codes. */
#ifndef NVLLM_CUDA_NCCL_H
#define NVLLM_CUDA_NCCL_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#include "engine/util/err.h"

struct ncclComm; /* a rank's communicator; NCCL's own */

struct nccl_id { /* what the ranks that are to find each other share */
    char bytes[128];
};

enum nccl_type {
    NCCL_UINT8 = 1,
    NCCL_INT32 = 2,
    NCCL_UINT32 = 3,
    NCCL_INT64 = 4,
    NCCL_FLOAT32 = 7,
    NCCL_BF16 = 9,
};
enum nccl_op { NCCL_SUM = 0, NCCL_MIN = 3 };
enum { NCCL_NO_COLOR = -1, NCCL_IN_PROGRESS = 7 };

struct nccl {
    int (*get_version)(int *version);
    const char *(*error_string)(int code);
    int (*get_id)(struct nccl_id *out);
    /* Waits for all n ranks. */
    int (*init_rank)(struct ncclComm **out, int n, struct nccl_id id, int rank);
    /* Called by all ranks: one communicator for those of each color. config: NULL. */
    int (*split)(struct ncclComm *from, int color, int key, struct ncclComm **out, void *config);
    int (*async_error)(struct ncclComm *c, int *code); /* any thread */
    int (*abort)(struct ncclComm *c);
    int (*group_begin)(void);
    int (*group_end)(void);
    /* Enqueued on the stream, on all ranks alike; a stream that is captured captures them. */
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, struct ncclComm *c,
                      cudaStream_t stream);
    int (*reduce)(const void *from, void *to, size_t n, int type, int op, int root,
                  struct ncclComm *c, cudaStream_t stream);
    int (*broadcast)(const void *from, void *to, size_t n, int type, int root, struct ncclComm *c,
                     cudaStream_t stream);
    int (*send)(const void *from, size_t n, int type, int peer, struct ncclComm *c,
                cudaStream_t stream);
    int (*receive)(void *to, size_t n, int type, int peer, struct ncclComm *c, cudaStream_t stream);
};

/* Loads libnccl.so.2 of the system, or the file at path where that is not NULL; once a process.
 * -ENOENT and -ENOTSUP name cuda.nccl. */
int nccl_load(const struct nccl **out, const char *path, struct err *e);

/* 0, or -EIO with what was being done and what NCCL says. */
int nccl_check(const struct nccl *n, int code, const char *what, struct err *e);

#endif
