/* cpu_experts.c - see cpu_experts.h. */
#include "engine/cpu/cpu_experts.h"

#include <math.h>
#include <string.h>

/* Whether a comes before b: larger scores do, and of equal ones the first. */
static bool is_before(const float *scores, int a, int b)
{
    return scores[a] > scores[b] || (scores[a] == scores[b] && a < b);
}

/* The last of the n_picks experts that come before all others. */
static int last_pick(const float *scores, int n_experts, int n_picks)
{
    int last = -1;

    for (int rank = 0; rank < n_picks; rank++) {
        int next = -1;

        for (int i = 0; i < n_experts; i++)
            if ((last < 0 || is_before(scores, last, i)) &&
                (next < 0 || is_before(scores, i, next)))
                next = i;
        last = next;
    }
    return last;
}

void route(struct pick *picks, int n_picks, const float *scores, int n_experts, bool norm_topk,
           const struct cpu_ops *ops)
{
    double sum = 0.0;
    float max;
    int last, k = 0;

    if (!ops->row_max(&max, scores, n_experts)) { /* any will do */
        for (; k < n_picks; k++) {
            picks[k].expert = k;
            picks[k].weight = NAN;
        }
        return;
    }
    last = last_pick(scores, n_experts, n_picks);
    for (int i = 0; i < n_experts; i++) {
        const bool is_picked = !is_before(scores, last, i);
        const float weight = (float)exp((double)(scores[i] - max));

        if (is_picked) {
            picks[k].expert = i;
            picks[k++].weight = weight;
        }
        if (is_picked || !norm_topk)
            sum += (double)weight;
    }
    for (k = 0; k < n_picks; k++)
        picks[k].weight = (float)((double)picks[k].weight / sum);
}

int row_groups_cut(struct row_group *groups, int max_rows, int expert, int row, int n)
{
    int n_groups = 0;

    for (int at = 0; at < n; at += max_rows)
        groups[n_groups++] =
            (struct row_group){expert, row + at, n - at < max_rows ? n - at : max_rows};
    return n_groups;
}

void row_groups_of_picks(struct row_groups *groups, int max_rows, struct pick *picks, int n_picks,
                         int *scratch)
{
    int *n_rows = scratch; /* of each expert, then where its rows begin */
    int at = 0;

    memset(n_rows, 0, (size_t)groups->n_experts * sizeof(*n_rows));
    for (int i = 0; i < n_picks; i++)
        picks[i].at = n_rows[picks[i].expert]++;
    groups->n = 0;
    for (int expert = 0; expert < groups->n_experts; expert++) {
        const int n = n_rows[expert];

        groups->n += row_groups_cut(groups->all + groups->n, max_rows, expert, at, n);
        n_rows[expert] = at;
        at += n;
    }
    for (int i = 0; i < n_picks; i++)
        picks[i].at += n_rows[picks[i].expert];
}
