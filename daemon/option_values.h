/* option_values.h - parses the values of options. Each function takes the whole text or fails. */
#ifndef NVLLM_DAEMON_OPTION_VALUES_H
#define NVLLM_DAEMON_OPTION_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/options.h"

bool option_parse_whole(int64_t *out, const char *s, int base); /* no blanks, no signs */
bool option_parse_bytes(int64_t *out, const char *s);           /* "16M", "16MiB" */
bool option_parse_memory(struct option_memory *out, const char *s);

/* One of names, with '|' between; its index. */
bool option_parse_choice(int64_t *out, const char *s, const char *names);

#endif
