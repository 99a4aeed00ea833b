/* result.h - collects the deltas of one request into the object that --json prints. */
#ifndef NVLLM_CLIENT_CTL_RESULT_H
#define NVLLM_CLIENT_CTL_RESULT_H

#include <jansson.h>

#include "client/ctl/ctl.h"

struct ctl_choice {
    struct text_buffer text;
    json_t *object; /* as it is printed; the text is filled in at the end */
    enum nvllm_finish finish;
};

struct ctl_result {
    struct ctl_choice *choices; /* [n_choices] */
    uint32_t n_choices;
    struct nvllm_done done; /* zero if the request ended with an error */
};

/* Ends the program if there is no memory. */
void ctl_result_init(struct ctl_result *r, const struct nvllm_request *request);
void ctl_result_deinit(struct ctl_result *r);
void ctl_result_add(struct ctl_result *r, const struct nvllm_delta *delta);

/* Sets the finish reason of choices that have none. */
void ctl_result_end(struct ctl_result *r, enum nvllm_finish finish);

/* The worst finish reason of all choices. */
enum nvllm_finish ctl_result_finish(const struct ctl_result *r);

/* {text, token_ids, finish_reason, usage, timing}, logprobs if requested, and choices if there are
 * several. */
json_t *ctl_result_json(const struct ctl_result *r);

#endif
