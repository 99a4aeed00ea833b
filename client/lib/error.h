/* error.h - filling struct nvllm_error: one line for people, without control characters. */
#ifndef NVLLM_CLIENT_LIB_ERROR_H
#define NVLLM_CLIENT_LIB_ERROR_H

#include "client/lib/nvllm_client.h"

/* Fills *e (which may be NULL), with retryable by the code, and returns code. field: the field of
 * the request that is wrong, or NULL. */
__attribute__((format(printf, 5, 6))) enum nvllm_code error_fill(struct nvllm_error *e,
                                                                 enum nvllm_code code,
                                                                 const char *field, int sys_errno,
                                                                 const char *fmt, ...);
#define error_set(e, code, sys_errno, ...) error_fill(e, code, NULL, sys_errno, __VA_ARGS__)
#define error_field(e, field, ...)         error_fill(e, NVLLM_E_INVALID, field, 0, __VA_ARGS__)

/* Copies an error, unless it is NVLLM_OK, and returns its code. */
enum nvllm_code error_copy(struct nvllm_error *e, const struct nvllm_error *from);

/* NVLLM_E_PROTOCOL: the daemon has sent this. */
enum nvllm_code error_protocol(struct nvllm_error *e, const char *what);

/* Copies text (may be NULL) into buf of size cap: control characters become '?', and a text that is
 * too long is cut between two characters. */
void error_copy_text(char *buf, size_t cap, const char *text);

#endif
