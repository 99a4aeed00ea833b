/* cpu_machine.h - what of this machine the process may use: cores, and memory that is really
 * there. Reads /proc and /sys; any thread. */
#ifndef NVLLM_CPU_MACHINE_H
#define NVLLM_CPU_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/cpu/cpu_pool.h"
#include "engine/err.h"

/* Cores of the affinity mask, but not more than the control group's CPU quota. */
int machine_cores(void);

/* "AMD EPYC 9654"; "CPU" where it is not known. */
void machine_cpu_name(char *out, size_t size);

/* Bytes that can still be taken without swapping: MemAvailable, and what the memory.max of each
 * control group (version 2) above this process leaves. */
uint64_t machine_memory(void);

/* A zeroed piece of anonymous memory, in huge pages where the system grants them. */
struct region {
    char *base; /* aligned to 2 MiB */
    size_t bytes;
    void *mapping; /* with the slack that the alignment took */
    size_t mapping_bytes;
};

/* Takes memory that what ("the weights") needs; -ENOMEM says how much that is and what is there.
 * With a pool the memory is made really there at once, by all threads. */
int region_init(struct region *r, const char *what, size_t bytes, struct cpu_pool *pool,
                struct err *e);
void region_deinit(struct region *r); /* a zeroed one is nothing */

#endif
