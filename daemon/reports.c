/* reports.c - see reports.h. Messages of a list lie in one allocation, pointers first, and point
 * into the report. */
#include "daemon/reports.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/nvllm.pb-c.h"

#define EVENT(name) NVLLM__V1__SERVER_FRAME__EVENT_##name

static void frame_init(Nvllm__V1__ServerFrame *f, uint64_t id,
                       Nvllm__V1__ServerFrame__EventCase event)
{
    nvllm__v1__server_frame__init(f);
    f->has_id = true;
    f->id = id;
    f->event_case = event;
}

/* Room for n pointers and n messages of a size; NULL: no memory. n may be 0. */
static void *list_new(size_t n, size_t size, void **messages)
{
    char *p = calloc(n + 1, size + sizeof(void *));

    if (p)
        *messages = p + (n + 1) * sizeof(void *);
    return p;
}

static uint32_t count(int32_t n)
{
    return n > 0 ? (uint32_t)n : 0;
}

static uint64_t since(uint64_t from_us, uint64_t now_us)
{
    return from_us && now_us > from_us ? now_us - from_us : 0;
}

/* ---- requests */

static Nvllm__V1__RequestState state_of(enum inspect_state s)
{
    static const Nvllm__V1__RequestState states[] = {
        [INSPECT_ENCODING] = NVLLM__V1__REQUEST_STATE__REQUEST_ENCODING,
        [INSPECT_WAITING] = NVLLM__V1__REQUEST_STATE__REQUEST_WAITING,
        [INSPECT_HELD] = NVLLM__V1__REQUEST_STATE__REQUEST_HELD,
        [INSPECT_PREFILL] = NVLLM__V1__REQUEST_STATE__REQUEST_PREFILL,
        [INSPECT_DECODE] = NVLLM__V1__REQUEST_STATE__REQUEST_DECODE,
        [INSPECT_PREEMPTED] = NVLLM__V1__REQUEST_STATE__REQUEST_PREEMPTED,
        [INSPECT_ENDING] = NVLLM__V1__REQUEST_STATE__REQUEST_ENDING,
    };

    return states[s];
}

static Nvllm__V1__Priority priority_of(enum core_priority p)
{
    return p == CORE_LOW    ? NVLLM__V1__PRIORITY__PRIORITY_LOW
           : p == CORE_HIGH ? NVLLM__V1__PRIORITY__PRIORITY_HIGH
                            : NVLLM__V1__PRIORITY__PRIORITY_NORMAL;
}

static void fill_request(Nvllm__V1__RequestInfo *m, const struct inspect_request *q,
                         const struct inspect_report *r, const struct report_facts *facts)
{
    uint64_t generating_us = since(q->first_us, r->now_us);

    nvllm__v1__request_info__init(m);
    m->has_request = m->has_uid = m->has_state = m->has_priority = m->has_place = true;
    m->request = q->id;
    m->uid = (uint32_t)q->client;
    m->pid = facts->pid_of(facts->ctx, q->id);
    m->has_pid = m->pid != 0;
    m->state = state_of(q->state);
    m->priority = priority_of(q->priority);
    m->place = count(q->place);
    m->has_choices = m->has_prompt_tokens = m->has_cached_tokens = m->has_computed_tokens = true;
    m->choices = count(q->n);
    m->prompt_tokens = count(q->prompt_tokens);
    m->cached_tokens = count(q->cached_tokens);
    m->computed_tokens = count(q->computed_tokens);
    m->has_generated_tokens = m->has_max_tokens = m->has_blocks = m->has_preemptions = true;
    m->generated_tokens = count(q->generated_tokens);
    m->max_tokens = count(q->max_tokens);
    m->blocks = count(q->blocks);
    m->preemptions = count(q->preemptions);
    m->has_age_us = m->has_run_us = m->has_tokens_per_s = true;
    m->age_us = since(q->arrival_us, r->now_us);
    m->run_us = since(q->start_us, r->now_us);
    if (generating_us && q->generated_tokens > 1)
        m->tokens_per_s = (q->generated_tokens - 1) * 1e6 / (double)generating_us;
}

