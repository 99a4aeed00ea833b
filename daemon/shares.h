/* shares.h - scheduler.shares as text, "1000:300 alice:50", and as the engine takes it. */
#ifndef NVLLM_DAEMON_SHARES_H
#define NVLLM_DAEMON_SHARES_H

#include "engine/util/err.h"
#include "engine/core/fair.h"

enum { SHARES_MAX = 64 };

struct shares {
    struct fair_share list[SHARES_MAX];
    int32_t n;
};

/* Users by number or name, each once, with shares of 1 to 10000 where 100 is usual; between them
 * blanks. -EINVAL says what is wrong. */
int shares_parse(struct shares *out, const char *text, struct err *e);

#endif
