/* bpe.h - byte-pair merging of one word, whose symbols are tokens of bytes or characters: the pair
 * of the lowest rank first, the leftmost of equals.
 *
 * A short word takes a plain loop; a long one a heap over a linked list, n log n, so that no text
 * takes quadratic time. The table is immutable once filled; a work area belongs to one caller. */
#ifndef NVLLM_ENGINE_TEXT_BPE_H
#define NVLLM_ENGINE_TEXT_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bpe_merge {
    int32_t left, right;
    int32_t rank;
    int32_t id; /* of the merged pair; -1 in an empty slot of the table */
};

struct bpe {
    struct bpe_merge *table; /* open addressing */
    uint32_t mask;           /* slots - 1 */
};

enum { BPE_MAX_MERGES = 1 << 24 };

/* -ENOMEM. */
int bpe_init(struct bpe *b, size_t n_merges);
void bpe_deinit(struct bpe *b);

/* At most n_merges times; a pair that is added again replaces the earlier one. */
void bpe_add(struct bpe *b, struct bpe_merge merge);

struct bpe_symbol {
    int32_t id; /* -1: merged into the symbol before */
    uint32_t prev, next;
};

/* Memory kept from word to word; zero-initialise once. */
struct bpe_work {
    struct bpe_symbol *symbols; /* [cap] */
    uint64_t *heap;             /* [3 * cap] */
    size_t n_heap, cap;
};

void bpe_work_deinit(struct bpe_work *w);

/* Merges the symbols of a word, ids [*n], to those that are left. -ENOMEM. */
int bpe_encode(const struct bpe *b, struct bpe_work *w, int32_t *ids, size_t *n);

#endif
