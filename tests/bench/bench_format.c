/* bench_format.c - what response formats cost: compiling a schema, and the mask of a token.
 *
 *     bench_format TOKENIZER_FOLDER < LINES
 *
 * with lines {"schema": …, "texts": […]} as `nvllmd schema` reads them. The texts are tokenized and
 * read token by token, as they would be generated, and each mask is timed, with the step to it; for
 * a line without texts tokens are drawn from the masks. CPU time of this thread.
 * tests/golden/hostile_formats.py prints the lines that should cost the most. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jansson.h>

#include "engine/grammar/format.h"
#include "engine/util/checked.h"

enum { DRAWN_TEXTS = 4, DRAWN_TOKENS = 64 };

struct times {
    double *us; /* [n] */
    size_t n, cap;
};

struct counts {
    size_t formats, supported, texts, failed;
    size_t most_bytes;
};

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void add(struct times *t, double us)
{
    if (!array_reserve(&t->us, &t->cap, t->n + 1, sizeof(*t->us)))
        exit(1);
    t->us[t->n++] = us;
}

static int by_time(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static void print_times(const char *what, struct times *t)
{
    double sum = 0;

    if (t->n == 0)
        return;
    qsort(t->us, t->n, sizeof(*t->us), by_time);
    for (size_t i = 0; i < t->n; i++)
        sum += t->us[i];
    printf("%-10s %10zu %10.1f %10.1f %10.1f %10.1f %10.1f\n", what, t->n, sum / (double)t->n,
           t->us[t->n / 2], t->us[t->n * 99 / 100], t->us[t->n * 999 / 1000], t->us[t->n - 1]);
}

/* Steps with a token to *place, but for the first mask, whose token is -1. */
static int read_mask(struct format *f, uint32_t *mask, int32_t *place, int32_t token,
                     struct times *times)
{
    const double begin = now_us();
    int r = 0;

    if (token >= 0)
        *place = format_step(f, *place, token);
    if (*place == GRAMMAR_DEAD)
        r = format_failed(f) ? -E2BIG : -ENOENT;
    if (r == 0)
        r = format_mask(f, mask, *place, NULL, 0);
    add(times, now_us() - begin);
    return r;
}

static void read_text(struct format *f, const struct tokenizer *t, uint32_t *mask, struct text text,
                      struct times *times, struct counts *n)
{
    struct token_list ids = {0};
    int32_t place = format_start(f);
    int r = tokenizer_encode_all(t, text, false, &ids);

    for (size_t i = 0; r == 0 && i < ids.n; i++)
        r = read_mask(f, mask, &place, i > 0 ? ids.ids[i - 1] : -1, times);
    n->failed += r < 0 && r != -ENOENT;
    n->texts++;
    free(ids.ids);
}

/* One of the tokens of a mask; -1: it has none. */
static int32_t draw(const uint32_t *mask, int32_t n_words, unsigned *seed)
{
    int32_t n = 0, at;

    for (int32_t i = 0; i < n_words; i++)
        n += __builtin_popcount(mask[i]);
    at = n > 0 ? rand_r(seed) % n : -1;
    for (int32_t i = 0; at >= 0; i++)
        for (uint32_t word = mask[i]; word; word &= word - 1)
            if (at-- == 0)
                return i * 32 + __builtin_ctz(word);
    return -1;
}

static void draw_text(struct format *f, uint32_t *mask, int32_t n_words, unsigned seed,
                      struct times *times, struct counts *n)
{
    int32_t place = format_start(f), token = -1;
    int r = 0;

    for (int i = 0; i < DRAWN_TOKENS && r == 0 && (i == 0 || token >= 0); i++) {
        r = read_mask(f, mask, &place, token, times);
        if (r == 0)
            token = draw(mask, n_words, &seed);
    }
    n->failed += r < 0 && r != -ENOENT;
    n->texts++;
}

/* The text of a line's format, which is to be freed; NULL: there is none. */
static char *read_source(struct format_source *source, const json_t *line)
{
    static const struct {
        const char *key;
        enum format_kind kind;
    } kinds[] = {{"regex", FORMAT_REGEX}, {"grammar", FORMAT_GRAMMAR}};
    char *text = json_dumps(json_object_get(line, "schema"), JSON_ENCODE_ANY);

    *source = (struct format_source){.kind = FORMAT_JSON_SCHEMA};
    for (size_t i = 0; !text && i < 2; i++) {
        const char *s = json_string_value(json_object_get(line, kinds[i].key));

        source->kind = kinds[i].kind;
        text = s ? strdup(s) : NULL;
    }
    source->text = (struct text){text, text ? strlen(text) : 0};
    return text;
}

int main(int argc, char **argv)
{
    struct times compile = {0}, masks = {0};
    struct counts n = {0};
    struct tokenizer *t;
    struct vocabulary *v;
    uint32_t *mask;
    char *line = NULL;
    size_t cap = 0;
    struct err e;

    if (argc != 2 || tokenizer_load(&t, argv[1], &e) < 0) {
        fprintf(stderr, "%s\n", argc == 2 ? e.text : "usage: bench_format TOKENIZER_FOLDER");
        return 1;
    }
    v = vocabulary_new(t, tokenizer_n_ids(t));
    mask = calloc((size_t)tokenizer_n_ids(t) / 32 + 1, sizeof(*mask));
    while (v && mask && getline(&line, &cap, stdin) > 0) {
        json_t *input = json_loads(line, JSON_DECODE_ANY, NULL);
        struct format_source source;
        char *source_text = read_source(&source, input);
        const json_t *texts = json_object_get(input, "texts"), *text;
        struct format *f;
        double begin;
        size_t i;
        int r;

        n.formats++;
        begin = now_us();
        r = source_text ? format_new(&f, &source, v, &e) : -EINVAL;
        add(&compile, now_us() - begin);
        n.supported += r == 0;
        for (unsigned k = 0; r == 0 && !texts && k < DRAWN_TEXTS; k++)
            draw_text(f, mask, tokenizer_n_ids(t) / 32 + 1, k, &masks, &n);
        json_array_foreach(texts, i, text)
        {
            if (r == 0)
                read_text(f, t, mask,
                          (struct text){json_string_value(text), json_string_length(text)}, &masks,
                          &n);
        }
        if (r == 0 && format_bytes(f) > n.most_bytes)
            n.most_bytes = format_bytes(f);
        if (r == 0)
            format_free(f);
        free(source_text);
        json_decref(input);
    }
    printf("%zu formats, %zu supported; %zu texts, %zu without an end for their cost; %.1f MB\n",
           n.formats, n.supported, n.texts, n.failed, (double)n.most_bytes / 1e6);
    printf("%-10s %10s %10s %10s %10s %10s %10s\n", "us", "n", "average", "median", "p99", "p99.9",
           "most");
    print_times("compile", &compile);
    print_times("mask", &masks);
    vocabulary_free(v);
    tokenizer_free(t);
    free(compile.us);
    free(masks.us);
    free(mask);
    free(line);
    return 0;
}
