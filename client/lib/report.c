/* report.c - see report.h. The rows of proto/report_fields.h become assignments. As in event.c
 * nothing is trusted: numbers outside their enum become the unknown one, absent texts empty. */
#include "client/lib/report.h"

#include "proto/report_fields.h"

static const char *string_of(const char *s)
{
    return s ? s : "";
}

/* A number of an enum that counts from 0, the unknown one, to max. */
static int enum_of(int wire, int max)
{
    return wire >= 0 && wire <= max ? wire : 0;
}

enum nvllm_state event_read_state(int wire_state)
{
    return (enum nvllm_state)enum_of(wire_state, NVLLM_STATE_FAILED);
}

/* n elements of a size, and in *list the pointers to them. NULL: no memory. */
static void *list_new(struct unpacked *memory, const void **list, size_t n, size_t size)
{
    char *elements = unpacked_alloc(memory, n, size);
    const void **pointers = unpacked_alloc(memory, n, sizeof(*pointers));

    if (!elements || !pointers)
        return NULL;
    for (size_t i = 0; i < n; i++)
        pointers[i] = elements + i * size;
    *list = pointers;
    return elements;
}

/* ---- rows as assignments from *in to *out */

#define READ(kind, field, source, member, key) READ_##kind(field, member)
#define READ_VALUE(field, member)              out->member = in->field;
#define READ_COUNT                             READ_VALUE
#define READ_INT                               READ_VALUE
#define READ_REAL                              READ_VALUE
#define READ_MS                                READ_VALUE
#define READ_FLAG                              READ_VALUE
#define READ_TEXT(field, member)               out->member = string_of(in->field);
#define READ_TOKEN(field, member)              out->member = in->has_##field ? in->field : -1;
#define READ_ENUM(field, member, max)          out->member = enum_of((int)in->field, max);
#define READ_STATE(field, member)              READ_ENUM(field, member, NVLLM_STATE_FAILED)
#define READ_REQUEST_STATE(field, member)      READ_ENUM(field, member, NVLLM_REQUEST_ENDING)
#define READ_PRIORITY(field, member)           READ_ENUM(field, member, NVLLM_PRIORITY_HIGH)
#define READ_WAIT_REASON(field, member)        READ_ENUM(field, member, NVLLM_WAIT_STEP)
#define READ_IDS(field, member)                                                                    \
    out->member = in->field;                                                                       \
    out->n_##member = in->n_##field;
#define READ_BYTES(field, member)                                                                  \
    out->member = (struct nvllm_text){"", 0};                                                      \
    if (in->field.len > 0)                                                                         \
        out->member = (struct nvllm_text){(const char *)in->field.data, in->field.len};
#define READ_GROUP(field, member)                                                                  \
    if (in->field)                                                                                 \
        read_##member(memory, out, in->field);
