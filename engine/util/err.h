/* err.h - one line of text for people beside a negative errno.
 *
 * A function whose failure a person has to understand takes a `struct err *` as its last parameter,
 * fills it on failure only and returns a negative errno; callers pass both on unchanged. The text
 * names the file or field and, if there is one, the remedy. */
#ifndef NVLLM_ENGINE_UTIL_ERR_H
#define NVLLM_ENGINE_UTIL_ERR_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

struct err {
    char text[512]; /* NUL-terminated; longer texts are cut */
};

/* Sets the text and returns code: `return err_set(e, -EINVAL, "…")`. e may be NULL. Control
 * characters become '?', so that none reaches a terminal or a log. */
__attribute__((format(printf, 3, 4))) int err_set(struct err *e, int code, const char *fmt, ...);
__attribute__((format(printf, 3, 0))) int err_set_va(struct err *e, int code, const char *fmt,
                                                     va_list ap); /* e is not NULL */

/* What a check of many things finds: opening a model needs the first problem, a report all of them.
 * On the caller's stack, zero-initialised. */
struct problems {
    /* Told each problem as "wrong", and what problems_say reports; or NULL. */
    void (*line)(void *arg, const char *level, const char *text);
    void *arg;
    int code; /* negative errno of the first; 0: none */
    uint32_t n;
    struct err first;
};

/* Notes a problem and returns code. */
__attribute__((format(printf, 3, 4))) int problems_add(struct problems *p, int code,
                                                       const char *fmt, ...);

/* Reports what is no problem, if anything is told. level: "ok", "note" or "". */
__attribute__((format(printf, 3, 4))) void problems_say(const struct problems *p, const char *level,
                                                        const char *fmt, ...);

#endif
