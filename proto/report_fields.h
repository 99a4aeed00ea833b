/* report_fields.h - every field of the daemon's reports, described once.
 *
 * F(kind, field, source, member, key) is one field on its way from the core to a terminal:
 *
 *     kind    how it is copied and printed: COUNT (unsigned), INT, REAL, MS (microseconds, printed
 *             as milliseconds), FLAG, TEXT, TOKEN (an id, or -1 for none), IDS (an array of ids),
 *             an enum (STATE, REQUEST_STATE, PRIORITY, WAIT_REASON, SLEEP_LEVEL), or one of
 *             GROUP  a message inside this one; FLAT the same, printed without braces of its own
 *             LIST   an array of messages
 *             BYTES  printed only on request
 *     field   of the protobuf message
 *     source  what daemon/inspection.c fills the field from: an expression over `q`, the report or
 *             list entry at hand, and `from`; for IDS and LIST an array of q; for GROUP and FLAT
 *             the name of the rows
 *     member  of the library's public struct; for GROUP, FLAT and LIST the name of the rows
 *     key     in nvllmctl's JSON, in this order
 *
 * To add a counter: the core's field, the field in nvllm.proto, the member in the public header,
 * and one row here. */
#ifndef NVLLM_PROTO_REPORT_FIELDS_H
#define NVLLM_PROTO_REPORT_FIELDS_H

/* clang-format off */

/* ---- parts of several reports; `at` begins the member's name */

