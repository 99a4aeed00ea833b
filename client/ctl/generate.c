/* generate.c - nvllmctl generate: streams the text for one prompt. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/ctl.h"
#include "client/ctl/json.h"
#include "client/ctl/request.h"

struct job {
    struct ctl *ctl;
    struct ctl_prompt prompt;
    bool json;
    bool terminal; /* stdout is one */
    struct ctl_result result;
    char last; /* what was printed last */
    bool started;
    struct ctl_answer answer;
};

static void show_delta(struct job *job, const struct nvllm_delta *delta)
{
    job->started = true;
    if (job->json || job->result.n_choices > 1) {
        ctl_result_add(&job->result, delta);
        return;
    }
    if (delta->finish != NVLLM_FINISH_NONE)
        job->result.choices[0].finish = delta->finish;
    if (delta->text.len > 0)
        job->last = delta->text.data[delta->text.len - 1];
    ctl_write_text(STDOUT_FILENO, delta->text.data, delta->text.len, job->terminal);
}

static void show_choices(const struct job *job)
{
    for (uint32_t i = 0; i < job->result.n_choices; i++) {
        const struct ctl_choice *c = &job->result.choices[i];
        char head[40];

        snprintf(head, sizeof(head), "%s[%u]\n", i ? "\n" : "", i + 1);
        ctl_write(STDOUT_FILENO, head, strlen(head));
        ctl_write_text(STDOUT_FILENO, c->text.data, c->text.len, job->terminal);
        ctl_write(STDOUT_FILENO, "\n", 1);
    }
}

/* The end of the output. */
static void show_end(struct job *job)
{
    if (job->json)
        ctl_json_print(STDOUT_FILENO, ctl_result_json(&job->result));
    else if (job->result.n_choices > 1)
        show_choices(job);
    else if (job->terminal && job->last != '\0' && job->last != '\n')
        ctl_write(STDOUT_FILENO, "\n", 1);
}

static int end_done(struct job *job, const struct nvllm_done *done)
{
    enum nvllm_finish finish = ctl_result_end(&job->result, NVLLM_FINISH_STOP);

    job->result.done = *done;
    show_end(job);
    switch (finish) {
    case NVLLM_FINISH_CANCELLED:
        if (job->answer.cancel_end < 0)
            ctl_message("nvllmd cancelled the request");
        return EXIT_ERROR;
    case NVLLM_FINISH_DEADLINE:
        ctl_message("the deadline has expired");
        return EXIT_DEADLINE;
    case NVLLM_FINISH_ERROR:
        ctl_message("the model computed values that are not numbers");
        return EXIT_ERROR;
    default:
        return EXIT_OK;
    }
}

/* After a cancel or a deadline the text so far is shown, too. */
static int end_error(struct job *job, const struct nvllm_error *err)
{
    int rc = ctl_exit_code(err->code);

    if (err->code == NVLLM_E_CANCELLED || err->code == NVLLM_E_DEADLINE) {
        ctl_result_end(&job->result, err->code == NVLLM_E_CANCELLED ? NVLLM_FINISH_CANCELLED
                                                                    : NVLLM_FINISH_DEADLINE);
        show_end(job);
        if (job->answer.cancel_end >= 0)
            return rc;
    } else if (job->terminal && job->last != '\0' && job->last != '\n') {
        ctl_write(STDOUT_FILENO, "\n", 1);
    }
    /* An option that the daemon refuses is wrong usage. */
    rc = ctl_report(job->ctl, err);
    return err->code == NVLLM_E_INVALID && err->field[0] && strncmp(err->field, "prompt", 6) != 0 &&
                   strncmp(err->field, "chat", 4) != 0 && strncmp(err->field, "messages", 8) != 0
               ? EXIT_USAGE
               : rc;
}

enum { RETRY = -1 };

/* Runs the request to its end; RETRY: the prompt has changed. */
static int run(struct job *job)
{
    const struct nvllm_event *event;
    struct nvllm_error err;
    enum nvllm_code code;

    job->answer = (struct ctl_answer){.cancel_end = -1};
    if (nvllm_generate_start(job->ctl->client, &job->answer.id, &job->prompt.request.r, &err) !=
        NVLLM_OK)
        return ctl_report(job->ctl, &err);
    while ((code = ctl_next_of(job->ctl, &job->answer, &event, &err)) == NVLLM_OK) {
        if (event->delta)
            show_delta(job, event->delta);
        else if (event->done)
            return end_done(job, event->done);
        else if (!job->started && ctl_prompt_fall_back(&job->prompt, event->error->code))
            return RETRY;
        else
            return end_error(job, event->error);
    }
    if (code != NVLLM_E_TIMEOUT)
        return end_error(job, &err);
    if (ctl_left_ms(job->ctl) != 0) /* reported by ctl_generate() */
        ctl_message("nvllmd has not ended the request");
    return EXIT_DEADLINE;
}

int ctl_generate(struct ctl *ctl)
{
    struct job job = {
        .ctl = ctl,
        .json = ctl_option(ctl, "json"),
        .terminal = isatty(STDOUT_FILENO),
    };
    const char *text = ctl->line.n_words ? ctl->line.words[0] : NULL;
    int rc;

    ctl_prompt_init(&job.prompt, ctl);
    if (text && ctl_prompt_is_given(&job.prompt))
        ctl_usage(ctl, "“%s” is one prompt too many", text);
    if (job.prompt.request.r.logprobs >= 0 && !job.json)
        ctl_message("--logprobs needs --json to be shown");
    ctl_prompt_read(&job.prompt, ctl, text);
    ctl_result_init(&job.result, &job.prompt.request.r);
    ctl_connect(ctl);
    ctl_catch_interrupts(false);
    do
        rc = run(&job);
    while (rc == RETRY);
    if (!ctl_interrupted() && ctl_left_ms(ctl) == 0 && rc != EXIT_OK)
        rc = ctl_report_timeout();
    ctl_result_deinit(&job.result);
    ctl_prompt_deinit(&job.prompt);
    return rc;
}
