/* program.h - what nvllmd and nvllmctl both do for who calls them. No state; any thread. */
#ifndef NVLLM_PROTO_PROGRAM_H
#define NVLLM_PROTO_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How many letters of a must be changed, added or left out to get b; PROGRAM_FAR for words that
 * nobody would type. */
enum { PROGRAM_LONGEST_WORD = 63, PROGRAM_FAR = 1000 };
int program_distance(const char *a, const char *b);

/* The next of the whole numbers that stand between blanks or commas, from *at on, which goes behind
 * it; one over 2^31 is 2^31 or more, and no further off than that matters. PROGRAM_NONE: at *at is
 * something else. */
enum { PROGRAM_NUMBER, PROGRAM_END, PROGRAM_NONE };
int program_next_number(int64_t *number, const char *text, size_t n, size_t *at);

/* Text as one word of a shell, whatever is in it; what there is no room for is left out. n is 3 at
 * least. Gives out. */
const char *program_quote(char *out, size_t n, const char *text);

/* Whether a byte stands in it that would move a terminal, and not be shown by it. */
bool program_has_control(const char *text);

/* Standard streams that were closed are held by descriptors that neither read nor write: or a
 * socket would take their place, and get what is printed. */
void program_hold_streams(void);

#endif
