/* steps.h - where each byte leads from a state, known as far as somebody has asked: 16 pages of 16
 * bytes, each there once it is written to. */
#ifndef NVLLM_ENGINE_GRAMMAR_STEPS_H
#define NVLLM_ENGINE_GRAMMAR_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "engine/util/checked.h"

enum { STEP_UNKNOWN = -2 };

struct steps {
    int32_t pages[16]; /* numbers of pages; 0: none */
};

struct step_pages {
    int32_t (*pages)[16]; /* [n]; the first is unused */
    size_t n, cap;
};

static inline int32_t steps_get(const struct step_pages *p, const struct steps *s, uint8_t byte)
{
    const int32_t page = s->pages[byte >> 4];

    return page ? p->pages[page][byte & 15] : STEP_UNKNOWN;
}

/* False: no memory, and nothing is known of it. */
static inline bool steps_set(struct step_pages *p, struct steps *s, uint8_t byte, int32_t to)
{
    int32_t *page = &s->pages[byte >> 4];

    if (*page == 0) {
        if (p->n == 0)
            p->n = 1;
        if (!array_reserve(&p->pages, &p->cap, p->n + 1, sizeof(*p->pages)))
            return false;
        *page = (int32_t)p->n++;
        for (int i = 0; i < 16; i++)
            p->pages[*page][i] = STEP_UNKNOWN;
    }
    p->pages[*page][byte & 15] = to;
    return true;
}

#endif
