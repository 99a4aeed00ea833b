/* trap.cu - stops the device with a sticky error: a fault that tests plant. */
#include "tests/gpu/trap.h"

static __global__ void trap_kernel()
{
    asm volatile("trap;");
}

extern "C" cudaError_t trap_device(cudaStream_t stream)
{
    trap_kernel<<<1, 1, 0, stream>>>();
    return cudaGetLastError();
}
