/* gpu_rig.h - what tests and benchmarks of kernels share: device 0, arrays on it that are random,
 * poisoned or zero, steps' metadata, errors against a twin, timing.
 *
 * Any failure ends the program: a test cannot go on without. */
#ifndef NVLLM_TESTS_GPU_GPU_RIG_H
#define NVLLM_TESTS_GPU_GPU_RIG_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/device.h"
#include "cuda/step_metadata.h"
#include "tests/gpu/common.h"
#include "tests/tools/make_batch.h"

void cuda_must_(cudaError_t code, const char *what, const char *file, int line);
#define cuda_must(call) cuda_must_((call), #call, __FILE__, __LINE__)

/* What lies between these two: all memory that is taken below is freed at the end; random numbers
 * are the same each time. */
extern struct device device;
void device_set_up(void);
void device_tear_down(void);

void *host_new(size_t n, size_t size); /* zeroed */
void *device_new(size_t bytes);        /* zeroed */
void memory_free(void);                /* all of it */

/* The same bytes in both places. */
struct device_array {
    void *host, *device;
    size_t bytes;
};

struct device_array array_new(size_t bytes); /* all bits set: NaN in every float format, -1 */
struct device_array array_zero(size_t bytes);
struct device_array array_of(const void *from, size_t bytes);
struct device_array array_bf16(size_t n, float scale); /* normal */
struct device_array array_f32(size_t n, float scale);
void array_to_device(const struct device_array *a);
void array_to_host(const struct device_array *a);
void device_fill(void *device, int byte, size_t bytes);

uint32_t random_bits(void);
void random_seed(uint64_t seed);
float random_normal(void);

/* n normal numbers around `mean`, on the device; they repeat with a period that no row has. */
void fill_noise(uint16_t *device, size_t n, float mean, float scale);

/* ||a - b|| / ||b||; NaN where a has one. The same of bf16 or float numbers and their twin's. */
double relative_error(const double *a, const double *b, size_t n);
double error_bf16(const void *got, const double *expected, size_t n);
double error_f32(const void *got, const double *expected, size_t n);

double bf16_value(uint16_t x);
double *values_bf16(const void *p, size_t n);
double *values_f32(const void *p, size_t n);

/* The sum over k of x[k] w[k], w bf16. */
double dot(const double *x, const uint16_t *w, int k);

/* A row of keys or values in the KV pool. */
struct kv_twin {
    uint16_t *bf16; /* or */
    uint8_t *e4m3, *exponent;
};
struct kv_twin kv_twin_of(const struct kv_pool *kv, uint16_t *block, int layer, int head, int at,
                          bool v);
double kv_twin_value(const struct kv_twin *row, int d);

/* A batch as step_pack() writes it. */
struct step_room pack_parts(void *host, struct step_view *on_device, const void *device_memory,
                            const struct step_limits *l, const struct batch_parts *p, int slot);

/* The sampler's memory for so many rows, without that of scans and logits; results in host memory
 * are one after another: ids, log probabilities, best ids, their log probabilities. */
struct sampler_memory sampler_memory_new(const float *logits, int vocab, int n_rows,
                                         int32_t *results);

/* What is enqueued between these becomes a graph. */
void capture_begin(void);
cudaGraphExec_t capture_end(void);

/* Seconds on the device between these; the second waits. */
void timer_begin(void);
double timer_end(void);

/* Seconds of the shortest of a few runs of a graph, before which one makes the device warm;
 * destroys it. */
double shortest_run(cudaGraphExec_t exec, int n_runs);

void sort_numbers(double *x, int n);

#endif
