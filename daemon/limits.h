/* limits.h - the limits of one request, one user and all users: one table, each row an option, and
 * one way to refuse what exceeds them.
 *
 * A refusal names the option and its value, and when to retry where that helps. */
#ifndef NVLLM_DAEMON_LIMITS_H
#define NVLLM_DAEMON_LIMITS_H

#include <stdint.h>

#include "daemon/options.h"
#include "engine/util/err.h"
#include "proto/nvllm.pb-c.h"

/* The protocol's names in short. */
#define CODE(name)  NVLLM__V1__ERROR_CODE__ERROR_##name
#define EVENT(name) NVLLM__V1__SERVER_FRAME__EVENT_##name
#define OP(name)    NVLLM__V1__CLIENT_FRAME__OP_##name

#define LIMIT_NAME(name, ...) LIMIT_##name,
enum limit { LIMITS(LIMIT_NAME) N_LIMITS };
#undef LIMIT_NAME

/* The contents of an Error of the protocol. */
struct refusal {
    Nvllm__V1__ErrorCode code;
    char field[96];     /* "sampling.logit_bias[3].id", as nvllm-protocol(7) has it; empty: none */
    struct err message; /* "sampling.logit_bias[3].id: is missing" */
    const char *limit;  /* static; NULL: no limit */
    uint64_t limit_value;
    uint32_t retry_after_ms; /* 0: 100 for BUSY, else no advice */
    bool reconnect;          /* this daemon is exiting, and the next one may answer */
};

const char *limit_option(enum limit l); /* "limits.frame_bytes" */
uint64_t limit_value(const struct options *o, enum limit l);

/* Fills *e for an amount over a limit; -EINVAL. field may be "", or name an entry, "stop[3]". */
int limit_refuse(struct refusal *e, const struct options *o, enum limit l, const char *field,
                 uint64_t amount);

/* As limit_refuse, with a message of its own, to which the option's name is appended. */
__attribute__((format(printf, 4, 5))) int
limit_refuse_text(struct refusal *e, const struct options *o, enum limit l, const char *fmt, ...);

/* An error of a field, "field: text", or of none (""). */
__attribute__((format(printf, 4, 5))) int refusal_of_field(struct refusal *e,
                                                           Nvllm__V1__ErrorCode code,
                                                           const char *field, const char *fmt, ...);
#define refusal_set(e, code, ...) refusal_of_field(e, code, "", __VA_ARGS__)

#endif