static int put_requests(struct connection *c, uint64_t id, const struct inspect_report *r,
                        const struct report_facts *facts)
{
    Nvllm__V1__ServerFrame f;
    Nvllm__V1__RequestList m = NVLLM__V1__REQUEST_LIST__INIT;
    Nvllm__V1__RequestInfo *infos;
    int ret;

    m.requests = list_new((size_t)r->n_requests, sizeof(*infos), (void **)&infos);
    if (!m.requests)
        return -ENOMEM;
    frame_init(&f, id, EVENT(REQUEST_LIST));
    f.request_list = &m;
    m.n_requests = (size_t)r->n_requests;
    for (int32_t i = 0; i < r->n_requests; i++) {
        fill_request(&infos[i], &r->requests[i], r, facts);
        m.requests[i] = &infos[i];
    }
    m.has_total = true;
    m.total = count(r->total);
    ret = connection_put(c, &f.base);
    free(m.requests);
    return ret;
}

/* ---- blocks */

static int fill_blocks_of(Nvllm__V1__BlockReport *m, const struct inspect_report *r)
{
    Nvllm__V1__BlocksOfUid *uids;
    Nvllm__V1__BlocksOfRequest *requests;

    m->uids = list_new((size_t)r->n_clients, sizeof(*uids), (void **)&uids);
    m->requests = list_new((size_t)r->n_requests, sizeof(*requests), (void **)&requests);
    if (!m->uids || !m->requests)
        return -ENOMEM;
    m->n_uids = (size_t)r->n_clients;
    m->n_requests = (size_t)r->n_requests;
    for (int32_t i = 0; i < r->n_clients; i++) {
        Nvllm__V1__BlocksOfUid *b = m->uids[i] = &uids[i];

        nvllm__v1__blocks_of_uid__init(b);
        b->has_uid = b->has_used = b->has_requests = true;
        b->uid = (uint32_t)r->clients[i].client;
        b->used = count(r->clients[i].used);
        b->requests = count(r->clients[i].requests);
    }
    for (int32_t i = 0; i < r->n_requests; i++) {
        Nvllm__V1__BlocksOfRequest *b = m->requests[i] = &requests[i];

        nvllm__v1__blocks_of_request__init(b);
        b->has_request = b->has_uid = b->has_used = b->has_shared = true;
        b->request = r->requests[i].id;
        b->uid = (uint32_t)r->requests[i].client;
        b->used = count(r->requests[i].blocks);
        b->shared = count(r->requests[i].shared);
    }
    return 0;
}

static int put_blocks(struct connection *c, uint64_t id, const struct inspect_report *r,
                      const struct report_facts *facts)
{
    Nvllm__V1__ServerFrame f;
    Nvllm__V1__BlockReport m = NVLLM__V1__BLOCK_REPORT__INIT;
    Nvllm__V1__Blocks blocks = NVLLM__V1__BLOCKS__INIT;
    int ret = fill_blocks_of(&m, r);

    if (ret == 0) {
        frame_init(&f, id, EVENT(BLOCK_REPORT));
        f.block_report = &m;
        m.blocks = &blocks;
        blocks.has_total = blocks.has_used = blocks.has_cached = blocks.has_free = true;
        blocks.total = count(r->stats.blocks_total);
        blocks.used = count(r->stats.blocks_used);
        blocks.cached = count(r->stats.blocks_cached);
        blocks.free = count(r->stats.blocks_free);
        m.has_pinned = m.has_block_len = m.has_block_bytes = true;
        m.pinned = count(r->pinned_blocks);
        m.block_len = count(facts->block_len);
        m.block_bytes = facts->block_bytes;
        m.has_map = r->n_map > 0;
        m.map = (ProtobufCBinaryData){count(r->n_map), r->map};
        ret = connection_put(c, &f.base);
    }
    free(m.uids);
    free(m.requests);
    return ret;
}

/* ---- cache */

