/* algo_file.h - what was measured on a device, kept in a file between starts: which algorithm is
 * best for a product's shape, and how long whole steps take by each path.
 *
 * One file per key, which names device, software and model. An algorithm is 64 bytes that only
 * cuBLASLt understands. A file that is damaged, has another key or belongs to another user counts
 * as none. No state; any thread. */
#ifndef NVLLM_CUDA_ALGO_FILE_H
#define NVLLM_CUDA_ALGO_FILE_H

#include <stdint.h>

#include "engine/util/err.h"

enum {
    ALGO_BYTES = 64,
    ALGO_FILE_MAX = 4096, /* records of a file */
    ALGO_KEY = 256,
};

/* As `out` of a shape: not a product was measured but a whole step, of m rows by path n - 1. */
enum { ALGO_STEP = 100 };

/* What was measured. It has no padding, so that equal shapes are equal bytes. */
struct algo_shape {
    int32_t m, n, k, out;
    int64_t y_stride;
};

struct algo_record {
    struct algo_shape shape;
    float us; /* measured */
    uint32_t zero;
    uint8_t algo[ALGO_BYTES];
};

struct algo_records {
    struct algo_record *all; /* malloc'ed, room for ALGO_FILE_MAX */
    int n;
};

/* The record of a shape, or NULL. */
const struct algo_record *algo_find(const struct algo_records *r, const struct algo_shape *s);

/* The shape of a step of m rows by a path. */
static inline struct algo_shape algo_step_shape(int m, int path)
{
    return (struct algo_shape){m, path + 1, 1, ALGO_STEP, path + 1};
}

/* Reads the records of a key; none if there is no such file, or the folder is NULL. -ENOMEM. */
int algo_file_read(struct algo_records *out, const char *folder, const char *key, struct err *e);

/* Replaces the file as a whole. A folder that is not there is made, its parent not. */
int algo_file_write(const char *folder, const char *key, const struct algo_records *r,
                    struct err *e);

#endif
