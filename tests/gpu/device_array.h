/* device_array.h - arrays for tests of kernels: random or poisoned, on the host and on the device.
 *
 * Any failure of CUDA ends the program: a test cannot go on without. */
#ifndef NVLLM_TESTS_GPU_DEVICE_ARRAY_H
#define NVLLM_TESTS_GPU_DEVICE_ARRAY_H

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

void cuda_must_(cudaError_t code, const char *what, const char *file, int line);
#define cuda_must(call) cuda_must_((call), #call, __FILE__, __LINE__)

/* The same bytes in both places. */
struct device_array {
    void *host, *device;
    size_t bytes;
};

struct device_array array_new(size_t bytes); /* all bits set: NaN in every float format, -1 */
void array_free(struct device_array *a);
void array_to_device(const struct device_array *a);
void array_to_host(const struct device_array *a);

uint32_t random_bits(void);
void random_seed(uint64_t seed);
float random_normal(void);
void fill_bf16(struct device_array *a, float scale); /* normal; copied to the device too */
void fill_f32(struct device_array *a, float scale);

/* ||a - b|| / ||b||; NaN where a has one. */
double relative_error(const double *a, const double *b, size_t n);
double bf16_value(uint16_t x);
double *values_bf16(const void *p, size_t n); /* to be freed */
double *values_f32(const void *p, size_t n);

/* The sum over k of x[k] w[k], w bf16. */
double dot(const double *x, const uint16_t *w, int k);

#endif