static void fill_prefix(Nvllm__V1__CachedPrefix *m, const struct inspect_prefix *p, uint64_t now_us)
{
    nvllm__v1__cached_prefix__init(m);
    m->has_uid = m->has_tokens = m->has_blocks = m->has_hits = true;
    m->uid = (uint32_t)p->client;
    m->tokens = count(p->tokens);
    m->blocks = count(p->blocks);
    m->hits = p->hits;
    m->has_age_ms = m->has_idle_ms = m->has_holders = m->has_pinned = true;
    m->age_ms = since(p->written_us, now_us) / 1000;
    m->idle_ms = since(p->used_us, now_us) / 1000;
    m->holders = count(p->holders);
    m->pinned = p->pinned;
    m->n_head_ids = count(p->n_head);
    m->head_ids = (int32_t *)(uintptr_t)p->head; /* packing only reads */
}

static int put_cache(struct connection *c, uint64_t id, const struct inspect_report *r)
{
    Nvllm__V1__ServerFrame f;
    Nvllm__V1__CacheReport m = NVLLM__V1__CACHE_REPORT__INIT;
    Nvllm__V1__PrefixCache counts = NVLLM__V1__PREFIX_CACHE__INIT;
    Nvllm__V1__CachedPrefix *prefixes;
    int ret;

    m.prefixes = list_new((size_t)r->n_prefixes, sizeof(*prefixes), (void **)&prefixes);
    if (!m.prefixes)
        return -ENOMEM;
    frame_init(&f, id, EVENT(CACHE_REPORT));
    f.cache_report = &m;
    m.n_prefixes = (size_t)r->n_prefixes;
    for (int32_t i = 0; i < r->n_prefixes; i++) {
        fill_prefix(&prefixes[i], &r->prefixes[i], r->now_us);
        m.prefixes[i] = &prefixes[i];
    }
    m.counts = &counts;
    counts.has_queried_tokens = counts.has_hit_tokens = true;
    counts.queried_tokens = r->stats.queried_tokens;
    counts.hit_tokens = r->stats.hit_tokens;
    m.has_total = m.has_evictions = m.has_pinned_blocks = true;
    m.total = count(r->total);
    m.evictions = r->evictions;
    m.pinned_blocks = count(r->pinned_blocks);
    ret = connection_put(c, &f.base);
    free(m.prefixes);
    return ret;
}

static int put_changed(struct connection *c, uint64_t id, const struct inspect_report *r)
{
    Nvllm__V1__ServerFrame f;
    Nvllm__V1__CacheChanged m = NVLLM__V1__CACHE_CHANGED__INIT;

    frame_init(&f, id, EVENT(CACHE_CHANGED));
    f.cache_changed = &m;
    m.has_blocks = m.has_tokens = true;
    m.blocks = count(r->changed_blocks);
    m.tokens = count(r->changed_tokens);
    return connection_put(c, &f.base);
}

/* ---- why */

static Nvllm__V1__WaitReason reason_of(enum inspect_why why)
{
    static const Nvllm__V1__WaitReason reasons[] = {
        [INSPECT_WHY_RUNS] = NVLLM__V1__WAIT_REASON__WAIT_NOT,
        [INSPECT_WHY_ENCODING] = NVLLM__V1__WAIT_REASON__WAIT_ENCODING,
        [INSPECT_WHY_SEQS] = NVLLM__V1__WAIT_REASON__WAIT_SEQS,
        [INSPECT_WHY_BLOCKS] = NVLLM__V1__WAIT_REASON__WAIT_BLOCKS,
        [INSPECT_WHY_PREFIX] = NVLLM__V1__WAIT_REASON__WAIT_PREFIX,
        [INSPECT_WHY_SHARE] = NVLLM__V1__WAIT_REASON__WAIT_SHARE,
        [INSPECT_WHY_STEP] = NVLLM__V1__WAIT_REASON__WAIT_STEP,
    };

    return reasons[why];
}

