/* option_values.h - parses the values of options. Each function takes the whole text or fails. */
#ifndef NVLLM_DAEMON_OPTION_VALUES_H
#define NVLLM_DAEMON_OPTION_VALUES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/options.h"

/* These two may set *out when they fail. */
bool option_parse_whole(int64_t *out, const char *s, int base); /* no blanks, no signs */
bool option_parse_bytes(int64_t *out, const char *s);           /* "16M", "16MiB" */
bool option_parse_memory(struct option_memory *out, const char *s);

/* One of names, with '|' between; its index. */
bool option_parse_choice(int64_t *out, const char *s, const char *names);

/* Users by number or name, each once, with shares of 1 to 10000 (default 100), separated by blanks:
 * "1000:300 alice:50". -EINVAL with a text, or -ENOMEM; *out is set on success only. */
int option_parse_shares(struct shares *out, const char *text, struct err *e);

#endif
