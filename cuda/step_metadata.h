/* step_metadata.h - a step's metadata as the device wants it: one block of memory, one copy, with
 * the plan of attention's split-KV work items.
 *
 * Kernels know a row of drafts as a decode: a sequence of its own, with the table of the one that
 * it belongs to. Where arrays lie depends on the counts alone, so a captured graph of n rows finds
 * them in their places. One thread a rank. */
#ifndef NVLLM_CUDA_STEP_METADATA_H
#define NVLLM_CUDA_STEP_METADATA_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda/kernels/kernels.h"
#include "engine/batch.h"

/* What a plan depends on. */
struct step_limits {
    int max_tokens, max_seqs, max_blocks; /* of a step, of a step, of a sequence */
    int block_len;
    int target_items; /* work items of attention that fill the machine */
    int draft_rows;   /* of a sequence with drafts that one item takes, at most */
    bool invariant;   /* a sequence is cut by its own length alone */
    int n_blocks;     /* of the device */
};

/* Tokens of a sequence, at most: an attn_item counts them in units of ATTN_UNIT. */
enum { STEP_MAX_LEN = UINT16_MAX * ATTN_UNIT };

/* Sequences as kernels know them: a decode or draft each, then those with chunks. */
int step_n_seqs(const struct batch *b);

/* How many of each a step has room for; at least what it has. */
struct step_room {
    int n_tokens, n_seqs, n_items, n_tiles, n_rows, n_sums;
};

/* Items of a step of n decodes, at most. */
int step_max_items(const struct step_limits *l, int n_decodes);

/* Partial results of a step of n decodes, at most. */
int step_max_partials(const struct step_limits *l, int n_decodes);

/* The step's one chunk is of an offloaded sequence: its tiles have the table that begins at 0. */
bool step_chunk_is_offloaded(const struct step_limits *l, const struct batch *b);

/* Sequences of a step at most, whatever max_seqs is, for grids and indices to hold them. */
int step_most_seqs(const struct step_limits *l);

/* The room of a batch as it is, and of one that a graph of n rows was captured for. */
struct step_room step_room_of(const struct step_limits *l, const struct batch *b);
struct step_room step_room_of_graph(const struct step_limits *l, int n);

/* Blocks of attention, for each KV head, in a graph of n decodes: so many that each has one item
 * where sequences are short, and not as many as there may be items: a block without one costs, too.
 */
int step_graph_blocks(const struct step_limits *l, int n);

/* Where things of a step with this room lie when it begins at base. Sampler updates and bias
 * come last and are not set. */
struct step_view step_view_at(const struct step_room *r, const char *base);

/* Bytes that any step needs at most. */
size_t step_max_bytes(const struct step_limits *l);

/* Writes a batch to host memory and says where it will lie on the device. counts, which the kernels
 * of a graph read, go in too. Returns the bytes to copy. */
size_t step_pack(char *host, struct step_view *on_device, const char *device,
                 const struct step_limits *l, const struct step_room *r, const struct batch *b,
                 int slot);

#endif
