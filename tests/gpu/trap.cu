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
