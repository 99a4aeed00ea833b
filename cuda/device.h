/* device.h - one CUDA device: what it is, its stream, its memory and how much each use has.
 *
 * Device memory is taken at open or when waking, one allocation per use; an arena divides it.
 * One thread a rank. */
#ifndef NVLLM_CUDA_DEVICE_H
#define NVLLM_CUDA_DEVICE_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/kernels/kernels.h"
#include "engine/util/err.h"

enum device_use {
    DEVICE_WEIGHTS,
    DEVICE_KV,
    DEVICE_ACTIVATIONS,
    DEVICE_SAMPLER,
    DEVICE_WORKSPACE, /* of the matrix products */
    DEVICE_STEP,      /* metadata of steps */
    DEVICE_STAGING,   /* layers that prefill reads: struct kv_staging */
    DEVICE_N_USES,
};

struct device {
    int id;
    int compute; /* capability, 90 for 9.0 */
    char name[128];
    char pci[32];    /* its address, "0000:65:00.0" */
    char driver[64]; /* "580.159.04, CUDA 13.0", or the latter alone */
    uint64_t total_bytes;
    struct launch launch;
    void *memory[DEVICE_N_USES];
    uint64_t bytes[DEVICE_N_USES];
};

double monotonic_seconds(void);

/* 0, or a negative errno with what was being done and what CUDA says. */
int cuda_check(cudaError_t code, const char *what, struct err *e);

int device_open(struct device *d, int id, struct err *e);
void device_close(struct device *d);

/* Keeps the calling thread, and those that it starts, on the CPUs of a device's NUMA node, as far
 * as it may use them; where the system does not say which these are, changes nothing. */
void device_keep_thread_near(int id);

/* Takes memory for a use, once; -ENOMEM says what it is for, what it needs and what is there. */
int device_take(struct device *d, enum device_use use, uint64_t bytes, struct err *e);
void device_give_back(struct device *d, enum device_use use); /* if taken; no work uses it */
int device_free_bytes(uint64_t *free_bytes, struct err *e);   /* of the current device */

/* Divides memory at multiples of 256 bytes. With base NULL it only counts. */
struct arena {
    char *base;
    size_t used;
};

static inline void *arena_take(struct arena *a, size_t bytes)
{
    void *p = a->base ? a->base + a->used : NULL;

    a->used += (bytes + 255) & ~(size_t)255;
    return p;
}

#endif
