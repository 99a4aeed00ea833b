/* golden_cases.h - what a reference implementation in float32 answered to a set of prompts. */
#ifndef NVLLM_TESTS_TOOLS_GOLDEN_CASES_H
#define NVLLM_TESTS_TOOLS_GOLDEN_CASES_H

#include <stdint.h>

enum { GOLDEN_TOP = 5 };

struct golden {
    char name[64];
    int32_t *prompt, *ids;
    int32_t n_prompt, n_ids, max_tokens;
    int32_t (*top_ids)[GOLDEN_TOP]; /* [n_ids] the best of each step, the sampled one first */
    double (*top_logprobs)[GOLDEN_TOP];
    double min_margin; /* of logits between the best two, in the closest step */
};

/* Reads nvllm-tiny-greedy.json in the folder, for golden_free(). Ends the program on errors. */
int golden_load(struct golden **out, const char *folder);
void golden_free(struct golden *all, int n);

#endif