#define BLOCK_SUM_FIELDS(F, at) \
    F(COUNT, total,  from->core->blocks_total,  at##total,  total) \
    F(COUNT, used,   from->core->blocks_used,   at##used,   used) \
    F(COUNT, cached, from->core->blocks_cached, at##cached, cached) \
    F(COUNT, free,   from->core->blocks_free,   at##free,   free)

#define HIT_FIELDS(F, at) \
    F(COUNT, queried_tokens, from->core->queried_tokens, at##queried_tokens, queried_tokens) \
    F(COUNT, hit_tokens,     from->core->hit_tokens,     at##hit_tokens,     hit_tokens)

/* ---- status: nvllm_status */

#define STATUS_BLOCKS_FIELDS(F) BLOCK_SUM_FIELDS(F, blocks_)
#define STATUS_HITS_FIELDS(F)   HIT_FIELDS(F, prefix_)

#define TIER_FIELDS(F, tier, prefix, n_bytes) \
    F(COUNT, bytes,  n_bytes,                    prefix##bytes,         bytes) \
    F(COUNT, total,  q->core.tiers[tier].total,  prefix##blocks_total,  total) \
    F(COUNT, cached, q->core.tiers[tier].cached, prefix##blocks_cached, cached) \
    F(COUNT, stored, q->core.tiers[tier].stored, prefix##blocks_stored, stored) \
    F(COUNT, loaded, q->core.tiers[tier].loaded, prefix##blocks_loaded, loaded)

#define STATUS_HOST_FIELDS(F) TIER_FIELDS(F, TIER_HOST, host_, q->backend.tiers[TIER_HOST].bytes)
#define STATUS_DISK_FIELDS(F) \
    TIER_FIELDS(F, TIER_DISK, disk_, q->core.tiers[TIER_DISK].cached * q->backend.block_bytes)

#define STATUS_REQUESTS_FIELDS(F) \
    F(COUNT, running, q->core.requests_running,                 requests_running, running) \
    F(COUNT, waiting, q->core.requests_waiting + q->n_encoding, requests_waiting, waiting)

#define STATUS_MEMORY_FIELDS(F) \
    F(COUNT, weight_bytes,    q->backend.weight_bytes,    weight_bytes,    weight_bytes) \
    F(COUNT, kv_bytes,        q->backend.tiers[TIER_DEVICE].bytes, kv_bytes,        kv_bytes) \
    F(COUNT, graph_bytes,     q->backend.graph_bytes,     graph_bytes,     graph_bytes) \
    F(COUNT, workspace_bytes, q->backend.workspace_bytes, workspace_bytes, workspace_bytes) \
    F(COUNT, draft_bytes,     q->draft_bytes,             draft_bytes,     draft_bytes) \
    F(COUNT, other_bytes,     q->backend.other_bytes,     other_bytes,     other_bytes) \
    F(COUNT, total_bytes,     q->backend.total_bytes,     total_bytes,     total_bytes) \
    F(COUNT, free_bytes,      q->backend.free_bytes,      free_bytes,      free_bytes)

#define RANK_FIELDS(F) \
    F(TEXT,  device,         q->name,           device,         device) \
    F(COUNT, total_bytes,    q->total_bytes,    total_bytes,    total_bytes) \
    F(COUNT, free_bytes,     q->free_bytes,     free_bytes,     free_bytes) \
    F(REAL,  exchange_share, q->exchange_share, exchange_share, exchange_share)

#define STATUS_FIELDS(F) \
    F(STATE, state,         server_state(from->server),  state,           state) \
    F(REAL,  progress,      q->progress,                 progress,        progress) \
    F(TEXT,  model,         from->server->parts.model,   model,           model) \
    F(TEXT,  model_folder,  from->server->parts.options->model_path, model_folder, model_folder) \
    F(TEXT,  backend,       from->server->parts.backend, backend,         backend) \
    F(TEXT,  device,        q->backend.devices[0].name,  device,          device) \
    F(TEXT,  driver,        q->backend.driver,           driver,          driver) \
    F(TEXT,  server,        SERVER_NAME,                 server,          server) \
    F(COUNT, uptime_ms,     clock_us() / 1000 - from->server->start_ms, uptime_ms, uptime_ms) \
    F(GROUP, blocks,        blocks,                      status_blocks,   blocks) \
    F(GROUP, host_memory,   host,                        status_host,     host_memory) \
    F(GROUP, disk,          disk,                        status_disk,     disk) \
    F(GROUP, requests,      requests,                    status_requests, requests) \
    F(GROUP, prefix_cache,  hits,                        status_hits,     prefix_cache) \
    F(COUNT, preemptions,   q->core.preemptions,         preemptions,     preemptions) \
    F(COUNT, block_len,     q->block_len,                block_len,       block_len) \
    F(COUNT, embedding_dim, q->embedding_dim,            embedding_dim,   embedding_dim) \
    F(COUNT, max_seq_len,   q->max_seq_len,              max_seq_len,     max_seq_len) \
    F(COUNT, connections,   server_connections(from->server), connections, connections) \
    F(GROUP, memory,        memory,                      status_memory,   memory) \
    F(COUNT, steps,         q->core.steps,               steps,           steps) \
    F(COUNT, prompt_tokens, q->core.prompt_tokens,       prompt_tokens,   prompt_tokens) \
    F(COUNT, output_tokens, q->core.output_tokens,       output_tokens,   output_tokens) \
    F(COUNT, draft_tokens,  q->core.draft_tokens,        draft_tokens,    draft_tokens) \
    F(COUNT, accepted_tokens, q->core.accepted_tokens,   accepted_tokens, accepted_tokens) \
    F(COUNT, model_draft_tokens, q->core.model_draft_tokens, model_draft_tokens, model_draft_tokens) \
    F(COUNT, model_accepted_tokens, q->core.model_accepted_tokens, model_accepted_tokens, \
      model_accepted_tokens) \
    F(SLEEP_LEVEL, asleep,  q->asleep,                   asleep,          asleep) \
    F(COUNT, tensor_parallel, q->backend.tp_size,        tensor_parallel, tensor_parallel) \
    F(COUNT, processes,     q->backend.n_processes,      processes,       processes) \
    F(LIST,  ranks,         ranks,                       rank,            ranks) \
    F(TEXT,  weights,       q->weights,                  weights,         weights) \
    F(TEXT,  kv_dtype,      q->kv_dtype,                 kv_dtype,        kv_dtype)

/* ---- requests: nvllm_request_info, nvllm_request_list */

#define REQUEST_INFO_FIELDS(F) \
    F(COUNT, request,          q->id,                     request,          request) \
    F(COUNT, uid,              q->client,                 uid,              uid) \
    F(INT,   pid,              pid_of(from, q->id),       pid,              pid) \
    F(REQUEST_STATE, state,    q->state,                  state,            state) \
    F(PRIORITY, priority,      wire_priority(q->priority), priority,        priority) \
    F(COUNT, place,            q->place,                  place,            place) \
    F(COUNT, choices,          q->n,                      choices,          choices) \
    F(COUNT, prompt_tokens,    q->prompt_tokens,          prompt_tokens,    prompt_tokens) \
    F(COUNT, cached_tokens,    q->cached_tokens,          cached_tokens,    cached_tokens) \
    F(COUNT, computed_tokens,  q->computed_tokens,        computed_tokens,  computed_tokens) \
    F(COUNT, generated_tokens, q->generated_tokens,       generated_tokens, generated_tokens) \
    F(COUNT, max_tokens,       q->max_tokens,             max_tokens,       max_tokens) \
    F(COUNT, blocks,           q->blocks,                 blocks,           blocks) \
    F(COUNT, preemptions,      q->preemptions,            preemptions,      preemptions) \
    F(COUNT, draft_tokens,     q->draft_tokens,           draft_tokens,     draft_tokens) \
    F(COUNT, accepted_tokens,  q->accepted_tokens,        accepted_tokens,  accepted_tokens) \
    F(COUNT, model_draft_tokens, q->model_draft_tokens,   model_draft_tokens, model_draft_tokens) \
    F(COUNT, model_accepted_tokens, q->model_accepted_tokens, model_accepted_tokens, \
      model_accepted_tokens) \
    F(MS,    age_us,           since(q->arrival_us, from), age_us,          age_ms) \
    F(MS,    run_us,           since(q->start_us, from),  run_us,           run_ms) \
    F(REAL,  tokens_per_s,     decode_rate(q, from),      tokens_per_s,     tok_s)

#define REQUEST_LIST_FIELDS(F) \
    F(LIST,  requests, requests, request_info, requests) \
    F(COUNT, total,    q->total, total,        total)

/* ---- blocks: nvllm_uid_blocks, nvllm_request_blocks, nvllm_blocks */

#define UID_BLOCKS_FIELDS(F) \
    F(COUNT, uid,      q->client,   uid,      uid) \
    F(COUNT, used,     q->used,     used,     used) \
    F(COUNT, requests, q->requests, requests, requests)

#define REQUEST_BLOCKS_FIELDS(F) \
    F(COUNT, request, q->id,     request, request) \
    F(COUNT, uid,     q->client, uid,     uid) \
    F(COUNT, used,    q->blocks, used,    used) \
    F(COUNT, shared,  q->shared, shared,  shared)

#define BLOCK_SUMS_FIELDS(F) BLOCK_SUM_FIELDS(F, )

#define BLOCKS_FIELDS(F) \
    F(FLAT,  blocks,      blocks,                            block_sums,     ) \
    F(COUNT, pinned,      q->pinned_blocks,                  pinned,         pinned) \
    F(COUNT, block_len,   from->engine->block_len,           block_len,      block_len) \
    F(COUNT, block_bytes, from->engine->backend.block_bytes, block_bytes,    block_bytes) \
    F(LIST,  uids,        clients,                           uid_blocks,     uids) \
    F(LIST,  requests,    requests,                          request_blocks, requests) \
    F(BYTES, map,         map,                               map,            map)

/* ---- the prefix cache: nvllm_cached_prefix, nvllm_cache, nvllm_cache_change */

#define CACHED_PREFIX_FIELDS(F) \
    F(COUNT, uid,      q->client,                        uid,      uid) \
    F(COUNT, tokens,   q->tokens,                        tokens,   tokens) \
    F(COUNT, blocks,   q->blocks,                        blocks,   blocks) \
    F(COUNT, hits,     q->hits,                          hits,     hits) \
    F(COUNT, age_ms,   since(q->written_us, from) / 1000, age_ms,  age_ms) \
    F(COUNT, idle_ms,  since(q->used_us, from) / 1000,   idle_ms,  idle_ms) \
    F(COUNT, holders,  q->holders,                       holders,  holders) \
    F(FLAG,  pinned,   q->pinned,                        pinned,   pinned) \
    F(COUNT, host_blocks, q->found_in[TIER_HOST],        host_blocks, host_blocks) \
    F(COUNT, disk_blocks, q->found_in[TIER_DISK],        disk_blocks, disk_blocks) \
    F(IDS,   head_ids, head,                             head_ids, head_ids)

#define CACHE_HITS_FIELDS(F) HIT_FIELDS(F, )

#define CACHE_FIELDS(F) \
    F(LIST,  prefixes,      prefixes,         cached_prefix, prefixes) \
    F(COUNT, total,         q->total,         total,         total) \
    F(FLAT,  counts,        hits,             cache_hits,    ) \
    F(COUNT, evictions,     q->evictions,     evictions,     evictions) \
    F(COUNT, pinned_blocks, q->pinned_blocks, pinned_blocks, pinned_blocks)

#define CACHE_CHANGE_FIELDS(F) \
    F(COUNT, blocks, q->changed_blocks, blocks, blocks) \
    F(COUNT, tokens, q->changed_tokens, tokens, tokens)

/* ---- sleep: nvllm_sleep_change */

#define SLEEP_CHANGE_FIELDS(F) \
    F(SLEEP_LEVEL, level,  q->level,       level,       level) \
    F(COUNT, freed_bytes,  q->freed_bytes, freed_bytes, freed_bytes) \
    F(COUNT, kept_tokens,  q->kept_tokens, kept_tokens, kept_tokens) \
    F(COUNT, lost_tokens,  q->lost_tokens, lost_tokens, lost_tokens) \
    F(MS,    took_us,      q->took_us,     took_us,     took_ms)

/* ---- why: nvllm_explanation, of a request or of a prompt */

#define WHY_WAITING_FIELDS(F) \
    F(WAIT_REASON, reason,     q->why,              reason,           reason) \
    F(COUNT, blocks_needed,    q->blocks_needed,    blocks_needed,    blocks_needed) \
    F(COUNT, blocks_available, q->blocks_available, blocks_available, blocks_available) \
    F(TEXT,  text,             why_waiting(q, from), text,            text)

#define WHY_CACHED_FIELDS(F) \
    F(COUNT, prompt_tokens, q->prompt_tokens, prompt_tokens, prompt_tokens) \
    F(COUNT, cached_tokens, q->cached_tokens, cached_tokens, cached_tokens) \
    F(COUNT, host_tokens,   q->found_in[TIER_HOST], host_tokens, host_tokens) \
    F(COUNT, disk_tokens,   q->found_in[TIER_DISK], disk_tokens, disk_tokens) \
    F(COUNT, same_tokens,   q->same_tokens,   same_tokens,   same_tokens) \
    F(TOKEN, next_id,       q->next_id,       next_id,       next_id) \
    F(IDS,   other_ids,     other,            other_ids,     other_ids) \
    F(TEXT,  text,          why_cached(q, from), text,       text)

/* ---- sessions: nvllm_session_info, nvllm_session_list */

#define SESSION_INFO_FIELDS(F) \
    F(TEXT,  name,       q->name,                   name,       name) \
    F(COUNT, uid,        q->account->uid,           uid,        uid) \
    F(COUNT, turns,      (uint32_t)q->talk->n_turns, turns,     turns) \
    F(COUNT, messages,   (uint32_t)q->talk->chat.n_messages, messages, messages) \
    F(COUNT, tokens,     (uint32_t)q->talk->transcript.ids.n, tokens, tokens) \
    F(COUNT, bytes,      q->bytes,                  bytes,      bytes) \
    F(COUNT, created_us, q->created_us,             created_us, created_us) \
    F(COUNT, used_us,    q->used_us,                used_us,    used_us) \
    F(FLAG,  busy,       q->busy,                   busy,       busy)

#define SESSION_LIST_FIELDS(F) \
    F(LIST,  sessions, sessions, session_info, sessions) \
    F(COUNT, total,    q->total, total,        total)

/* ---- the client's: R(name of the rows, struct, message, rows), parts before what has them */

#define REPORT_ROWS(R) \
    R(status_blocks,   nvllm_status,         Blocks,          STATUS_BLOCKS_FIELDS) \
    R(status_requests, nvllm_status,         Requests,        STATUS_REQUESTS_FIELDS) \
    R(status_host,     nvllm_status,         CacheTier,       STATUS_HOST_FIELDS) \
    R(status_disk,     nvllm_status,         CacheTier,       STATUS_DISK_FIELDS) \
    R(status_hits,     nvllm_status,         PrefixCache,     STATUS_HITS_FIELDS) \
    R(status_memory,   nvllm_status,         Memory,          STATUS_MEMORY_FIELDS) \
    R(rank,            nvllm_rank,           Rank,            RANK_FIELDS) \
    R(status,          nvllm_status,         Status,          STATUS_FIELDS) \
    R(request_info,    nvllm_request_info,   RequestInfo,     REQUEST_INFO_FIELDS) \
    R(request_list,    nvllm_request_list,   RequestList,     REQUEST_LIST_FIELDS) \
    R(uid_blocks,      nvllm_uid_blocks,     BlocksOfUid,     UID_BLOCKS_FIELDS) \
    R(request_blocks,  nvllm_request_blocks, BlocksOfRequest, REQUEST_BLOCKS_FIELDS) \
    R(block_sums,      nvllm_blocks,         Blocks,          BLOCK_SUMS_FIELDS) \
    R(blocks,          nvllm_blocks,         BlockReport,     BLOCKS_FIELDS) \
    R(cached_prefix,   nvllm_cached_prefix,  CachedPrefix,    CACHED_PREFIX_FIELDS) \
    R(cache_hits,      nvllm_cache,          PrefixCache,     CACHE_HITS_FIELDS) \
    R(cache,           nvllm_cache,          CacheReport,     CACHE_FIELDS) \
    R(cache_change,    nvllm_cache_change,   CacheChanged,    CACHE_CHANGE_FIELDS) \
    R(sleep_change,    nvllm_sleep_change,   Slept,           SLEEP_CHANGE_FIELDS) \
    R(why_waiting,     nvllm_explanation,    Explanation,     WHY_WAITING_FIELDS) \
    R(why_cached,      nvllm_explanation,    Explanation,     WHY_CACHED_FIELDS) \
    R(session_info,    nvllm_session_info,   SessionInfo,     SESSION_INFO_FIELDS) \
    R(session_list,    nvllm_session_list,   SessionList,     SESSION_LIST_FIELDS)

/* clang-format on */

#endif
