/* embedding.c - the answer to one embed request: adds the sums of hidden states that the core
 * reports and makes the embedding of them. Engine thread only. */
#include "engine/engine_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

struct embedding {
    int32_t dim; /* of hidden states */
    double sum[];
};

uint64_t embedding_bytes(int32_t dim)
{
    return sizeof(struct embedding) + (uint64_t)dim * (sizeof(double) + sizeof(float));
}

struct embedding *embedding_new(int32_t dim)
{
    struct embedding *y = calloc(1, sizeof(*y) + (size_t)dim * sizeof(y->sum[0]));

    if (y)
        y->dim = dim;
    return y;
}

void embedding_add(struct embedding *y, const struct core_event *ev)
{
    must(ev->sum_dim == y->dim);
    for (int32_t i = 0; i < y->dim; i++)
        y->sum[i] = ev->sum[i] + (ev->position > 0 ? y->sum[i] : 0.0);
}

float *embedding_take(const struct embedding *y, const struct embedder *how, int32_t n_tokens,
                      int32_t n)
{
    float *out = calloc((size_t)n, sizeof(*out));
    double scale = how->pooling == POOLING_MEAN ? 1.0 / n_tokens : 1.0, squares = 0.0;

    must(n > 0 && n <= y->dim);
    if (!out)
        return NULL;
    for (int32_t i = 0; i < n; i++)
        squares += y->sum[i] * y->sum[i];
    if (how->normalize)
        scale = squares > 0.0 ? 1.0 / sqrt(squares) : 0.0;
    for (int32_t i = 0; i < n; i++)
        out[i] = (float)(scale * y->sum[i]);
    return out;
}
