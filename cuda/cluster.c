/* cluster.c - see cluster.h.
 *
 * An order is a head and perhaps a batch behind it. It is broadcast from pinned memory to pinned
 * memory: first a piece of fixed size, which nearly always is all of it, then the rest. */
#include "cuda/cluster.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/rendezvous.h"
#include "engine/util/must.h"

enum {
    N_LETTERS = 2,       /* one on its way, one whose batch is being read */
    FIRST_PIECE = 16384, /* bytes: a step of hundreds of decodes */
    SPIN_LOOKS = 2000,   /* at an event before the thread sleeps in between */
    LOOK_US = 50,
    IDLE_LOOK_US = 1000, /* once it has waited for a second */
    LOOK_FOR_ID_US = 100000,
};

static const uint32_t magic = 0x6f6c766e; /* of a head */

struct head {
    uint32_t magic;
    uint16_t kind, keep_blocks;
    uint64_t batch_bytes;
};

/* The memory of one order. */
struct letter {
    char *memory; /* pinned */
    size_t room;
    cudaEvent_t done;
};

struct cluster {
    const struct nccl *nccl;
    struct nccl_id id;
    int process;
    _Atomic uint64_t *beat;            /* of the options: each wait here has an end of its own */
    char *file;                        /* where the leader has written the id; NULL: nowhere */
    struct ncclComm *comms[MAX_RANKS]; /* of this process's ranks */
    bool parted;                       /* from the others: nothing that waits for them ends */

    /* orders */
    struct ncclComm *orders; /* a rank of each process */
    int device;
    cudaStream_t stream;
    struct letter letters[N_LETTERS];
    uint64_t n_letters;
    int64_t *values; /* [CLUSTER_VALUES] pinned */
    cudaEvent_t agreed;
    double last; /* when the last order was sent */
};

/* ---- waiting */

static int told_by(struct cluster *c, struct ncclComm *comm, struct err *e)
{
    int code = 0;
    const int asked = comm ? c->nccl->async_error(comm, &code) : 0;

    code = asked ? asked : code == NCCL_IN_PROGRESS ? 0 : code;
    return code == 0 ? 0
                     : err_set(e, -EIO,
                               "another process of the cluster has ended or cannot be reached "
                               "(NCCL: %s)",
                               c->nccl->error_string(code));
}

static int check_others(struct cluster *c, double waited, struct err *e)
{
    int r = told_by(c, c->orders, e);

    if (c->beat)
        *c->beat += 2;
    for (int i = 0; i < MAX_RANKS && r == 0; i++)
        r = told_by(c, c->comms[i], e);
    if (r == 0 && waited > CLUSTER_SECONDS)
        r = err_set(e, -ETIMEDOUT, "another process of the cluster has not answered for %.0f s",
                    waited);
    c->parted |= r < 0;
    return r;
}

int cluster_pause(struct cluster *c, int looks, double begin, double seconds, struct err *e)
{
    double waited;
    int r;

    if (looks < SPIN_LOOKS)
        return 0;
    waited = monotonic_seconds() - begin;
    r = check_others(c, waited > seconds ? waited : 0, e);
    if (r == 0)
        (void)usleep(waited > 1 ? IDLE_LOOK_US : LOOK_US);
    return r;
}

/* Waits for an event behind what NCCL does for orders. */
static int wait_for(struct cluster *c, cudaEvent_t event, double seconds, struct err *e)
{
    const double begin = monotonic_seconds();

    for (int looks = 0;; looks++) {
        const cudaError_t code = cudaEventQuery(event);
        int r;

        if (code != cudaErrorNotReady)
            return cuda_check(code, "an order", e);
        if ((r = cluster_pause(c, looks, begin, seconds, e)) < 0)
            return r;
    }
}

static int check(struct cluster *c, int code, const char *what, struct err *e)
{
    c->parted |= code != 0;
    return nccl_check(c->nccl, code, what, e);
}

/* ---- from open to close */

