/* bench_tokenizer.c - how fast a folder's tokenizer loads and encodes.
 *
 * usage: bench_tokenizer [FOLDER] */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/text/tokenizer.h"

enum { BENCH_BYTES = 1 << 20, BENCH_ROUNDS = 5 };

static double now_ms(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

/* Prints the best of some rounds. */
static int bench(const struct tokenizer *t, const char *name, const char *text, size_t n)
{
    double best = 1e9;
    size_t n_ids = 0;

    for (int i = 0; i < BENCH_ROUNDS; i++) {
        struct token_list list = {0};
        double start = now_ms();
        int r = tokenizer_encode_all(t, (struct text){text, n}, true, &list);
        double took = now_ms() - start;

        n_ids = list.n;
        free(list.ids);
        if (r)
            return r;
        best = took < best ? took : best;
    }
    printf("%-22s %8zu bytes %8zu ids %8.1f ms %8.1f MB/s\n", name, n, n_ids, best,
           (double)n / best / 1e3);
    return 0;
}

static size_t repeat(char *buf, const char *unit)
{
    size_t len = strlen(unit), n = 0;

    for (; n + len <= BENCH_BYTES; n += len)
        memcpy(buf + n, unit, len);
    return n;
}

/* Sentences of made-up words with the lengths of English ones, new words all the time. */
static size_t prose(char *buf)
{
    static const char *const parts[] = {"the", "in",  "er",  "tion", "con", "al", "re", "st",
                                        "ing", "ed",  "pro", "ment", "an",  "o",  "to", "ver",
                                        "is",  "qua", "lo",  "ther", "un",  "a",  "ly", "we"};
    size_t n = 0;

    srandom(1);
    while (n + 64 < BENCH_BYTES) {
        for (long k = 1 + random() % 3; k; k--)
            n += (size_t)sprintf(buf + n, "%s", parts[(size_t)random() % 24]);
        switch (random() % 14) {
        case 0:
            n += (size_t)sprintf(buf + n, ".\n");
            break;
        case 1:
            n += (size_t)sprintf(buf + n, ", ");
            break;
        case 2:
            n += (size_t)sprintf(buf + n, " %ld ", random() % 2000);
            break;
        default:
            buf[n++] = ' ';
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name, *unit;
    } units[] = {{"one letter", "a"},
                 {"spaces", " "},
                 {"newlines", "\n"},
                 {"emoji", "\xf0\x9f\x98\x80"},
                 {"one mark", "\xcc\x81"},
                 {"two marks, unordered", "\xcc\x81\xcc\xa3"},
                 {"letter and mark", "e\xcc\x81"},
                 {"Chinese", "\xe4\xbd\xa0\xe5\xa5\xbd\xe4\xb8\x96\xe7\x95\x8c"},
                 {"broken bytes", "\xff"},
                 {"special tokens", "<|im_start|>"},
                 {"almost special", "<|im_start|"}};
    const char *folder = argc > 1 ? argv[1] : TEST_MODEL_DIR;
    char *buf = malloc(BENCH_BYTES);
    struct tokenizer *t;
    struct err e = {0};
    double start = now_ms();
    int r;

    if (!buf || tokenizer_load(&t, folder, &e)) {
        fprintf(stderr, "%s\n", e.text);
        free(buf);
        return 1;
    }
    printf("%s: %d ids, loaded in %.1f ms\n", folder, tokenizer_n_ids(t), now_ms() - start);
    r = bench(t, "prose", buf, prose(buf));
    for (size_t i = 0; !r && i < sizeof(units) / sizeof(*units); i++)
        r = bench(t, units[i].name, buf, repeat(buf, units[i].unit));
    tokenizer_free(t);
    free(buf);
    return r ? 1 : 0;
}
