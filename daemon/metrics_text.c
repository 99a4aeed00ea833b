/* metrics_text.c - see metrics_text.h.
 *
 * Names begin with nvllm_ and hold their unit: seconds, bytes, tokens, a ratio of 0 to 1. Labels
 * have few values, all known at the start. */
#include "daemon/metrics_text.h"

#include <limits.h>
#include <stddef.h>
#include <stdio.h>

#define COUNTER EXPOSITION_COUNTER
#define GAUGE   EXPOSITION_GAUGE

enum { LABEL_ROOM = 900 };

static void count(struct exposition *x, const char *name, enum exposition_type type,
                  const char *help, uint64_t value)
{
    exposition_family(x, name, type, help);
    exposition_count(x, "", value);
}

static void real(struct exposition *x, const char *name, const char *help, double value)
{
    exposition_family(x, name, GAUGE, help);
    exposition_real(x, "", value);
}

/* ---- the daemon */

static void write_info(struct exposition *x, const struct metrics_parts *parts,
                       const struct engine_status *s)
{
    char labels[LABEL_ROOM], model[2 * NAME_MAX + 1], device[160], driver[80];

    exposition_family(x, "nvllm_build", EXPOSITION_INFO, "The version of nvllmd.");
    exposition_count(x, "version=\"" NVLLM_VERSION "\"", 1);
    snprintf(labels, sizeof(labels), "model=\"%s\",backend=\"%s\",device=\"%s\",driver=\"%s\"",
             exposition_escape(model, sizeof(model), parts->model), parts->backend,
             exposition_escape(device, sizeof(device), s->backend.devices[0].name),
             exposition_escape(driver, sizeof(driver), s->backend.driver));
    exposition_family(x, "nvllm_model", EXPOSITION_INFO, "What is served, and what computes it.");
    exposition_count(x, labels, 1);
}

static void write_state(struct exposition *x, const struct metrics_counts *counts,
                        const struct engine_status *s, uint64_t uptime_us)
{
    static const char *const labels[] = {"", "state=\"loading\"", "state=\"ready\"",
                                         "state=\"draining\"", "state=\"failed\""};
    const int state = atomic_load(&counts->state);

    exposition_family(x, "nvllm_state", GAUGE, "1 for the state of the daemon, else 0.");
    for (int i = NVLLM__V1__STATE__STATE_LOADING; i <= NVLLM__V1__STATE__STATE_FAILED; i++)
        exposition_count(x, labels[i], i == state);
    real(x, "nvllm_load_ratio", "How much of the model has been loaded.", s->progress);
    count(x, "nvllm_sleep_level", GAUGE,
          "What an idle model has given back: 0 nothing, 1 the weights, 2 the KV blocks, too.",
          s->asleep);
    real(x, "nvllm_uptime_seconds", "Time since the start of the daemon.", (double)uptime_us / 1e6);
}

static void write_outcomes(struct exposition *x, const struct metrics_counts *counts)
{
    static const char *const ends[METRICS_N_ENDS] = {
        [NVLLM__V1__FINISH_REASON__FINISH_STOP] = "stop",
        [NVLLM__V1__FINISH_REASON__FINISH_LENGTH] = "length",
        [NVLLM__V1__FINISH_REASON__FINISH_CANCELLED] = "cancelled",
        [NVLLM__V1__FINISH_REASON__FINISH_DEADLINE] = "deadline",
        [NVLLM__V1__FINISH_REASON__FINISH_ERROR] = "error",
    };
    static const char *const errors[METRICS_N_ERRORS] = {
        [NVLLM__V1__ERROR_CODE__ERROR_INVALID] = "invalid",
        [NVLLM__V1__ERROR_CODE__ERROR_TOO_LONG] = "too_long",
        [NVLLM__V1__ERROR_CODE__ERROR_UNAVAILABLE] = "unavailable",
        [NVLLM__V1__ERROR_CODE__ERROR_BUSY] = "busy",
        [NVLLM__V1__ERROR_CODE__ERROR_DENIED] = "denied",
        [NVLLM__V1__ERROR_CODE__ERROR_INTERNAL] = "internal",
        [NVLLM__V1__ERROR_CODE__ERROR_UNSUPPORTED] = "unsupported",
    };
    char label[64];

    exposition_family(x, "nvllm_requests", COUNTER,
                      "Generate requests that have ended, by why: how the text of the first choice "
                      "ended, or the code of the error.");
    for (int i = 0; i < METRICS_N_ENDS; i++) {
        snprintf(label, sizeof(label), "outcome=\"%s\"", ends[i] ? ends[i] : "");
        if (ends[i])
            exposition_count(x, label, atomic_load(&counts->ends[i]));
    }
    for (int i = 0; i < METRICS_N_ERRORS; i++) {
        snprintf(label, sizeof(label), "outcome=\"%s\"", errors[i] ? errors[i] : "");
        if (errors[i])
            exposition_count(x, label, atomic_load(&counts->errors[i]));
    }
}

