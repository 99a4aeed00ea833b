/* weights.c - see weights.h. Each thread has two pinned buffers: it reads a piece into one while
 * the other is copied. */
#include "cuda/weights.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "engine/util/thread.h"

enum {
    PIECE = 4 << 20, /* elements a read: 8 MiB, long enough for the copy to run at full speed */
    MAX_THREADS = 8, /* beyond that reads of cached files gain little */
};

const struct weights_layout cuda_weights_layout = {.vectors = DTYPE_BF16,
                                                   .k_align = 1,
                                                   .align = 256,
                                                   .piece_elements = PIECE};

struct loader {
    const struct model *model;
    const struct weights *weights;
    const struct backend_options *options;
    int device;
    atomic_int next, done; /* pieces */
    atomic_int failed;     /* the first thread that sets it writes code and err */
    int code;
    struct err err;
};

static void fail(struct loader *l, int code, const struct err *e)
{
    if (atomic_exchange(&l->failed, 1) == 0) {
        l->code = code;
        l->err = *e;
    }
}

static int load_pieces(struct loader *l, uint16_t *const buffers[2], cudaStream_t stream,
                       const cudaEvent_t copied[2], struct err *e)
{
    const struct weights *w = l->weights;

    for (int b = 0; !atomic_load(&l->failed); b ^= 1) {
        const int i = atomic_fetch_add(&l->next, 1);
        const struct weight_piece *p;
        int r;

        if (i >= w->n_pieces)
            break;
        p = &w->pieces[i];
        r = cuda_check(cudaEventSynchronize(copied[b]), "copying weights", e);
        if (r == 0)
            r = weight_piece_read(l->model, p, buffers[b], e);
        if (r == 0)
            r = cuda_check(cudaMemcpyAsync(matrix_row(p->to, p->part.to_row), buffers[b],
                                           (size_t)(p->part.n_rows * p->to->ld) * sizeof(uint16_t),
                                           cudaMemcpyHostToDevice, stream),
                           "copying weights", e);
        if (r == 0)
            r = cuda_check(cudaEventRecord(copied[b], stream), "copying weights", e);
        if (r < 0)
            return r;
        if (l->options->progress)
            l->options->progress(l->options->progress_ctx,
                                 (double)(atomic_fetch_add(&l->done, 1) + 1) / w->n_pieces);
    }
    return cuda_check(cudaStreamSynchronize(stream), "copying weights", e);
}

static void *load_thread(void *arg)
{
    struct loader *l = arg;
    struct err e = {{0}};
    uint16_t *buffers[2] = {0};
    cudaEvent_t events[2] = {0};
    cudaStream_t stream = NULL;
    int r = cuda_check(cudaSetDevice(l->device), "choosing the device", &e);

    if (r == 0)
        r = cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream",
                       &e);
    for (int i = 0; i < 2 && r == 0; i++) {
        r = cuda_check(cudaHostAlloc((void **)&buffers[i], PIECE * sizeof(uint16_t),
                                     cudaHostAllocDefault),
                       "pinning memory", &e);
        if (r == 0)
            r = cuda_check(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming),
                           "making an event", &e);
    }
    if (r == 0)
        r = load_pieces(l, buffers, stream, events, &e);
    if (r < 0)
        fail(l, r, &e);
    for (int i = 0; i < 2; i++) {
        if (events[i])
            (void)cudaEventDestroy(events[i]);
        if (buffers[i])
            (void)cudaFreeHost(buffers[i]);
    }
    if (stream)
        (void)cudaStreamDestroy(stream);
    return NULL;
}

static int load_all(struct loader *l, struct err *e)
{
    pthread_t threads[MAX_THREADS];
    const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int wanted = n_cpus < MAX_THREADS ? (int)n_cpus : MAX_THREADS, n = 0;

    if (wanted > l->weights->n_pieces)
        wanted = l->weights->n_pieces;
    while (n < wanted && thread_start(&threads[n], NULL, load_thread, l) == 0)
        n++;
    if (n == 0)
        return err_set(e, -EAGAIN, "no thread to load weights with");
    for (int i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
    if (!atomic_load(&l->failed))
        return 0;
    *e = l->err;
    return l->code;
}

int cuda_weights_load(struct weights *w, struct device *d, const struct model *m, struct shard s,
                      const struct backend_options *o, struct err *e)
{
    struct loader l = {.model = m, .weights = w, .options = o, .device = d->id};
    struct err ignored;
    int r = weights_init(w, model_config(m), s, &cuda_weights_layout, e);

    if (r == 0)
        r = device_take(d, DEVICE_WEIGHTS, w->bytes, e);
    if (r == 0) {
        weights_place(w, d->memory[DEVICE_WEIGHTS]);
        r = load_all(&l, e ? e : &ignored);
    }
    if (r < 0)
        weights_deinit(w);
    return r;
}
