/* cpu_ops.c - selects the instruction set; see cpu_ops.h. */
#include "engine/cpu/cpu_ops.h"

const struct cpu_ops *cpu_ops_get(enum cpu_isa isa)
{
    switch (isa) {
#ifdef NVLLM_CPU_X86
    case CPU_ISA_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                   ? &cpu_ops_avx512
                   : NULL;
    case CPU_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? &cpu_ops_avx2
                                                                               : NULL;
#endif
    case CPU_ISA_PLAIN:
        return &cpu_ops_plain;
    default:
        return NULL;
    }
}

const struct cpu_ops *cpu_ops_best(void)
{
    for (int isa = CPU_N_ISAS - 1; isa > CPU_ISA_PLAIN; isa--)
        if (cpu_ops_get((enum cpu_isa)isa))
            return cpu_ops_get((enum cpu_isa)isa);
    return cpu_ops_get(CPU_ISA_PLAIN);
}

size_t cpu_attend_scratch(int max_rows, int head_dim)
{
    const size_t dim = cpu_padded(head_dim), rows = (size_t)max_rows;

    /* keys and values of a group; a row's query and output; its scores, maximum and sum */
    return 2 * CPU_KV_GROUP * dim + rows * (2 * dim + CPU_KV_GROUP + 1 + CPU_K_ALIGN);
}
