/* requests.h - the table of requests, for the commands that show it. */
#ifndef NVLLM_CLIENT_CTL_REQUESTS_H
#define NVLLM_CLIENT_CTL_REQUESTS_H

#include <jansson.h>
#include <stdio.h>

#include "client/ctl/ctl.h"

/* At most `rows` of them; what is left out is said. Columns of the table are left out, too, where
 * it is wider than `columns`; 0: however wide it is. */
void requests_print(FILE *to, const struct nvllm_request_list *list, size_t rows, int columns);

json_t *request_json(const struct nvllm_request_info *info);

#endif
