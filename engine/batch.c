/* batch.c - see batch.h. */
#include "engine/batch.h"

#include <errno.h>
#include <string.h>
#include <xxhash.h>

#include "engine/util/checked.h"

enum { N_PARTS = 13 };

/* An array of the block: n * by + further entries, at an offset that the head holds. */
struct part {
    uint64_t *at;
    int32_t n, by;
    size_t further, size;
};

static void parts_of(struct part parts[N_PARTS], struct batch *b)
{
    const struct part all[N_PARTS] = {
        {&b->tokens_at, b->n_tokens, 1, 0, sizeof(int32_t)},
        {&b->positions_at, b->n_tokens, 1, 0, sizeof(int32_t)},
        {&b->slots_at, b->n_tokens, 1, 0, sizeof(int32_t)},
        {&b->q_start_at, b->n_seqs, 1, 1, sizeof(int32_t)},
        {&b->kv_len_at, b->n_seqs, 1, 0, sizeof(int32_t)},
        {&b->block_table_at, b->n_seqs, b->max_blocks, 0, sizeof(int32_t)},
        {&b->rows_at, b->n_rows, 1, 0, sizeof(struct batch_row)},
        {&b->updates_at, b->n_updates, 1, 0, sizeof(struct sampler_update)},
        {&b->history_at, b->n_history, 1, 0, sizeof(int32_t)},
        {&b->bias_at, b->n_bias, 1, 0, sizeof(struct logit_bias)},
        {&b->stop_ids_at, b->n_stop_ids, 1, 0, sizeof(int32_t)},
        {&b->copies_at, b->n_copies, 1, 0, sizeof(struct batch_copy)},
        {&b->sums_at, b->n_sums, 1, 0, sizeof(struct batch_sum)},
    };

    memcpy(parts, all, sizeof(all));
}

/* Bytes of a part. -EINVAL: a count is negative; -EOVERFLOW. */
static int part_bytes(size_t *out, const struct part *p)
{
    size_t entries;

    if (p->n < 0 || p->by < 0)
        return -EINVAL;
    if (!size_mul(&entries, (size_t)p->n, (size_t)p->by) ||
        !size_add(&entries, entries, p->further) || !size_mul(out, entries, p->size))
        return -EOVERFLOW;
    return 0;
}

int batch_layout(struct batch *head)
{
    size_t used = (sizeof(*head) + BATCH_ALIGN - 1) & ~(size_t)(BATCH_ALIGN - 1), bytes;
    struct part parts[N_PARTS];

    parts_of(parts, head);
    for (int i = 0; i < N_PARTS; i++) {
        int r = part_bytes(&bytes, &parts[i]);

        if (r < 0)
            return r;
        *parts[i].at = used;
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
    struct part parts[N_PARTS];
    struct batch head;

    if (n < sizeof(*b) || b->bytes != n)
        return "batch: cut short";
    if (b->version != BATCH_VERSION || b->unused != 0)
        return "batch: of another version";
    if (b->n_seqs < 0 || b->n_decodes < 0 || b->n_drafted < 0 || b->n_decodes > b->n_seqs ||
        b->n_drafted > b->n_seqs - b->n_decodes)
        return "batch: more decodes and drafts than sequences";
    if (b->n_masks < 0 || b->n_masks > b->n_rows)
        return "batch: more masks than rows";
    head = *b;
    parts_of(parts, &head);
    for (int i = 0; i < N_PARTS; i++) {
        const uint64_t at = *parts[i].at;
        size_t bytes;

        if (part_bytes(&bytes, &parts[i]) < 0 || at < sizeof(*b) || at % BATCH_ALIGN || at > n ||
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
