/* inspection.c - the status, and the engine's reports about its requests, blocks, prefix cache and
 * traces, as frames.
 *
 * The rows of proto/report_fields.h become assignments; messages point into the report. */
#include <errno.h>
#include <stdio.h>

#include "daemon/server_private.h"
#include "engine/util/clock.h"
#include "proto/report_fields.h"

/* What rows name as `from`: where fields come from, and room for messages inside the report. */
struct sources {
    const struct engine_status *engine;
    const struct core_stats *core;
    const struct server *server;
    uint64_t now_us;
    uint64_t unread;        /* records of a trace that its client did not read in time */
    struct unpacked *lists; /* their entries */
    char text[256];         /* of an explanation */
    Nvllm__V1__Blocks blocks;
    Nvllm__V1__Requests requests;
    Nvllm__V1__PrefixCache hits;
    Nvllm__V1__CacheTier host, disk;
    Nvllm__V1__Memory memory;
};

static uint64_t since(uint64_t us, const struct sources *from)
{
    return us && from->now_us > us ? from->now_us - us : 0;
}

static double decode_rate(const struct inspect_request *q, const struct sources *from)
{
    uint64_t us = since(q->first_us, from);

    return us && q->generated_tokens > 1 ? (q->generated_tokens - 1) * 1e6 / (double)us : 0;
}

static int32_t pid_of(const struct sources *from, uint64_t request)
{
    const struct pending *p = id_map_get(&from->server->requests, request);

    return p ? p->pid : 0;
}

static Nvllm__V1__Priority wire_priority(enum core_priority p)
{
    return p == CORE_LOW    ? NVLLM__V1__PRIORITY__PRIORITY_LOW
           : p == CORE_HIGH ? NVLLM__V1__PRIORITY__PRIORITY_HIGH
                            : NVLLM__V1__PRIORITY__PRIORITY_NORMAL;
}

/* ---- explanations in a sentence, written to from->text */

static const char *why_waiting(const struct inspect_report *r, struct sources *from)
{
    static const char *const reasons[] = {
        [INSPECT_WHY_ENCODING] = "its prompt is being rendered and tokenized",
        [INSPECT_WHY_SEQS] = "scheduler.max_seqs sequences are running already",
        [INSPECT_WHY_BLOCKS] = "the first request in the queue needs more blocks than are free",
        [INSPECT_WHY_PREFIX] = "another request is computing the prefix that they share",
        [INSPECT_WHY_SHARE] = "requests of higher priority, or of users served less, go first",
        [INSPECT_WHY_STEP] = "it starts in the next step",
        [INSPECT_WHY_LOADING] = "its prefix is being copied from host memory or disk",
        [INSPECT_WHY_OFFLOADED] = "another request that is too long for the device's KV cache is "
                                  "running, and they go one at a time",
    };
    const struct inspect_request *q = &r->requests[0];
    const size_t size = sizeof(from->text);
    char *text = from->text;
    int n;

    if (r->why == INSPECT_WHY_RUNS && q->model_draft_tokens > 0)
        n = snprintf(text, size,
                     "it is running: %d of %d prompt tokens computed, %d tokens generated; %d of "
                     "%d drafts were right, of the draft model %d of %d",
                     q->computed_tokens, q->prompt_tokens, q->generated_tokens, q->accepted_tokens,
                     q->draft_tokens, q->model_accepted_tokens, q->model_draft_tokens);
    else if (r->why == INSPECT_WHY_RUNS && q->draft_tokens > 0)
        n = snprintf(text, size,
                     "it is running: %d of %d prompt tokens computed, %d tokens generated; %d of "
                     "%d drafts were right",
                     q->computed_tokens, q->prompt_tokens, q->generated_tokens, q->accepted_tokens,
                     q->draft_tokens);
    else if (r->why == INSPECT_WHY_RUNS)
        n = snprintf(text, size,
                     "it is running: %d of %d prompt tokens computed, %d tokens generated",
                     q->computed_tokens, q->prompt_tokens, q->generated_tokens);
    else if (r->why == INSPECT_WHY_BLOCKS && q->place <= 0)
        n = snprintf(text, size,
                     "it was preempted, and will be queued again when its last step has completed");
    else if (r->why == INSPECT_WHY_BLOCKS && r->blocks_needed > r->blocks_available)
        n = snprintf(text, size, "it needs %d blocks to start, but only %d are available",
                     r->blocks_needed, r->blocks_available);
    else
        n = snprintf(text, size, "%s", reasons[r->why]);
    if (q->place > 0)
        snprintf(text + n, size - (size_t)n, "; it is number %d in the queue", q->place);
    return text;
}

