/* report.c - see report.h. As in event.c nothing is believed: numbers outside their enum become the
 * unknown one, absent texts become empty. */
#include "client/lib/report.h"

static const char *string_of(const char *s)
{
    return s ? s : "";
}

/* A number of an enum that counts from 0, the unknown one, to max. */
static int number_of(int wire, int max)
{
    return wire >= 0 && wire <= max ? wire : 0;
}

enum nvllm_state event_read_state(int wire_state)
{
    return (enum nvllm_state)number_of(wire_state, NVLLM_STATE_FAILED);
}

static void read_status(struct nvllm_status *out, const Nvllm__V1__Status *in)
{
    *out = (struct nvllm_status){
        .state = event_read_state(in->has_state ? (int)in->state : 0),
        .progress = in->progress,
        .model = string_of(in->model),
        .model_folder = string_of(in->model_folder),
        .backend = string_of(in->backend),
        .device = string_of(in->device),
        .server = string_of(in->server),
        .driver = string_of(in->driver),
        .uptime_ms = in->uptime_ms,
        .block_len = in->block_len,
        .max_seq_len = in->max_seq_len,
        .preemptions = in->preemptions,
        .connections = in->connections,
        .steps = in->steps,
        .prompt_tokens = in->prompt_tokens,
        .output_tokens = in->output_tokens,
    };
    if (in->blocks) {
        out->blocks_total = in->blocks->total;
        out->blocks_used = in->blocks->used;
        out->blocks_cached = in->blocks->cached;
        out->blocks_free = in->blocks->free;
    }
    if (in->requests) {
        out->requests_running = in->requests->running;
        out->requests_waiting = in->requests->waiting;
    }
    if (in->prefix_cache) {
        out->prefix_queried_tokens = in->prefix_cache->queried_tokens;
        out->prefix_hit_tokens = in->prefix_cache->hit_tokens;
    }
    if (in->memory) {
        out->weight_bytes = in->memory->weight_bytes;
        out->kv_bytes = in->memory->kv_bytes;
        out->graph_bytes = in->memory->graph_bytes;
        out->workspace_bytes = in->memory->workspace_bytes;
        out->other_bytes = in->memory->other_bytes;
        out->total_bytes = in->memory->total_bytes;
        out->free_bytes = in->memory->free_bytes;
    }
}

/* An array of n pointers and what they point at, of size bytes each; n is not 0. */
static void *take_list(struct event *e, const void **pointers, size_t n, size_t size)
{
    char *elements = unpacked_alloc(e->memory, n, size);
    const void **list = unpacked_alloc(e->memory, n, sizeof(*list));

    if (!elements || !list)
        return NULL;
    for (size_t i = 0; i < n; i++)
        list[i] = elements + i * size;
    *pointers = list;
    return elements;
}

/* ---- what is under way */

static struct nvllm_request_info info_of(const Nvllm__V1__RequestInfo *in)
{
    return (struct nvllm_request_info){
        .request = in->request,
        .uid = in->uid,
        .pid = in->pid,
        .state = (enum nvllm_request_state)number_of((int)in->state, NVLLM_REQUEST_ENDING),
        .priority = (enum nvllm_priority)number_of((int)in->priority, NVLLM_PRIORITY_HIGH),
        .place = in->place,
        .choices = in->choices,
        .prompt_tokens = in->prompt_tokens,
        .cached_tokens = in->cached_tokens,
        .computed_tokens = in->computed_tokens,
        .generated_tokens = in->generated_tokens,
        .max_tokens = in->max_tokens,
        .blocks = in->blocks,
        .preemptions = in->preemptions,
        .age_us = in->age_us,
        .run_us = in->run_us,
        .tokens_per_s = in->tokens_per_s,
    };
}

static int read_requests(struct event *e, const Nvllm__V1__RequestList *in)
{
    struct nvllm_request_list *out = &e->requests;
    struct nvllm_request_info *list;
    const void *pointers;

    out->total = in->total;
    if (in->n_requests == 0)
        return EVENT_OK;
    list = take_list(e, &pointers, in->n_requests, sizeof(*list));
    if (!list)
        return EVENT_E_NOMEM;
    for (size_t i = 0; i < in->n_requests; i++)
        list[i] = info_of(in->requests[i]);
    out->requests = pointers;
    out->n_requests = in->n_requests;
    return EVENT_OK;
}

static int read_uid_blocks(struct event *e, const Nvllm__V1__BlockReport *in)
{
    struct nvllm_uid_blocks *list;
    const void *pointers;

    if (in->n_uids == 0)
        return EVENT_OK;
    list = take_list(e, &pointers, in->n_uids, sizeof(*list));
    if (!list)
        return EVENT_E_NOMEM;
    for (size_t i = 0; i < in->n_uids; i++)
        list[i] = (struct nvllm_uid_blocks){
            .uid = in->uids[i]->uid,
            .used = in->uids[i]->used,
            .requests = in->uids[i]->requests,
        };
    e->blocks.uids = pointers;
    e->blocks.n_uids = in->n_uids;
    return EVENT_OK;
}

static int read_request_blocks(struct event *e, const Nvllm__V1__BlockReport *in)
{
    struct nvllm_request_blocks *list;
    const void *pointers;

    if (in->n_requests == 0)
        return EVENT_OK;
    list = take_list(e, &pointers, in->n_requests, sizeof(*list));
    if (!list)
        return EVENT_E_NOMEM;
    for (size_t i = 0; i < in->n_requests; i++)
        list[i] = (struct nvllm_request_blocks){
            .request = in->requests[i]->request,
            .uid = in->requests[i]->uid,
            .used = in->requests[i]->used,
            .shared = in->requests[i]->shared,
        };
    e->blocks.requests = pointers;
    e->blocks.n_requests = in->n_requests;
    return EVENT_OK;
}

