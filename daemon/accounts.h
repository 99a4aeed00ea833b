/* accounts.h - what each user holds of the daemon, and all users together: counted up where
 * something begins and down where it ends, so that a limit is one comparison.
 *
 * An account is there while somebody refers to it; when it goes everything must have come back to
 * zero. Loop thread only, but for the bytes of requests, which any thread takes and gives back. */
#ifndef NVLLM_DAEMON_ACCOUNTS_H
#define NVLLM_DAEMON_ACCOUNTS_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/util/id_map.h"

enum account_item {
    ACCOUNT_CONNECTIONS,
    ACCOUNT_REQUESTS,      /* accepted, their end not told */
    ACCOUNT_QUEUED_TOKENS, /* of prompts without an answer so far */
    ACCOUNT_INSPECTS,      /* inspect requests without an answer so far */
    ACCOUNT_INPUT_BYTES,   /* buffers of frames that came in part */
    ACCOUNT_OUTPUT_BYTES,  /* buffers of answers that are not read */
    N_ACCOUNT_ITEMS,
};

struct account {
    struct accounts *all;
    uid_t uid;
    uint32_t refs;
    uint64_t amounts[N_ACCOUNT_ITEMS];
    /* Unpacked requests until the engine has admitted them; until their end what it makes of them,
     * answers included. */
    atomic_uint_fast64_t request_bytes;
    uint64_t round, round_us; /* of the loop's time, what its frames took in that round */
};

struct accounts {
    struct id_map by_uid;
    struct account total; /* of all users */
};

/* A zeroed struct needs accounts_init. */
void accounts_init(struct accounts *a);
void accounts_deinit(struct accounts *a);

/* The account of a user; one reference more. NULL: no memory. */
struct account *account_get(struct accounts *a, uid_t uid);
void account_ref(struct account *one);
void account_unref(struct account *one);

void account_add(struct account *one, enum account_item item, uint64_t n);
void account_sub(struct account *one, enum account_item item, uint64_t n);

/* Bytes of requests, from any thread. */
void account_take_bytes(struct account *one, uint64_t n);
void account_give_back_bytes(struct account *one, uint64_t n);

#endif
