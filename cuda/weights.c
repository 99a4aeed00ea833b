/* weights.c - see weights.h. First a list of which tensor goes where, then threads that take pieces
 * of it in turn, each with two pinned buffers: one is read into while the other is copied. */
#include "cuda/weights.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/util/must.h"
#include "engine/util/thread.h"

enum {
    PIECE = 4 << 20, /* elements a read: 8 MiB, long enough for the copy to run at full speed */
    MAX_THREADS = 8, /* beyond that reads of cached files gain little */
};

/* One tensor's place. */
struct place {
    const struct tensor *tensor;
    uint16_t *to;
    uint64_t n; /* elements */
};

struct loader {
    const struct model *model;
    const struct backend_options *options;
    int device;
    struct place *places;
    size_t n_places, cap_places;
    uint64_t n_pieces;
    atomic_ullong next, done;
    atomic_int failed; /* the first thread's that did may write err */
    int code;
    struct err err;
};

/* What a walk over the model's tensors gives: with an arena without base only sizes. */
struct walk {
    const struct model *model;
    struct arena arena;
    struct loader *loader; /* NULL while counting */
    struct err *err;
    int r;
};

static uint64_t elements(const struct tensor *t)
{
    uint64_t n = 1;

    for (int i = 0; i < t->rank; i++)
        n *= (uint64_t)t->shape[i];
    return n;
}

static void note(struct walk *w, const struct tensor *t, uint16_t *to)
{
    struct loader *l = w->loader;

    if (!l || w->r < 0)
        return;
    if (l->n_places == l->cap_places) {
        const size_t cap = l->cap_places ? 2 * l->cap_places : 256;
        struct place *grown = realloc(l->places, cap * sizeof(*grown));

        if (!grown) {
            w->r = err_set(w->err, -ENOMEM, "out of memory");
            return;
        }
        l->places = grown;
        l->cap_places = cap;
    }
    l->places[l->n_places++] = (struct place){.tensor = t, .to = to, .n = elements(t)};
    l->n_pieces += (elements(t) + PIECE - 1) / PIECE;
}

/* One array of the device from one to three tensors, one behind another. layer < 0: no layer. */
static uint16_t *join(struct walk *w, int layer, const char *a, const char *b, const char *c)
{
    const char *const names[] = {a, b, c};
    const struct tensor *found[3] = {0};
    uint64_t n = 0;
    uint16_t *base;

    for (int i = 0; i < 3 && names[i]; i++) {
        char name[128];

        if (layer >= 0)
            snprintf(name, sizeof(name), "model.layers.%d.%s", layer, names[i]);
        else
            snprintf(name, sizeof(name), "%s", names[i]);
        found[i] = model_tensor(w->model, name);
        must(found[i]);
        n += elements(found[i]);
    }
    base = arena_take(&w->arena, n * sizeof(*base));
    n = 0;
    for (int i = 0; i < 3 && found[i]; i++) {
        note(w, found[i], base ? base + n : NULL);
        n += elements(found[i]);
    }
    return base;
}

static void walk_layer(struct walk *w, struct layer_weights *l, int i)
{
    const bool qwen3 = model_config(w->model)->arch == MODEL_QWEN3;

    l->attn_norm = join(w, i, "input_layernorm.weight", NULL, NULL);
    l->qkv =
        join(w, i, "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight");
    if (qwen3) {
        l->q_norm = join(w, i, "self_attn.q_norm.weight", NULL, NULL);
        l->k_norm = join(w, i, "self_attn.k_norm.weight", NULL, NULL);
    } else {
        l->qkv_bias =
            join(w, i, "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias");
    }
    l->o = join(w, i, "self_attn.o_proj.weight", NULL, NULL);
    l->mlp_norm = join(w, i, "post_attention_layernorm.weight", NULL, NULL);
    l->gate_up = join(w, i, "mlp.gate_proj.weight", "mlp.up_proj.weight", NULL);
    l->down = join(w, i, "mlp.down_proj.weight", NULL, NULL);
}

static void walk_all(struct walk *w, struct weights *to)
{
    const struct model_config *c = model_config(w->model);

    to->embed = join(w, -1, "model.embed_tokens.weight", NULL, NULL);
    to->lm_head = c->tied ? to->embed : join(w, -1, "lm_head.weight", NULL, NULL);
    to->norm = join(w, -1, "model.norm.weight", NULL, NULL);
    for (int i = 0; i < c->n_layers; i++)
        walk_layer(w, &to->layers[i], i);
}

static void fail(struct loader *l, int code, const struct err *e)
{
    if (atomic_exchange(&l->failed, 1) == 0) {
        l->code = code;
        l->err = *e;
    }
}

/* Which place and which part of it piece number i is. */
static const struct place *piece_at(const struct loader *l, uint64_t i, uint64_t *first)
{
    const struct place *p = l->places;

    for (uint64_t n; i >= (n = (p->n + PIECE - 1) / PIECE); p++)
        i -= n;
    *first = i * PIECE;
    return p;
}

static int load_pieces(struct loader *l, uint16_t *const buffers[2], cudaStream_t stream,
                       const cudaEvent_t free_again[2], struct err *e)
{
    for (int turn = 0; !atomic_load(&l->failed); turn ^= 1) {
        const uint64_t i = atomic_fetch_add(&l->next, 1);
        const struct place *p;
        uint64_t first, n;
        int r;

        if (i >= l->n_pieces)
            break;
        p = piece_at(l, i, &first);
        n = p->n - first < PIECE ? p->n - first : PIECE;
        r = cuda_check(cudaEventSynchronize(free_again[turn]), "copying weights", e);
        if (r == 0)
            r = model_read_bf16(l->model, p->tensor, first, buffers[turn], n, e);
        if (r == 0)
            r = cuda_check(cudaMemcpyAsync(p->to + first, buffers[turn], n * sizeof(uint16_t),
                                           cudaMemcpyHostToDevice, stream),
                           "copying weights", e);
        if (r == 0)
            r = cuda_check(cudaEventRecord(free_again[turn], stream), "copying weights", e);
        if (r < 0)
            return r;
        if (l->options->progress)
            l->options->progress(l->options->progress_ctx,
                                 (double)(atomic_fetch_add(&l->done, 1) + 1) / (double)l->n_pieces);
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

    if ((uint64_t)wanted > l->n_pieces)
        wanted = (int)l->n_pieces;
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

int weights_load(struct weights *w, struct device *d, const struct model *m,
                 const struct backend_options *o, struct err *e)
{
    struct loader l = {.model = m, .options = o, .device = d->id};
    struct walk count = {.model = m, .err = e}, fill = {.model = m, .err = e, .loader = &l};
    struct err ignored;
    int r;

    memset(w, 0, sizeof(*w));
    w->layers = calloc((size_t)model_config(m)->n_layers, sizeof(*w->layers));
    if (!w->layers)
        return err_set(e, -ENOMEM, "out of memory");
    walk_all(&count, w);
    r = device_take(d, DEVICE_WEIGHTS, count.arena.used, e);
    if (r == 0) {
        fill.arena.base = d->memory[DEVICE_WEIGHTS];
        walk_all(&fill, w);
        w->bytes = fill.arena.used;
        r = fill.r;
    }
    if (r == 0)
        r = load_all(&l, e ? e : &ignored);
    free(l.places);
    if (r < 0)
        weights_deinit(w);
    return r;
}

void weights_deinit(struct weights *w)
{
    free(w->layers);
    memset(w, 0, sizeof(*w));
}