static void write_loads(struct exposition *x, const struct metrics_parts *parts,
                        const struct core_stats *c, uint64_t n_encoding)
{
    count(x, "nvllm_connections", GAUGE, "Connected clients.", atomic_load(parts->connections));
    count(x, "nvllm_requests_running", GAUGE, "Requests with at least one running sequence.",
          (uint64_t)c->requests_running);
    count(x, "nvllm_requests_waiting", GAUGE, "Requests in the queue, or being encoded.",
          (uint64_t)c->requests_waiting + n_encoding);
    count(x, "nvllm_sequences_running", GAUGE, "Running sequences.", (uint64_t)c->seqs_running);
    count(x, "nvllm_queued_tokens", GAUGE, "Tokens of the sequences that wait.",
          (uint64_t)c->queued_tokens);
    count(x, "nvllm_prompt_tokens", COUNTER, "Prompt tokens computed, those computed again too.",
          c->prompt_tokens);
    count(x, "nvllm_output_tokens", COUNTER, "Tokens generated.", c->output_tokens);
    count(x, "nvllm_prefix_cache_queried_tokens", COUNTER,
          "Prompt tokens looked up in the prefix cache.", c->queried_tokens);
    count(x, "nvllm_prefix_cache_hit_tokens", COUNTER, "Of these, those found.", c->hit_tokens);
    count(x, "nvllm_draft_tokens", COUNTER, "Tokens computed ahead as drafts.", c->draft_tokens);
    count(x, "nvllm_accepted_tokens", COUNTER, "Of these, those that were right.",
          c->accepted_tokens);
    count(x, "nvllm_model_draft_tokens", COUNTER, "Drafts of the draft model.",
          c->model_draft_tokens);
    count(x, "nvllm_model_accepted_tokens", COUNTER, "Of these, those that were right.",
          c->model_accepted_tokens);
    count(x, "nvllm_preemptions", COUNTER, "Sequences preempted.", c->preemptions);
    count(x, "nvllm_steps", COUNTER, "Steps computed.", c->steps);
}

/* ---- times */

static void write_histograms(struct exposition *x, const struct engine_metrics *m)
{
    static const struct {
        const char *name, *help;
        double unit;
    } families[N_ENGINE_HISTOGRAMS] = {
        [HISTOGRAM_FIRST_TOKEN] = {"nvllm_time_to_first_token_seconds",
                                   "From the arrival of a request to its first token.", 1e-6},
        [HISTOGRAM_BETWEEN_TOKENS] = {"nvllm_time_between_tokens_seconds",
                                      "Between two tokens of a choice.", 1e-6},
        [HISTOGRAM_QUEUE] = {"nvllm_request_queue_seconds",
                             "From the arrival of a request until it runs, or ends without having "
                             "run; counted when it ends.",
                             1e-6},
        [HISTOGRAM_REQUEST] = {"nvllm_request_duration_seconds",
                               "From the arrival of a request to its end.", 1e-6},
        [HISTOGRAM_STEP] = {"nvllm_step_duration_seconds", "Computation of a step.", 1e-6},
        [HISTOGRAM_PROMPT_TOKENS] = {"nvllm_request_prompt_tokens", "Length of prompts.", 1},
        [HISTOGRAM_OUTPUT_TOKENS] = {"nvllm_request_output_tokens",
                                     "Tokens generated for a request, all choices together.", 1},
        [HISTOGRAM_STEP_TOKENS] = {"nvllm_step_tokens", "Tokens computed in a step.", 1},
    };

    for (int i = 0; i < N_ENGINE_HISTOGRAMS; i++) {
        exposition_family(x, families[i].name, EXPOSITION_HISTOGRAM, families[i].help);
        exposition_histogram(x, &m->histograms[i],
                             engine_histogram_bounds((enum engine_histogram)i), families[i].unit);
    }
}

