/* device_array.c - see device_array.h. */
#include "tests/gpu/device_array.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/bf16.h"
#include "engine/util/must.h"

static uint64_t state = 1;

void cuda_must_(cudaError_t code, const char *what, const char *file, int line)
{
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cudaGetErrorString(code));
    exit(1);
}

struct device_array array_new(size_t bytes)
{
    struct device_array a = {.bytes = bytes};

    a.host = malloc(bytes);
    must(a.host);
    memset(a.host, 0xff, bytes);
    cuda_must(cudaMalloc(&a.device, bytes + 256)); /* reads of whole vectors may pass the end */
    cuda_must(cudaMemset(a.device, 0xff, bytes + 256));
    cuda_must(cudaDeviceSynchronize()); /* the kernels' stream does not wait for this one */
    return a;
}

void array_free(struct device_array *a)
{
    free(a->host);
    cuda_must(cudaFree(a->device));
    *a = (struct device_array){0};
}

void array_to_device(const struct device_array *a)
{
    cuda_must(cudaMemcpy(a->device, a->host, a->bytes, cudaMemcpyHostToDevice));
    cuda_must(cudaDeviceSynchronize());
}

void array_to_host(const struct device_array *a)
{
    cuda_must(cudaDeviceSynchronize());
    cuda_must(cudaMemcpy(a->host, a->device, a->bytes, cudaMemcpyDeviceToHost));
}

void random_seed(uint64_t seed)
{
    state = seed * 0x9E3779B97F4A7C15u + 1;
}

uint32_t random_bits(void)
{
    uint64_t x;

    state += 0x9E3779B97F4A7C15u;
    x = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(x >> 32);
}

float random_normal(void)
{
    float sum = 0.0f; /* of twelve: near enough */

    for (int i = 0; i < 4; i++) {
        const uint32_t x = random_bits();

        sum += (float)(x & 0x3ff) + (float)(x >> 10 & 0x3ff) + (float)(x >> 20 & 0x3ff);
    }
    return (sum - 6.0f * 1023.0f) / 1024.0f;
}

void fill_bf16(struct device_array *a, float scale)
{
    uint16_t *p = a->host;

    for (size_t i = 0; i < a->bytes / sizeof(*p); i++)
        p[i] = bf16_from_f32(random_normal() * scale);
    array_to_device(a);
}

void fill_f32(struct device_array *a, float scale)
{
    float *p = a->host;

    for (size_t i = 0; i < a->bytes / sizeof(*p); i++)
        p[i] = random_normal() * scale;
    array_to_device(a);
}

double relative_error(const double *a, const double *b, size_t n)
{
    double difference = 0.0, norm = 0.0;

    for (size_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference) / (norm > 0.0 ? sqrt(norm) : 1.0);
}

double bf16_value(uint16_t x)
{
    return (double)f32_from_bf16(x);
}

double *values_bf16(const void *p, size_t n)
{
    double *v = malloc(n * sizeof(*v));

    for (size_t i = 0; i < n; i++)
        v[i] = bf16_value(((const uint16_t *)p)[i]);
    return v;
}

double *values_f32(const void *p, size_t n)
{
    double *v = malloc(n * sizeof(*v));

    for (size_t i = 0; i < n; i++)
        v[i] = (double)((const float *)p)[i];
    return v;
}

double dot(const double *x, const uint16_t *w, int k)
{
    double sum = 0.0;

    for (int i = 0; i < k; i++)
        sum += x[i] * bf16_value(w[i]);
    return sum;
}
