/* report.h - the daemon's reports as JSON, and the table of requests. */
#ifndef NVLLM_CLIENT_CTL_REPORT_H
#define NVLLM_CLIENT_CTL_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "client/lib/nvllm_client.h"

json_t *report_json_status(const struct nvllm_status *status);
json_t *report_json_request_list(const struct nvllm_request_list *list);
json_t *report_json_blocks(const struct nvllm_blocks *blocks, bool map);
json_t *report_json_cache(const struct nvllm_cache *cache);
json_t *report_json_cache_change(const struct nvllm_cache_change *change);
json_t *report_json_explanation(const struct nvllm_explanation *explanation);

/* Prints at most `rows` requests, and how many more there are, in a table of at most `columns`
 * columns of the terminal; 0: as wide as it is. */
void report_print_requests(FILE *to, const struct nvllm_request_list *list, size_t rows,
                           int columns);

#endif
