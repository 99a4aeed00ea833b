/* bench_ranks.c - see bench.h. The all-reduce of a layer as steps have it: the norm that adds the
 * parts of all ranks, either of all rows on each rank, in float, or of a share, in bf16; beside it
 * NCCL's, of as many numbers in bf16 and with nothing else. Runs are behind one another in a graph
 * on each rank. */
#include <dlfcn.h>
#include <stdio.h>

#include "cuda/forward.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/gpu_rig.h"

enum { DIM = 4096, REPEATS = 50, ROUNDS = 4, MOST_ROWS = 8192 };
enum way { WHOLE, SHARED, NCCL, N_WAYS };

static const char *const way_names[] = {"whole", "shared", "nccl"};

struct one {
    int device;
    struct launch launch;
    struct peer_barrier barrier;
    struct norm norm; /* of all rows; y[0] is its own */
    float *parts, *inbox[2];
};

static struct one ranks[MAX_RANKS];
static int n_ranks, n_devices;

/* Of nccl.h, where the library is. */
static struct {
    int (*init)(void **comms, int n, const int *devices);
    int (*group_start)(void), (*group_end)(void);
    int (*all_reduce)(const void *from, void *to, size_t n, int type, int op, void *comm,
                      cudaStream_t stream);
    void *comms[MAX_RANKS];
    bool open;
} nccl;

static void open_nccl(void)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    int devices[MAX_RANKS];

    for (int i = 0; i < n_ranks; i++)
        devices[i] = ranks[i].device;
    if (!library || n_devices < n_ranks)
        return;
    *(void **)&nccl.init = dlsym(library, "ncclCommInitAll");
    *(void **)&nccl.all_reduce = dlsym(library, "ncclAllReduce");
    *(void **)&nccl.group_start = dlsym(library, "ncclGroupStart");
    *(void **)&nccl.group_end = dlsym(library, "ncclGroupEnd");
    nccl.open = nccl.init && nccl.all_reduce && nccl.init(nccl.comms, n_ranks, devices) == 0;
}

enum {
    BARRIER_BYTES = (MAX_RANKS + 1) * sizeof(uint32_t),
    INBOX_BYTES = MAX_RANKS * NORM_PUSHED_ROWS * DIM * sizeof(float),
};

static void open_rank(int i)
{
    const size_t floats = (size_t)MOST_ROWS * DIM;
    struct one *r = &ranks[i];
    struct cudaDeviceProp p;
    void *w;

    r->device = i % n_devices;
    cuda_must(cudaSetDevice(r->device));
    cuda_must(cudaGetDeviceProperties(&p, r->device));
    for (int k = 0; k < n_devices && k < n_ranks && i < n_devices; k++)
        if (k != r->device)
            cuda_must(cudaDeviceEnablePeerAccess(k, 0));
    r->launch.n_sms = p.multiProcessorCount;
    r->launch.chained = p.major >= 9 && n_devices >= n_ranks;
    cuda_must(cudaStreamCreateWithFlags(&r->launch.stream, cudaStreamNonBlocking));
    cuda_must(cudaMalloc((void **)&r->parts, floats * sizeof(float)));
    cuda_must(cudaMalloc((void **)&r->norm.x, floats * sizeof(float)));
    cuda_must(cudaMalloc((void **)&r->norm.y[0], floats * sizeof(uint16_t)));
    cuda_must(cudaMalloc(&w, DIM * sizeof(uint16_t)));
    cuda_must(cudaMalloc((void **)&r->barrier.arrived[i], BARRIER_BYTES));
    r->barrier.last = r->barrier.arrived[i] + MAX_RANKS;
    cuda_must(cudaMemset(r->barrier.arrived[i], 0, BARRIER_BYTES));
    for (int k = 0; k < 2; k++) {
        cuda_must(cudaMalloc((void **)&r->inbox[k], INBOX_BYTES));
        cuda_must(cudaMemset(r->inbox[k], 0xff, INBOX_BYTES));
    }
    fill_noise((uint16_t *)r->parts, floats * 2, 1.0f, 0.1f); /* as floats near 1, too */
    fill_noise((uint16_t *)r->norm.x, floats * 2, 1.0f, 0.1f);
    fill_noise(w, DIM, 1.0f, 0.1f);
    r->norm.w = w;
}

static void link_ranks(void)
{
    for (int i = 0; i < n_ranks; i++) {
        ranks[i].barrier.n_ranks = n_ranks;
        ranks[i].barrier.me = i;
        ranks[i].norm.n_parts = n_ranks;
        ranks[i].norm.dim = DIM;
        ranks[i].norm.eps = 1e-6f;
        for (int k = 0; k < n_ranks; k++) {
            ranks[i].norm.parts[k] = ranks[k].parts;
            ranks[i].barrier.arrived[k] = ranks[k].barrier.arrived[k];
        }
    }
}

