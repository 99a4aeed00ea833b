/* batch.c - see batch.h. */
#include "engine/batch.h"

#include <errno.h>
#include <xxhash.h>

#include "engine/util/checked.h"

/* An array of the block: where the head says that it begins, and its counts, which are multiplied.
 */
struct part {
    size_t at;      /* offset in the head, of a uint64_t */
    size_t n, by;   /* offsets in the head, of an int32_t; by 0: 1 */
    size_t size;    /* of an entry */
    size_t further; /* entries beside the counted ones */
};

#define PART(array, count, by_count, entry, more)                                                  \
    {                                                                                              \
        offsetof(struct batch, array##_at), offsetof(struct batch, count), by_count,               \
            sizeof(entry), more                                                                    \
    }

static const struct part parts[] = {
    PART(tokens, n_tokens, 0, int32_t, 0),
    PART(positions, n_tokens, 0, int32_t, 0),
    PART(slots, n_tokens, 0, int32_t, 0),
    PART(q_start, n_seqs, 0, int32_t, 1),
    PART(kv_len, n_seqs, 0, int32_t, 0),
    PART(block_table, n_seqs, offsetof(struct batch, max_blocks), int32_t, 0),
    PART(rows, n_rows, 0, struct batch_row, 0),
    PART(updates, n_updates, 0, struct sampler_update, 0),
    PART(history, n_history, 0, int32_t, 0),
    PART(bias, n_bias, 0, struct logit_bias, 0),
    PART(stop_ids, n_stop_ids, 0, int32_t, 0),
    PART(masks, n_masks, offsetof(struct batch, mask_words), uint32_t, 0),
    PART(copies, n_copies, 0, struct batch_copy, 0),
};

static int32_t count(const struct batch *b, size_t offset)
{
    return *(const int32_t *)(const void *)((const char *)b + offset);
}

/* Bytes of a part. -EINVAL: a count is negative; -EOVERFLOW. */
static int part_bytes(size_t *out, const struct batch *b, const struct part *p)
{
    const int32_t n = count(b, p->n), by = p->by ? count(b, p->by) : 1;
    size_t entries;

    if (n < 0 || by < 0)
        return -EINVAL;
    if (!size_mul(&entries, (size_t)n, (size_t)by) || !size_add(&entries, entries, p->further) ||
        !size_mul(out, entries, p->size))
        return -EOVERFLOW;
    return 0;
}

int batch_layout(struct batch *head)
{
    size_t used = (sizeof(*head) + BATCH_ALIGN - 1) & ~(size_t)(BATCH_ALIGN - 1), bytes;

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        int r = part_bytes(&bytes, head, &parts[i]);

        if (r < 0)
            return r;
        *(uint64_t *)(void *)((char *)head + parts[i].at) = used;
        if (!size_add(&used, used, bytes) || !size_add(&used, used, BATCH_ALIGN - 1))
            return -EOVERFLOW;
        used &= ~(size_t)(BATCH_ALIGN - 1);
    }
    head->version = BATCH_VERSION;
    head->bytes = used;
    return 0;
}

static uint64_t checksum(const struct batch *b)
{
#ifdef NVLLM_DEBUG
    return XXH3_64bits_withSeed((const char *)b + sizeof(*b), b->bytes - sizeof(*b), b->step);
#else
    (void)b;
    return 0;
#endif
}

void batch_seal(struct batch *b)
{
    b->checksum = checksum(b);
}

const char *batch_check(const struct batch *b, size_t n)
{
    if (n < sizeof(*b) || b->bytes != n)
        return "batch: cut short";
    if (b->version != BATCH_VERSION)
        return "batch: of another version";
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        const uint64_t at = *(const uint64_t *)(const void *)((const char *)b + parts[i].at);
        size_t bytes;

        if (part_bytes(&bytes, b, &parts[i]) < 0 || at < sizeof(*b) || at % BATCH_ALIGN || at > n ||
            bytes > n - at)
            return "batch: an array reaches out of the block";
    }
    for (int32_t i = 0; i < b->n_updates; i++) {
        const struct sampler_update *u = &batch_updates(b)[i];

        if (u->n_history < 0 || u->history_at < 0 || u->n_history > b->n_history - u->history_at ||
            u->sampling.n_bias < 0 || u->bias_at < 0 ||
            u->sampling.n_bias > b->n_bias - u->bias_at || u->sampling.n_stop_ids < 0 ||
            u->stop_ids_at < 0 || u->sampling.n_stop_ids > b->n_stop_ids - u->stop_ids_at)
            return "batch: a sampler update reaches out of its arrays";
    }
    return checksum(b) == b->checksum ? NULL : "batch: its checksum differs";
}
