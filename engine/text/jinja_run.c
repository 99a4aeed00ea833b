/* jinja_run.c - compiling and rendering from outside: the arena, errors, texts being written. See
 * jinja_impl.h. */
#include <errno.h>
#include <stdlib.h>

#include "engine/text/jinja_tree.h"
#include "engine/util/checked.h"

enum {
    CHUNK_BYTES = 64 << 10,
    LARGE_BYTES = 8 << 10, /* what gets a chunk of its own */
    COMPILE_MEMORY_MAX = 256 << 20,
};

struct chunk {
    struct chunk *next;
    size_t bytes;
    max_align_t data[];
};

/* ---- errors */

static _Noreturn void leave(struct jinja_run *r, int code)
{
    r->code = code;
    longjmp(r->fail, 1);
}

__attribute__((format(printf, 3, 0))) static _Noreturn void fail_va(struct jinja_run *r, int code,
                                                                    const char *fmt, va_list ap)
{
    struct err why;

    err_set_va(&why, code, fmt, ap);
    if (r->compiling)
        err_set(r->e, code, "line %u, column %u: %s", r->pos >> JINJA_COLUMN_BITS,
                r->pos & ((1u << JINJA_COLUMN_BITS) - 1), why.text);
    else
        err_set(r->e, code, "chat template: line %u: %s", r->pos >> JINJA_COLUMN_BITS, why.text);
    leave(r, code);
}

void jinja_fail(struct jinja_run *r, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_va(r, -EINVAL, fmt, ap);
}

void jinja_fail_as(struct jinja_run *r, int code, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    fail_va(r, code, fmt, ap);
}

void jinja_fail_depth(struct jinja_run *r)
{
    jinja_fail_as(r, r->compiling ? -EINVAL : -E2BIG, "nested or called more than %d deep",
                  (int)JINJA_DEPTH_MAX);
}

void jinja_fail_steps(struct jinja_run *r)
{
    jinja_fail_as(r, -E2BIG, "takes too many steps for a conversation of this size");
}

void jinja_fail_plain(struct jinja_run *r, int code, const struct err *why)
{
    *r->e = *why;
    leave(r, code);
}

void jinja_raise(struct jinja_run *r, struct text message)
{
    err_set(r->e, -EINVAL, "%.*s", message.len < 500 ? (int)message.len : 500, message.data);
    leave(r, -EINVAL);
}

/* ---- the arena */

static _Noreturn void fail_memory(struct jinja_run *r)
{
    err_set(r->e, -ENOMEM, "chat template: not enough memory");
    leave(r, -ENOMEM);
}

static struct chunk *add_chunk(struct jinja_run *r, size_t bytes)
{
    struct chunk *c;
    size_t all;

    if (bytes > r->memory_max - r->taken)
        jinja_fail_as(r, -E2BIG, "takes more than %zu bytes of memory", r->memory_max);
    c = size_add(&all, sizeof(*c), bytes) ? malloc(all) : NULL;
    if (!c)
        fail_memory(r);
    r->taken += bytes;
    *c = (struct chunk){.bytes = bytes};
    return c;
}

void *jinja_take(struct jinja_run *r, size_t bytes)
{
    struct chunk *c;
    char *at;

    if (bytes > LARGE_BYTES) { /* the chunk being filled stays the first */
        c = add_chunk(r, bytes);
        c->next = r->chunks ? r->chunks->next : NULL;
        if (r->chunks)
            r->chunks->next = c;
        else
            r->chunks = c;
        return c->data;
    }
    bytes = (bytes + 7) & ~(size_t)7;
    if (bytes > r->room - r->used) {
        c = add_chunk(r, CHUNK_BYTES);
        c->next = r->chunks;
        r->chunks = c;
        r->used = 0;
        r->room = CHUNK_BYTES;
    }
    at = (char *)r->chunks->data + r->used;
    r->used += bytes;
    return at;
}

void *jinja_grow(struct jinja_run *r, const void *from, size_t used, size_t bytes)
{
    void *larger = jinja_take(r, bytes);

    if (used)
        memcpy(larger, from, used);
    return larger;
}

static void free_chunks(struct chunk *c)
{
    while (c) {
        struct chunk *next = c->next;

        free(c);
        c = next;
    }
}

/* ---- texts being written */

void out_init(struct out *o)
{
    *o = (struct out){.all_own = true};
}

static void grow(struct jinja_run *r, struct out *o, size_t len)
{
    size_t cap = len + len / 2 + 32;
    char *data;

    if (len > r->output_max)
        jinja_fail_as(r, -E2BIG, "writes more than %zu bytes", r->output_max);
    cap = cap < r->output_max ? cap : r->output_max;
    if (!o->whole)
        data = jinja_grow(r, o->data, o->len, cap);
    else if (!(data = realloc(o->data, cap + 1))) /* a NUL comes behind */
        fail_memory(r);
    if (o->own)
        o->own = jinja_grow(r, o->own, o->len, cap);
    o->data = data;
    o->cap = cap;
}

/* A second kind of text has come. */
static void mix(struct jinja_run *r, struct out *o)
{
    o->own = jinja_take(r, o->cap);
    memset(o->own, o->all_own, o->len);
}

/* The next len bytes of the whole output are the template's own. */
static void add_range(struct jinja_run *r, struct out *o, size_t at, size_t len)
{
    if (o->n_ranges && o->ranges[o->n_ranges - 1].end == at) {
        o->ranges[o->n_ranges - 1].end += len;
        return;
    }
    if (!array_reserve(&o->ranges, &o->ranges_cap, o->n_ranges + 1, sizeof(*o->ranges)))
        fail_memory(r);
    o->ranges[o->n_ranges++] = (struct text_range){at, at + len};
}

