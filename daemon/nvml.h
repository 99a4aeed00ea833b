/* nvml.h - clocks, power, temperature and use of NVIDIA devices, as their driver's library
 * libnvidia-ml tells them. It is loaded at run time; where there is none, nothing is known.
 *
 * A call may take milliseconds. One thread. */
#ifndef NVLLM_DAEMON_NVML_H
#define NVLLM_DAEMON_NVML_H

#include <stdbool.h>

struct nvml;

struct nvml_sample {
    int sm_mhz, memory_mhz; /* -1, here and below: the driver does not tell */
    int power_mw, power_limit_mw;
    int celsius;
    int busy_percent; /* of the time just past, with a kernel running */
};

/* NULL: there is no such library, or it does not work here. */
struct nvml *nvml_open(void);
void nvml_close(struct nvml *n); /* takes NULL */

/* Of the device at a PCI address, "0000:65:00.0". False: it is not known, or lost. */
bool nvml_sample(struct nvml *n, const char *pci, struct nvml_sample *out);

#endif
