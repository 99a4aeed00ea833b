/* skinny_e4m3.cu - products of few rows with weights of 8 bits: see skinny.cuh. */
#include "cuda/kernels/skinny.cuh"

cudaError_t skinny_e4m3(const struct launch *l, const struct skinny_args *a)
{
    return run_quantized<KIND_E4M3>(l, a);
}
