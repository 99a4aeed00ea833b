/* delta.h - the daemon's most frequent frame, read in place: a delta without logprobs, written as
 * protobuf's own libraries write it. Any other frame is left to protobuf-c, and so is the judgement
 * of what is wrong. */
#ifndef NVLLM_CLIENT_LIB_DELTA_H
#define NVLLM_CLIENT_LIB_DELTA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct delta {
    uint64_t id;
    uint32_t choice;
    uint32_t finish;
    const char *text; /* [text_len] in the frame; NULL: none */
    size_t text_len;
    const int32_t *token_ids; /* [n_tokens] in ids */
    size_t n_tokens;
};

enum { DELTA_MAX_IDS = 1024 }; /* bytes of ids; longer ones are not read here */

/* False: it is no such frame; *out is not written. ids has room for DELTA_MAX_IDS. */
bool delta_read(struct delta *out, int32_t *ids, const uint8_t *frame, size_t n);

#endif