static void write_parts(struct exposition *x, const struct engine_metrics *m)
{
    static const char *const labels[N_ENGINE_PARTS] = {
        [ENGINE_PART_SCHEDULE] = "part=\"schedule\"", [ENGINE_PART_SUBMIT] = "part=\"submit\"",
        [ENGINE_PART_WAIT] = "part=\"wait\"",         [ENGINE_PART_COMMIT] = "part=\"commit\"",
        [ENGINE_PART_PUBLISH] = "part=\"publish\"",   [ENGINE_PART_OTHER] = "part=\"other\"",
        [ENGINE_PART_DRAFT] = "part=\"draft\"",
    };

    exposition_family(x, "nvllm_engine_part_seconds", COUNTER,
                      "Time of the engine's thread, by what it did; wait: for the device.");
    for (int i = ENGINE_PART_SCHEDULE; i < N_ENGINE_PARTS; i++)
        exposition_real(x, labels[i], (double)m->part_us[i] / 1e6);
}

/* ---- blocks and memory */

static void write_blocks(struct exposition *x, const struct core_stats *c)
{
    const struct core_tier *host = &c->tiers[TIER_HOST], *disk = &c->tiers[TIER_DISK];

    exposition_family(
        x, "nvllm_blocks", GAUGE,
        "KV blocks, by where they are; cached: free, with content that can be found.");
    exposition_count(x, "tier=\"device\",state=\"used\"", (uint64_t)c->blocks_used);
    exposition_count(x, "tier=\"device\",state=\"cached\"", (uint64_t)c->blocks_cached);
    exposition_count(x, "tier=\"device\",state=\"free\"", (uint64_t)c->blocks_free);
    exposition_count(x, "tier=\"host\",state=\"cached\"", (uint64_t)host->cached);
    exposition_count(x, "tier=\"host\",state=\"free\"", (uint64_t)(host->total - host->cached));
    exposition_count(x, "tier=\"disk\",state=\"cached\"", (uint64_t)disk->cached);
    exposition_count(x, "tier=\"disk\",state=\"free\"", (uint64_t)(disk->total - disk->cached));
    count(x, "nvllm_blocks_pinned", GAUGE, "KV blocks of the device that are pinned.",
          (uint64_t)c->blocks_pinned);
    exposition_family(x, "nvllm_block_copies", COUNTER,
                      "KV blocks copied down to a tier below the device, and up from it.");
    exposition_count(x, "tier=\"host\",direction=\"down\"", host->stored);
    exposition_count(x, "tier=\"host\",direction=\"up\"", host->loaded);
    exposition_count(x, "tier=\"disk\",direction=\"down\"", disk->stored);
    exposition_count(x, "tier=\"disk\",direction=\"up\"", disk->loaded);
}

static void write_memory(struct exposition *x, const struct engine_status *s)
{
    const struct backend_info *b = &s->backend;

    exposition_family(x, "nvllm_memory_bytes", GAUGE,
                      "Memory that the model is computed in, of all devices, by use; where there "
                      "are devices the sum is all of their memory.");
    exposition_count(x, "use=\"weights\"", b->weight_bytes);
    exposition_count(x, "use=\"kv\"", b->tiers[TIER_DEVICE].bytes);
    exposition_count(x, "use=\"workspace\"", b->workspace_bytes);
    exposition_count(x, "use=\"draft\"", s->draft_bytes);
    if (b->total_bytes) {
        exposition_count(x, "use=\"graphs\"", b->graph_bytes);
        exposition_count(x, "use=\"other\"", b->other_bytes);
        exposition_count(x, "use=\"free\"", b->free_bytes);
    }
    count(x, "nvllm_host_cache_bytes", GAUGE, "Host memory that is ready for KV blocks.",
          b->tiers[TIER_HOST].bytes);
    count(x, "nvllm_disk_cache_bytes", GAUGE, "KV blocks on disk.",
          (uint64_t)s->core.tiers[TIER_DISK].cached * b->block_bytes);
}

/* ---- devices */

