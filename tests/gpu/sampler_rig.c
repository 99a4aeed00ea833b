/* sampler_rig.c - see sampler_rig.h. */
#include "tests/gpu/sampler_rig.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

enum { GUARD = 4096 };

static struct step_limits limits_of(void)
{
    return (struct step_limits){.max_tokens = RIG_MAX_ROWS,
                                .max_seqs = RIG_MAX_ROWS,
                                .max_blocks = 1,
                                .block_len = 16,
                                .target_items = 1};
}

void rig_init(struct rig *g, int vocab, int n_rows, float spread)
{
    const size_t stride = ((size_t)vocab + 7) & ~(size_t)7, n = (size_t)n_rows;
    struct step_limits limits;

    memset(g, 0, sizeof(*g));
    g->n_rows = n_rows;
    g->logits = array_f32(n * stride, spread);
    g->results = array_new(n * (2 + 2 * SAMPLING_MAX_LOGPROBS) * sizeof(int32_t));
    g->m = sampler_memory_new(g->logits.device, vocab, n_rows, g->results.device);
    limits = limits_of();
    g->step = array_new(step_max_bytes(&limits));
    rig_divide(g, 1);
    g->masks = array_new(n * (((size_t)vocab + 31) / 32) * sizeof(uint32_t));
    g->m.masks = g->masks.device;
    g->history = array_new(RIG_HISTORY * sizeof(int32_t));
    for (int i = 0; i < RIG_HISTORY; i++)
        ((int32_t *)g->history.host)[i] = (int32_t)(random_bits() % (uint32_t)(i % 3 ? vocab : 20));
    array_to_device(&g->history);
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

/* A rank's logits are columns of the one array; counts of ids are not, since a rank clears rows. */
void rig_divide(struct rig *g, int n_ranks)
{
    struct sampler_memory *m = &g->m;
    const size_t n_seen = (size_t)g->n_rows * (size_t)m->logits_stride;

    m->n_ranks = m->vocab_size >= 64 * n_ranks ? n_ranks : 1;
    m->ids_per_rank = m->vocab_size;
    if (m->n_ranks > 1)
        m->ids_per_rank = (m->vocab_size + 64 * n_ranks - 1) / (64 * n_ranks) * 64;
    for (int i = 1; i < m->n_ranks; i++) {
        m->logits[i] = m->logits[0] + i * m->ids_per_rank;
        m->adjusted[i] = m->adjusted[0] + i * m->ids_per_rank;
        m->seen[i] = array_new(n_seen * sizeof(**m->seen)).device;
        m->sampled[i] = m->sampled[0];
    }
    /* as much room as the backend takes, and nothing written behind it */
    g->scans = array_new(sampler_scan_bytes(&device.launch, m) + GUARD);
    m->scans = g->scans.device;
}

void rig_sample(struct rig *g)
{
    for (g->m.me = g->m.n_ranks - 1; g->m.me > 0; g->m.me--)
        cuda_must(sampler_scan(&device.launch, &g->m, &g->view, g->n_rows));
    cuda_must(sampler_scan(&device.launch, &g->m, &g->view, g->n_rows));
    cuda_must(sampler_finish(&device.launch, &g->m, &g->view, g->n_rows));
}

static void set_history(struct rig *g, int row)
{
    for (g->m.me = g->m.n_ranks - 1; g->m.me >= 0; g->m.me--)
        cuda_must(sampler_history(&device.launch, &g->m, g->rows[row].state, g->history.device,
                                  RIG_PROMPT, RIG_HISTORY));
    g->m.me = 0;
}

const int32_t *rig_run(struct rig *g)
{
    static const int32_t zeros[RIG_MAX_ROWS + 1];
    const struct step_limits limits = limits_of();
    int32_t ones[RIG_MAX_ROWS];
    const struct batch_parts parts = {.step = 1,
                                      .n_tokens = g->n_rows,
                                      .n_seqs = g->n_rows,
                                      .n_rows = g->n_rows,
                                      .n_updates = g->n_rows,
                                      .n_masks = g->n_masks,
                                      .max_blocks = 1,
                                      .tokens = zeros,
                                      .positions = zeros,
                                      .slots = zeros,
                                      .q_start = zeros,
                                      .kv_len = ones,
                                      .block_table = zeros,
                                      .rows = g->rows,
                                      .updates = g->updates};
    const uint8_t *guard = (uint8_t *)g->scans.host + g->scans.bytes - GUARD;

    for (int i = 0; i < RIG_MAX_ROWS; i++)
        ones[i] = 1;
    (void)pack_parts(g->step.host, &g->view, g->step.device, &limits, &parts, 1);
    array_to_device(&g->step);
    array_to_device(&g->masks);
    device_fill(g->scans.device, 0xff, g->scans.bytes);
    device_fill(g->results.device, 0xff, g->results.bytes);
    cuda_must(sampler_update(&device.launch, &g->m, &g->view, g->n_rows));
    for (int i = 0; i < g->n_rows; i++)
        if (sampling_needs_history(&g->sampling[i]))
            set_history(g, i);
    rig_sample(g);
    array_to_host(&g->results);
    array_to_host(&g->scans);
    for (int i = 0; i < GUARD; i++)
        must(guard[i] == 0xff);
    return g->results.host;
}

static int in_order(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    return x->z > y->z ? -1 : x->z < y->z ? 1 : x->id < y->id ? -1 : 1;
}

struct candidate *rig_candidates(const struct rig *g, int row, int *n)
{
    const struct sampling *s = &g->sampling[row];
    const int vocab = g->m.vocab_size;
    const float *z = rig_logits(g, row);
    const int32_t *history = g->history.host;
    struct candidate *c = calloc((size_t)vocab, sizeof(*c));
    uint16_t *prompt = calloc((size_t)vocab, 2), *output = calloc((size_t)vocab, 2);
    const int most = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab;
    double total = 0.0, sum = 0.0;

    must(c && prompt && output);
    for (int i = 0; sampling_needs_history(s) && i < RIG_HISTORY; i++)
        (i < RIG_PROMPT ? prompt : output)[history[i]]++;
    for (int i = 0; i < vocab; i++) {
        c[i] = (struct candidate){.z = z[i], .id = i};
        if (prompt[i] || output[i])
            c[i].z = c[i].z > 0 ? c[i].z / s->repetition_penalty : c[i].z * s->repetition_penalty;
        if (output[i])
            c[i].z -= s->presence_penalty + s->frequency_penalty * (float)output[i];
    }
    for (int i = 0; i < s->n_bias; i++)
        c[s->bias[i].id].z += s->bias[i].bias;
    for (int i = 0; g->rows[row].ban_stops && i < s->n_stop_ids; i++)
        c[s->stop_ids[i]].z = -INFINITY;
    qsort(c, (size_t)vocab, sizeof(*c), in_order);
    *n = s->temperature > 0.0f ? 0 : 1;
    for (int i = 0; i < most && s->temperature > 0.0f; i++) {
        c[i].x = (double)((c[i].z - c[0].z) * (1.0f / s->temperature));
        c[i].weight = exp(c[i].x);
        total += c[i].weight;
    }
    for (; *n < most && s->temperature > 0.0f; ++*n) {
        if (s->top_p < 1.0f && sum >= (double)s->top_p * total)
            break;
        sum += c[*n].weight;
    }
    for (int i = 0; i < vocab; i++)
        if (i >= *n || c[i].weight < (double)s->min_p)
            c[i].weight = 0.0;
    free(prompt);
    free(output);
    return c;
}
