/* make_batch.c - see make_batch.h. */
#include "tests/tools/make_batch.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

static void put(const struct batch *b, uint64_t at, const void *from, size_t n, size_t size)
{
    if (n * size > 0)
        memcpy(batch_at(b, at), from, n * size);
}

static void put_updates(struct batch *b, const struct batch_parts *p)
{
    struct sampler_update *u = batch_updates_mut(b);
    int32_t n_history = 0, n_bias = 0, n_stop_ids = 0;

    for (int32_t i = 0; i < p->n_updates; i++) {
        const struct batch_part_update *from = &p->updates[i];
        const struct sampling *s = from->sampling;

        u[i] = (struct sampler_update){.state = from->state,
                                       .n_prompt = from->n_prompt,
                                       .n_history = from->n_history,
                                       .history_at = n_history,
                                       .bias_at = n_bias,
                                       .stop_ids_at = n_stop_ids,
                                       .sampling = *s};
        u[i].sampling.bias = NULL;
        u[i].sampling.stop_ids = NULL;
        put(b, b->history_at + (size_t)n_history * sizeof(int32_t), from->history,
            (size_t)from->n_history, sizeof(int32_t));
        put(b, b->bias_at + (size_t)n_bias * sizeof(*s->bias), s->bias, (size_t)s->n_bias,
            sizeof(*s->bias));
        put(b, b->stop_ids_at + (size_t)n_stop_ids * sizeof(int32_t), s->stop_ids,
            (size_t)s->n_stop_ids, sizeof(int32_t));
        n_history += from->n_history;
        n_bias += s->n_bias;
        n_stop_ids += s->n_stop_ids;
    }
}

struct batch *make_batch(const struct batch_parts *p)
{
    const size_t n = (size_t)p->n_tokens, seqs = (size_t)p->n_seqs, id = sizeof(int32_t);
    struct batch *b, head = {.step = p->step,
                             .n_tokens = p->n_tokens,
                             .n_seqs = p->n_seqs,
                             .n_decodes = p->n_decodes,
                             .n_drafted = p->n_drafted,
                             .n_rows = p->n_rows,
                             .n_updates = p->n_updates,
                             .max_blocks = p->max_blocks,
                             .n_masks = p->n_masks,
                             .n_copies = p->n_copies,
                             .n_sums = p->n_sums};

    for (int32_t i = 0; i < p->n_updates; i++) {
        head.n_history += p->updates[i].n_history;
        head.n_bias += p->updates[i].sampling->n_bias;
        head.n_stop_ids += p->updates[i].sampling->n_stop_ids;
    }
    must(batch_layout(&head) == 0);
    b = calloc(1, head.bytes);
    must(b);
    *b = head;
    put(b, b->tokens_at, p->tokens, n, id);
    put(b, b->positions_at, p->positions, n, id);
    put(b, b->slots_at, p->slots, n, id);
    put(b, b->q_start_at, p->q_start, p->q_start ? seqs + 1 : 0, id);
    put(b, b->kv_len_at, p->kv_len, seqs, id);
    put(b, b->block_table_at, p->block_table, seqs * (size_t)p->max_blocks, id);
    put(b, b->rows_at, p->rows, (size_t)p->n_rows, sizeof(*p->rows));
    put(b, b->copies_at, p->copies, (size_t)p->n_copies, sizeof(*p->copies));
    put(b, b->sums_at, p->sums, (size_t)p->n_sums, sizeof(*p->sums));
    put_updates(b, p);
    batch_seal(b);
    return b;
}
