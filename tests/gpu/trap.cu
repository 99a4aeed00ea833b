/* trap.cu - stops the device with a sticky error: a fault that tests plant. */
#include "tests/gpu/trap.h"

static __global__ void trap_kernel()
{
    asm volatile("trap;");
}

/* Until the process ends. */
static __global__ void hang_kernel()
{
    for (;;)
        __nanosleep(1000);
}

static __global__ void misread_kernel(const volatile int *at)
{
    if (*at == 1 && at[1] == 2)
        __nanosleep(1);
}

extern "C" cudaError_t misread_device(cudaStream_t stream, const void *at)
{
    misread_kernel<<<1, 1, 0, stream>>>((const volatile int *)at);
    return cudaGetLastError();
}

extern "C" cudaError_t hang_device(cudaStream_t stream)
{
    hang_kernel<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}

extern "C" cudaError_t trap_device(cudaStream_t stream)
{
    trap_kernel<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}