void out_write(struct jinja_run *r, struct out *o, const char *data, size_t len, bool own)
{
    if (!len)
        return;
    jinja_charge(r, len);
    if (len > o->cap - o->len)
        grow(r, o, o->len + len);
    if (o->whole) {
        if (own)
            add_range(r, o, o->len, len);
    } else {
        if (!o->len)
            o->all_own = own;
        else if (!o->own && own != o->all_own)
            mix(r, o);
        if (o->own)
            memset(o->own + o->len, own, len);
    }
    memcpy(o->data + o->len, data, len);
    o->len += len;
}

/* A text of both kinds for the whole output, stretch by stretch. */
static void write_stretches(struct jinja_run *r, struct out *o, const struct str *s)
{
    for (size_t at = 0, end; at < s->len; at = end) {
        const uint8_t *change = memchr(s->own + at, !s->own[at], s->len - at);

        end = change ? (size_t)(change - s->own) : s->len;
        out_write(r, o, s->data + at, end - at, s->own[at]);
    }
}

void out_str(struct jinja_run *r, struct out *o, const struct str *s)
{
    if (!s->own) {
        out_write(r, o, s->data, s->len, s->all_own);
        return;
    }
    if (o->whole) {
        write_stretches(r, o, s);
        return;
    }
    if (!s->len)
        return;
    jinja_charge(r, s->len);
    if (s->len > o->cap - o->len)
        grow(r, o, o->len + s->len);
    if (!o->own)
        mix(r, o);
    memcpy(o->own + o->len, s->own, s->len);
    memcpy(o->data + o->len, s->data, s->len);
    o->len += s->len;
}

void out_part(struct jinja_run *r, struct out *o, const struct str *s, size_t at, size_t len)
{
    struct str part = *s;

    part.data += at;
    part.len = (uint32_t)len;
    part.own = s->own ? s->own + at : NULL;
    out_str(r, o, &part);
}

struct str *out_take(struct jinja_run *r, struct out *o)
{
    struct str *s = str_new(r, o->len ? o->data : "", o->len, o->all_own);

    s->own = o->own;
    return s;
}

/* ---- from outside */

/* The frame of setjmp(), which changes no variable of its own. */
static int compile(struct jinja_run *r, struct jinja *t, struct text source)
{
    if (setjmp(r->fail))
        return r->code;
    jinja_parse(r, t, jinja_lex(r, source));
    return 0;
}

int jinja_compile(struct jinja **out, struct text source, struct err *e)
{
    struct jinja_run r = {
        .e = e,
        .compiling = true,
        .steps = INT64_MAX,
        .memory_max = COMPILE_MEMORY_MAX,
        .output_max = COMPILE_MEMORY_MAX,
    };
    struct jinja *t = calloc(1, sizeof(*t));
    int code;

    if (!t)
        return err_set(e, -ENOMEM, "chat template: not enough memory");
    code = compile(&r, t, source);
    t->chunks = r.chunks;
    if (code)
        jinja_free(t);
    else
        *out = t;
    return code;
}

void jinja_free(struct jinja *t)
{
    if (!t)
        return;
    free_chunks(t->chunks);
    free(t);
}

void jinja_set(struct jinja_run *r, const char *name, size_t len, struct value v)
{
    for (uint32_t i = 0; i < r->t->n_globals; i++) {
        const struct str *s = r->t->globals[i];

        if (s->len == len && memcmp(s->data, name, len) == 0)
            r->globals[i] = v;
    }
}

static void set_variables(struct jinja_run *r, const struct jinja_input *in)
{
    const size_t bytes = r->t->n_globals * sizeof(*r->globals);

    r->globals = jinja_take(r, bytes + 1);
    memset(r->globals, 0, bytes); /* V_MISSING */
    for (uint32_t i = 0; i < r->t->n_globals; i++) {
        const struct str *name = r->t->globals[i];
        const struct builtin *b = jinja_function(name);

        if (b)
            r->globals[i] = value_function(r, b, (struct value){0});
    }
    in->set(r, in->arg);
}

/* The frame of setjmp(), which changes no variable of its own. */
static int run(struct jinja_run *r, const struct jinja_input *in)
{
    if (setjmp(r->fail))
        return r->code;
    grow(r, &r->whole, in->expected_bytes < r->output_max ? in->expected_bytes : r->output_max);
    set_variables(r, in);
    jinja_execute(r);
    return 0;
}

int jinja_render(const struct jinja *t, const struct jinja_input *in, struct jinja_text *out,
                 struct err *e)
{
    struct jinja_run r = {
        .t = t,
        .e = e,
        .now = in->now,
        .steps = in->limits.steps < INT64_MAX ? (int64_t)in->limits.steps : INT64_MAX,
        .memory_max = in->limits.memory_bytes,
        .output_max = in->limits.output_bytes,
        .whole = {.whole = true},
    };
    struct jinja_text text;
    int code;

    r.out = &r.whole;
    code = run(&r, in);
    json_decref(r.json);
    free_chunks(r.chunks);
    text = (struct jinja_text){r.whole.data, r.whole.len, r.whole.ranges, r.whole.n_ranges};
    if (code) {
        jinja_text_deinit(&text);
        return code;
    }
    text.data[text.len] = '\0';
    *out = text;
    return 0;
}

void jinja_text_deinit(struct jinja_text *t)
{
    free(t->data);
    free(t->ranges);
    *t = (struct jinja_text){0};
}