static const char *why_cached(const struct inspect_report *r, struct sources *from)
{
    const size_t size = sizeof(from->text);
    char *text = from->text;
    int n = snprintf(text, size, "%d of %d tokens are cached", r->cached_tokens, r->prompt_tokens);

    if (r->found_in[TIER_HOST] > 0)
        n += snprintf(text + n, size - (size_t)n, ", %d of them in host memory",
                      r->found_in[TIER_HOST]);
    if (r->found_in[TIER_DISK] > 0)
        n += snprintf(text + n, size - (size_t)n, ", %d of them on disk", r->found_in[TIER_DISK]);
    if (r->compared)
        n += snprintf(text + n, size - (size_t)n,
                      "; a cached prompt begins with the same %d tokens", r->same_tokens);
    if (r->next_id >= 0 && r->n_other > 0)
        snprintf(text + n, size - (size_t)n, "; next is token %d here, token %d there", r->next_id,
                 r->other[0]);
    return text;
}

/* ---- rows as assignments to *m; packing only reads what they point at */

#define FILL(kind, field, source, member, key) FILL_##kind(field, source, member)
#define FILL_VALUE(field, source, member)                                                          \
    m->has_##field = true;                                                                         \
    m->field = source;
#define FILL_COUNT FILL_VALUE
#define FILL_REAL  FILL_VALUE
#define FILL_MS    FILL_VALUE
#define FILL_FLAG  FILL_VALUE
#define FILL_INT(field, source, member)                                                            \
    m->field = source;                                                                             \
    m->has_##field = m->field != 0;
#define FILL_TOKEN(field, source, member)                                                          \
    m->field = source;                                                                             \
    m->has_##field = m->field >= 0;
#define FILL_STATE(field, source, member) FILL_VALUE(field, (int)(source), member)
#define FILL_REQUEST_STATE                FILL_STATE
#define FILL_PRIORITY                     FILL_STATE
#define FILL_WAIT_REASON                  FILL_STATE
#define FILL_SLEEP_LEVEL                  FILL_STATE
#define FILL_TEXT(field, source, member)  m->field = (char *)(uintptr_t)source;
#define FILL_IDS(field, source, member)                                                            \
    m->n_##field = (size_t)q->n_##source;                                                          \
    m->field = (int32_t *)(uintptr_t)q->source;
