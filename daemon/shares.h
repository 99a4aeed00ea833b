/* shares.h - parses scheduler.shares, "1000:300 alice:50", for the engine. */
#ifndef NVLLM_DAEMON_SHARES_H
#define NVLLM_DAEMON_SHARES_H

#include "engine/util/err.h"
#include "engine/core/fair.h"

enum { SHARES_MAX = 64 };

struct shares {
    struct fair_share list[SHARES_MAX];
    int32_t n;
};

/* Users by number or name, each once, with shares of 1 to 10000 (default 100), separated by blanks.
 * -EINVAL with a text. */
int shares_parse(struct shares *out, const char *text, struct err *e);

#endif
