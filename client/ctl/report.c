/* report.c - see report.h. The rows of proto/report_fields.h become members. */
#include "client/ctl/report.h"

#include "client/ctl/json.h"
#include "proto/report_fields.h"

/* Up to INT64_MAX. */
static json_t *count_json(uint64_t n)
{
    return json_integer(n <= INT64_MAX ? (json_int_t)n : INT64_MAX);
}

/* ---- rows as members of o, from *in */

#define ADD(kind, field, source, member, key) ADD_##kind(member, key)
#define ADD_VALUE(key, value)                 json_object_set_new(o, #key, value);
#define ADD_COUNT(member, key)                ADD_VALUE(key, count_json(in->member))
#define ADD_INT(member, key)                  ADD_VALUE(key, json_integer(in->member))
#define ADD_REAL(member, key)                 ADD_VALUE(key, ctl_json_number(in->member))
#define ADD_MS(member, key)                   ADD_VALUE(key, json_real((double)in->member / 1000))
#define ADD_FLAG(member, key)                 ADD_VALUE(key, json_boolean(in->member))
#define ADD_TEXT(member, key)                 ADD_VALUE(key, ctl_json_text(nvllm_str(in->member)))
#define ADD_IDS(member, key)                  ADD_VALUE(key, ctl_json_ids(in->member, in->n_##member))
#define ADD_TOKEN(member, key)                                                                     \
    ADD_VALUE(key, in->member < 0 ? json_null() : json_integer(in->member))
#define ADD_STATE(member, key) ADD_VALUE(key, json_string(nvllm_state_name(in->member)))
#define ADD_REQUEST_STATE(member, key)                                                             \
    ADD_VALUE(key, json_string(nvllm_request_state_name(in->member)))
#define ADD_PRIORITY(member, key)    ADD_VALUE(key, json_string(nvllm_priority_name(in->member)))
#define ADD_WAIT_REASON(member, key) ADD_VALUE(key, json_string(nvllm_wait_reason_name(in->member)))
#define ADD_BYTES(member, key)
#define ADD_FLAT(member, key)  add_##member(o, in);
#define ADD_GROUP(member, key) ADD_VALUE(key, add_##member(json_object(), in))
#define ADD_LIST(member, key)                                                                      \
    {                                                                                              \
        json_t *array = json_array();                                                              \
                                                                                                   \
        for (size_t i = 0; i < in->n_##key; i++)                                                   \
            json_array_append_new(array, add_##member(json_object(), in->key[i]));                 \
        json_object_set_new(o, #key, array);                                                       \
    }

/* Defines add_name(), which gives back the object. */
#define ADDER(name, type, FIELDS)                                                                  \
    static json_t *add_##name(json_t *o, const struct type *in)                                    \
    {                                                                                              \
        FIELDS(ADD)                                                                                \
        return o;                                                                                  \
    }

/* And report_json_name(). */
#define REPORT(name, type, FIELDS)                                                                 \
    ADDER(name, type, FIELDS)                                                                      \
    json_t *report_json_##name(const struct type *in)                                              \
    {                                                                                              \
        return add_##name(json_object(), in);                                                      \
    }

ADDER(status_blocks, nvllm_status, STATUS_BLOCKS_FIELDS)
ADDER(status_requests, nvllm_status, STATUS_REQUESTS_FIELDS)
ADDER(status_hits, nvllm_status, STATUS_HITS_FIELDS)
ADDER(status_memory, nvllm_status, STATUS_MEMORY_FIELDS)
REPORT(status, nvllm_status, STATUS_FIELDS)
ADDER(request_info, nvllm_request_info, REQUEST_INFO_FIELDS)
REPORT(request_list, nvllm_request_list, REQUEST_LIST_FIELDS)
ADDER(uid_blocks, nvllm_uid_blocks, UID_BLOCKS_FIELDS)
ADDER(request_blocks, nvllm_request_blocks, REQUEST_BLOCKS_FIELDS)
ADDER(block_sums, nvllm_blocks, BLOCK_SUMS_FIELDS)
ADDER(blocks, nvllm_blocks, BLOCKS_FIELDS)
ADDER(cached_prefix, nvllm_cached_prefix, CACHED_PREFIX_FIELDS)
ADDER(cache_hits, nvllm_cache, CACHE_HITS_FIELDS)
REPORT(cache, nvllm_cache, CACHE_FIELDS)
REPORT(cache_change, nvllm_cache_change, CACHE_CHANGE_FIELDS)
ADDER(why_waiting, nvllm_explanation, WHY_WAITING_FIELDS)
ADDER(why_cached, nvllm_explanation, WHY_CACHED_FIELDS)

json_t *report_json_blocks(const struct nvllm_blocks *blocks, bool map)
{
    json_t *o = add_blocks(json_object(), blocks);

    if (map)
        json_object_set_new(o, "map", ctl_json_text(blocks->map));
    return o;
}

json_t *report_json_explanation(const struct nvllm_explanation *e)
{
    json_t *o = json_object();

    if (!e->info)
        return add_why_cached(o, e);
    json_object_set_new(o, "request", add_request_info(json_object(), e->info));
    return add_why_waiting(o, e);
}
