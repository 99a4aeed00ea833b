/* format_rig.h - response formats over nvllm-tiny's vocabulary, and which texts they allow. */
#ifndef NVLLM_TESTS_UNIT_FORMAT_RIG_H
#define NVLLM_TESTS_UNIT_FORMAT_RIG_H

#include "engine/grammar/format.h"

struct format_rig {
    struct tokenizer *tokenizer;
    struct vocabulary *vocabulary;
    int32_t n_ids;
};

extern struct format_rig rig; /* between format_rig_start() and format_rig_end() */

void format_rig_start(void);
void format_rig_end(void);

struct format_source source_of(enum format_kind kind, const char *text);
struct format *format_of(enum format_kind kind, const char *text); /* it must be supported */

/* Takes a text as the tokenizer divides it; each token must be in the mask as a step says. */
int32_t place_behind(struct format *f, const char *text);
bool allows(struct format *f, const char *text);

struct texts {
    const char *format;
    const char *right[8], *wrong[8];
};

void check_texts(enum format_kind kind, const struct texts *t);

struct refusal {
    enum format_kind kind;
    const char *text;
    int code;
    const char *message;
};

/* text: the refusal's, or what it stands for. */
void check_refusal(const struct refusal *r, const char *text);

#endif
