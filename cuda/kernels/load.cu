/* load.cu - the list of kernels, which grows before main() by what launches them; see common.cuh.
 */
#include "cuda/kernels/common.cuh"

static constexpr int MOST = 512;

static const void *kernels[MOST];
static int n_kernels;

bool kernel_add(const void *kernel)
{
    if (n_kernels < MOST)
        kernels[n_kernels] = kernel;
    n_kernels++;
    return true;
}

extern "C" cudaError_t kernels_load(void)
{
    cudaError_t r = n_kernels <= MOST ? cudaSuccess : cudaErrorInvalidValue;
    struct cudaFuncAttributes ignored;

    for (int i = 0; i < n_kernels && r == cudaSuccess; i++)
        r = cudaFuncGetAttributes(&ignored, kernels[i]);
    return r;
}
