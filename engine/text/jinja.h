/* jinja.h - a sandboxed interpreter of the Jinja that chat templates use, as transformers sets it
 * up: trim_blocks, lstrip_blocks, loop controls, no autoescape, nothing can be changed but
 * namespaces and variables.
 *
 * A template is compiled once and then only read, by any number of threads. Its names are resolved
 * to slots, and an unknown filter, test, function or tag is refused with its line and column. A
 * rendering takes its memory from an arena that is freed as a whole, and is bounded in steps,
 * depth, output and memory, whatever the template and its variables are.
 *
 * Each byte of a text knows whether the template wrote it or whether it came with a variable, and
 * keeps that through every operation. */
#ifndef NVLLM_ENGINE_TEXT_JINJA_H
#define NVLLM_ENGINE_TEXT_JINJA_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "engine/util/err.h"
#include "engine/util/text.h"

struct jinja;     /* a compiled template */
struct jinja_run; /* a rendering, see jinja_impl.h */

/* -EINVAL: "line 3, column 7: …"; -ENOTSUP the same for what Jinja has and this has not. */
int jinja_compile(struct jinja **out, struct text source, struct err *e);
void jinja_free(struct jinja *t);

struct jinja_limits {
    uint64_t steps; /* expressions, statements, turns of loops, and every few bytes copied */
    size_t memory_bytes;
    size_t output_bytes;
};

/* What a template wrote: the ranges that are its own are ascending, disjoint and merged. */
struct jinja_text {
    char *data; /* NUL-terminated */
    size_t len;
    struct text_range *ranges;
    size_t n_ranges;
};

struct jinja_input {
    /* Sets the variables, with the functions of jinja_impl.h. */
    void (*set)(struct jinja_run *r, void *arg);
    void *arg;
    const struct tm *now; /* of strftime_now; NULL: the clock's local time */
    struct jinja_limits limits;
    size_t expected_bytes; /* of the output, about */
};

/* -EINVAL: what raise_exception was given, or "chat template: line 3: …"; -E2BIG: a limit;
 * -ENOMEM. */
int jinja_render(const struct jinja *t, const struct jinja_input *in, struct jinja_text *out,
                 struct err *e);
void jinja_text_deinit(struct jinja_text *t);

#endif
