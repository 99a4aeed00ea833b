/* machine.h - the cores and the memory that this process may use. Reads /proc and /sys; any
 * thread. */
#ifndef NVLLM_ENGINE_UTIL_MACHINE_H
#define NVLLM_ENGINE_UTIL_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"

/* Cores of the affinity mask, at most the control group's CPU quota. */
int machine_cores(void);

/* "AMD EPYC 9654", or "CPU" if unknown. */
void machine_cpu_name(char out[64]);

/* Bytes that can be taken without swapping: MemAvailable, at most what the memory.max of each
 * control group (version 2) of this process leaves. */
uint64_t machine_memory(void);

uint64_t machine_memory_total(void); /* installed; control groups are ignored */

/* Allocates pages of mapped memory; what they hold stays. False: pages come when touched, only. */
bool memory_populate(void *at, size_t bytes);

/* Zeroed anonymous memory, in huge pages if the system grants them. */
struct region {
    char *base; /* page-aligned */
    size_t bytes;
    size_t filled; /* the first bytes, whose pages are allocated */
};

/* Maps memory for `what` ("the weights"); -ENOMEM states how much is needed and how much there is.
 * Pages are allocated when touched, or earlier by region_fill(). */
int region_init(struct region *r, const char *what, size_t bytes, struct err *e);
void region_deinit(struct region *r); /* does nothing to a zeroed one */

/* Allocates some more of the pages, for a millisecond or two; false when all are. */
bool region_fill(struct region *r);

/* Gives whole pages back; they are zeros when they are touched again. */
void region_empty(struct region *r);

#endif