static int read_blocks(struct event *e, const Nvllm__V1__BlockReport *in)
{
    struct nvllm_blocks *out = &e->blocks;
    int rc;

    if (in->blocks) {
        out->total = in->blocks->total;
        out->used = in->blocks->used;
        out->cached = in->blocks->cached;
        out->free = in->blocks->free;
    }
    out->pinned = in->pinned;
    out->block_len = in->block_len;
    out->block_bytes = in->block_bytes;
    out->map = (struct nvllm_text){"", 0};
    if (in->has_map && in->map.len > 0)
        out->map = (struct nvllm_text){(const char *)in->map.data, in->map.len};
    rc = read_uid_blocks(e, in);
    return rc == EVENT_OK ? read_request_blocks(e, in) : rc;
}

/* ---- the prefix cache */

static struct nvllm_cached_prefix prefix_of(const Nvllm__V1__CachedPrefix *in)
{
    return (struct nvllm_cached_prefix){
        .uid = in->uid,
        .tokens = in->tokens,
        .blocks = in->blocks,
        .hits = in->hits,
        .age_ms = in->age_ms,
        .idle_ms = in->idle_ms,
        .holders = in->holders,
        .pinned = in->pinned,
        .head_ids = in->head_ids,
        .n_head_ids = in->n_head_ids,
    };
}

static int read_cache(struct event *e, const Nvllm__V1__CacheReport *in)
{
    struct nvllm_cache *out = &e->cache;
    struct nvllm_cached_prefix *list;
    const void *pointers;

    out->total = in->total;
    out->evictions = in->evictions;
    out->pinned_blocks = in->pinned_blocks;
    if (in->counts) {
        out->queried_tokens = in->counts->queried_tokens;
        out->hit_tokens = in->counts->hit_tokens;
    }
    if (in->n_prefixes == 0)
        return EVENT_OK;
    list = take_list(e, &pointers, in->n_prefixes, sizeof(*list));
    if (!list)
        return EVENT_E_NOMEM;
    for (size_t i = 0; i < in->n_prefixes; i++)
        list[i] = prefix_of(in->prefixes[i]);
    out->prefixes = pointers;
    out->n_prefixes = in->n_prefixes;
    return EVENT_OK;
}

/* ---- why, and the daemon itself */

static int read_explanation(struct event *e, const Nvllm__V1__Explanation *in)
{
    struct nvllm_request_info *info = NULL;

    if (in->info) {
        info = unpacked_alloc(e->memory, 1, sizeof(*info));
        if (!info)
            return EVENT_E_NOMEM;
        *info = info_of(in->info);
    }
    e->explanation = (struct nvllm_explanation){
        .info = info,
        .reason = (enum nvllm_wait_reason)number_of((int)in->reason, NVLLM_WAIT_STEP),
        .blocks_needed = in->blocks_needed,
        .blocks_available = in->blocks_available,
        .prompt_tokens = in->prompt_tokens,
        .cached_tokens = in->cached_tokens,
        .next_id = in->has_next_id ? in->next_id : -1,
        .other_ids = in->other_ids,
        .n_other_ids = in->n_other_ids,
        .text = string_of(in->text),
        .same_tokens = in->has_same_tokens ? in->same_tokens : in->cached_tokens,
    };
    return EVENT_OK;
}

static void read_change(struct nvllm_change *out, const Nvllm__V1__Changed *in)
{
    out->state = event_read_state(in->has_state ? (int)in->state : 0);
    out->log_level = string_of(in->log_level);
}

static void read_reloaded(struct nvllm_reloaded *out, const Nvllm__V1__Reloaded *in)
{
    out->changed = (const char *const *)in->changed;
    out->n_changed = in->n_changed;
    out->needs_restart = (const char *const *)in->needs_restart;
    out->n_needs_restart = in->n_needs_restart;
}

int report_read(struct event *e, const Nvllm__V1__ServerFrame *frame)
{
    switch (frame->event_case) {
    case NVLLM__V1__SERVER_FRAME__EVENT_STATUS:
        read_status(&e->status, frame->status);
        e->public.type = NVLLM_EVENT_STATUS;
        e->public.status = &e->status;
        return EVENT_OK;
    case NVLLM__V1__SERVER_FRAME__EVENT_CANCELLED:
        e->found = frame->cancelled->found;
        return EVENT_OK;
    case NVLLM__V1__SERVER_FRAME__EVENT_REQUEST_LIST:
        return read_requests(e, frame->request_list);
    case NVLLM__V1__SERVER_FRAME__EVENT_BLOCK_REPORT:
        return read_blocks(e, frame->block_report);
    case NVLLM__V1__SERVER_FRAME__EVENT_CACHE_REPORT:
        return read_cache(e, frame->cache_report);
    case NVLLM__V1__SERVER_FRAME__EVENT_CACHE_CHANGED:
        e->cache_change.blocks = frame->cache_changed->blocks;
        e->cache_change.tokens = frame->cache_changed->tokens;
        return EVENT_OK;
    case NVLLM__V1__SERVER_FRAME__EVENT_EXPLANATION:
        return read_explanation(e, frame->explanation);
    case NVLLM__V1__SERVER_FRAME__EVENT_CHANGED:
        read_change(&e->change, frame->changed);
        return EVENT_OK;
    case NVLLM__V1__SERVER_FRAME__EVENT_RELOADED:
        read_reloaded(&e->reloaded, frame->reloaded);
        return EVENT_OK;
    default:
        return EVENT_OK;
    }
}
