/* gpu_rig.c - see gpu_rig.h. */
#include "tests/gpu/gpu_rig.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/bf16.h"
#include "engine/util/must.h"

enum { NOISE = 1000003 };

/* Memory that was taken, the last first. */
struct memory {
    struct memory *next;
    void *host, *device;
};

struct device device;
static struct memory *memory;
static cudaEvent_t timer[2];
static uint64_t state = 1;

void cuda_must_(cudaError_t code, const char *what, const char *file, int line)
{
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, what, cudaGetErrorString(code));
    exit(1);
}

void device_set_up(void)
{
    struct err e;

    err_must(device_open(&device, 0, &e), &e);
    for (int i = 0; i < 2; i++)
        cuda_must(cudaEventCreate(&timer[i]));
    random_seed(7);
}

void device_tear_down(void)
{
    memory_free();
    for (int i = 0; i < 2; i++)
        cuda_must(cudaEventDestroy(timer[i]));
    device_close(&device);
}

static void note(void *host, void *on_device)
{
    struct memory *m = malloc(sizeof(*m));

    must(m);
    *m = (struct memory){memory, host, on_device};
    memory = m;
}

void *host_new(size_t n, size_t size)
{
    void *p = calloc(n, size);

    must(p);
    note(p, NULL);
    return p;
}

void *device_new(size_t bytes)
{
    void *p;

    cuda_must(cudaMalloc(&p, bytes + 256)); /* reads of whole vectors may pass the end */
    device_fill(p, 0, bytes + 256);
    note(NULL, p);
    return p;
}

void memory_free(void)
{
    cuda_must(cudaDeviceSynchronize());
    while (memory) {
        struct memory *next = memory->next;

        free(memory->host);
        cuda_must(cudaFree(memory->device));
        free(memory);
        memory = next;
    }
}

void device_fill(void *p, int byte, size_t bytes)
{
    cuda_must(cudaMemset(p, byte, bytes));
    cuda_must(cudaDeviceSynchronize()); /* the kernels' stream does not wait for this one */
}

struct device_array array_zero(size_t bytes)
{
    return (struct device_array){host_new(bytes, 1), device_new(bytes), bytes};
}

struct device_array array_new(size_t bytes)
{
    const struct device_array a = array_zero(bytes);

    memset(a.host, 0xff, bytes);
    device_fill(a.device, 0xff, bytes + 256);
    return a;
}

struct device_array array_of(const void *from, size_t bytes)
{
    const struct device_array a = array_new(bytes);

    memcpy(a.host, from, bytes);
    array_to_device(&a);
    return a;
}

struct device_array array_bf16(size_t n, float scale)
{
    const struct device_array a = array_new(n * sizeof(uint16_t));

    fill_noise(a.device, n, 0.0f, scale);
    array_to_host(&a);
    return a;
}

struct device_array array_f32(size_t n, float scale)
{
    const struct device_array a = array_new(n * sizeof(float));

