/* requests.h - the table of requests, for the commands that show it. */
#ifndef NVLLM_CLIENT_CTL_REQUESTS_H
#define NVLLM_CLIENT_CTL_REQUESTS_H

#include <stdio.h>

#include "client/lib/nvllm_client.h"

/* Prints at most `rows` requests, and how many more there are, in a table of at most `columns`
 * columns of the terminal; 0: as wide as it is. */
void requests_print(FILE *to, const struct nvllm_request_list *list, size_t rows, int columns);

#endif
