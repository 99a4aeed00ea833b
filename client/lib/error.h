/* error.h - filling struct nvllm_error: one line for people, without control characters. */
#ifndef NVLLM_CLIENT_LIB_ERROR_H
#define NVLLM_CLIENT_LIB_ERROR_H

#include "client/lib/nvllm_client.h"

/* Fills *e (which may be NULL), with retryable by the code, and returns code. */
__attribute__((format(printf, 4, 5))) enum nvllm_code
error_set(struct nvllm_error *e, enum nvllm_code code, int sys_errno, const char *fmt, ...);

/* Copies an error, unless it is NVLLM_OK, and returns its code. */
enum nvllm_code error_copy(struct nvllm_error *e, const struct nvllm_error *from);

/* As error_set(), and names the field of the request that is wrong. */
__attribute__((format(printf, 3, 4))) enum nvllm_code
error_field(struct nvllm_error *e, const char *field, const char *fmt, ...);

/* NVLLM_E_PROTOCOL: the daemon has sent this. */
enum nvllm_code error_protocol(struct nvllm_error *e, const char *what);

/* Copies text (may be NULL) into buf of size cap: control characters become '?', and a text that is
 * too long is cut between two characters. */
void error_copy_text(char *buf, size_t cap, const char *text);

#endif
