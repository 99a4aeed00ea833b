/* report_json.h - the daemon's reports as JSON. NULL: no memory. */
#ifndef NVLLM_CLIENT_CTL_REPORT_JSON_H
#define NVLLM_CLIENT_CTL_REPORT_JSON_H

#include <jansson.h>

#include "client/lib/nvllm_client.h"

json_t *report_json_status(const struct nvllm_status *status);
json_t *report_json_requests(const struct nvllm_request_list *list);
json_t *report_json_blocks(const struct nvllm_blocks *blocks, bool map);
json_t *report_json_cache(const struct nvllm_cache *cache);
json_t *report_json_cache_change(const struct nvllm_cache_change *change);
json_t *report_json_explanation(const struct nvllm_explanation *explanation);

#endif
