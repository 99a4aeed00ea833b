/* program.h - helpers that nvllmd and nvllmctl share. No state; any thread. */
#ifndef NVLLM_PROTO_PROGRAM_H
#define NVLLM_PROTO_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The edit distance of two words; PROGRAM_FAR for words that are too long. */
enum { PROGRAM_LONGEST_WORD = 63, PROGRAM_FAR = 1000 };
int program_distance(const char *a, const char *b);

/* The next whole number in a list separated by spaces or commas, from *at on, which moves past it;
 * numbers over 2^31 are given as some number over 2^31. PROGRAM_NONE: something else is at *at. */
enum { PROGRAM_NUMBER, PROGRAM_END, PROGRAM_NONE };
int program_next_number(int64_t *number, const char *text, size_t n, size_t *at);

/* Quotes text for a shell; what does not fit is left out. n is at least 3. Returns out. */
const char *program_quote(char *out, size_t n, const char *text);

/* Whether it holds a control character, which would move a terminal. */
bool program_has_control(const char *text);

/* Opens standard streams that are closed, as descriptors that can neither be read nor written:
 * otherwise a socket could take their number, and receive what is printed. */
void program_hold_streams(void);

#endif
