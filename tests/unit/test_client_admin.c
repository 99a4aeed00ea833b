/* test_client_admin.c - the calls that inspect and control the daemon: the test writes the answer
 * before the call and reads the request after it. */
#include "client_rig.h"
#include "proto/report_fields.h"
#include "tests/unit/run_suite.h"

enum { MS = 1000 };

static uint64_t n_asked; /* ids count from 1 on a connection */

static void admin_greeted(void)
{
    n_asked = 0;
    greeted();
}

/* The id that the next call's request will have. */
static uint64_t next_id(void)
{
    return ++n_asked;
}

static const client_frame *asked(Nvllm__V1__ClientFrame__OpCase op)
{
    const client_frame *f = server_read(&server);

    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(f->op_case, op);
    ck_assert_uint_eq(f->id, n_asked);
    return f;
}

#define OP(name)         NVLLM__V1__CLIENT_FRAME__OP_##name
#define expect_ok(call)  ck_assert_msg((call) == NVLLM_OK, "%s", err.message)
#define expect_bad(call) ck_assert_int_eq((call), NVLLM_E_INVALID)

/* A message with these members. */
#define MESSAGE(Type, type, ...)                                                                   \
    (Nvllm__V1__##Type)                                                                            \
    {                                                                                              \
        PROTOBUF_C_MESSAGE_INIT(&nvllm__v1__##type##__descriptor), __VA_ARGS__                     \
    }

/* Marks fields that are not zero as present; gives the message back. */
static void *mark(void *message)
{
    const ProtobufCMessageDescriptor *type = ((ProtobufCMessage *)message)->descriptor;
    static const char zero[8];

    for (unsigned i = 0; i < type->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        bool wide = f->type == PROTOBUF_C_TYPE_UINT64 || f->type == PROTOBUF_C_TYPE_DOUBLE ||
                    f->type == PROTOBUF_C_TYPE_BYTES;

        if (f->quantifier_offset > 0 && f->label == PROTOBUF_C_LABEL_OPTIONAL &&
            memcmp((char *)message + f->offset, zero, wide ? 8 : 4) != 0)
            *(protobuf_c_boolean *)((char *)message + f->quantifier_offset) = true;
    }
    return message;
}

static void answer(Nvllm__V1__ServerFrame__EventCase event, void *message)
{
    Nvllm__V1__ServerFrame f = NVLLM__V1__SERVER_FRAME__INIT;

    f.has_id = true;
    f.id = next_id();
    f.event_case = event;
    f.status = mark(message); /* whichever it is: the oneof is a union of pointers */
    server_send(&server, &f);
}

#define ANSWER(EVENT, ...) answer(NVLLM__V1__SERVER_FRAME__EVENT_##EVENT, &MESSAGE(__VA_ARGS__))

/* ---- the status */

/* The ledger of a device's memory arrives, each figure in its place. */
TEST(status_has_the_ledger)
{
    Nvllm__V1__Memory memory =
        MESSAGE(Memory, memory, .weight_bytes = UINT64_C(1) << 40, .kv_bytes = 2, .graph_bytes = 3,
                .workspace_bytes = 4, .other_bytes = 5, .total_bytes = UINT64_MAX, .free_bytes = 7);
    const struct nvllm_status *status;

    Nvllm__V1__Rank one = MESSAGE(Rank, rank, .device = (char *)"one", .total_bytes = 9,
                                  .free_bytes = 8, .exchange_share = 0.25f),
                    two = MESSAGE(Rank, rank, .device = (char *)"two"),
                    *ranks[] = {mark(&one), &two};

    ANSWER(STATUS, Status, status, .driver = (char *)"580.159.04, CUDA 13.0",
           .has_tensor_parallel = 1, .tensor_parallel = 4, .has_processes = 1, .processes = 2,
           .memory = mark(&memory), .n_ranks = 2, .ranks = ranks, .weights = (char *)"int4",
           .kv_dtype = (char *)"fp8");
    expect_ok(nvllm_get_status(client, MS, &status, &err));
    asked(OP(GET_STATUS));
    ck_assert_str_eq(status->driver, "580.159.04, CUDA 13.0");
    ck_assert_str_eq(status->weights, "int4");
    ck_assert_str_eq(status->kv_dtype, "fp8");
    ck_assert_uint_eq(status->tensor_parallel, 4);
    ck_assert_uint_eq(status->processes, 2);
    ck_assert_uint_eq(status->weight_bytes, UINT64_C(1) << 40);
    ck_assert(status->kv_bytes == 2 && status->graph_bytes == 3 && status->workspace_bytes == 4);
    ck_assert(status->other_bytes == 5 && status->total_bytes == UINT64_MAX);
    ck_assert_uint_eq(status->free_bytes, 7);
    ck_assert_uint_eq(status->n_ranks, 2);
    ck_assert_str_eq(status->ranks[0]->device, "one");
    ck_assert(status->ranks[0]->total_bytes == 9 && status->ranks[0]->free_bytes == 8);
    ck_assert(status->ranks[0]->exchange_share == 0.25);
    ck_assert_str_eq(status->ranks[1]->device, "two");
}

/* ---- requests and blocks */

static Nvllm__V1__RequestInfo info_of(uint64_t request, int state)
{
    Nvllm__V1__RequestInfo info =
        MESSAGE(RequestInfo, request_info, .request = request, .uid = 1000, .pid = 77,
                .state = (Nvllm__V1__RequestState)state,
                .priority = NVLLM__V1__PRIORITY__PRIORITY_HIGH, .place = 3, .age_us = UINT64_MAX,
                .tokens_per_s = 12.5);

    mark(&info);
    return info;
}

/* Requests come in the daemon's order with everything it reports about them. */
TEST(requests_are_listed)
{
    Nvllm__V1__RequestInfo decoding = info_of(9, NVLLM__V1__REQUEST_STATE__REQUEST_DECODE);
    Nvllm__V1__RequestInfo newer = info_of(4, 55), *infos[] = {&decoding, &newer};
    const struct nvllm_request_list *list;
    struct nvllm_list_options options;
    const client_frame *f;

    ANSWER(REQUEST_LIST, RequestList, request_list, .n_requests = 2, .requests = infos, .total = 7);
    nvllm_list_options_init(&options);
    options.limit = 2;
    expect_ok(nvllm_list_requests(client, &options, MS, &list, &err));
    f = asked(OP(LIST_REQUESTS));
    ck_assert_uint_eq(f->list_requests->limit, 2);
    ck_assert_uint_eq(list->n_requests, 2);
    ck_assert_uint_eq(list->total, 7);
    ck_assert_uint_eq(list->requests[0]->request, 9);
    ck_assert_int_eq(list->requests[0]->state, NVLLM_REQUEST_DECODE);
    ck_assert_int_eq(list->requests[0]->priority, NVLLM_PRIORITY_HIGH);
    ck_assert_uint_eq(list->requests[0]->uid, 1000);
    ck_assert_int_eq(list->requests[0]->pid, 77);
    ck_assert_uint_eq(list->requests[0]->place, 3);
    ck_assert_uint_eq(list->requests[0]->age_us, UINT64_MAX);
    ck_assert(list->requests[0]->tokens_per_s == 12.5);
    ck_assert_uint_eq(list->requests[1]->request, 4);
    ck_assert_int_eq(list->requests[1]->state, NVLLM_REQUEST_UNKNOWN); /* of a newer daemon */
}

/* A request of any connection can be cancelled by the daemon's number. */
TEST(request_is_cancelled_by_number)
{
    const client_frame *f;
    bool found = true;

    for (int i = 0; i < 2; i++) {
        ANSWER(CANCELLED, Cancelled, cancelled, .found = i == 0);
        expect_ok(nvllm_cancel_request(client, 1234567890123, MS, &found, &err));
        ck_assert_int_eq(found, i == 0);
        f = asked(OP(CANCEL));
        ck_assert(f->cancel->request == 1234567890123 && !f->cancel->has_target);
    }
}

/* The pool is reported in sums, by user, by request, and as a map on request. */
TEST(blocks_are_reported)
{
    Nvllm__V1__Blocks sums = MESSAGE(Blocks, blocks, .total = 6, .used = 3, .cached = 2, .free = 1);
    Nvllm__V1__BlocksOfUid uid =
        MESSAGE(BlocksOfUid, blocks_of_uid, .uid = 1000, .used = 2, .requests = 1);
    Nvllm__V1__BlocksOfRequest r = MESSAGE(BlocksOfRequest, blocks_of_request, .request = 5,
                                           .uid = 1000, .used = 2, .shared = 1);
    Nvllm__V1__BlocksOfUid *uids[] = {mark(&uid)};
    Nvllm__V1__BlocksOfRequest *rs[] = {mark(&r), &r};
    struct nvllm_blocks_options options;
    const struct nvllm_blocks *blocks;

    ANSWER(BLOCK_REPORT, BlockReport, block_report, .blocks = mark(&sums), .pinned = 1,
           .block_len = 16, .block_bytes = 1ull << 40, .n_uids = 1, .uids = uids, .n_requests = 2,
           .requests = rs, .map = {6, (uint8_t *)"uspccf"});
    nvllm_blocks_options_init(&options);
    options.map = true;
    expect_ok(nvllm_get_blocks(client, &options, MS, &blocks, &err));
    ck_assert(asked(OP(GET_BLOCKS))->get_blocks->map);
    ck_assert(blocks->total == 6 && blocks->used == 3 && blocks->cached == 2 && blocks->free == 1);
    ck_assert(blocks->pinned == 1 && blocks->block_len == 16 && blocks->block_bytes == 1ull << 40);
    ck_assert_uint_eq(blocks->n_uids, 1);
    ck_assert(blocks->uids[0]->uid == 1000 && blocks->uids[0]->used == 2);
    ck_assert_uint_eq(blocks->uids[0]->requests, 1);
    ck_assert_uint_eq(blocks->n_requests, 2);
    ck_assert(blocks->requests[1]->request == 5 && blocks->requests[1]->shared == 1);
    ck_assert_uint_eq(blocks->map.len, 6);
    ck_assert_mem_eq(blocks->map.data, "uspccf", 6);
}

/* ---- the prefix cache */

/* Prefixes come with their first tokens, and the cache with its counts. */
TEST(cache_is_shown)
{
    int32_t head[] = {7, 8, 9};
    Nvllm__V1__CachedPrefix one =
        MESSAGE(CachedPrefix, cached_prefix, .uid = 3, .tokens = 48, .hits = 5, .pinned = true,
                .holders = 2, .n_head_ids = 3, .head_ids = head);
    Nvllm__V1__CachedPrefix *list[] = {mark(&one)};
    Nvllm__V1__PrefixCache counts =
        MESSAGE(PrefixCache, prefix_cache, .queried_tokens = 100, .hit_tokens = 60);
    const struct nvllm_cache *cache;

    ANSWER(CACHE_REPORT, CacheReport, cache_report, .n_prefixes = 1, .prefixes = list,
           .counts = mark(&counts), .evictions = 11, .pinned_blocks = 3);
    expect_ok(nvllm_show_cache(client, NULL, MS, &cache, &err));
    ck_assert(!asked(OP(SHOW_CACHE))->show_cache->has_limit);
    ck_assert_uint_eq(cache->n_prefixes, 1);
    ck_assert(cache->prefixes[0]->uid == 3 && cache->prefixes[0]->tokens == 48);
    ck_assert(cache->prefixes[0]->hits == 5 && cache->prefixes[0]->pinned);
    ck_assert_uint_eq(cache->prefixes[0]->holders, 2);
    ck_assert_uint_eq(cache->prefixes[0]->n_head_ids, 3);
    ck_assert_int_eq(cache->prefixes[0]->head_ids[2], 9);
    ck_assert(cache->queried_tokens == 100 && cache->hit_tokens == 60);
    ck_assert(cache->evictions == 11 && cache->pinned_blocks == 3);
}

static void answer_cache_changed(void)
{
    ANSWER(CACHE_CHANGED, CacheChanged, cache_changed, .blocks = 2, .tokens = 32);
}

/* Only the caller's own cache is cleared unless all is set. */
TEST(cache_is_cleared)
{
    const struct nvllm_cache_change *change;
    struct nvllm_clear_options options;

    answer_cache_changed();
    expect_ok(nvllm_clear_cache(client, NULL, MS, &change, &err));
    ck_assert(!asked(OP(CLEAR_CACHE))->clear_cache->all);
    ck_assert(change->blocks == 2 && change->tokens == 32);
    nvllm_clear_options_init(&options);
    options.all = true;
    answer_cache_changed();
    expect_ok(nvllm_clear_cache(client, &options, MS, NULL, &err));
    ck_assert(asked(OP(CLEAR_CACHE))->clear_cache->all);
}

/* A prompt is pinned as text, ids or a chat; the options unpin it, or pin it for another user. */
TEST(prompts_are_pinned)
{
    const struct nvllm_message message = {.role = "user", .content = {"hi", 2}};
    const struct nvllm_cache_change *change;
    const Nvllm__V1__PinCache *op;
    struct nvllm_pin_options o;
    const int32_t ids[] = {1, 2};
    struct nvllm_chat chat = chat_of(&message, 1);

    nvllm_pin_options_init(&o);
    o.prompt = nvllm_str("abc");
    o.cache_salt = nvllm_str("salt");
    answer_cache_changed();
    expect_ok(nvllm_pin_cache(client, &o, MS, &change, &err));
    ck_assert_uint_eq(change->blocks, 2);
    op = asked(OP(PIN_CACHE))->pin_cache;
    ck_assert_int_eq(op->input_case, NVLLM__V1__PIN_CACHE__INPUT_PROMPT);
    ck_assert_mem_eq(op->prompt.data, "abc", 3);
    ck_assert_mem_eq(op->cache_salt.data, "salt", 4);
    ck_assert(!op->unpin && !op->has_uid);
    nvllm_pin_options_init(&o);
    o.prompt_ids = ids;
    o.n_prompt_ids = 2;
    o.unpin = true;
    o.has_uid = true; /* of root, whose number is 0 */
    answer_cache_changed();
    expect_ok(nvllm_pin_cache(client, &o, MS, NULL, &err));
    op = asked(OP(PIN_CACHE))->pin_cache;
    ck_assert_int_eq(op->prompt_ids->ids[1], 2);
    ck_assert(op->unpin && op->has_uid && op->uid == 0 && !op->has_cache_salt);
    nvllm_pin_options_init(&o);
    o.chat = &chat;
    answer_cache_changed();
    expect_ok(nvllm_pin_cache(client, &o, MS, NULL, &err));
    op = asked(OP(PIN_CACHE))->pin_cache;
    ck_assert_int_eq(op->input_case, NVLLM__V1__PIN_CACHE__INPUT_CHAT);
    ck_assert_str_eq(op->chat->messages[0]->role, "user");
}

/* What to give back is all unless the options say; both calls tell how it is from now on. */
TEST(sleep_and_wake)
{
    const struct nvllm_sleep_change *change;
    struct nvllm_sleep_options options;

    ANSWER(SLEPT, Slept, slept, .level = NVLLM__V1__SLEEP_LEVEL__SLEEP_ALL, .freed_bytes = 1 << 20,
           .kept_tokens = 48, .lost_tokens = 16, .took_us = 7);
    expect_ok(nvllm_sleep(client, NULL, MS, &change, &err));
    ck_assert_int_eq(asked(OP(SLEEP))->sleep->level, NVLLM__V1__SLEEP_LEVEL__SLEEP_ALL);
    ck_assert(change->level == NVLLM_SLEEP_ALL && change->freed_bytes == 1 << 20);
    ck_assert(change->kept_tokens == 48 && change->lost_tokens == 16 && change->took_us == 7);
    nvllm_sleep_options_init(&options);
    options.level = NVLLM_SLEEP_WEIGHTS;
    ANSWER(SLEPT, Slept, slept, .level = NVLLM__V1__SLEEP_LEVEL__SLEEP_WEIGHTS);
    expect_ok(nvllm_sleep(client, &options, MS, NULL, &err));
    ck_assert_int_eq(asked(OP(SLEEP))->sleep->level, NVLLM__V1__SLEEP_LEVEL__SLEEP_WEIGHTS);
    options.level = NVLLM_SLEEP_NONE;
    ck_assert_int_eq(nvllm_sleep(client, &options, MS, NULL, &err), NVLLM_E_INVALID);
    ck_assert_str_eq(err.field, "level");
    ANSWER(SLEPT, Slept, slept, .took_us = 9);
    expect_ok(nvllm_wake(client, MS, &change, &err));
    ck_assert_ptr_nonnull(asked(OP(WAKE)));
    ck_assert(change->level == NVLLM_SLEEP_NONE && change->took_us == 9);
}

/* ---- why */

/* A request is explained by why it waits and what it needs. */
TEST(request_is_explained)
{
    const struct nvllm_explanation *why;
    struct nvllm_explain_options o;
    Nvllm__V1__RequestInfo info = info_of(8, NVLLM__V1__REQUEST_STATE__REQUEST_WAITING);
    const client_frame *f;

    ANSWER(EXPLANATION, Explanation, explanation, .info = &info,
           .reason = NVLLM__V1__WAIT_REASON__WAIT_BLOCKS, .blocks_needed = 9, .blocks_available = 4,
           .text = (char *)"waits for 5 more blocks");
    nvllm_explain_options_init(&o);
    o.request = 8;
    expect_ok(nvllm_explain(client, &o, MS, &why, &err));
    f = asked(OP(EXPLAIN));
    ck_assert_int_eq(f->explain->about_case, NVLLM__V1__EXPLAIN__ABOUT_REQUEST);
    ck_assert_uint_eq(f->explain->request, 8);
    ck_assert_uint_eq(why->info->request, 8);
    ck_assert_int_eq(why->info->state, NVLLM_REQUEST_WAITING);
    ck_assert_int_eq(why->reason, NVLLM_WAIT_BLOCKS);
    ck_assert(why->blocks_needed == 9 && why->blocks_available == 4);
    ck_assert_str_eq(why->text, "waits for 5 more blocks");
}

/* A prompt is explained by where its cached part ends and how cached prompts go on instead. */
TEST(prompt_is_explained)
{
    const struct nvllm_message message = {.role = "user", .content = {"hi", 2}};
    const struct nvllm_explanation *why;
    struct nvllm_explain_options o;
    const Nvllm__V1__Explain *op;
    struct nvllm_chat chat = chat_of(&message, 1);
    int32_t others[] = {5, 0};

    for (int i = 0; i < 3; i++) {
        ANSWER(EXPLANATION, Explanation, explanation, .prompt_tokens = 40, .cached_tokens = 32,
               .same_tokens = i == 0 ? 35 : 0, .has_next_id = i == 0, /* 0 is a token, too */
               .n_other_ids = i == 0 ? 2 : 0, .other_ids = others);
        nvllm_explain_options_init(&o);
        if (i == 0)
            o.prompt = nvllm_str("abc");
        if (i == 1) {
            o.prompt_ids = others;
            o.n_prompt_ids = 2;
        }
        if (i == 2)
            o.chat = &chat;
        expect_ok(nvllm_explain(client, &o, MS, &why, &err));
        op = asked(OP(EXPLAIN))->explain;
        ck_assert_int_eq(op->about_case, i == 0   ? NVLLM__V1__EXPLAIN__ABOUT_PROMPT
                                         : i == 1 ? NVLLM__V1__EXPLAIN__ABOUT_PROMPT_IDS
                                                  : NVLLM__V1__EXPLAIN__ABOUT_CHAT);
        ck_assert_ptr_null(why->info);
        ck_assert(why->prompt_tokens == 40 && why->cached_tokens == 32);
        ck_assert_uint_eq(why->same_tokens, i == 0 ? 35 : 32);
        ck_assert_int_eq(why->next_id, i == 0 ? 0 : -1);
        ck_assert_uint_eq(why->n_other_ids, i == 0 ? 2 : 0);
        if (i == 0)
            ck_assert_int_eq(why->other_ids[0], 5);
        ck_assert_str_eq(why->text, "");
    }
}

/* ---- the daemon itself */

static void answer_changed(Nvllm__V1__State state, const char *level)
{
    ANSWER(CHANGED, Changed, changed, .state = state, .log_level = (char *)level);
}

/* Draining, resuming, the log level and shutdown: the answer tells the new state. */
TEST(admin_operations_are_answered)
{
    const struct nvllm_change *change;
    struct nvllm_drain_options o;

    answer_changed(NVLLM__V1__STATE__STATE_DRAINING, "info");
    expect_ok(nvllm_drain(client, NULL, MS, &change, &err));
    ck_assert(!asked(OP(DRAIN))->drain->has_drain_timeout_ms);
    ck_assert_int_eq(change->state, NVLLM_STATE_DRAINING);
    ck_assert_str_eq(change->log_level, "info");
    nvllm_drain_options_init(&o);
    o.drain_timeout_ms = 0; /* at once, which is not the same as unset */
    answer_changed(NVLLM__V1__STATE__STATE_DRAINING, NULL);
    expect_ok(nvllm_drain(client, &o, MS, NULL, &err));
    ck_assert(asked(OP(DRAIN))->drain->has_drain_timeout_ms);
    answer_changed(NVLLM__V1__STATE__STATE_READY, NULL);
    expect_ok(nvllm_resume(client, MS, &change, &err));
    asked(OP(RESUME));
    ck_assert_int_eq(change->state, NVLLM_STATE_READY);
    ck_assert_str_eq(change->log_level, "");
    answer_changed(NVLLM__V1__STATE__STATE_READY, "debug");
    expect_ok(nvllm_set_log_level(client, "debug", MS, &change, &err));
    ck_assert_str_eq(asked(OP(SET_LOG_LEVEL))->set_log_level->level, "debug");
    ck_assert_str_eq(change->log_level, "debug");
    answer_changed((Nvllm__V1__State)33, NULL);
    expect_ok(nvllm_shutdown(client, MS, &change, &err));
    asked(OP(SHUTDOWN));
    ck_assert_int_eq(change->state, NVLLM_STATE_UNKNOWN);
}

/* A reload names what changed and what needs a restart. */
TEST(configuration_is_reloaded)
{
    char *changed[] = {(char *)"daemon.log_level", (char *)"limits.max_tokens"};
    char *stay[] = {(char *)"daemon.socket"};
    const struct nvllm_reloaded *reloaded;

    ANSWER(RELOADED, Reloaded, reloaded, .n_changed = 2, .changed = changed, .n_needs_restart = 1,
           .needs_restart = stay);
    expect_ok(nvllm_reload(client, MS, &reloaded, &err));
    asked(OP(RELOAD));
    ck_assert_uint_eq(reloaded->n_changed, 2);
    ck_assert_str_eq(reloaded->changed[1], "limits.max_tokens");
    ck_assert_uint_eq(reloaded->n_needs_restart, 1);
    ck_assert_str_eq(reloaded->needs_restart[0], "daemon.socket");
}

/* ---- errors */

/* Empty reports give empty lists and texts, not wild pointers. */
TEST(empty_reports)
{
    const struct nvllm_request_list *list;
    const struct nvllm_explanation *why;
    const struct nvllm_reloaded *reloaded;
    const struct nvllm_blocks *blocks;
    const struct nvllm_cache *cache;
    struct nvllm_explain_options o;

    ANSWER(REQUEST_LIST, RequestList, request_list, .total = 0);
    expect_ok(nvllm_list_requests(client, NULL, MS, &list, &err));
    ck_assert(list->n_requests == 0 && list->total == 0);
    ANSWER(BLOCK_REPORT, BlockReport, block_report, .pinned = 0);
    expect_ok(nvllm_get_blocks(client, NULL, MS, &blocks, &err));
    ck_assert(blocks->total == 0 && blocks->n_uids == 0 && blocks->n_requests == 0);
    ck_assert(blocks->map.data && blocks->map.len == 0);
    ANSWER(CACHE_REPORT, CacheReport, cache_report, .total = 0);
    expect_ok(nvllm_show_cache(client, NULL, MS, &cache, &err));
    ck_assert(cache->n_prefixes == 0 && cache->queried_tokens == 0);
    ANSWER(EXPLANATION, Explanation, explanation, .info = NULL);
    nvllm_explain_options_init(&o);
    o.request = 1;
    expect_ok(nvllm_explain(client, &o, MS, &why, &err));
    ck_assert_int_eq(why->reason, NVLLM_WAIT_UNKNOWN);
    ck_assert(!why->info && why->next_id == -1);
    ck_assert_str_eq(why->text, "");
    ANSWER(RELOADED, Reloaded, reloaded, .n_changed = 0);
    expect_ok(nvllm_reload(client, MS, &reloaded, &err));
    ck_assert(reloaded->n_changed == 0 && reloaded->n_needs_restart == 0);
}

/* A refusal names the limit, its value and when to retry. */
TEST(refusal_names_the_limit)
{
    const struct nvllm_request_list *list;

    ANSWER(ERROR, Error, error, .code = NVLLM__V1__ERROR_CODE__ERROR_BUSY, .retryable = true,
           .retry_after_ms = 40, .limit = (char *)"limits.requests_per_uid",
           .limit_value = UINT64_MAX);
    ck_assert_int_eq(nvllm_list_requests(client, NULL, MS, &list, &err), NVLLM_E_BUSY);
    ck_assert_str_eq(err.limit, "limits.requests_per_uid");
    ck_assert_uint_eq(err.limit_value, UINT64_MAX);
    ck_assert(err.retryable && err.retry_after_ms == 40);
}

/* Calls with bad arguments are refused before anything is sent. */
TEST(bad_arguments)
{
    const struct nvllm_list_options never_prepared = {0};
    const struct nvllm_explanation *why = NULL;
    const struct nvllm_request_list *list = NULL;
    struct nvllm_explain_options x;
    struct nvllm_drain_options d;
    struct nvllm_pin_options p;
    uint64_t id;

    expect_bad(nvllm_list_requests(client, &never_prepared, MS, &list, &err));
    expect_bad(nvllm_cancel_request(client, 0, MS, NULL, &err));
    expect_bad(nvllm_pin_cache(client, NULL, MS, NULL, &err));
    ck_assert_str_eq(err.field, "input");
    nvllm_pin_options_init(&p);
    p.prompt = nvllm_str("x");
    p.cache_salt.len = 4;
    expect_bad(nvllm_pin_cache(client, &p, MS, NULL, &err));
    ck_assert_str_eq(err.field, "cache_salt");
    expect_bad(nvllm_explain(client, NULL, MS, &why, &err));
    nvllm_explain_options_init(&x);
    x.request = 5;
    x.prompt = nvllm_str("x");
    expect_bad(nvllm_explain(client, &x, MS, &why, &err));
    ck_assert_str_eq(err.field, "about");
    nvllm_drain_options_init(&d);
    d.drain_timeout_ms = (int64_t)UINT32_MAX + 1;
    expect_bad(nvllm_drain(client, &d, MS, NULL, &err));
    expect_bad(nvllm_set_log_level(client, NULL, MS, NULL, &err));
    expect_bad(nvllm_trace_start(client, &id, (const struct nvllm_trace_options *)&never_prepared,
                                 MS, &err));
    ck_assert(!why && !list);
    answer_changed(NVLLM__V1__STATE__STATE_READY, NULL);
    expect_ok(nvllm_resume(client, MS, NULL, &err));
    asked(OP(RESUME)); /* the first thing that the daemon hears */
}

/* An answer of the wrong kind ends the connection. */
TEST(answer_of_another_kind)
{
    const struct nvllm_request_list *list = NULL;

    answer_changed(NVLLM__V1__STATE__STATE_READY, NULL);
    ck_assert_int_eq(nvllm_list_requests(client, NULL, MS, &list, &err), NVLLM_E_PROTOCOL);
    ck_assert_ptr_null(list);
}

/* ---- traces */

/* The next frame for the request that was asked for last. */
static void send_more(Nvllm__V1__ServerFrame__EventCase event, void *message)
{
    n_asked--;
    answer(event, message);
}

static const struct nvllm_event *next_event(void)
{
    const struct nvllm_event *event = NULL;

    expect_ok(nvllm_next(client, MS, &event, &err));
    return event;
}

/* Records come as events while the trace is on, then its end; kinds of a newer daemon are unknown.
 */
TEST(traces)
{
    Nvllm__V1__TraceRecord ended =
        MESSAGE(TraceRecord, trace_record, .kind = NVLLM__V1__TRACE_KIND__TRACE_ENDED, .at_us = 9,
                .took_us = 8, .request = 7,
                .finish_reason = NVLLM__V1__FINISH_REASON__FINISH_LENGTH,
                .since = NVLLM__V1__TRACE_KIND__TRACE_STARTED);
    Nvllm__V1__TraceRecord step =
        MESSAGE(TraceRecord, trace_record, .kind = NVLLM__V1__TRACE_KIND__TRACE_STEP, .step = 6,
                .decode_tokens = 5, .prompt_tokens = 4, .sequences = 3, .choice = 2,
                .part = NVLLM__V1__ENGINE_PART__PART_WAIT);
    Nvllm__V1__TraceRecord newer =
        MESSAGE(TraceRecord, trace_record, .kind = (Nvllm__V1__TraceKind)99);
    Nvllm__V1__TraceRecord *records[] = {mark(&ended), mark(&step), mark(&newer)};
    struct nvllm_trace_options o;
    const struct nvllm_trace_record *const *got;
    const struct nvllm_event *event;
    uint64_t id;

    nvllm_trace_options_init(&o);
    ck_assert_uint_eq(o.duration_ms, 5000);
    o.duration_ms = 77;
    expect_ok(nvllm_trace_start(client, &id, &o, MS, &err));
    next_id();
    ck_assert_uint_eq(asked(OP(TRACE))->trace->duration_ms, 77);
    send_more(NVLLM__V1__SERVER_FRAME__EVENT_TRACE_CHUNK,
              &MESSAGE(TraceChunk, trace_chunk, .n_records = 3, .records = records));
    event = next_event();
    ck_assert(event->type == NVLLM_EVENT_TRACE && event->id == id && event->trace->n_records == 3);
    got = event->trace->records;
    ck_assert(got[0]->kind == NVLLM_TRACE_ENDED && got[0]->at_us == 9 && got[0]->took_us == 8);
    ck_assert(got[0]->request == 7 && got[0]->finish == NVLLM_FINISH_LENGTH);
    ck_assert_int_eq(got[0]->since, NVLLM_TRACE_STARTED);
    ck_assert(got[1]->kind == NVLLM_TRACE_STEP && got[1]->step == 6 && got[1]->choice == 2);
    ck_assert(got[1]->decode_tokens == 5 && got[1]->prompt_tokens == 4 && got[1]->sequences == 3);
    ck_assert_str_eq(nvllm_engine_part_name(got[1]->part), "wait");
    ck_assert_int_eq(got[2]->kind, NVLLM_TRACE_UNKNOWN);
    ck_assert_uint_eq(nvllm_pending(client), 1);
    send_more(NVLLM__V1__SERVER_FRAME__EVENT_TRACE_CHUNK,
              &MESSAGE(TraceChunk, trace_chunk, .n_records = 0));
    ck_assert_uint_eq(next_event()->trace->n_records, 0);
    send_more(NVLLM__V1__SERVER_FRAME__EVENT_TRACED,
              &MESSAGE(Traced, traced, .took_us = 5, .dropped = 4));
    event = next_event();
    ck_assert(event->type == NVLLM_EVENT_TRACED && event->id == id);
    ck_assert(event->traced->took_us == 5 && event->traced->dropped == 4);
    ck_assert_uint_eq(nvllm_pending(client), 0);
}

/* A trace can be cancelled, and its end still comes. */
TEST(trace_is_cancelled)
{
    uint64_t id;

    expect_ok(nvllm_trace_start(client, &id, NULL, MS, &err));
    next_id();
    ck_assert_uint_eq(asked(OP(TRACE))->trace->duration_ms, 5000);
    expect_ok(nvllm_cancel(client, id, &err));
    ck_assert_uint_eq(server_read(&server)->cancel->target, id);
    send_more(NVLLM__V1__SERVER_FRAME__EVENT_TRACED, &MESSAGE(Traced, traced, .took_us = 5));
    ck_assert_int_eq(next_event()->type, NVLLM_EVENT_TRACED);
}

/* Records for a request that is no trace end the connection. */
TEST(records_of_no_trace)
{
    const struct nvllm_request_list *list = NULL;

    ANSWER(TRACE_CHUNK, TraceChunk, trace_chunk, .n_records = 0);
    ck_assert_int_eq(nvllm_list_requests(client, NULL, MS, &list, &err), NVLLM_E_PROTOCOL);
}

/* Each field of a report has its row in report_fields.h. */
TEST(no_field_is_forgotten, .no_fixture = true)
{
#define ROW(kind, field, source, member, key) +1
#define ck_rows(message, rows)                ck_assert_uint_eq(nvllm__v1__##message##__descriptor.n_fields, rows)
    ck_rows(status, STATUS_FIELDS(ROW));
    ck_rows(blocks, BLOCK_SUMS_FIELDS(ROW));
    ck_rows(requests, STATUS_REQUESTS_FIELDS(ROW));
    ck_rows(prefix_cache, CACHE_HITS_FIELDS(ROW));
    ck_rows(memory, STATUS_MEMORY_FIELDS(ROW));
    ck_rows(request_info, REQUEST_INFO_FIELDS(ROW));
    ck_rows(request_list, REQUEST_LIST_FIELDS(ROW));
    ck_rows(blocks_of_uid, UID_BLOCKS_FIELDS(ROW));
    ck_rows(blocks_of_request, REQUEST_BLOCKS_FIELDS(ROW));
    ck_rows(block_report, BLOCKS_FIELDS(ROW));
    ck_rows(cached_prefix, CACHED_PREFIX_FIELDS(ROW));
    ck_rows(cache_report, CACHE_FIELDS(ROW));
    ck_rows(cache_changed, CACHE_CHANGE_FIELDS(ROW));
    ck_rows(slept, SLEEP_CHANGE_FIELDS(ROW));
    /* Both kinds have the text, and the request is a message of its own. */
    ck_rows(explanation, WHY_WAITING_FIELDS(ROW) WHY_CACHED_FIELDS(ROW) - 1 + 1);
}

/* Every state and reason has a word of its own; numbers of a newer daemon have one, too. */
TEST(words, .no_fixture = true)
{
    for (int i = NVLLM_REQUEST_ENCODING; i <= NVLLM_REQUEST_ENDING; i++) {
        const char *word = nvllm_request_state_name((enum nvllm_request_state)i);

        ck_assert_str_ne(word, "unknown");
        ck_assert_str_ne(word, nvllm_request_state_name((enum nvllm_request_state)(i - 1)));
    }
    for (int i = NVLLM_WAIT_NOT; i <= NVLLM_WAIT_OFFLOADED; i++) {
        const char *word = nvllm_wait_reason_name((enum nvllm_wait_reason)i);

        ck_assert_str_ne(word, "unknown");
        ck_assert_str_ne(word, nvllm_wait_reason_name((enum nvllm_wait_reason)(i - 1)));
    }
    ck_assert_str_eq(nvllm_request_state_name((enum nvllm_request_state)99), "unknown");
    ck_assert_str_eq(nvllm_wait_reason_name((enum nvllm_wait_reason)99), "unknown");
    ck_assert_str_eq(nvllm_priority_name(NVLLM_PRIORITY_LOW), "low");
    ck_assert_str_eq(nvllm_sleep_level_name(NVLLM_SLEEP_WEIGHTS), "weights");
    ck_assert_str_eq(nvllm_sleep_level_name((enum nvllm_sleep_level)99), "unknown");
    ck_assert_str_eq(nvllm_priority_name(NVLLM_PRIORITY_HIGH), "high");
    for (int i = NVLLM_PART_SCHEDULE; i <= NVLLM_PART_DRAFT; i++)
        ck_assert_str_ne(nvllm_engine_part_name((enum nvllm_engine_part)i),
                         nvllm_engine_part_name((enum nvllm_engine_part)(i - 1)));
    ck_assert_str_eq(nvllm_engine_part_name((enum nvllm_engine_part)99), "unknown");
}

RUN_TESTS("client_admin", admin_greeted, teardown)
