/* skinny_int4.cu - products of few rows with weights of 4 bits: see skinny.cuh. */
#include "cuda/kernels/skinny.cuh"

cudaError_t skinny_int4(const struct launch *l, const struct skinny_args *a)
{
    return run_quantized<KIND_INT4>(l, a);
}
