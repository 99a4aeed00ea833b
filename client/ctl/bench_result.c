/* bench_result.c - see bench.h. */
#include <stdio.h>
#include <unistd.h>

#include "client/ctl/bench.h"
#include "client/ctl/json.h"
#include "client/ctl/terminal.h"

enum { HEAD_COLUMNS = 40, MAX_BAR = 60 }; /* left of a bar; of a bar */

static double a_second(const struct bench_result *r, uint64_t n)
{
    return r->seconds > 0 ? (double)n / r->seconds : 0;
}

static void print_times(const char *name, const struct quantiles *q)
{
    if (q->n > 0)
        printf("%-22s %10.3f %10.3f %10.3f %10.3f %10.3f\n", name, quantiles_ms(q, 0.5),
               quantiles_ms(q, 0.9), quantiles_ms(q, 0.99), quantiles_ms(q, 1),
               quantiles_mean_ms(q));
}

void bench_print(const struct bench_result *r)
{
    int columns, rows, width;

    printf("%-14s%llu done, %llu failed", "requests", (unsigned long long)r->n_done,
           (unsigned long long)r->n_failed);
    if (r->n_cut)
        printf(", %llu cut short at the end", (unsigned long long)r->n_cut);
    if (r->n_busy)
        printf(", asked again %llu times", (unsigned long long)r->n_busy);
    printf("\n%-14s%llu prompt (%llu cached), %llu output\n", "tokens",
           (unsigned long long)r->prompt_tokens, (unsigned long long)r->cached_tokens,
           (unsigned long long)r->output_tokens);
    printf("%-14s%.3f s\n", "time", r->seconds);
    printf("%-14s%.1f output tok/s, %.1f prompt tok/s, %.2f requests/s\n\n", "throughput",
           a_second(r, r->output_tokens), a_second(r, r->prompt_tokens), a_second(r, r->n_done));
    printf("%-22s %10s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "max", "mean");
    print_times("to the first token", &r->ttft);
    print_times("between tokens", &r->between);
    print_times("a token, by request", &r->token);
    print_times("request", &r->request);
    if (r->between.n == 0)
        return;
    terminal_size(STDOUT_FILENO, &columns, &rows);
    width = columns - HEAD_COLUMNS;
    printf("\nbetween tokens\n");
    quantiles_draw(&r->between, stdout, width < 10 ? 10 : width > MAX_BAR ? MAX_BAR : width);
}

static json_t *times_json(const struct quantiles *q)
{
    return json_pack("{sIsfsfsfsfsf}", "n", (json_int_t)q->n, "p50", quantiles_ms(q, 0.5), "p90",
                     quantiles_ms(q, 0.9), "p99", quantiles_ms(q, 0.99), "max", quantiles_ms(q, 1),
                     "mean", quantiles_mean_ms(q));
}

bool bench_print_json(const struct bench_result *r)
{
    json_t *o = json_pack("{sIsIsIsIsIsIsIsfsfsfsf}", "requests", (json_int_t)r->n_done, "failed",
                          (json_int_t)r->n_failed, "cut", (json_int_t)r->n_cut, "busy",
                          (json_int_t)r->n_busy, "prompt_tokens", (json_int_t)r->prompt_tokens,
                          "cached_tokens", (json_int_t)r->cached_tokens, "output_tokens",
                          (json_int_t)r->output_tokens, "seconds", r->seconds, "output_tok_s",
                          a_second(r, r->output_tokens), "prompt_tok_s",
                          a_second(r, r->prompt_tokens), "requests_s", a_second(r, r->n_done));

    json_object_set_new(o, "ttft_ms", times_json(&r->ttft));
    json_object_set_new(o, "between_ms", times_json(&r->between));
    json_object_set_new(o, "token_ms", times_json(&r->token));
    json_object_set_new(o, "request_ms", times_json(&r->request));
    return ctl_json_print(STDOUT_FILENO, o);
}