/* One all-reduce, as this rank takes part in it. */
static void enqueue(const struct one *r, int rows, enum way way, int turn)
{
    const int me = r->barrier.me, share = (rows + n_ranks - 1) / n_ranks;
    const bool pushed = way == WHOLE && rows <= NORM_PUSHED_ROWS && r->launch.chained;
    struct norm n = r->norm;

    if (way == NCCL) {
        if (nccl.all_reduce(r->parts, r->parts, (size_t)rows * DIM, NCCL_BF16, NCCL_SUM,
                            nccl.comms[me], r->launch.stream) != 0)
            exit(1);
        return;
    }
    for (int i = 0; i < n_ranks && pushed; i++)
        n.inbox[i] = ranks[i].inbox[turn];
    n.me = me;
    if (!pushed)
        cuda_must(peer_barrier(&r->launch, &r->barrier));
    n.n_rows = rows;
    if (way == SHARED) {
        n.parts_bf16 = true;
        n.first_row = me * share;
        n.n_rows = rows - n.first_row < share ? rows - n.first_row : share;
        n.n_y = n_ranks;
        for (int i = 0; i < n_ranks; i++)
            n.y[i] = ranks[i].norm.y[0];
    }
    cuda_must(rms_norm(&r->launch, &n));
    if (way == SHARED)
        cuda_must(peer_barrier(&r->launch, &r->barrier));
}

/* Microseconds an all-reduce: the shortest of a few rounds. */
static double measure(int rows, enum way way)
{
    cudaGraphExec_t execs[MAX_RANKS];
    cudaEvent_t begin, end;
    float ms, shortest = 0.0f;

    for (int i = 0; i < n_ranks; i++) {
        cuda_must(cudaSetDevice(ranks[i].device));
        cuda_must(cudaStreamBeginCapture(ranks[i].launch.stream, cudaStreamCaptureModeRelaxed));
    }
    for (int k = 0; k < REPEATS; k++) {
        if (way == NCCL)
            nccl.group_start();
        for (int i = 0; i < n_ranks; i++) {
            cuda_must(cudaSetDevice(ranks[i].device));
            enqueue(&ranks[i], rows, way, k % 2);
        }
        if (way == NCCL)
            nccl.group_end();
    }
    for (int i = 0; i < n_ranks; i++) {
        cudaGraph_t graph;

        cuda_must(cudaSetDevice(ranks[i].device));
        cuda_must(cudaStreamEndCapture(ranks[i].launch.stream, &graph));
        cuda_must(cudaGraphInstantiate(&execs[i], graph, 0));
        cuda_must(cudaGraphDestroy(graph));
        cuda_must(cudaGraphUpload(execs[i], ranks[i].launch.stream));
        cuda_must(cudaStreamSynchronize(ranks[i].launch.stream));
    }
    cuda_must(cudaSetDevice(ranks[0].device));
    cuda_must(cudaEventCreate(&begin));
    cuda_must(cudaEventCreate(&end));
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = n_ranks - 1; i >= 0; i--) { /* rank 0, which is timed, last: nobody is late */
            cuda_must(cudaSetDevice(ranks[i].device));
            if (i == 0)
                cuda_must(cudaEventRecord(begin, ranks[0].launch.stream));
            cuda_must(cudaGraphLaunch(execs[i], ranks[i].launch.stream));
        }
        cuda_must(cudaEventRecord(end, ranks[0].launch.stream));
        cuda_must(cudaEventSynchronize(end));
        cuda_must(cudaEventElapsedTime(&ms, begin, end));
        if (round == 1 || (round > 1 && ms < shortest)) /* the first one makes devices warm */
            shortest = ms;
    }
    for (int i = 0; i < n_ranks; i++)
        cuda_must(cudaGraphExecDestroy(execs[i]));
    cuda_must(cudaEventDestroy(begin));
    cuda_must(cudaEventDestroy(end));
    return (double)shortest * 1e3 / REPEATS;
}

void bench_ranks(void)
{
    static const int rows[] = {1, 4, 16, 64, 128, 256, 1024, 4096, 8192};

    ranks_may_share_devices();
    device_set_up();
    cuda_must(cudaGetDeviceCount(&n_devices));
    for (n_ranks = 2; 2 * n_ranks <= n_devices && n_ranks < MAX_RANKS; n_ranks *= 2)
        ;
    for (int i = 0; i < n_ranks; i++)
        open_rank(i);
    link_ranks();
    open_nccl();
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++)
        for (enum way way = WHOLE; way < N_WAYS; way++) {
            if (way == SHARED ? rows[i] < n_ranks : way == NCCL && !nccl.open)
                continue;
            printf(
                "bench=all_reduce ranks=%d devices=%d rows=%d dim=%d bf16_kb=%zu way=%s us=%.1f\n",
                n_ranks, n_devices < n_ranks ? n_devices : n_ranks, rows[i], DIM,
                (size_t)rows[i] * DIM * sizeof(uint16_t) / 1024, way_names[way],
                measure(rows[i], way));
            fflush(stdout);
        }
    device_tear_down();
}
