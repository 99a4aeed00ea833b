/* timeline.c - what the device did and when, of any CUDA program: a library that the driver loads
 * when CUDA_INJECTION64_PATH names it. Each kernel and copy becomes a line `device begin end name`,
 * in nanoseconds, of the file `timeline.PID` beside the library; timeline.py reads it.
 *
 * CUPTI's own thread hands the records over; nothing else here runs at the same time. */
#include <cupti.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUFFER_BYTES = 8 << 20 };

static FILE *out;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *max_records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t n_valid)
{
    CUpti_Activity *record = NULL;

    (void)context;
    (void)stream;
    (void)size;
    while (out && cuptiActivityGetNextRecord(buffer, n_valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const CUpti_ActivityKernel10 *k = (const void *)record;

            fprintf(out, "%u %llu %llu %s\n", k->deviceId, (unsigned long long)k->start,
                    (unsigned long long)k->end, k->name);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy6 *m = (const void *)record;

            fprintf(out, "%u %llu %llu copy\n", m->deviceId, (unsigned long long)m->start,
                    (unsigned long long)m->end);
        }
    }
    free(buffer);
}

static void finish(void)
{
    (void)cuptiActivityFlushAll(1);
    if (out)
        fclose(out);
    out = NULL;
}

/* Called by the driver when it starts. */
__attribute__((visibility("default"))) int InitializeInjection(void);
int InitializeInjection(void)
{
    char path[4096];
    const char *end;
    Dl_info self;

    if (!dladdr(&out, &self))
        return 0;
    end = strrchr(self.dli_fname, '/');
    snprintf(path, sizeof(path), "%.*s/timeline.%d", end ? (int)(end - self.dli_fname) : 0,
             self.dli_fname, (int)getpid());
    out = fopen(path, "we");
    if (!out || cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) != CUPTI_SUCCESS)
        fprintf(stderr, "%s: nothing can be recorded\n", path);
    atexit(finish);
    return 1;
}