static int wait_for_id(struct cluster *c, const char *file, struct err *e)
{
    const double begin = monotonic_seconds();
    int r;

    while ((r = rendezvous_read(c->id.bytes, file, e)) == -ENOENT) {
        if (monotonic_seconds() - begin > CLUSTER_START_SECONDS)
            return err_set(e, -ETIMEDOUT,
                           "cluster.rendezvous: the first process has not written %s within %d s",
                           file, CLUSTER_START_SECONDS);
        (void)usleep(LOOK_FOR_ID_US);
    }
    return r;
}

static bool is_file(const char *rendezvous)
{
    return rendezvous && *rendezvous == '/';
}

/* Without a file NCCL's own variable says where the first process listens, and all make the same
 * id of it. */
static int find_id(struct cluster *c, const char *rendezvous, struct err *e)
{
    const bool in_file = is_file(rendezvous);
    int r;

    if (in_file && c->process > 0)
        return wait_for_id(c, rendezvous, e);
    if (rendezvous && !in_file && setenv("NCCL_COMM_ID", rendezvous, 1) < 0)
        return err_set(e, -errno, "cluster.rendezvous: %s", strerror(errno));
    r = nccl_check(c->nccl, c->nccl->get_id(&c->id), "making an id", e);
    if (r < 0 || !in_file)
        return r;
    c->file = strdup(rendezvous);
    return c->file ? rendezvous_write(c->file, c->id.bytes, e)
                   : err_set(e, -ENOMEM, "out of memory");
}

void cluster_clear(const struct backend_options *o)
{
    if (o->process == 0 && is_file(o->rendezvous))
        rendezvous_remove(o->rendezvous);
}

int cluster_new(struct cluster **out, const struct backend_options *o, struct err *e)
{
    struct cluster *c = calloc(1, sizeof(*c));
    int r;

    _Static_assert(sizeof(c->id.bytes) == RENDEZVOUS_BYTES, "an id is what the file holds");
    if (!c)
        return err_set(e, -ENOMEM, "out of memory");
    c->process = o->process;
    c->beat = o->beat;
    r = nccl_load(&c->nccl, o->nccl, e);
    if (r == 0)
        r = find_id(c, o->rendezvous, e);
    if (r < 0) {
        cluster_free(c);
        return r;
    }
    *out = c;
    return 0;
}

int cluster_join(struct cluster *c, struct exchange *out, int local, int rank, int n,
                 cudaStream_t stream, struct err *e)
{
    struct exchange x = {.nccl = c->nccl};
    struct ncclComm *orders = NULL;
    int r =
        nccl_check(c->nccl, c->nccl->init_rank(&x.comm, n, c->id, rank), "joining the cluster", e);

    if (r == 0)
        r = nccl_check(c->nccl,
                       c->nccl->split(x.comm, local == 0 ? 0 : NCCL_NO_COLOR, rank, &orders, NULL),
                       "joining the cluster", e);
    c->comms[local] = x.comm;
    if (local == 0)
        c->orders = orders;
    if (r == 0)
        r = exchange_warm_up(&x, rank, n, stream, e);
    if (r == 0)
        *out = x;
    return r;
}

static int make_room(struct letter *l, size_t bytes, struct err *e)
{
    size_t room = FIRST_PIECE;
    char *memory;
    int r;

    if (bytes <= l->room)
        return 0;
    while (room < bytes)
        room *= 2;
    r = cuda_check(cudaHostAlloc((void **)&memory, room, cudaHostAllocDefault), "pinning memory",
                   e);
    if (r < 0)
        return r;
    memset(memory, 0, FIRST_PIECE);
    if (l->memory) {
        memcpy(memory, l->memory, FIRST_PIECE);
        (void)cudaFreeHost(l->memory);
    }
    l->memory = memory;
    l->room = room;
    return 0;
}

void cluster_forget(struct cluster *c)
{
    if (c->file)
        rendezvous_remove(c->file);
    free(c->file);
    c->file = NULL;
}

