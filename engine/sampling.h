/* sampling.h - how one request wants its tokens chosen. Plain data, the same for every backend.
 *
 * Order of work on one row of logits z [vocab_size], float32:
 *   1. logprobs are taken from the raw z (log-softmax over the whole, padded vocabulary);
 *   2. penalties, over the request's prompt and generated tokens
 *      (repetition: Keskar et al. 2019, arXiv:1909.05858: z > 0 ? z / r : z * r for each id seen in
 *      prompt or output; presence and frequency as OpenAI defines them, over the output only:
 *      z -= presence * (count > 0) + frequency * count);
 *   3. logit_bias is added; while fewer than min_tokens are generated, stop ids become -inf; so do
 *      the ids that the row's mask (batch.h) does not allow;
 *   4. temperature 0: the largest z, lowest id on a tie. Otherwise z / temperature, then
 *   5. top_k, then top_p (nucleus: the smallest set, in falling probability, lower id first on a
 *      tie, whose probability among what top_k left reaches top_p), then min_p (p >= min_p times
 *      the largest p);
 *   6. Gumbel-max over what is left: argmax of z / temperature + g, g = -log(-log(u)), where u
 *      comes from Philox4x32-10 (Salmon et al. 2011) keyed by the request's seed; its counter is
 *      made of the generated position and the token id (philox.h): no state, no dependence on the
 *      batch. */
#ifndef NVLLM_ENGINE_SAMPLING_H
#define NVLLM_ENGINE_SAMPLING_H

#include <stdint.h>

enum {
    SAMPLING_MAX_LOGPROBS = 20,         /* best alternatives a token */
    SAMPLING_MAX_REQUEST_STOP_IDS = 48, /* that a request may name */
    SAMPLING_MAX_STOP_IDS = 64,         /* with the end ids of the model, at most MODEL_MAX_EOS */
    SAMPLING_MAX_BIAS = 1024,
};

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    float temperature;        /* >= 0; 0 is greedy */
    int32_t top_k;            /* 0: off */
    float top_p;              /* (0, 1]; 1: off */
    float min_p;              /* [0, 1]; 0: off */
    float repetition_penalty; /* > 0; 1: off */
    float presence_penalty;   /* [-2, 2]; 0: off */
    float frequency_penalty;  /* [-2, 2]; 0: off */
    uint64_t seed;
    int32_t n_logprobs; /* best ids beside the sampled one; -1: no logprobs at all */
    int32_t min_tokens; /* stop ids are not sampled before so many tokens */
    int32_t n_bias;
    int32_t n_stop_ids;
    const struct logit_bias *bias; /* [n_bias] */
    const int32_t *stop_ids;       /* [n_stop_ids] the model's unless ignore_eos, the request's */
};

/* Of one token; natural logarithms. */
struct token_logprobs {
    float logprob;
    int32_t n_top;
    int32_t top_ids[SAMPLING_MAX_LOGPROBS];
    float top_logprobs[SAMPLING_MAX_LOGPROBS];
};

/* True when the sampler must know which tokens the sequence already holds. */
static inline int sampling_needs_history(const struct sampling *s)
{
    return s->repetition_penalty != 1.0f || s->presence_penalty != 0.0f ||
           s->frequency_penalty != 0.0f;
}

#endif
