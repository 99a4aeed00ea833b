/* device.c - see device.h. */
#include "cuda/device.h"

#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "engine/util/must.h"

static const char *const uses[DEVICE_N_USES] = {
    "weights",
    "KV blocks",
    "activations",
    "the sampler",
    "matrix products",
    "steps",
    "layers that prompts read",
};

double monotonic_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int cuda_check(cudaError_t code, const char *what, struct err *e)
{
    if (code == cudaSuccess)
        return 0;
    return err_set(e, code == cudaErrorMemoryAllocation ? -ENOMEM : -EIO, "CUDA: %s: %s (%s)", what,
                   cudaGetErrorString(code), cudaGetErrorName(code));
}

/* The driver's own version is not CUDA's, and the kernel module alone tells it. */
static void read_driver(char *out, size_t n)
{
    char version[32] = "";
    FILE *f = fopen("/sys/module/nvidia/version", "re");
    int cuda = 0;

    if (f) {
        if (!fgets(version, sizeof(version), f))
            version[0] = '\0';
        fclose(f);
        version[strcspn(version, "\n")] = '\0';
    }
    (void)cudaDriverGetVersion(&cuda);
    snprintf(out, n, "%s%sCUDA %d.%d", version, *version ? ", " : "", cuda / 1000,
             cuda % 1000 / 10);
}

int device_open(struct device *d, int id, struct err *e)
{
    struct cudaDeviceProp p;
    size_t free_bytes, total_bytes;
    int n = 0, r;

    memset(d, 0, sizeof(*d));
    r = cuda_check(cudaGetDeviceCount(&n), "looking for devices", e);
    if (r < 0)
        return r;
    if (id < 0 || id >= n)
        return err_set(e, -ENODEV, "CUDA: there is no device %d; devices found: %d", id, n);
    d->id = id;
    r = cuda_check(cudaSetDevice(id), "choosing the device", e);
    if (r == 0)
        r = cuda_check(cudaGetDeviceProperties(&p, id), "querying its properties", e);
    if (r == 0)
        r = cuda_check(cudaDeviceGetPCIBusId(d->pci, sizeof(d->pci), id), "querying its address",
                       e);
    if (r < 0)
        return r;
    if (p.major < 8)
        return err_set(e, -ENOTSUP, "CUDA: %s has compute capability %d.%d, 8.0 is needed", p.name,
                       p.major, p.minor);
    if ((r = cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), "querying free memory", e)) <
            0 ||
        (r = cuda_check(cudaStreamCreateWithFlags(&d->launch.stream, cudaStreamNonBlocking),
                        "creating a stream", e)) < 0)
        return r;
    snprintf(d->name, sizeof(d->name), "%.100s", p.name);
    read_driver(d->driver, sizeof(d->driver));
    d->compute = p.major * 10 + p.minor;
    d->launch.chained = p.major >= 9;
    d->launch.n_sms = p.multiProcessorCount;
    d->launch.max_shared = (int)p.sharedMemPerBlockOptin;
    d->total_bytes = total_bytes;
    return 0;
}

/* "0-15,32-47" */
static void read_cpu_list(cpu_set_t *out, FILE *f)
{
    int first, last;
    char end;

    CPU_ZERO(out);
    while (fscanf(f, "%d", &first) == 1) {
        last = first;
        end = '\n';
        if (fscanf(f, "%c", &end) == 1 && end == '-' &&
            (fscanf(f, "%d", &last) != 1 || fscanf(f, "%c", &end) != 1))
            end = '\n';
        for (int i = first; i >= 0 && i <= last && i < CPU_SETSIZE; i++)
            CPU_SET(i, out);
        if (end != ',')
            return;
    }
}

void device_keep_thread_near(int id)
{
    char bus[32], path[96];
    cpu_set_t local, mine;
    FILE *f;

    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), id) != cudaSuccess)
        return;
    for (char *c = bus; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/local_cpulist", bus);
    f = fopen(path, "re");
    if (!f)
        return;
    read_cpu_list(&local, f);
    fclose(f);
    if (sched_getaffinity(0, sizeof(mine), &mine) < 0)
        return;
    CPU_AND(&mine, &mine, &local);
    if (CPU_COUNT(&mine) > 0)
        (void)sched_setaffinity(0, sizeof(mine), &mine);
}

void device_give_back(struct device *d, enum device_use use)
{
    if (d->memory[use])
        (void)cudaFree(d->memory[use]);
    d->memory[use] = NULL;
    d->bytes[use] = 0;
}

void device_close(struct device *d)
{
    for (int i = 0; i < DEVICE_N_USES; i++)
        device_give_back(d, (enum device_use)i);
    if (d->launch.stream)
        (void)cudaStreamDestroy(d->launch.stream);
    memset(d, 0, sizeof(*d));
}

int device_free_bytes(uint64_t *free_bytes, struct err *e)
{
    size_t free_now, total;
    int r = cuda_check(cudaMemGetInfo(&free_now, &total), "querying free memory", e);

    if (r == 0)
        *free_bytes = free_now;
    return r;
}

int device_take(struct device *d, enum device_use use, uint64_t bytes, struct err *e)
{
    uint64_t free_bytes = 0;
    void *p = NULL;
    cudaError_t code;
    int r = device_free_bytes(&free_bytes, e);

    must(!d->memory[use]);
    if (r < 0)
        return r;
    code = bytes > free_bytes ? cudaErrorMemoryAllocation : cudaMalloc(&p, bytes);
    if (code == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError(); /* it is told here and not again by the next call */
        return err_set(e, -ENOMEM,
                       "%s: %.1f MiB of device memory needed for %s, %.1f of %.1f MiB are free; "
                       "lower max_seqs, max_batch_tokens or kv_memory, or use a smaller model",
                       d->name, (double)bytes / 0x1p20, uses[use], (double)free_bytes / 0x1p20,
                       (double)d->total_bytes / 0x1p20);
    }
    if (code != cudaSuccess)
        return cuda_check(code, "allocating memory", e);
    d->memory[use] = p;
    d->bytes[use] = bytes;
    return 0;
}