#define READ_FLAT READ_GROUP
#define READ_LIST(field, member)                                                                   \
    if (in->n_##field > 0) {                                                                       \
        struct nvllm_##member *list =                                                              \
            list_new(memory, (const void **)&out->field, in->n_##field, sizeof(*list));            \
                                                                                                   \
        if (!list)                                                                                 \
            return EVENT_E_NOMEM;                                                                  \
        for (size_t i = 0; i < in->n_##field; i++)                                                 \
            read_##member(memory, &list[i], in->field[i]);                                         \
        out->n_##field = in->n_##field;                                                            \
    }

/* Defines read_name(): EVENT_OK, or EVENT_E_NOMEM where the rows have a list. */
#define READER(name, type, message, FIELDS)                                                        \
    static int read_##name(struct unpacked *memory, struct type *out,                              \
                           const Nvllm__V1__##message *in)                                         \
    {                                                                                              \
        (void)memory;                                                                              \
        FIELDS(READ)                                                                               \
        return EVENT_OK;                                                                           \
    }

READER(status_blocks, nvllm_status, Blocks, STATUS_BLOCKS_FIELDS)
READER(status_requests, nvllm_status, Requests, STATUS_REQUESTS_FIELDS)
READER(status_hits, nvllm_status, PrefixCache, STATUS_HITS_FIELDS)
READER(status_memory, nvllm_status, Memory, STATUS_MEMORY_FIELDS)
READER(status, nvllm_status, Status, STATUS_FIELDS)
READER(request_info, nvllm_request_info, RequestInfo, REQUEST_INFO_FIELDS)
READER(request_list, nvllm_request_list, RequestList, REQUEST_LIST_FIELDS)
READER(uid_blocks, nvllm_uid_blocks, BlocksOfUid, UID_BLOCKS_FIELDS)
READER(request_blocks, nvllm_request_blocks, BlocksOfRequest, REQUEST_BLOCKS_FIELDS)
READER(block_sums, nvllm_blocks, Blocks, BLOCK_SUMS_FIELDS)
READER(blocks, nvllm_blocks, BlockReport, BLOCKS_FIELDS)
READER(cached_prefix, nvllm_cached_prefix, CachedPrefix, CACHED_PREFIX_FIELDS)
READER(cache_hits, nvllm_cache, PrefixCache, CACHE_HITS_FIELDS)
READER(cache, nvllm_cache, CacheReport, CACHE_FIELDS)
READER(cache_change, nvllm_cache_change, CacheChanged, CACHE_CHANGE_FIELDS)
READER(why_waiting, nvllm_explanation, Explanation, WHY_WAITING_FIELDS)
READER(why_cached, nvllm_explanation, Explanation, WHY_CACHED_FIELDS)

static int read_explanation(struct unpacked *memory, struct nvllm_explanation *out,
                            const Nvllm__V1__Explanation *in)
{
    struct nvllm_request_info *info;

    read_why_waiting(memory, out, in);
    read_why_cached(memory, out, in);
    if (!in->has_same_tokens)
        out->same_tokens = out->cached_tokens;
    if (!in->info)
        return EVENT_OK;
    info = unpacked_alloc(memory, 1, sizeof(*info));
    if (!info)
        return EVENT_E_NOMEM;
    out->info = info;
    return read_request_info(memory, info, in->info);
}

int report_read(struct event *e, const Nvllm__V1__ServerFrame *frame)
{
    switch (frame->event_case) {
    case NVLLM__V1__SERVER_FRAME__EVENT_STATUS:
        e->public.type = NVLLM_EVENT_STATUS;
        e->public.status = &e->status;
        return read_status(e->memory, &e->status, frame->status);
    case NVLLM__V1__SERVER_FRAME__EVENT_CANCELLED:
        e->found = frame->cancelled->found;
        return EVENT_OK;
    case NVLLM__V1__SERVER_FRAME__EVENT_REQUEST_LIST:
        return read_request_list(e->memory, &e->requests, frame->request_list);
    case NVLLM__V1__SERVER_FRAME__EVENT_BLOCK_REPORT:
        return read_blocks(e->memory, &e->blocks, frame->block_report);
    case NVLLM__V1__SERVER_FRAME__EVENT_CACHE_REPORT:
        return read_cache(e->memory, &e->cache, frame->cache_report);
    case NVLLM__V1__SERVER_FRAME__EVENT_CACHE_CHANGED:
        return read_cache_change(e->memory, &e->cache_change, frame->cache_changed);
    case NVLLM__V1__SERVER_FRAME__EVENT_EXPLANATION:
        return read_explanation(e->memory, &e->explanation, frame->explanation);
    case NVLLM__V1__SERVER_FRAME__EVENT_CHANGED:
        e->change.state = event_read_state((int)frame->changed->state);
        e->change.log_level = string_of(frame->changed->log_level);
        return EVENT_OK;
    case NVLLM__V1__SERVER_FRAME__EVENT_RELOADED:
        e->reloaded = (struct nvllm_reloaded){
            .changed = (const char *const *)frame->reloaded->changed,
            .n_changed = frame->reloaded->n_changed,
            .needs_restart = (const char *const *)frame->reloaded->needs_restart,
            .n_needs_restart = frame->reloaded->n_needs_restart,
        };
        return EVENT_OK;
    default:
        return EVENT_OK;
    }
}
