/* fake_nvml.c - libnvidia-ml.so.1 with one device, for machines without any.
 *
 * FAKE_NVML_MS: how long each look at the device takes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **out);
EXPORT int nvmlDeviceGetClockInfo(void *d, int type, unsigned *mhz);
EXPORT int nvmlDeviceGetPowerUsage(void *d, unsigned *mw);
EXPORT int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw);
EXPORT int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *celsius);
EXPORT int nvmlDeviceGetUtilizationRates(void *d, unsigned out[2]);

static int opened;

int nvmlInit_v2(void)
{
    opened++;
    return SUCCESS;
}

int nvmlShutdown(void)
{
    opened--;
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, void **out)
{
    const char *ms = getenv("FAKE_NVML_MS");

    if (ms)
        usleep((useconds_t)atoi(ms) * 1000);
    if (opened != 1 || strcmp(pci, "0000:65:00.0") != 0)
        return NOT_FOUND;
    *out = &opened;
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(void *d, int type, unsigned *mhz)
{
    *mhz = type == 1 ? 1980 : type == 2 ? 3201 : 0;
    return d == &opened ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetPowerUsage(void *d, unsigned *mw)
{
    *mw = 412500;
    return d == &opened ? SUCCESS : NOT_FOUND;
}

/* Some devices do not tell everything. */
int nvmlDeviceGetEnforcedPowerLimit(void *d, unsigned *mw)
{
    (void)d, (void)mw;
    return NOT_SUPPORTED;
}

int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *celsius)
{
    *celsius = sensor == 0 ? 61 : 0;
    return d == &opened ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetUtilizationRates(void *d, unsigned out[2])
{
    out[0] = 87;
    out[1] = 40;
    return d == &opened ? SUCCESS : NOT_FOUND;
}
