/* backend.h - the contract between the engine and what computes: the CPU reference or a device.
 *
 * All functions are called by the engine thread only. A backend knows nothing of requests, clients
 * or the schedule. KV memory is
 * [n_blocks][tp_size][n_layers][2][n_kv_heads of a rank][block_len][head_dim] where all ranks share
 * it, and so without the second dimension on each device: a block is one contiguous piece of each
 * memory, and its id means the same in all. With FP8 each row has a byte of scale, too: on the CPU
 * a head's scales follow its elements; on a device, among a layer's keys and among its values, the
 * scales of all heads follow the elements of all heads. */
#ifndef NVLLM_ENGINE_BACKEND_H
#define NVLLM_ENGINE_BACKEND_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/batch.h"
#include "engine/util/err.h"
#include "engine/model/model.h"

enum {
    BACKEND_ABI = 16,        /* changes with structs of batch.h or this file, or a block's layout */
    BACKEND_IN_FLIGHT = 2,   /* steps submitted and not yet waited for, at most */
    BACKEND_MAX_DEVICES = 8, /* of one backend */
};

enum kv_dtype {
    KV_DTYPE_AUTO, /* the backend's own choice: f32 on the CPU, bf16 on a device */
    KV_DTYPE_F32,
    KV_DTYPE_BF16,
    KV_DTYPE_FP8, /* E4M3, each token's key and value of a head with a power of two as its scale */
};

struct backend_options {
    int32_t block_len;        /* power of two, 16 .. 4096 */
    int32_t max_batch_tokens; /* rows of a step, at most */
    int32_t max_seqs;         /* sequences, wanted rows and sampler states of a step, at most */
    int32_t max_seq_len;      /* tokens of one sequence, at most */
    /* Memory for the blocks of each tier, of all ranks together. Device 0: kv_fraction decides;
     * host 0: no such tier. The disk is the engine's. */
    uint64_t tier_bytes[N_TIERS];
    double kv_fraction; /* (0, 1]: of what is free once the weights are loaded; 0, and no
                         * tier_bytes[TIER_DEVICE]: the backend's own choice */
    enum kv_dtype kv_dtype;
    int32_t n_threads; /* CPU backend: worker threads; 0: one per core that this process may use */
    int32_t n_devices; /* device backends: entries of devices; 0: the first tp_size devices */
    int32_t devices[BACKEND_MAX_DEVICES];
    int32_t tp_size; /* ranks that share each layer: one a device, on the CPU one a group of
                      * threads; 0: as many as there are devices, on the CPU 1 */
    /* Device backends: processes, each with as many devices, whose ranks share the model; 0: one.
     * They take the same options. Number 0 is driven by its engine; the others follow(). They meet
     * through a file that number 0 writes ("/…"), at its address ("host:port"), or as NCCL's own
     * variables say (NULL). These and the path of NCCL (NULL: the system's) are valid until open
     * returns. */
    int32_t n_processes, process;
    const char *rendezvous, *nccl;
    bool eager;     /* device backends: no captured graphs */
    bool invariant; /* device backends: a request's tokens do not depend on what else runs */
    const char *cache_folder; /* device backends: where measurements are kept for the next start;
                               * NULL: nowhere. Valid until close */
    bool tune; /* device backends: measure for a few seconds before open returns, and use that; else
                * choices are those measured before an earlier start */
    /* Reports loading, 0 .. 1; from any thread of the backend; may be NULL. */
    void (*progress)(void *ctx, double done);
    void *progress_ctx;
    _Atomic uint64_t *beat; /* a step on the host adds 2 to it now and then; may be NULL */
};

struct backend_tier {
    int32_t n_blocks; /* 0: the backend does not have this tier */
    uint64_t bytes;   /* of memory taken for them; of the host tier, pinned so far */
    char *memory;     /* its blocks, one behind the other, if this process can read and write them;
                       * else NULL */
};

/* One of the devices; of several each is a rank. */
struct backend_device {
    char name[128];                   /* "AMD EPYC, 2 threads, AVX-512" */
    char pci[32];                     /* its address, "0000:65:00.0"; empty: it has none */
    uint64_t total_bytes, free_bytes; /* of its memory; 0 where it is the only one */
    double exchange_share; /* 0 .. 1: of the time of steps since it was opened or last woke, what it
                            * spent exchanging parts with the others or waiting for them */
};

