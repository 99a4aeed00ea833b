/* nvml.c - see nvml.h. What is declared here is the library's public interface, which is stable, so
 * that no CUDA toolkit is needed to build. */
#include "daemon/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"

typedef struct nvml_device *device_t; /* the library's own */

enum { SUCCESS = 0 };
enum { CLOCK_SM = 1, CLOCK_MEM = 2 }; /* nvmlClockType_t */
enum { TEMPERATURE_GPU = 0 };         /* nvmlTemperatureSensors_t */

struct utilization { /* nvmlUtilization_t */
    unsigned gpu, memory;
};

struct nvml {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_pci)(const char *pci, device_t *out);
    int (*clock)(device_t d, int type, unsigned *mhz);
    int (*power)(device_t d, unsigned *mw);
    int (*power_limit)(device_t d, unsigned *mw);
    int (*temperature)(device_t d, int sensor, unsigned *celsius);
    int (*utilization)(device_t d, struct utilization *out);
};

/* Sets a function pointer. False: the library does not have it. */
static bool find(struct nvml *n, void *function, const char *name)
{
    void *symbol = dlsym(n->library, name);

    memcpy(function, &symbol, sizeof(symbol)); /* C has no cast from an object to a function */
    return symbol != NULL;
}

static bool find_all(struct nvml *n)
{
    return find(n, &n->init, "nvmlInit_v2") && find(n, &n->shutdown, "nvmlShutdown") &&
           find(n, &n->by_pci, "nvmlDeviceGetHandleByPciBusId_v2") &&
           find(n, &n->clock, "nvmlDeviceGetClockInfo") &&
           find(n, &n->power, "nvmlDeviceGetPowerUsage") &&
           find(n, &n->power_limit, "nvmlDeviceGetEnforcedPowerLimit") &&
           find(n, &n->temperature, "nvmlDeviceGetTemperature") &&
           find(n, &n->utilization, "nvmlDeviceGetUtilizationRates");
}

struct nvml *nvml_open(void)
{
    struct nvml *n = calloc(1, sizeof(*n));

    if (!n)
        return NULL;
    n->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!n->library || !find_all(n) || n->init() != SUCCESS) {
        n->shutdown = NULL;
        nvml_close(n);
        return NULL;
    }
    return n;
}

void nvml_close(struct nvml *n)
{
    if (!n)
        return;
    if (n->shutdown)
        n->shutdown();
    if (n->library)
        dlclose(n->library);
    free(n);
}

static void set(int *out, int code, const unsigned *value)
{
    *out = code == SUCCESS ? (int)*value : -1;
}

bool nvml_sample(struct nvml *n, const char *pci, struct nvml_sample *out)
{
    struct utilization u = {0};
    unsigned value = 0;
    device_t d;

    if (n->by_pci(pci, &d) != SUCCESS)
        return false;
    set(&out->sm_mhz, n->clock(d, CLOCK_SM, &value), &value);
    set(&out->memory_mhz, n->clock(d, CLOCK_MEM, &value), &value);
    set(&out->power_mw, n->power(d, &value), &value);
    set(&out->power_limit_mw, n->power_limit(d, &value), &value);
    set(&out->celsius, n->temperature(d, TEMPERATURE_GPU, &value), &value);
    set(&out->busy_percent, n->utilization(d, &u), &u.gpu);
    return true;
}
