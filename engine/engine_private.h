/* engine_private.h - what engine.c (the face), engine_jobs.c (the pool's work) and engine_loop.c
 * (the engine thread) share. Nobody else includes it. */
#ifndef NVLLM_ENGINE_PRIVATE_H
#define NVLLM_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/event_queue.h"
#include "engine/generation.h"
#include "engine/id_map.h"
#include "engine/pace.h"
#include "engine/work_pool.h"

enum job_kind { JOB_GENERATE, JOB_TOKENIZE, JOB_DETOKENIZE, JOB_RENDER };

/* One request on its way through the pool. Generate goes on to the engine thread, the others end
 * here. */
struct job {
    struct work work; /* first */
    struct job *next; /* in the inbox */
    struct engine *engine;
    enum job_kind kind;
    uint64_t id;
    uint64_t arrival_us;
    bool cancelled;                /* under engine->lock */
    struct engine_request request; /* JOB_GENERATE */
    struct text text;              /* JOB_TOKENIZE */
    bool special;                  /* JOB_TOKENIZE: matched; JOB_DETOKENIZE: skipped */
    const int32_t *ids;            /* JOB_DETOKENIZE */
    size_t n_ids;
    const struct chat *chat; /* JOB_RENDER */
    void *owner;
    void (*release)(void *owner);
    struct token_list prompt; /* JOB_GENERATE: what was encoded */
    struct engine_event *terminal;
};

/* A choice that the engine ends, while the core's events are walked: at most one a row. */
struct engine_end {
    uint64_t id;
    int32_t choice;
    bool lost;
};

/* What the pace is to know of a step in flight. */
struct engine_step {
    uint64_t submitted_us;
    int32_t n_decodes, n_rows; /* rows of prompts */
};

struct engine {
    struct engine_options options;
    char *model_folder;
    char *cache_folder; /* NULL: none */

    struct event_queue events;
    struct work_pool *pool;
    pthread_t thread;
    bool thread_runs;

    /* Set by the engine thread before state becomes READY, constant afterwards. */
    _Atomic enum engine_state state;
    _Atomic double progress;
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: none, chat_why says why */
    struct err chat_why;
    struct backend_info backend_info;
    int32_t max_seq_len;

    pthread_mutex_t lock;                /* for all below */
    pthread_cond_t wake;                 /* of the engine thread, CLOCK_MONOTONIC */
    struct id_map encoding;              /* id -> struct job in the pool */
    struct job *inbox_head, *inbox_tail; /* encoded, for the engine thread */
    uint64_t *cancels;                   /* [n_cancels] ids to be cancelled */
    size_t n_cancels, cap_cancels;
    bool quit;
    struct core_stats stats; /* as of the last step */
    struct err failure;

    /* The engine thread's alone. */
    struct backend *backend;
    struct core *core;
    struct id_map live;    /* id -> struct generation */
    struct event_list out; /* not yet published */
    struct pace pace;
    struct engine_step steps[BACKEND_IN_FLIGHT]; /* step n is steps[n % BACKEND_IN_FLIGHT] */
    uint64_t committed_us;                       /* when the last step was read back */
    struct engine_end *ends;                     /* [max_seqs] */
    int in_flight;
};

uint64_t engine_now_us(void); /* CLOCK_MONOTONIC */

/* engine_jobs.c */
void job_run(struct work *w);
void job_free(struct job *j); /* hands the owner back; takes NULL */
/* Ends a job with the event it was given beforehand. */
void job_fail(struct job *j, enum engine_error error, const char *field, const char *text,
              struct event_list *out);

/* engine_loop.c */
void *engine_main(void *engine);

#endif
