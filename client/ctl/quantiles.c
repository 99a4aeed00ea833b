/* quantiles.c - see bench.h. */
#include "client/ctl/bench.h"

#include <math.h>
#include <sys/param.h>

/* Time 0 has bucket 0, and each doubling after it BUCKETS_A_DOUBLING. */
static double begin_of(unsigned bucket)
{
    return exp2((double)bucket / BUCKETS_A_DOUBLING) - 1;
}

void quantiles_add(struct quantiles *q, uint64_t ns)
{
    q->counts[(unsigned)(log2((double)ns + 1) * BUCKETS_A_DOUBLING)]++;
    q->min_ns = q->n == 0 ? ns : MIN(q->min_ns, ns);
    q->max_ns = MAX(q->max_ns, ns);
    q->n++;
    q->sum_ns += (double)ns;
}

double quantiles_ms(const struct quantiles *q, double share)
{
    double wanted = fmax(ceil(share * (double)q->n), 1), before = 0;

    if (share >= 1)
        return (double)q->max_ns / 1e6;
    for (unsigned i = 0; i < QUANTILES_BUCKETS; i++) {
        const double here = (double)q->counts[i];

        if (before + here >= wanted && here > 0) { /* as if they lay evenly in their bucket */
            const double begin = fmax(begin_of(i), (double)q->min_ns);
            const double end = fmin(begin_of(i + 1), (double)q->max_ns);

            /* whole ns, as times are */
            return floor(begin + (wanted - before - 0.5) / here * (end - begin)) / 1e6;
        }
        before += here;
    }
    return 0;
}

double quantiles_mean_ms(const struct quantiles *q)
{
    return q->n ? q->sum_ns / (double)q->n / 1e6 : 0;
}

/* Ranges end at 1, 2, 5, 10, … µs. */
static double range_end_ns(int range)
{
    static const double steps[] = {1, 2, 5};

    return steps[range % 3] * pow(10, range / 3) * 1000;
}

enum { RANGES = 28 }; /* to 1,000 s */

void quantiles_draw(const struct quantiles *q, FILE *to, int width)
{
    uint64_t counts[RANGES] = {0}, most = 1;
    int first = RANGES, last = 0;

    for (unsigned i = 0; i < QUANTILES_BUCKETS; i++) {
        int range = 0;

        if (q->counts[i] == 0)
            continue;
        while (range < RANGES - 1 && begin_of(i) >= range_end_ns(range))
            range++;
        counts[range] += q->counts[i];
        first = MIN(first, range);
        last = MAX(last, range);
        most = MAX(most, counts[range]);
    }
    for (int i = first; i <= last; i++) {
        int bar = (int)((double)counts[i] * width / (double)most + 0.5);

        fprintf(to, "  < %8g ms %10llu  ", range_end_ns(i) / 1e6, (unsigned long long)counts[i]);
        for (int k = 0; k < bar; k++)
            fputc('#', to);
        fputs(counts[i] > 0 && bar == 0 ? ".\n" : "\n", to);
    }
}
