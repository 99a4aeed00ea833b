/* step_copy.cu - a step's metadata from pinned host memory to the device's.
 *
 * A kernel reads it: the engines that copy memory take what comes in its order, and KV blocks on
 * their way from the host tier would keep a step waiting for milliseconds. */
#include "cuda/kernels/common.cuh"

static constexpr int THREADS = 256;
static constexpr int MAX_BLOCKS = 32;

static __global__ void __launch_bounds__(THREADS)
    step_copy_kernel(uint4 *to, const uint4 *from, int n)
{
    chain_wait(); // the step before reads what is overwritten
    for (int i = (int)blockIdx.x * THREADS + (int)threadIdx.x; i < n; i += (int)gridDim.x * THREADS)
        to[i] = __ldcv(from + i);
}

extern "C" cudaError_t step_copy(const struct launch *l, void *to, const void *from, size_t bytes)
{
    const int n = (int)(bytes / sizeof(uint4));
    const int blocks = (n + THREADS - 1) / THREADS;

    return launch_kernel(known<step_copy_kernel>(),
                         dim3((unsigned)(blocks < MAX_BLOCKS ? blocks : MAX_BLOCKS)), THREADS, 0, l,
                         (uint4 *)to, (const uint4 *)from, n);
}