int cluster_open(struct cluster *c, int device, cudaStream_t stream, struct err *e)
{
    int r;

    c->device = device;
    c->stream = stream;
    if ((r = cuda_check(cudaSetDevice(device), "choosing the device", e)) < 0 ||
        (r = cuda_check(cudaEventCreateWithFlags(&c->agreed, cudaEventDisableTiming),
                        "creating an event", e)) < 0 ||
        (r = cuda_check(cudaHostAlloc((void **)&c->values, CLUSTER_VALUES * sizeof(*c->values),
                                      cudaHostAllocDefault),
                        "pinning memory", e)) < 0)
        return r;
    for (int i = 0; i < N_LETTERS && r == 0; i++) {
        r = cuda_check(cudaEventCreateWithFlags(&c->letters[i].done, cudaEventDisableTiming),
                       "creating an event", e);
        if (r == 0)
            r = make_room(&c->letters[i], FIRST_PIECE, e);
    }
    cluster_forget(c); /* all have met */
    c->last = monotonic_seconds();
    return r;
}

/* Nothing is under way, so that NCCL does not wait for others. */
void cluster_free(struct cluster *c)
{
    if (!c || c->parted)
        return;
    if (c->orders)
        (void)c->nccl->abort(c->orders);
    for (int i = 0; i < MAX_RANKS; i++)
        if (c->comms[i])
            (void)c->nccl->abort(c->comms[i]);
    for (int i = 0; i < N_LETTERS; i++) {
        if (c->letters[i].memory)
            (void)cudaFreeHost(c->letters[i].memory);
        if (c->letters[i].done)
            (void)cudaEventDestroy(c->letters[i].done);
    }
    if (c->values)
        (void)cudaFreeHost(c->values);
    if (c->agreed)
        (void)cudaEventDestroy(c->agreed);
    cluster_forget(c);
    free(c);
}

bool cluster_leads(const struct cluster *c)
{
    return c->process == 0;
}

bool cluster_has_parted(const struct cluster *c)
{
    return c->parted;
}

/* ---- agreement */

int cluster_least(struct cluster *c, int64_t *values, int n, double seconds, struct err *e)
{
    int r;

    must(n <= CLUSTER_VALUES);
    memcpy(c->values, values, (size_t)n * sizeof(*values));
    if ((r = cuda_check(cudaSetDevice(c->device), "choosing the device", e)) < 0 ||
        (r = check(c,
                   c->nccl->all_reduce(c->values, c->values, (size_t)n, NCCL_INT64, NCCL_MIN,
                                       c->orders, c->stream),
                   "agreeing", e)) < 0 ||
        (r = cuda_check(cudaEventRecord(c->agreed, c->stream), "agreeing", e)) < 0 ||
        (r = wait_for(c, c->agreed, seconds, e)) < 0)
        return r;
    memcpy(values, c->values, (size_t)n * sizeof(*values));
    return 0;
}

int cluster_compare(struct cluster *c, const struct backend_options *o, const struct model *m,
                    const struct device *d, struct err *e)
{
    XXH128_hash_t hash = {0};
    struct err why;
    const int r = model_fingerprint(m, MODEL_AS_LOADED, &hash, &why);
    const struct {
        const char *name;
        int64_t value;
    } own[] = {
        {"the version of nvllm", BACKEND_ABI * 1000 + BATCH_VERSION},
        {"the model", (int64_t)(hash.low64 >> 1)},
        {"the number of multiprocessors of a device", d->launch.n_sms},
        {"the compute capability of a device", d->compute},
        {"cache.block_len", o->block_len},
        {"cache.kv_dtype", o->kv_dtype == KV_DTYPE_FP8},
        {"cache.kv_memory", (int64_t)o->tier_bytes[TIER_DEVICE]},
        {"cache.host_memory", (int64_t)o->tier_bytes[TIER_HOST]},
        {"scheduler.max_batch_tokens", o->max_batch_tokens},
        {"scheduler.max_seqs", o->max_seqs},
        {"scheduler.max_seq_len", o->max_seq_len},
        {"cuda.graphs", !o->eager},
    };
    enum { N = sizeof(own) / sizeof(*own) };
    int64_t values[2 * N];
    int agreed;

    _Static_assert(2 * (int)N <= (int)CLUSTER_VALUES, "there is room for all");
    for (int i = 0; i < (int)N; i++) {
        values[i] = own[i].value;
        values[N + i] = -own[i].value; /* the least of these is the largest */
    }
    agreed = cluster_least(c, values, 2 * N, CLUSTER_LOAD_SECONDS, e); /* the others wait for it */
    if (r < 0)
        *e = why;
    if (r < 0 || agreed < 0)
        return r < 0 ? r : agreed;
    for (int i = 0; i < (int)N; i++)
        if (values[i] != -values[N + i])
            return err_set(e, -EINVAL,
                           "cluster: %s is not the same in all processes; they need the same "
                           "configuration",
                           own[i].name);
    return 0;
}

