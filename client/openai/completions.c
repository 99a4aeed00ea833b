/* completions.c - POST /v1/completions: one or several prompts that the model continues as they
 * are. */
#include "client/openai/answer.h"
#include "client/openai/fields.h"

enum {
    MAX_PROMPTS = 64,
    USUAL_TOKENS = 16, /* of an answer, where the client sets no max_tokens */
};

static bool read_ids(struct intake *in, const char *param, struct nvllm_request *out,
                     const json_t *value)
{
    return read_array(in, param, (void **)&out->prompt_ids, &out->n_prompt_ids, sizeof(int32_t),
                      read_id, value);
}

static bool read_prompt(struct intake *in, const char *param, void *out, const json_t *value)
{
    struct nvllm_request *r = out;

    *r = in->r;
    if (json_is_array(value))
        return read_ids(in, param, r, value);
    if (!json_is_string(value))
        return fields_wrong(in, param, "a string or an array of token ids");
    return read_text(in, param, &r->prompt, value);
}

/* A text, ids of tokens, or an array of such: [n] requests. */
static bool read_prompts(struct intake *in, struct nvllm_request **out, size_t *n)
{
    const json_t *prompt = fields_get(in->root, "prompt");
    const json_t *first = json_array_get(prompt, 0);

    if (!prompt || (json_is_array(prompt) && !first))
        return fields_wrong(in, "prompt", "a string, token ids, or a list of such");
    if (json_is_array(prompt) && !json_is_integer(first)) {
        if (json_array_size(prompt) > MAX_PROMPTS)
            return api_fail(&in->e, 400, "invalid_value", "prompt",
                            "prompt: at most %d prompts are taken at a time.", MAX_PROMPTS);
        return read_array(in, "prompt", (void **)out, n, sizeof(**out), read_prompt, prompt);
    }
    *n = 1;
    *out = intake_take(in, 1, sizeof(**out));
    return *out && read_prompt(in, "prompt", *out, prompt);
}

static bool read_rest(struct intake *in)
{
    const json_t *logprobs = fields_get(in->root, "logprobs");
    const json_t *best_of = fields_get(in->root, "best_of");
    int64_t best = 0, n = in->r.n < 0 ? 1 : in->r.n;

    if (best_of && !read_count(in, "best_of", &best, best_of))
        return false;
    if (best > n)
        return api_fail(&in->e, 400, "unsupported_parameter", "best_of",
                        "best_of: more than n is not supported.");
    if (!fields_refuse_flag(in, "add_special_tokens", false))
        return false; /* a text begins as the model's tokenizer has it */
    if (in->r.max_tokens < 0)
        in->r.max_tokens = USUAL_TOKENS;
    return !logprobs || read_count(in, "logprobs", &in->r.logprobs, logprobs);
}

void completions_request(struct gateway *gateway, struct http_conn *conn,
                         const struct caller *caller, struct nvllm_text body)
{
    struct nvllm_request *requests;
    struct intake in;
    size_t n;

    if (!intake_init(&in, caller, body) || !read_rest(&in) || !read_prompts(&in, &requests, &n) ||
        !gateway_has_model(gateway, in.model, &in.e))
        api_reply_error(conn, &in.e);
    else
        answer_start(&(struct answer_options){
            .gateway = gateway,
            .conn = conn,
            .requests = requests,
            .n_requests = n,
            .n = in.r.n < 0 ? 1 : (uint32_t)in.r.n,
            .stream = in.stream,
            .include_usage = in.include_usage,
            .logprobs = in.r.logprobs >= 0,
        });
    intake_deinit(&in);
}
