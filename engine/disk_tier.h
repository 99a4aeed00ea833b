/* disk_tier.h - KV blocks in a file, and records in another that find them again after a restart.
 *
 * kv-blocks has one block after another. kv-index has a header, which tells what the blocks have in
 * common, and then a record for each block, at a fixed place. To store a block, its record is
 * erased, the block is written, and then its new record. A record is valid if its checksum, made
 * under the cache's secret, is right; a block is valid if its record has the hash of its bytes. So
 * after a crash, a full disk or a flipped bit a block is not found, and never a wrong one.
 *
 * Threads of its own read and write, bypassing the page cache where the file system allows it. If
 * one fails, the copy's result says so, and the first failure of each kind is a warning.
 *
 * Engine thread. */
#ifndef NVLLM_ENGINE_DISK_TIER_H
#define NVLLM_ENGINE_DISK_TIER_H

#include "engine/batch.h"
#include "engine/core/prefix_cache.h"
#include "engine/util/err.h"

struct disk_tier;

struct disk_options {
    const char *folder;
    uint64_t bytes; /* of kv-blocks, at most */
    uint64_t block_bytes;
    int32_t block_len;
    const char *contents;  /* what blocks have in common: another text, and they are dropped */
    const uint8_t *secret; /* [PREFIX_CACHE_SECRET]; copied */
    void (*warn)(const char *text); /* any thread */
};

/* Opens or makes the files. Negative errno with a text: they cannot be used, or another process
 * uses them. */
int disk_tier_open(struct disk_tier **out, const struct disk_options *o, struct err *e);
int32_t disk_tier_blocks(const struct disk_tier *d);

/* Starts the threads, which first read the index. Ids of copies are below max_copies. */
int disk_tier_start(struct disk_tier *d, int32_t max_copies, struct err *e);

/* Waits for the reads and writes under way; copies that have not begun never end. Takes NULL. */
void disk_tier_close(struct disk_tier *d);

/* True: the index has been read, after wait_ms at most. Then the next call gives one record of it
 * after the other, that of a chain's first node first, and its block; NULL: that was all. */
bool disk_tier_is_read(struct disk_tier *d, int wait_ms);
const struct node_record *disk_tier_next_record(struct disk_tier *d, int32_t *block);

/* Begins copy `id` between a block and memory [block_bytes], which stays until it has ended; record
 * is copied. To store from NULL erases the block's record. */
void disk_tier_store(struct disk_tier *d, uint32_t id, int32_t block, const void *memory,
                     const struct node_record *record);
void disk_tier_load(struct disk_tier *d, uint32_t id, int32_t block, void *memory);

/* Copies that have ended since the last call, at most max of them, after wait_ms if there are none
 * sooner; how many. */
int32_t disk_tier_ended(struct disk_tier *d, struct copy_result *out, int32_t max, int wait_ms);

/* Erases the block's record, if it has one or a store that is under way will write one; but none
 * that was found and has not been given yet. A store that is asked for later writes its own. */
void disk_tier_forget(struct disk_tier *d, int32_t block);

#endif
