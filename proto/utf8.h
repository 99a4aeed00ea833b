/* utf8.h - is it UTF-8? Texts of the protocol, and what is made of those that are none. */
#ifndef NVLLM_PROTO_UTF8_H
#define NVLLM_PROTO_UTF8_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the character at p, which has at least one; or, negated, of the longest beginning of a
 * character there that does not go on as one. */
int utf8_step(const void *p, size_t n);

/* Of what stands at p, with utf8_step()'s answer: whether a terminal would take it for an order, as
 * control characters, those of U+0080 to U+009F too, or for nothing, as what is no UTF-8. */
bool utf8_steers(const void *p, int step);

/* True when the bytes are UTF-8: no surrogates, no over-long forms, nothing over U+10FFFF. */
bool utf8_valid(const void *data, size_t n);

/* Writes '?' over each byte of s that is no part of UTF-8: texts cut short, names of files. */
void utf8_clean(char *s);

#endif