#define FILL_BYTES(field, source, member)                                                          \
    m->has_##field = q->n_##source > 0;                                                            \
    m->field = (ProtobufCBinaryData){(size_t)q->n_##source, q->source};
#define FILL_GROUP(field, source, member)                                                          \
    m->field = &from->source;                                                                      \
    fill_##source(&from->source, q, from);
#define FILL_FLAT FILL_GROUP
#define FILL_LIST(field, source, member)                                                           \
    if (!unpacked_list(from->lists, &m->field, (size_t)q->n_##source, sizeof(**m->field)))         \
        return -ENOMEM;                                                                            \
    m->n_##field = (size_t)q->n_##source;                                                          \
    for (size_t i = 0; i < m->n_##field; i++)                                                      \
        fill_##member(m->field[i], &q->source[i], from);

/* Defines fill_name(), from a `type` to a message: 0, or -ENOMEM where the rows have a list. */
#define FILLER(name, message, descriptor, type, FIELDS)                                            \
    static int fill_##name(void *to, const void *report, struct sources *from)                     \
    {                                                                                              \
        Nvllm__V1__##message *m = to;                                                              \
        const type *q = report;                                                                    \
                                                                                                   \
        (void)q, (void)from;                                                                       \
        protobuf_c_message_init(&nvllm__v1__##descriptor##__descriptor, m);                        \
        FIELDS(FILL)                                                                               \
        return 0;                                                                                  \
    }

FILLER(blocks, Blocks, blocks, void, BLOCK_SUMS_FIELDS)
FILLER(hits, PrefixCache, prefix_cache, void, CACHE_HITS_FIELDS)
FILLER(host, CacheTier, cache_tier, struct engine_status, STATUS_HOST_FIELDS)
FILLER(disk, CacheTier, cache_tier, struct engine_status, STATUS_DISK_FIELDS)
FILLER(requests, Requests, requests, struct engine_status, STATUS_REQUESTS_FIELDS)
FILLER(memory, Memory, memory, struct engine_status, STATUS_MEMORY_FIELDS)
FILLER(rank, Rank, rank, struct backend_device, RANK_FIELDS)
FILLER(status, Status, status, struct engine_status, STATUS_FIELDS)
FILLER(request_info, RequestInfo, request_info, struct inspect_request, REQUEST_INFO_FIELDS)
FILLER(request_list, RequestList, request_list, struct inspect_report, REQUEST_LIST_FIELDS)
FILLER(uid_blocks, BlocksOfUid, blocks_of_uid, struct inspect_client_blocks, UID_BLOCKS_FIELDS)
FILLER(request_blocks, BlocksOfRequest, blocks_of_request, struct inspect_request,
       REQUEST_BLOCKS_FIELDS)
FILLER(block_report, BlockReport, block_report, struct inspect_report, BLOCKS_FIELDS)
FILLER(cached_prefix, CachedPrefix, cached_prefix, struct inspect_prefix, CACHED_PREFIX_FIELDS)
FILLER(cache, CacheReport, cache_report, struct inspect_report, CACHE_FIELDS)
FILLER(cache_change, CacheChanged, cache_changed, struct inspect_report, CACHE_CHANGE_FIELDS)
FILLER(sleep_change, Slept, slept, struct inspect_report, SLEEP_CHANGE_FIELDS)
FILLER(why_waiting, Explanation, explanation, struct inspect_report, WHY_WAITING_FIELDS)
FILLER(why_cached, Explanation, explanation, struct inspect_report, WHY_CACHED_FIELDS)
FILLER(session_info, SessionInfo, session_info, struct chat_session, SESSION_INFO_FIELDS)

/* The engine numbers its enums as the protocol does. */
_Static_assert((int)INSPECT_ENDING == (int)NVLLM__V1__REQUEST_STATE__REQUEST_ENDING, "states");
_Static_assert((int)SLEEP_ALL == (int)NVLLM__V1__SLEEP_LEVEL__SLEEP_ALL, "levels");
_Static_assert((int)TRACE_PART == (int)NVLLM__V1__TRACE_KIND__TRACE_PART, "kinds");
_Static_assert((int)ENGINE_PART_DRAFT == (int)NVLLM__V1__ENGINE_PART__PART_DRAFT, "parts");
_Static_assert((int)INSPECT_WHY_OFFLOADED == (int)NVLLM__V1__WAIT_REASON__WAIT_OFFLOADED,
               "reasons");

/* ---- traces */

/* Absent where it is 0, so that a record takes a few bytes. */
#define FILL_USED(field, source)                                                                   \
    m->field = source;                                                                             \
    m->has_##field = m->field != 0;

static void fill_record(Nvllm__V1__TraceRecord *m, const struct trace_record *q)
{
    nvllm__v1__trace_record__init(m);
    FILL_USED(kind, (Nvllm__V1__TraceKind)(int)q->kind)
    FILL_USED(at_us, q->at_us)
    FILL_USED(took_us, q->took_us)
    FILL_USED(request, q->request)
    FILL_USED(choice, (uint32_t)q->choice)
    FILL_USED(finish_reason, reply_finish((enum core_reason)q->reason))
    FILL_USED(since, (Nvllm__V1__TraceKind)(int)q->since)
    FILL_USED(step, q->step)
    FILL_USED(decode_tokens, (uint32_t)q->n_decodes)
    FILL_USED(prompt_tokens, (uint32_t)q->n_prompt)
    FILL_USED(sequences, (uint32_t)q->n_seqs)
    FILL_USED(part, (Nvllm__V1__EnginePart)q->part)
}

int trace_put(struct pending *p, const struct engine_event *ev)
{
    const int64_t most = p->server->parts.options->output_pause_bytes;
    struct connection *to = p->client->connection;
    Nvllm__V1__TraceChunk m = NVLLM__V1__TRACE_CHUNK__INIT;
    Nvllm__V1__TraceRecord *records;
    struct unpacked *lists;
    int r = -ENOMEM;

    if (connection_unread_bytes(to) > (size_t)most) {
        p->dropped += ev->n_records;
        return CONNECTION_OK;
    }
    lists = unpacked_new();
    records = unpacked_list(lists, &m.records, ev->n_records, sizeof(*records));
    m.n_records = ev->n_records;
    for (size_t i = 0; records && i < ev->n_records; i++)
        fill_record(&records[i], &ev->records[i]);
    if (records)
        r = reply_put(to, p->client_id, EVENT(TRACE_CHUNK), &m);
    unpacked_free(lists);
    return r;
}

static int fill_traced(void *to, const void *report, struct sources *from)
{
    const struct inspect_report *q = report;
    Nvllm__V1__Traced *m = to;

    nvllm__v1__traced__init(m);
    m->has_took_us = m->has_dropped = true;
    m->took_us = q->took_us;
    m->dropped = q->dropped + from->unread;
    return 0;
}

/* ---- frames */

int client_status(struct client_call *c, struct refusal *e)
{
    const struct server *s = c->client->server;
    struct engine_status engine;
    struct sources from = {.server = s, .engine = &engine, .core = &engine.core};
    Nvllm__V1__Status m;
    int rc;

    (void)e;
    engine_status(s->parts.engine, &engine);
    from.lists = unpacked_new();
    rc = fill_status(&m, &engine, &from);
    if (rc == 0)
        rc = reply_put(c->client->connection, c->frame->id, EVENT(STATUS), &m);
    unpacked_free(from.lists);
    return rc;
}

/* The frame of each report, and what fills it. */
static const struct {
    Nvllm__V1__ServerFrame__EventCase event;
    int (*fill)(void *message, const void *report, struct sources *from);
} reports[] = {
    [INSPECT_REQUESTS] = {EVENT(REQUEST_LIST), fill_request_list},
    [INSPECT_BLOCKS] = {EVENT(BLOCK_REPORT), fill_block_report},
    [INSPECT_CACHE] = {EVENT(CACHE_REPORT), fill_cache},
    [INSPECT_CACHE_CLEAR] = {EVENT(CACHE_CHANGED), fill_cache_change},
    [INSPECT_CACHE_PIN] = {EVENT(CACHE_CHANGED), fill_cache_change},
    [INSPECT_EXPLAIN_REQUEST] = {EVENT(EXPLANATION), fill_why_waiting},
    [INSPECT_EXPLAIN_PROMPT] = {EVENT(EXPLANATION), fill_why_cached},
    [INSPECT_SLEEP] = {EVENT(SLEPT), fill_sleep_change},
    [INSPECT_WAKE] = {EVENT(SLEPT), fill_sleep_change},
    [INSPECT_TRACE] = {EVENT(TRACED), fill_traced},
};

void inspection_fill_session(Nvllm__V1__SessionInfo *m, const struct chat_session *c)
{
    (void)fill_session_info(m, c, NULL);
}

int inspection_put(const struct pending *p, const struct inspect_report *r)
{
    struct engine_status engine;
    struct sources from = {.engine = &engine,
                           .core = &r->stats,
                           .server = p->server,
                           .now_us = r->now_us,
                           .unread = p->dropped};
    union {
        Nvllm__V1__RequestList requests;
        Nvllm__V1__BlockReport blocks;
        Nvllm__V1__CacheReport cache;
        Nvllm__V1__CacheChanged change;
        Nvllm__V1__Slept slept;
        Nvllm__V1__Traced traced;
        Nvllm__V1__Explanation why;
    } m;
    Nvllm__V1__RequestInfo info;
    struct refusal e;
    int rc;

    if (r->kind == INSPECT_EXPLAIN_REQUEST && !r->found) {
        refusal_of_field(&e, CODE(INVALID), "request", "it has ended");
        return reply_error(p->client->connection, p->client_id, &e);
    }
    engine_status(p->server->parts.engine, &engine);
    from.lists = unpacked_new();
    rc = reports[r->kind].fill(&m, r, &from);
    if (r->kind == INSPECT_EXPLAIN_REQUEST) {
        fill_request_info(&info, &r->requests[0], &from);
        m.why.info = &info;
    }
    if (rc == 0)
        rc = reply_put(p->client->connection, p->client_id, reports[r->kind].event, &m);
    unpacked_free(from.lists);
    return rc;
}
