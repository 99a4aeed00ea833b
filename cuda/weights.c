/* weights.c - loads a rank's weights to its device. Each thread has two pinned buffers: it reads a
 * piece into one while the other is copied. All ranks of the process together pin as much as one
 * does alone: 16 GB take two 0.28 s, and 0.35 where each pins so much (two H100). */
#include "cuda/rank.h"

#include <errno.h>
#include <unistd.h>

enum {
    PIECE = 2 << 20, /* elements a read: 16 GB take 0.46 s; twice as long ones 0.57 (an H200) */
    MAX_THREADS = 8, /* beyond that reads of cached files gain little */
};

const struct weights_layout cuda_weights_layout = {.vectors = DTYPE_BF16,
                                                   .k_align = 1,
                                                   .align = 256,
                                                   .piece_elements = PIECE};

struct copier {
    cudaStream_t stream;
    void *buffers[2];
    cudaEvent_t copied[2];
    int next; /* buffer */
};

struct loader {
    const struct model *model;
    int device;
    size_t piece_bytes;
    struct copier copiers[MAX_THREADS]; /* of each thread, opened by itself */
};

static int copier_open(struct copier *c, int device, size_t piece_bytes, struct err *e)
{
    int r;

    if ((r = cuda_check(cudaSetDevice(device), "choosing the device", e)) < 0 ||
        (r = cuda_check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking),
                        "creating a stream", e)) < 0)
        return r;
    for (int i = 0; i < 2; i++)
        if ((r = cuda_check(cudaHostAlloc(&c->buffers[i], piece_bytes, cudaHostAllocDefault),
                            "pinning memory", e)) < 0 ||
            (r = cuda_check(cudaEventCreateWithFlags(&c->copied[i], cudaEventDisableTiming),
                            "creating an event", e)) < 0)
            return r;
    return 0;
}

/* Waits for the last copies. */
static int copier_close(struct copier *c, struct err *e)
{
    const int r =
        c->stream ? cuda_check(cudaStreamSynchronize(c->stream), "copying weights", e) : 0;

    for (int i = 0; i < 2; i++) {
        if (c->copied[i])
            (void)cudaEventDestroy(c->copied[i]);
        if (c->buffers[i])
            (void)cudaFreeHost(c->buffers[i]);
    }
    if (c->stream)
        (void)cudaStreamDestroy(c->stream);
    return r;
}

static int copy(struct copier *c, void *to, const void *from, uint64_t bytes, struct err *e)
{
    return bytes == 0
               ? 0
               : cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, c->stream),
                            "copying weights", e);
}

static int load_piece(void *ctx, int thread, const struct weight_piece *p, struct err *e)
{
    struct loader *l = ctx;
    struct copier *c = &l->copiers[thread];
    const struct matrix to = weight_piece_rows(p);
    const uint64_t n_scales = (uint64_t)matrix_scales(&to);
    struct matrix from;
    const int b = c->next;
    int r;

    c->next = !b;
    if (matrix_scales(p->to) > UINT32_MAX)
        return err_set(e, -ENOTSUP,
                       "CUDA: a weight of one layer has %lld scales, more than 2^32: quantize the "
                       "model in larger groups",
                       (long long)matrix_scales(p->to));
    if ((!c->stream && (r = copier_open(c, l->device, l->piece_bytes, e)) < 0) ||
        (r = cuda_check(cudaEventSynchronize(c->copied[b]), "copying weights", e)) < 0)
        return r;
    from = weight_piece_buffer(p, c->buffers[b]);
    if ((r = weight_piece_read(l->model, p, &from, e)) < 0 ||
        (r = copy(c, to.data, from.data, matrix_bytes(&from), e)) < 0 ||
        (r = copy(c, to.scales, from.scales, dtype_bytes(to.scale_dtype, n_scales), e)) < 0 ||
        (r = copy(c, to.zeros, from.zeros, to.zeros ? n_scales : 0, e)) < 0)
        return r;
    return cuda_check(cudaEventRecord(c->copied[b], c->stream), "copying weights", e);
}

static int load_all(const struct weights *w, struct loader *l, const struct backend_options *o,
                    struct err *e)
{
    const long n_cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int r = weights_load(w, n_cpus < MAX_THREADS ? (int)n_cpus : MAX_THREADS, load_piece, l,
                         o->progress, o->progress_ctx, e);

    for (int i = 0; i < MAX_THREADS; i++) {
        const int closed = copier_close(&l->copiers[i], r < 0 ? NULL : e);

        r = r < 0 ? r : closed;
    }
    return r;
}

int cuda_weights_load(struct weights *w, struct device *d, const struct model *m, struct shard s,
                      const struct backend_options *o, struct err *e)
{
    struct loader l = {.model = m, .device = d->id};
    struct weights_layout layout = cuda_weights_layout;
    int r;

    layout.piece_elements /= o->n_devices;
    r = weights_init(w, model_config(m), s, &layout, e);
    if (r == 0)
        r = device_take(d, DEVICE_WEIGHTS, w->bytes, e);
    if (r == 0) {
        weights_place(w, d->memory[DEVICE_WEIGHTS]);
        l.piece_bytes = w->piece_bytes;
        r = load_all(w, &l, o, e);
    }
    if (r < 0)
        weights_deinit(w);
    return r;
}