static void write_ranks(struct exposition *x, const struct engine_status *s)
{
    char label[64];

    count(x, "nvllm_ranks", GAUGE, "Ranks that share each layer; 0 while loading.",
          (uint64_t)s->backend.tp_size);
    if (!s->n_ranks)
        return;
    exposition_family(x, "nvllm_rank_memory_bytes", GAUGE, "Memory of a rank's device.");
    for (int32_t i = 0; i < s->n_ranks; i++) {
        const struct backend_device *d = &s->ranks[i];

        snprintf(label, sizeof(label), "rank=\"%d\",state=\"used\"", i);
        exposition_count(x, label, d->total_bytes - d->free_bytes);
        snprintf(label, sizeof(label), "rank=\"%d\",state=\"free\"", i);
        exposition_count(x, label, d->free_bytes);
    }
    exposition_family(x, "nvllm_rank_exchange_ratio", GAUGE,
                      "Share of the time of steps, since the start or the last wake, that a rank "
                      "has exchanged sums with the others or waited for them.");
    for (int32_t i = 0; i < s->n_ranks; i++) {
        snprintf(label, sizeof(label), "rank=\"%d\"", i);
        exposition_real(x, label, s->ranks[i].exchange_share);
    }
}

/* One family of the devices: what extra labels and unit make of the member at an offset. */
struct device_family {
    const char *name, *help;
    struct {
        const char *label; /* NULL: there is no second member */
        size_t offset;
    } members[2];
    double unit;
};

#define MEMBER(name) offsetof(struct nvml_sample, name)
static const struct device_family device_families[] = {
    {"nvllm_gpu_clock_hertz",
     "Clocks of a rank's device.",
     {{",clock=\"sm\"", MEMBER(sm_mhz)}, {",clock=\"memory\"", MEMBER(memory_mhz)}},
     1e6},
    {"nvllm_gpu_power_watts", "Power that it takes.", {{"", MEMBER(power_mw)}}, 1e-3},
    {"nvllm_gpu_power_limit_watts",
     "Power that it may take.",
     {{"", MEMBER(power_limit_mw)}},
     1e-3},
    {"nvllm_gpu_temperature_celsius", "Its temperature.", {{"", MEMBER(celsius)}}, 1},
    {"nvllm_gpu_busy_ratio",
     "Share of the time just past with a kernel running.",
     {{"", MEMBER(busy_percent)}},
     1e-2},
};

static void write_device_family(struct exposition *x, const struct device_family *f,
                                const struct nvml_sample *samples, const bool *known, int32_t n)
{
    char label[64];

    exposition_family(x, f->name, GAUGE, f->help);
    for (int32_t i = 0; i < n; i++) {
        for (int k = 0; k < 2 && known[i] && f->members[k].label; k++) {
            const int value = *(const int *)((const char *)&samples[i] + f->members[k].offset);

            snprintf(label, sizeof(label), "rank=\"%d\"%s", i, f->members[k].label);
            if (value >= 0)
                exposition_real(x, label, value * f->unit);
        }
    }
}

static void write_devices(struct exposition *x, const struct engine_status *s, struct nvml *nvml)
{
    struct nvml_sample samples[BACKEND_MAX_DEVICES];
    bool known[BACKEND_MAX_DEVICES] = {false}, any = false;
    char labels[LABEL_ROOM], name[160];

    for (int32_t i = 0; nvml && i < s->backend.n_devices; i++) {
        known[i] = nvml_sample(nvml, s->backend.devices[i].pci, &samples[i]);
        any |= known[i];
    }
    if (!any)
        return;
    exposition_family(x, "nvllm_gpu", EXPOSITION_INFO, "The device of a rank.");
    for (int32_t i = 0; i < s->backend.n_devices; i++) {
        const struct backend_device *d = &s->backend.devices[i];

        snprintf(labels, sizeof(labels), "rank=\"%d\",device=\"%s\",pci=\"%s\"", i,
                 exposition_escape(name, sizeof(name), d->name), d->pci);
        exposition_count(x, labels, 1);
    }
    for (size_t i = 0; i < sizeof(device_families) / sizeof(*device_families); i++)
        write_device_family(x, &device_families[i], samples, known, s->backend.n_devices);
}

void metrics_write(struct exposition *x, const struct metrics_parts *parts,
                   const struct metrics_counts *counts, struct nvml *nvml, uint64_t uptime_us)
{
    struct engine_status status;
    struct engine_metrics metrics;

    engine_status(parts->engine, &status);
    engine_metrics(parts->engine, &metrics);
    write_info(x, parts, &status);
    write_state(x, counts, &status, uptime_us);
    write_outcomes(x, counts);
    write_loads(x, parts, &status.core, status.n_encoding);
    write_histograms(x, &metrics);
    write_parts(x, &metrics);
    write_blocks(x, &status.core);
    write_memory(x, &status);
    write_ranks(x, &status);
    write_devices(x, &status, nvml);
    exposition_end(x);
}