/* ---- orders */

static struct letter *next_letter(struct cluster *c)
{
    return &c->letters[c->n_letters++ % N_LETTERS];
}

static int send(struct cluster *c, struct letter *l, size_t first, size_t bytes, struct err *e)
{
    int r = check(c,
                  c->nccl->broadcast(l->memory + first, l->memory + first, bytes, NCCL_UINT8, 0,
                                     c->orders, c->stream),
                  "an order", e);

    return r < 0 ? r : cuda_check(cudaEventRecord(l->done, c->stream), "an order", e);
}

int cluster_order(struct cluster *c, const struct order *order, struct err *e)
{
    const size_t bytes = order->batch ? order->batch->bytes : 0, all = sizeof(struct head) + bytes;
    struct letter *l = next_letter(c);
    int r;

    must(c->process == 0);
    if ((r = cuda_check(cudaSetDevice(c->device), "choosing the device", e)) < 0 ||
        (r = wait_for(c, l->done, CLUSTER_SECONDS, e)) < 0 || (r = make_room(l, all, e)) < 0)
        return r;
    *(struct head *)(void *)l->memory = (struct head){
        .magic = magic,
        .kind = (uint16_t)order->kind,
        .keep_blocks = order->keep_blocks,
        .batch_bytes = bytes,
    };
    if (bytes > 0)
        memcpy(l->memory + sizeof(struct head), order->batch, bytes);
    r = send(c, l, 0, FIRST_PIECE, e);
    if (r == 0 && all > FIRST_PIECE)
        r = send(c, l, FIRST_PIECE, all - FIRST_PIECE, e);
    c->last = monotonic_seconds();
    return r;
}

bool cluster_beat_is_due(const struct cluster *c)
{
    return monotonic_seconds() - c->last >= CLUSTER_BEAT_SECONDS;
}

static int take_batch(const struct letter *l, uint64_t bytes, const struct batch **out,
                      struct err *e)
{
    const struct batch *batch =
        (const struct batch *)(const void *)(l->memory + sizeof(struct head));
    const char *wrong = batch_check(batch, bytes);

    if (wrong)
        return err_set(e, -EPROTO, "cluster: a step of the leader: %s", wrong);
    *out = batch;
    return 0;
}

int cluster_next(struct cluster *c, struct order *out, struct err *e)
{
    struct letter *l = next_letter(c);
    struct head head;
    int r;

    must(c->process > 0);
    if ((r = cuda_check(cudaSetDevice(c->device), "choosing the device", e)) < 0 ||
        (r = send(c, l, 0, FIRST_PIECE, e)) < 0 ||
        (r = wait_for(c, l->done, CLUSTER_SECONDS, e)) < 0)
        return r;
    memcpy(&head, l->memory, sizeof(head));
    if (head.magic != magic || head.kind > ORDER_CLOSE || head.batch_bytes > INT32_MAX)
        return err_set(e, -EPROTO, "cluster: the leader has sent something else than an order");
    if (sizeof(head) + head.batch_bytes > FIRST_PIECE) {
        if ((r = make_room(l, sizeof(head) + head.batch_bytes, e)) < 0 ||
            (r = send(c, l, FIRST_PIECE, sizeof(head) + head.batch_bytes - FIRST_PIECE, e)) < 0 ||
            (r = wait_for(c, l->done, CLUSTER_SECONDS, e)) < 0)
            return r;
    }
    *out = (struct order){.kind = (enum order_kind)head.kind, .keep_blocks = head.keep_blocks};
    return head.kind == ORDER_STEP ? take_batch(l, head.batch_bytes, &out->batch, e) : 0;
}
