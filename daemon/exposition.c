/* exposition.c - see exposition.h. */
#include "daemon/exposition.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const type_names[] = {
    [EXPOSITION_COUNTER] = "counter",
    [EXPOSITION_GAUGE] = "gauge",
    [EXPOSITION_HISTOGRAM] = "histogram",
    [EXPOSITION_INFO] = "info",
};

void exposition_deinit(struct exposition *x)
{
    free(x->data);
    x->data = NULL;
    x->len = x->cap = 0;
}

__attribute__((format(printf, 2, 3))) static void put(struct exposition *x, const char *fmt, ...)
{
    char line[1024];
    size_t cap = x->cap ? 2 * x->cap : 16384;
    va_list ap;
    char *grown;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    if (x->failed || n < 0 || (size_t)n >= sizeof(line)) {
        x->failed = true;
        return;
    }
    if ((size_t)n > x->cap - x->len) {
        grown = realloc(x->data, cap);
        if (!grown) {
            x->failed = true;
            return;
        }
        x->data = grown;
        x->cap = cap;
    }
    memcpy(x->data + x->len, line, (size_t)n);
    x->len += (size_t)n;
}

/* What the names of a family's samples end in. */
static const char *suffix_of(const struct exposition *x)
{
    return x->type == EXPOSITION_COUNTER ? "_total" : x->type == EXPOSITION_INFO ? "_info" : "";
}

void exposition_family(struct exposition *x, const char *name, enum exposition_type type,
                       const char *help)
{
    const char *type_name = type_names[type], *suffix = "";

    x->name = name;
    x->type = type;
    if (!x->openmetrics) { /* a family has its samples' name, and information is a gauge */
        suffix = suffix_of(x);
        type_name = type == EXPOSITION_INFO ? type_names[EXPOSITION_GAUGE] : type_name;
    }
    put(x, "# HELP %s%s %s\n# TYPE %s%s %s\n", name, suffix, help, name, suffix, type_name);
}

static void put_name(struct exposition *x, const char *labels)
{
    put(x, "%s%s", x->name, suffix_of(x));
    if (*labels)
        put(x, "{%s}", labels);
}

void exposition_count(struct exposition *x, const char *labels, uint64_t value)
{
    put_name(x, labels);
    put(x, " %" PRIu64 "\n", value);
}

void exposition_real(struct exposition *x, const char *labels, double value)
{
    put_name(x, labels);
    put(x, " %.15g\n", value);
}

void exposition_histogram(struct exposition *x, const struct histogram *h,
                          const struct histogram_bounds *bounds, double unit)
{
    uint64_t n = 0;
    char le[32];

    for (int32_t i = 0; i < bounds->n; i++) {
        n += h->counts[i];
        snprintf(le, sizeof(le), "%.15g", (double)bounds->at[i] * unit);
        put(x, "%s_bucket{le=\"%s%s\"} %" PRIu64 "\n", x->name, le, strpbrk(le, ".e") ? "" : ".0",
            n); /* as OpenMetrics writes whole numbers */
    }
    n += h->counts[bounds->n];
    put(x, "%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", x->name, n);
    put(x, "%s_sum %.15g\n%s_count %" PRIu64 "\n", x->name, (double)h->sum * unit, x->name, n);
}

void exposition_end(struct exposition *x)
{
    put(x, "# EOF\n"); /* a comment, in the older format */
}

const char *exposition_escape(char *buf, size_t n, const char *text)
{
    size_t at = 0;

    for (; *text && at + 2 < n; text++) {
        if (*text == '"' || *text == '\\' || *text == '\n')
            buf[at++] = '\\';
        buf[at++] = *text == '\n' ? 'n' : *text;
    }
    buf[at] = '\0';
    return buf;
}
