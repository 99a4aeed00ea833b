/* generate.c - nvllmctl generate: streams the text for one prompt. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/request.h"

struct job {
    struct ctl *ctl;
    struct ctl_prompt prompt;
    bool json;
    bool streams; /* the text of its only choice */
    struct ctl_result result;
};

static void show_choices(const struct ctl_result *r)
{
    for (uint32_t i = 0; i < r->n_choices; i++) {
        const struct text_buffer *text = &r->choices[i].text;
        char head[40];

        snprintf(head, sizeof(head), "%s[%u]\n", i ? "\n" : "", i + 1);
        ctl_write(STDOUT_FILENO, head, strlen(head));
        ctl_write_text((struct nvllm_text){text->data, text->len});
        ctl_write(STDOUT_FILENO, "\n", 1);
    }
}

/* The end of the output; of a streamed text on a terminal, the end of its last line. */
static void show_end(const struct job *job)
{
    if (job->json)
        ctl_json_print(STDOUT_FILENO, ctl_result_json(&job->result));
    else if (!job->streams)
        show_choices(&job->result);
    else if (isatty(STDOUT_FILENO) && job->result.open)
        ctl_write(STDOUT_FILENO, "\n", 1);
}

static int end_done(struct job *job)
{
    enum nvllm_finish finish = ctl_result_end(&job->result, NVLLM_FINISH_STOP);

    show_end(job);
    switch (finish) {
    case NVLLM_FINISH_CANCELLED:
        if (job->result.cancel_end < 0)
            ctl_message("nvllmd cancelled the request");
        return EXIT_ERROR;
    case NVLLM_FINISH_DEADLINE:
        ctl_message("the deadline has expired");
        return EXIT_DEADLINE;
    case NVLLM_FINISH_ERROR:
        ctl_message("the model computed NaN or infinity");
        return EXIT_ERROR;
    default:
        return EXIT_OK;
    }
}

/* Whether a field is the prompt, or lies in it: "chat.messages[0].role". */
static bool is_input(const char *field)
{
    static const char *const inputs[] = {"prompt", "prompt_ids", "chat"};
    const size_t n = strcspn(field, ".[");

    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++)
        if (strlen(inputs[i]) == n && memcmp(inputs[i], field, n) == 0)
            return true;
    return false;
}

/* After a cancel or a deadline the text so far is shown, too. */
static int end_error(struct job *job, const struct nvllm_error *err)
{
    bool cancelled = err->code == NVLLM_E_CANCELLED;
    bool partial = cancelled || err->code == NVLLM_E_DEADLINE;
    int rc;

    if (partial)
        ctl_result_end(&job->result, cancelled ? NVLLM_FINISH_CANCELLED : NVLLM_FINISH_DEADLINE);
    if (partial || job->streams)
        show_end(job);
    if (partial && job->result.cancel_end >= 0)
        return ctl_exit_code(err->code);
    /* An option that the daemon refuses is wrong usage. */
    rc = ctl_report(job->ctl, err);
    return err->code == NVLLM_E_INVALID && job->result.id && err->field[0] && !is_input(err->field)
               ? EXIT_USAGE
               : rc;
}

static int run(struct job *job)
{
    struct nvllm_error err;
    enum nvllm_code code;

    do
        code = ctl_result_run(&job->result, job->ctl, &job->prompt.request.r, job->streams, &err);
    while (ctl_prompt_fall_back(&job->prompt, code));
    if (code == NVLLM_OK)
        return end_done(job);
    if (code != NVLLM_E_TIMEOUT)
        return end_error(job, &err);
    if (ctl_left_ms(job->ctl) != 0) /* reported by ctl_generate() */
        ctl_message("nvllmd did not confirm that the request has ended");
    return EXIT_DEADLINE;
}

int ctl_generate(struct ctl *ctl)
{
    struct job job = {.ctl = ctl, .json = ctl_option(ctl, "json")};
    const char *text = ctl->line.n_words ? ctl->line.words[0] : NULL;
    int rc;

    ctl_prompt_init(&job.prompt, ctl);
    if (text && ctl_prompt_is_given(&job.prompt))
        ctl_usage(ctl, "“%s” is a second prompt: give only one", text);
    if (job.prompt.request.r.logprobs >= 0 && !job.json)
        ctl_message("--logprobs is shown only with --json");
    ctl_prompt_read(&job.prompt, ctl, text);
    ctl_result_init(&job.result, &job.prompt.request.r);
    job.streams = !job.json && job.result.n_choices == 1;
    ctl_connect(ctl);
    ctl_catch_interrupts(false);
    rc = run(&job);
    if (!ctl_interrupted() && ctl_left_ms(ctl) == 0 && rc != EXIT_OK)
        rc = ctl_report_timeout();
    ctl_result_deinit(&job.result);
    ctl_prompt_deinit(&job.prompt);
    return rc;
}