/* Why a request waits, in a sentence. */
static void say_why(char *text, size_t n, const struct inspect_report *r)
{
    const struct inspect_request *q = &r->requests[0];

    switch (r->why) {
    case INSPECT_WHY_RUNS:
        snprintf(text, n, "it runs: %d of %d prompt tokens are computed, %d tokens generated",
                 q->computed_tokens, q->prompt_tokens, q->generated_tokens);
        break;
    case INSPECT_WHY_ENCODING:
        snprintf(text, n, "its prompt is being rendered and tokenized");
        break;
    case INSPECT_WHY_SEQS:
        snprintf(text, n,
                 "as many sequences run as may at a time (scheduler.max_seqs); it is "
                 "number %d of those that wait",
                 q->place);
        break;
    case INSPECT_WHY_BLOCKS:
        if (q->place <= 0)
            snprintf(text, n,
                     "it has lost its blocks or its place to others and begins again once its last "
                     "step is over");
        else if (r->blocks_needed > r->blocks_available)
            snprintf(text, n, "it needs %d blocks to begin, and %d can be had", r->blocks_needed,
                     r->blocks_available);
        else
            snprintf(text, n,
                     "it is number %d of those that wait, and for the first of them there are "
                     "not enough free blocks",
                     q->place);
        break;
    case INSPECT_WHY_PREFIX:
        snprintf(text, n,
                 "another request computes what both begin with; it will find that in "
                 "the cache");
        break;
    case INSPECT_WHY_SHARE:
        snprintf(text, n,
                 "requests of higher priority, or of users who have had less, go first; "
                 "it is number %d of those that wait",
                 q->place);
        break;
    case INSPECT_WHY_STEP:
        snprintf(text, n, "the next step takes it");
        break;
    }
}

static int put_explained_request(struct connection *c, uint64_t id, const struct inspect_report *r,
                                 const struct report_facts *facts)
{
    Nvllm__V1__ServerFrame f;
    Nvllm__V1__Explanation m = NVLLM__V1__EXPLANATION__INIT;
    Nvllm__V1__RequestInfo info;
    char text[256];

    if (!r->found || r->n_requests < 1)
        return CONNECTION_OK;
    frame_init(&f, id, EVENT(EXPLANATION));
    f.explanation = &m;
    fill_request(&info, &r->requests[0], r, facts);
    m.info = &info;
    m.has_reason = m.has_blocks_needed = m.has_blocks_available = true;
    m.reason = reason_of(r->why);
    m.blocks_needed = count(r->blocks_needed);
    m.blocks_available = count(r->blocks_available);
    say_why(text, sizeof(text), r);
    m.text = text;
    return connection_put(c, &f.base);
}

static int put_explained_prompt(struct connection *c, uint64_t id, const struct inspect_report *r)
{
    Nvllm__V1__ServerFrame f;
    Nvllm__V1__Explanation m = NVLLM__V1__EXPLANATION__INIT;
    char text[256];
    int n;

    frame_init(&f, id, EVENT(EXPLANATION));
    f.explanation = &m;
    m.has_prompt_tokens = m.has_cached_tokens = m.has_same_tokens = true;
    m.prompt_tokens = count(r->prompt_tokens);
    m.cached_tokens = count(r->cached_tokens);
    m.same_tokens = count(r->same_tokens);
    m.has_next_id = r->next_id >= 0;
    m.next_id = r->next_id;
    m.n_other_ids = count(r->n_other);
    m.other_ids = (int32_t *)(uintptr_t)r->other; /* packing only reads */
    n = snprintf(text, sizeof(text), "%d of %d tokens are cached", r->cached_tokens,
                 r->prompt_tokens);
    if (r->compared)
        n += snprintf(text + n, sizeof(text) - (size_t)n,
                      "; a cached prompt begins with the same %d tokens", r->same_tokens);
    if (r->next_id >= 0 && r->n_other > 0)
        snprintf(text + n, sizeof(text) - (size_t)n, "; then comes token %d, and there token %d",
                 r->next_id, r->other[0]);
    m.text = text;
    return connection_put(c, &f.base);
}

int report_put(struct connection *c, uint64_t id, const struct inspect_report *r,
               const struct report_facts *facts)
{
    switch (r->kind) {
    case INSPECT_REQUESTS:
        return put_requests(c, id, r, facts);
    case INSPECT_BLOCKS:
        return put_blocks(c, id, r, facts);
    case INSPECT_CACHE:
        return put_cache(c, id, r);
    case INSPECT_CACHE_CLEAR:
    case INSPECT_CACHE_PIN:
        return put_changed(c, id, r);
    case INSPECT_EXPLAIN_REQUEST:
        return put_explained_request(c, id, r, facts);
    case INSPECT_EXPLAIN_PROMPT:
        break;
    }
    return put_explained_prompt(c, id, r);
}