/* What an opened backend offers. */
struct backend_info {
    int32_t n_devices;
    struct backend_device devices[BACKEND_MAX_DEVICES];
    int32_t tp_size;     /* ranks that share each layer; on the CPU all are one device */
    int32_t n_processes; /* that the ranks are divided among; the devices above and the memory below
                          * are those of this one; 0: one */
    int32_t idle_s;  /* idle(), which there is, is to be called after this many idle seconds, asleep
                      * too; 0: not */
    char driver[64]; /* "580.159.04, CUDA 13.0"; empty: there is none */
    struct backend_tier tiers[N_TIERS];
    uint64_t block_bytes;   /* of one block, all layers, on all devices */
    enum kv_dtype kv_dtype; /* never AUTO */
    bool masks;             /* wanted rows may have one */
    int32_t sum_dim;        /* hidden_dim: values of a sum of hidden states */
    bool copies;            /* blocks may be copied between the tiers that there are */
    bool offloads;          /* sequences may have all their blocks in the host tier */
    bool may_offload;       /* the host tier's memory is pinned: offloads are possible now */

    /* The ledger of the memory that the backend computes in. On a device weights, the device tier,
     * graphs, workspaces and other add up to what the driver says is used, total - free. Where the
     * driver cannot be asked, and on the CPU, whose memory belongs to all programs, other, total
     * and free are 0. */
    uint64_t weight_bytes;
    uint64_t graph_bytes;     /* by which free memory fell while graphs were captured, the kernels
                               * first loaded then included */
    uint64_t workspace_bytes; /* activations, sampler, products, metadata of steps */
    uint64_t other_bytes;     /* the rest: contexts, kernels, rounding, other processes */
    uint64_t total_bytes;
    uint64_t free_bytes;
};

struct backend; /* each backend's own */

struct backend_ops {
    uint32_t abi; /* BACKEND_ABI */
    const char *name;
    /* Loads the weights and takes all memory. What depends on a trial (which product, which
     * all-reduce) is settled before open returns and does not change afterwards. Negative errno and
     * a text on failure: -ENOMEM says what is needed and what is there, -EINVAL which option is
     * wrong. The model stays open and unchanged until close. */
    int (*open)(struct backend **out, const struct model *model,
                const struct backend_options *options, struct err *e);
    /* Fast enough to be called whenever the engine goes idle. */
    void (*info)(const struct backend *b, struct backend_info *out);
    /* Enqueues a step and returns at once. Never with BACKEND_IN_FLIGHT steps under way. A negative
     * errno here or from wait is fatal: the backend is dead, only close may follow. */
    int (*submit)(struct backend *b, const struct batch *batch, struct err *e);
    /* Gives the masks of the oldest step under way, once, if it has n_masks: as soon as it is the
     * oldest, before another submit and before its wait. It samples when it has them. masks
     * [n_masks]: each is [(vocab_size + 31) / 32], where bit id % 32 of word id / 32 says that id
     * is allowed; at least one id is. NULL: all are. They are copied before it returns. Errors as
     * from submit. NULL where info.masks is false. */
    int (*mask)(struct backend *b, const uint32_t *const *masks, struct err *e);
    /* Waits for the oldest step under way. */
    int (*wait)(struct backend *b, struct step_result *out, struct err *e);
    /* Called again and again while no step is under way, none is to come and the last one was a
     * while ago, or sooner where idle_s is set: a piece of work for later steps or the next start,
     * a few milliseconds, and 0.1 s the first time. 1 while there is more, 0 when there is none, or
     * a negative errno as from wait. NULL: never any. While asleep it is called only where
     * backend_info says so. */
    int (*idle)(struct backend *b, struct err *e);
    /* Gives back the memory of weights, of a device also that of workspaces and, unless
     * keep_blocks, of the device tier, whose blocks are lost. No step is under way; until wake()
     * has returned 0 only info, steps that only copy, another sleep, and close may follow. Errors
     * as from wait. NULL: it cannot, and has no wake. */
    int (*sleep)(struct backend *b, bool keep_blocks, struct err *e);
    /* Takes that memory again, at the same sizes, and reads the weights, with progress; copies may
     * be under way. -ENOMEM: there is too little now; it is asleep as before. Other errors as from
     * wait. */
    int (*wake)(struct backend *b, struct err *e);
    void (*close)(struct backend *b); /* waits for steps under way; takes NULL */
    /* Instead of all these but close, in all processes but number 0: does what number 0 is asked to
     * until that is closed. 0, or an error as from wait. NULL: it knows no other processes. */
    int (*follow)(struct backend *b, struct err *e);
    /* Whether the devices of these options, and the library of a cluster, can be opened; loads no
     * model. Errors as from open. NULL: there is nothing to open. */
    int (*probe)(const struct backend_options *options, struct err *e);
    /* Whether open could succeed with this model and these options, as far as can be said without
     * opening a device or taking memory. Errors as from open; -ENOMEM: this machine could not even
     * if nothing else ran. NULL: it takes any model. */
    int (*check)(const struct model *model, const struct backend_options *options, struct err *e);
};

/* What a backend in a module exports: `const struct backend_ops nvllm_backend`. */
#define BACKEND_SYMBOL "nvllm_backend"

#endif
