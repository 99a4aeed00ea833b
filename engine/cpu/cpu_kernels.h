/* cpu_kernels.h - names of what the kernel files define, by the instruction set that they are
 * compiled for. For cpu_ops.c and the kernel files only. */
#ifndef NVLLM_ENGINE_CPU_CPU_KERNELS_H
#define NVLLM_ENGINE_CPU_CPU_KERNELS_H

#include "engine/cpu/cpu_ops.h"

extern const struct cpu_ops cpu_ops_plain, cpu_ops_avx2, cpu_ops_avx512;

void cpu_attend_plain(const struct attend *a);
void cpu_attend_avx2(const struct attend *a);
void cpu_attend_avx512(const struct attend *a);

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
#define CPU_ISA_TABLE  cpu_ops_avx512
#define CPU_ISA_ATTEND cpu_attend_avx512
#define CPU_ISA_NAME   "AVX-512"
#elif defined(__AVX2__) && defined(__FMA__)
#define CPU_ISA_TABLE  cpu_ops_avx2
#define CPU_ISA_ATTEND cpu_attend_avx2
#define CPU_ISA_NAME   "AVX2"
#else
#define CPU_ISA_TABLE  cpu_ops_plain
#define CPU_ISA_ATTEND cpu_attend_plain
#define CPU_ISA_NAME   "no vectors"
#endif

#endif