    for (size_t i = 0; i < n; i++)
        ((float *)a.host)[i] = random_normal() * scale;
    array_to_device(&a);
    return a;
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

void fill_noise(uint16_t *to, size_t n, float mean, float scale)
{
    static float normal[NOISE];
    static uint16_t scaled[NOISE];
    const uint64_t before = state;
    size_t have = n < NOISE ? n : NOISE, start;

    for (int i = 0; i < NOISE && normal[0] == 0.0f; i++)
        normal[NOISE - 1 - i] = random_normal() + 1e-6f;
    state = before; /* what follows does not depend on whether this was the first call */
    start = random_bits() % NOISE;
    for (size_t i = 0; i < have; i++)
        scaled[i] = bf16_from_f32(mean + scale * normal[(start + i) % NOISE]);
    cuda_must(cudaMemcpy(to, scaled, have * sizeof(*scaled), cudaMemcpyHostToDevice));
    for (size_t more; have < n; have += more) {
        more = n - have < have ? n - have : have;
        cuda_must(cudaMemcpy(to + have, to, more * sizeof(*to), cudaMemcpyDeviceToDevice));
    }
    cuda_must(cudaDeviceSynchronize());
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

double error_bf16(const void *got, const double *expected, size_t n)
{
    return relative_error(values_bf16(got, n), expected, n);
}

double error_f32(const void *got, const double *expected, size_t n)
{
    return relative_error(values_f32(got, n), expected, n);
}

double bf16_value(uint16_t x)
{
    return (double)f32_from_bf16(x);
}

double *values_bf16(const void *p, size_t n)
{
    double *v = host_new(n, sizeof(*v));

    for (size_t i = 0; i < n; i++)
        v[i] = bf16_value(((const uint16_t *)p)[i]);
    return v;
}

double *values_f32(const void *p, size_t n)
{
    double *v = host_new(n, sizeof(*v));

    for (size_t i = 0; i < n; i++)
        v[i] = (double)((const float *)p)[i];
    return v;
}

struct kv_twin kv_twin_of(const struct kv_pool *kv, uint16_t *block, int layer, int head, int at,
                          bool v)
{
    const int block_len = 1 << kv->block_shift, dim = kv->head_dim;
    uint16_t *rows = block + layer * kv->layer_stride + (v ? kv->v_offset : 0);
    uint8_t *bytes = (uint8_t *)rows;
    const int row = head * block_len + at;

    if (!kv->fp8)
        return (struct kv_twin){.bf16 = rows + row * dim};
    return (struct kv_twin){.e4m3 = bytes + row * dim,
                            .exponent = bytes + kv->n_kv_heads * block_len * dim + row};
}

double kv_twin_value(const struct kv_twin *row, int d)
{
    if (row->bf16)
        return bf16_value(row->bf16[d]);
    return *row->exponent == 255 ? NAN
                                 : ldexp((double)f32_from_e4m3(row->e4m3[d]), *row->exponent - 127);
}

double dot(const double *x, const uint16_t *w, int k)
{
    double sum = 0.0;

    for (int i = 0; i < k; i++)
        sum += x[i] * bf16_value(w[i]);
    return sum;
}

struct step_room pack_parts(void *host, struct step_view *on_device, const void *device_memory,
                            const struct step_limits *l, const struct batch_parts *p, int slot)
{
    struct batch *b = make_batch(p);
    const struct step_room room = step_room_of(l, b);

    (void)step_pack(host, on_device, device_memory, l, &room, b, slot);
    free(b);
    return room;
}

struct sampler_memory sampler_memory_new(const float *logits, int vocab, int n_rows,
                                         int32_t *results)
{
    const size_t stride = ((size_t)vocab + 7) & ~(size_t)7, n = (size_t)n_rows;
    struct sampler_memory m = {.n_ranks = 1,
                               .ids_per_rank = vocab,
                               .logits = {logits},
                               .logits_stride = (int64_t)stride,
                               .vocab_size = vocab,
                               .max_seqs = n_rows,
                               .adjusted = {array_new(n * stride * sizeof(float)).device},
                               .states = array_new(n * sizeof(*m.states)).device,
                               .bias = array_new(n * SAMPLING_MAX_BIAS * sizeof(*m.bias)).device,
                               .seen = {array_new(n * stride * sizeof(**m.seen)).device},
                               .sampled = {array_new(n * sizeof(**m.sampled)).device}};

    for (int i = 0; i < SAMPLER_SLOTS; i++) {
        m.host_ids[i] = results;
        m.host_logprobs[i] = (float *)(results + n_rows);
        m.host_top_ids[i] = results + 2 * n_rows;
        m.host_top_logprobs[i] = (float *)(results + (2 + SAMPLING_MAX_LOGPROBS) * n_rows);
    }
    return m;
}

void capture_begin(void)
{
    cuda_must(cudaStreamBeginCapture(device.launch.stream, cudaStreamCaptureModeThreadLocal));
}

cudaGraphExec_t capture_end(void)
{
    cudaGraphExec_t exec;
    cudaGraph_t graph;

    cuda_must(cudaStreamEndCapture(device.launch.stream, &graph));
    cuda_must(cudaGraphInstantiate(&exec, graph, 0));
    cuda_must(cudaGraphDestroy(graph));
    return exec;
}

void timer_begin(void)
{
    cuda_must(cudaEventRecord(timer[0], device.launch.stream));
}

double timer_end(void)
{
    float ms;

    cuda_must(cudaEventRecord(timer[1], device.launch.stream));
    cuda_must(cudaEventSynchronize(timer[1]));
    cuda_must(cudaEventElapsedTime(&ms, timer[0], timer[1]));
    return (double)ms / 1e3;
}

double shortest_run(cudaGraphExec_t exec, int n_runs)
{
    double shortest = INFINITY;

    for (int i = 0; i <= n_runs; i++) {
        double seconds;

        timer_begin();
        cuda_must(cudaGraphLaunch(exec, device.launch.stream));
        seconds = timer_end();
        if (i > 0)
            shortest = fmin(shortest, seconds);
    }
    cuda_must(cudaGraphExecDestroy(exec));
    return shortest;
}

static int in_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void sort_numbers(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), in_order);
}
