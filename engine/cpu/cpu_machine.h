/* cpu_machine.h - what of this machine the process may use: cores, and memory that is really
 * there. Reads /proc and /sys; any thread. */
#ifndef NVLLM_ENGINE_CPU_CPU_MACHINE_H
#define NVLLM_ENGINE_CPU_CPU_MACHINE_H

#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"

/* Cores of the affinity mask, but not more than the control group's CPU quota. */
int machine_cores(void);

/* "AMD EPYC 9654"; "CPU" where it is not known. */
void machine_cpu_name(char *out, size_t size);

/* Bytes that can still be taken without swapping: MemAvailable, and what the memory.max of each
 * control group (version 2) above this process leaves. */
uint64_t machine_memory(void);

uint64_t machine_memory_in_all(void); /* whoever has it now; control groups are not looked at */

/* A zeroed piece of anonymous memory, in huge pages where the system grants them. */
struct region {
    char *base; /* aligned to 2 MiB */
    size_t bytes;
    void *mapping; /* with the slack that the alignment took */
    size_t mapping_bytes;
};

/* Maps memory that what ("the weights") needs; -ENOMEM says how much that is and what is there. Its
 * pages are made as they are touched, or before that by region_fill. */
int region_init(struct region *r, const char *what, size_t bytes, struct err *e);
void region_deinit(struct region *r); /* a zeroed one is nothing */

/* Makes a region's pages really there, behind what else goes on: a start need not wait for it, and
 * the first requests touch pages before they come to be made. */
struct region_filler {
    const struct region *region;
    sem_t done; /* the thread is detached: a process that ends without a stop leaks nothing */
    bool runs;
    _Atomic bool stop;
};

void region_fill_start(struct region_filler *f,
                       const struct region *r); /* without a thread: no more than that */
void region_fill_stop(
    struct region_filler *f); /* before the region goes; a zeroed one is nothing */

#endif
