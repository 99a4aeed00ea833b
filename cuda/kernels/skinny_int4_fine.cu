/* skinny_int4_fine.cu - products of few rows with weights of 4 bits in groups of 32 and 64: see
 * skinny.cuh. */
#include "cuda/kernels/skinny.cuh"

cudaError_t skinny_int4_fine(const struct launch *l, const struct skinny_args *a)
{
    return run_quantized<KIND_INT4_FINE>(l, a);
}
