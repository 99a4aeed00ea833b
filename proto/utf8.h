/* utf8.h - checks UTF-8, and repairs texts. */
#ifndef NVLLM_PROTO_UTF8_H
#define NVLLM_PROTO_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Length of the character at p, where n > 0; or negated, of the longest prefix of a character there
 * that is not continued. */
int utf8_step(const void *p, size_t n);

/* Whether a terminal would act on the character at p, whose utf8_step() is given: control
 * characters including C1, and invalid UTF-8. */
bool utf8_steers(const void *p, int step);

/* True if the bytes are UTF-8: no surrogates, no overlong forms, nothing above U+10FFFF. */
bool utf8_valid(const void *data, size_t n);

/* Replaces each byte of control characters and of invalid UTF-8 with '?'. */
void utf8_clean(char *s);

#endif
