/* sampler_rig.c - see sampler_rig.h. */
#include "tests/gpu/sampler_rig.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

enum { GUARD = 4096 };

void rig_init(struct rig *g, int vocab, int n_rows, float spread)
{
    struct arena a = {0};
    const size_t stride = ((size_t)vocab + 7) & ~(size_t)7, n = (size_t)n_rows;
    int32_t *results;

    memset(g, 0, sizeof(*g));
    g->n_rows = n_rows;
    g->logits = array_new(n * stride * 4);
    fill_f32(&g->logits, spread);
    g->results = array_new(n * (2 + 2 * SAMPLING_MAX_LOGPROBS) * 4);
    results = g->results.device;
    g->memory = array_new(
        n * (stride * 6 + SAMPLING_MAX_BIAS * 8 + sizeof(struct sampler_state) + 8) + 8192);
    a.base = g->memory.device;
    g->m = (struct sampler_memory){.logits = g->logits.device,
                                   .logits_stride = (int64_t)stride,
                                   .vocab_size = vocab,
                                   .max_seqs = n_rows,
                                   .adjusted = arena_take(&a, n * stride * 4),
                                   .states = arena_take(&a, n * sizeof(struct sampler_state)),
                                   .bias = arena_take(&a, n * SAMPLING_MAX_BIAS * 8),
                                   .seen = arena_take(&a, n * stride * 2),
                                   .sampled = arena_take(&a, n * 4)};
    for (int i = 0; i < 2; i++) {
        g->m.host_ids[i] = results;
        g->m.host_logprobs[i] = (float *)(results + n_rows);
        g->m.host_top_ids[i] = results + 2 * n_rows;
        g->m.host_top_logprobs[i] = (float *)(results + (2 + SAMPLING_MAX_LOGPROBS) * n_rows);
    }
    for (int i = 0; i < RIG_HISTORY; i++)
        g->history[i] = (int32_t)(random_bits() % (uint32_t)(i % 3 ? vocab : 20));
    for (int i = 0; i < n_rows; i++) {
        g->sampling[i] = (struct sampling){.temperature = 1.0f,
                                           .top_p = 1.0f,
                                           .repetition_penalty = 1.0f,
                                           .seed = random_bits() * 0x100000001u,
                                           .n_logprobs = -1};
        g->rows[i] =
            (struct batch_row){.row = i, .state = n_rows - 1 - i, .counter = 1000u + i, .mask = -1};
        g->updates[i] =
            (struct batch_part_update){.state = n_rows - 1 - i, .sampling = &g->sampling[i]};
    }
}

void rig_free(struct rig *g)
{
    array_free(&g->logits);
    array_free(&g->results);
    array_free(&g->memory);
    array_free(&g->step);
    array_free(&g->scans);
}

/* As much room for what parts of rows have as the backend takes, and nothing written behind it. */
static void take_scans(struct rig *g, const struct device *device)
{
    array_free(&g->scans);
    g->scans = array_new(sampler_scan_bytes(&device->launch, &g->m) + GUARD);
    g->m.scans = g->scans.device;
}

static void check_scans(const struct rig *g)
{
    const uint8_t *guard = (uint8_t *)g->scans.host + g->scans.bytes - GUARD;

    array_to_host(&g->scans);
    for (int i = 0; i < GUARD; i++)
        must(guard[i] == 0xff);
}

void rig_run(struct rig *g, const struct device *device)
{
    const int32_t zeros[RIG_MAX_ROWS + 1] = {0};
    int32_t ones[RIG_MAX_ROWS];
    const struct step_limits limits = {.max_tokens = RIG_MAX_ROWS,
                                       .max_seqs = RIG_MAX_ROWS,
                                       .max_blocks = 1,
                                       .block_len = 16,
                                       .mask_words = (g->m.vocab_size + 31) / 32,
                                       .target_items = 1};
    const struct batch_parts parts = {.step = 1,
                                      .n_tokens = g->n_rows,
                                      .n_seqs = g->n_rows,
                                      .n_rows = g->n_rows,
                                      .n_updates = g->n_rows,
                                      .n_masks = g->n_masks,
                                      .mask_words = g->n_masks ? limits.mask_words : 0,
                                      .max_blocks = 1,
                                      .tokens = zeros,
                                      .positions = zeros,
                                      .slots = zeros,
                                      .q_start = zeros,
                                      .kv_len = ones,
                                      .block_table = zeros,
                                      .rows = g->rows,
                                      .updates = g->updates,
                                      .masks = g->masks};
    struct step_room room;
    struct batch *b;
    struct device_array history = array_new(sizeof(g->history));

    for (int i = 0; i < RIG_MAX_ROWS; i++)
        ones[i] = 1;
    array_free(&g->step);
    g->step = array_new(step_max_bytes(&limits));
    b = make_batch(&parts);
    room = step_room_of(&limits, b);
    (void)step_pack(g->step.host, &g->view, g->step.device, &limits, &room, b, 1);
    free(b);
    array_to_device(&g->step);
    memcpy(history.host, g->history, sizeof(g->history));
    array_to_device(&history);
    take_scans(g, device);
    cuda_must(sampler_update(&device->launch, &g->m, &g->view, g->n_rows));
    for (int i = 0; i < g->n_rows; i++)
        if (sampling_needs_history(&g->sampling[i]))
            cuda_must(sampler_history(&device->launch, &g->m, g->rows[i].state, history.device,
                                      RIG_PROMPT, RIG_HISTORY));
    cuda_must(sampler_run(&device->launch, &g->m, &g->view, g->n_rows));
    array_to_host(&g->results);
    check_scans(g);
    array_free(&history);
}
