/* json.h - JSON: values, the results of requests, the daemon's reports. The program ends with a
 * message where jansson finds no memory: see main(). */
#ifndef NVLLM_CLIENT_CTL_JSON_H
#define NVLLM_CLIENT_CTL_JSON_H

#include <jansson.h>

#include "client/ctl/ctl.h"
#include "client/ctl/wrap.h"

/* Parses one JSON value of any type; NULL with *err. */
json_t *ctl_json_parse(const char *data, size_t n, struct nvllm_error *err);

/* A JSON string; each invalid sequence becomes U+FFFD, as with Python's errors="replace". */
json_t *ctl_json_text(struct nvllm_text text);

/* The bytes of a JSON string; data NULL for any other value. */
struct nvllm_text ctl_json_string(const json_t *value);

json_t *ctl_json_ids(const int32_t *ids, size_t n);
json_t *ctl_json_embedding(const struct nvllm_embedding *embedding); /* with its usage and timing */

/* The messages of a chat, as a line of a batch has them. */
json_t *ctl_json_messages(const struct nvllm_chat *chat);

/* Prints the value on one line, or ends the program. Consumes it; gives EXIT_OK. */
int ctl_json_print(int fd, json_t *value);

/* The same on stdout for people: a terminal does not act on what is in it. Keeps the value. */
void ctl_json_show(const json_t *value);

/* {code, message}, with field if one is wrong, and limit and limit_value if one was hit. */
json_t *ctl_json_error(const struct nvllm_error *err);

/* ---- results: the deltas of one request as the object that --json prints */

struct ctl_choice {
    struct text_buffer text, reasoning;
    json_t *tool_calls; /* an array, as a message has it; NULL: none */
    json_t *object;     /* as it is printed; the text is filled in at the end */
    enum nvllm_finish finish;
};

struct ctl_result {
    uint64_t id;        /* of ctl_result_run(); 0: the request was not sent */
    int64_t cancel_end; /* until when that waits for the end; -1: the request was not cancelled */
    int n_interrupts;
    struct ctl_choice *choices; /* [n_choices] */
    uint32_t n_choices;
    struct nvllm_done done; /* zero if the request ended with an error */
    bool reasons;           /* what stdout was sent ends in reasoning; */
    bool open;              /* and within a line */
    struct wrap *wrap;      /* of that text; NULL: it goes as it is */
};

void ctl_result_init(struct ctl_result *r, const struct nvllm_request *request);
void ctl_result_deinit(struct ctl_result *r);
void ctl_result_add(struct ctl_result *r, const struct nvllm_delta *delta);

/* Sets the finish reason of choices that have none. Gives the worst of all choices. */
enum nvllm_finish ctl_result_end(struct ctl_result *r, enum nvllm_finish finish);

/* Runs a request to its end: r takes what comes and, if `streams`, stdout the text of its deltas,
 * tool calls as JSON, a line each, and on a terminal the reasoning. An interrupt or the end of
 * --timeout cancels it; NVLLM_E_TIMEOUT, without *err: it has not ended soon after that. */
enum nvllm_code ctl_result_run(struct ctl_result *r, struct ctl *ctl,
                               const struct nvllm_request *request, bool streams,
                               struct nvllm_error *err);

/* {text, token_ids, finish_reason, usage, timing}, reasoning_content and tool_calls where there are
 * any, logprobs if requested, choices if several. */
json_t *ctl_result_json(const struct ctl_result *r);

/* ---- reports */

json_t *report_json_status(const struct nvllm_status *status);
json_t *report_json_request_list(const struct nvllm_request_list *list);
json_t *report_json_blocks(const struct nvllm_blocks *blocks);
json_t *report_json_cache(const struct nvllm_cache *cache);
json_t *report_json_cache_change(const struct nvllm_cache_change *change);
json_t *report_json_sleep_change(const struct nvllm_sleep_change *change);
json_t *report_json_session_info(const struct nvllm_session_info *info);
json_t *report_json_session_list(const struct nvllm_session_list *list);
json_t *report_json_explanation(const struct nvllm_explanation *explanation);

#endif
