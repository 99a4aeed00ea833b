/* lexer.h - the texts of regular expressions as bytes: plain, or as JSON strings.
 *
 * A plain text is UTF-8. A JSON string has quotes around it, and each character as itself or as one
 * of its escapes (RFC 8259, section 7), but for control characters, quotes and backslashes, which
 * are escaped; a surrogate is only ever one of a pair. What has been read of a text is a state,
 * made when somebody comes to it; LEXER_DEAD: no text goes on like this.
 *
 * As the regex pool, it belongs to one thread at a time, and may fail. */
#ifndef NVLLM_ENGINE_GRAMMAR_LEXER_H
#define NVLLM_ENGINE_GRAMMAR_LEXER_H

#include "engine/grammar/regex.h"
#include "engine/grammar/steps.h"

enum lexer_form { LEXER_PLAIN, LEXER_JSON };

enum { LEXER_DEAD = -1 };

struct lexer_state {
    /* Private to lexer.c: where in which kind of character, and the expression for what follows. */
    int32_t phase, term, left, value, base;
    int32_t link;       /* of the hash table */
    struct steps steps; /* by the next byte */
    bool accepts;       /* the text may end here */
    bool is_final;      /* and does: no byte goes on */
};

struct lexer {
    struct regex_pool regex;
    struct lexer_state *states; /* [n_states] */
    size_t n_states, states_cap;
    int32_t *table; /* [table_size] */
    size_t table_size;
    struct step_pages pages;
};

int lexer_init(struct lexer *l, size_t max_bytes); /* -ENOMEM */
void lexer_deinit(struct lexer *l);
size_t lexer_bytes(const struct lexer *l);
static inline int lexer_failed(const struct lexer *l)
{
    return l->regex.failed;
}

/* The state before a text; LEXER_DEAD: there is no text. */
int32_t lexer_begin(struct lexer *l, int32_t term, enum lexer_form form);

int32_t lexer_step(struct lexer *l, int32_t state, uint8_t byte);

/* Whether, for certain, the state is between two characters, and n of any kind that a JSON string
 * has without escapes can follow. */
bool lexer_absorbs(const struct lexer *l, int32_t state, int32_t n);

/* Whether any text of a JSON string and its end follow. */
bool lexer_is_free(const struct lexer *l, int32_t state);

#endif
