/* rope.c - see rope.h. */
#include "engine/model/rope.h"

#include <math.h>

#include "engine/util/must.h"

/* Llama 3.1: frequencies whose wave is longer than the original context allows are divided by the
 * factor, those of short waves stay, and between the two there is a straight line. */
static float llama3(const struct rope_scaling *s, float inv)
{
    const float low = (float)s->low_freq_factor, high = (float)s->high_freq_factor;
    const float waves = (float)s->original_len / ((float)(2 * M_PI) / inv); /* in that context */
    const float share = (waves - low) / (high - low);

    if (waves > high)
        return inv;
    if (waves < low)
        return inv / (float)s->factor;
    return (1 - share) * inv / (float)s->factor + share * inv;
}

/* The pair that turns so many times over the original context. */
static double pair_of(const struct model_config *c, double turns)
{
    return c->head_dim * log(c->rope.original_len / (turns * 2 * M_PI)) / (2 * log(c->rope_theta));
}

/* YaRN (Peng et al. 2023, "NTK-by-parts"): pairs that turn more often than beta_fast times over the
 * original context stay, those below beta_slow times are divided by the factor, with a straight
 * line between them. */
static float yarn(const struct model_config *c, float inv, int i)
{
    const struct rope_scaling *s = &c->rope;
    const double low = fmax(floor(pair_of(c, s->beta_fast)), 0);
    double high = fmin(ceil(pair_of(c, s->beta_slow)), c->head_dim - 1);
    float kept;

    if (low == high)
        high += 0.001;
    kept = 1 - fminf(fmaxf((float)(i - low) / (float)(high - low), 0), 1);
    return inv / (float)s->factor * (1 - kept) + inv * kept;
}

/* In float, as in training and in the reference implementation. */
void rope_frequencies(const struct model_config *c, float *inv_freq)
{
    must(c->head_dim % 2 == 0);
    for (int i = 0; i < c->head_dim / 2; i++) {
        const float exponent = (float)(2 * i) / (float)c->head_dim;
        float inv = 1.0f / powf((float)c->rope_theta, exponent);

        switch (c->rope.kind) {
        case ROPE_PLAIN:
            break;
        case ROPE_LINEAR:
            inv /= (float)c->rope.factor;
            break;
        case ROPE_LLAMA3:
            inv = llama3(&c->rope, inv);
            break;
        case ROPE_YARN:
            inv = yarn(c, inv, i);
            break;
        }
        inv_freq[i] = inv;
    }
}

float rope_scale(const struct model_config *c)
{
    return c->rope.kind == ROPE_YARN ? (float)c->rope.attention_factor : 1.0f;
}
