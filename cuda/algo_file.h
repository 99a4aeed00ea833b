/* algo_file.h - the choices of algorithms for products of matrices, kept in a file between runs:
 * one file a device and version of its software, one record a shape.
 *
 * What an algorithm is, is cuBLASLt's affair: 64 opaque bytes here. A file that is damaged, of
 * other software or of another's making counts as none. No state; any thread. */
#ifndef NVLLM_CUDA_ALGO_FILE_H
#define NVLLM_CUDA_ALGO_FILE_H

#include <stdint.h>

#include "engine/util/err.h"

enum {
    ALGO_BYTES = 64,
    ALGO_FILE_MAX = 4096, /* records of a file */
    ALGO_KEY = 256,
};

struct algo_record {
    int32_t m, n, k, out;
    int64_t y_stride;
    float us; /* what it took */
    uint32_t zero;
    uint8_t algo[ALGO_BYTES];
};

/* Reads the records that were written with this key; none, without a word, where no such file is to
 * be had. *out is malloc'ed, room for ALGO_FILE_MAX. */
int algo_file_read(struct algo_record **out, int *n, const char *folder, const char *key,
                   struct err *e);

/* Replaces the file as a whole. A folder that is not there is made, its parent not. */
int algo_file_write(const char *folder, const char *key, const struct algo_record *records, int n,
                    struct err *e);

#endif
