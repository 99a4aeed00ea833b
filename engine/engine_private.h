/* engine_private.h - what engine.c (the face), engine_jobs.c (the pool's work), engine_loop.c (the
 * engine thread) and what belongs to it share. Nobody else includes it. */
#ifndef NVLLM_ENGINE_ENGINE_PRIVATE_H
#define NVLLM_ENGINE_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/event_queue.h"
#include "engine/generation.h"
#include "engine/util/id_map.h"
#include "engine/core/step_cost.h"
#include "engine/ticket.h"
#include "engine/work_pool.h"

enum job_kind { JOB_GENERATE, JOB_TOKENIZE, JOB_DETOKENIZE, JOB_RENDER, JOB_INSPECT };

/* One request on its way through the pool. Generate and inspect go on to the engine thread, the
 * others end here. An inspect that has no prompt goes there at once; the prompt of one that has is
 * encoded as that of a generate. */
struct job {
    struct work work; /* first */
    struct job *next; /* in the inbox, or in the engine's questions */
    uint64_t round;   /* of questions, in which this one is answered */
    struct engine *engine;
    enum job_kind kind;
    uint64_t id;
    uint64_t client; /* that it is done for */
    uint64_t arrival_us;
    struct engine_request request; /* JOB_GENERATE; JOB_INSPECT: its input alone */
    struct inspect_query query;    /* JOB_INSPECT */
    struct text text;              /* JOB_TOKENIZE */
    bool special;                  /* JOB_TOKENIZE: matched; JOB_DETOKENIZE: skipped */
    const int32_t *ids;            /* JOB_DETOKENIZE */
    size_t n_ids;
    const struct chat *chat; /* JOB_RENDER */
    void *owner;
    void (*release)(void *owner);
    struct token_list prompt; /* JOB_GENERATE, JOB_INSPECT: what was encoded */
    struct engine_event *terminal;
};

/* A choice that the engine ends, while the core's events are walked: at most one a row. */
struct engine_end {
    uint64_t id;
    int32_t choice;
    bool lost;
};

enum { ENGINE_FIRST_ROUND = 1 }; /* of questions: 0 is none */

/* What is learnt from a step in flight. */
struct engine_step {
    uint64_t submitted_us;
    int32_t n_decodes, n_rows; /* rows of prompts */
    bool rested;               /* the engine rested while it was in flight: its time says nothing */
};

struct engine {
    struct engine_options options;
    char *model_folder;
    char *cache_folder; /* NULL: none */

    struct event_queue events;
    struct work_pool *pool;
    struct engine_packer packer;
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
    struct tickets tickets;              /* of all requests under way */
    struct job *inbox_head, *inbox_tail; /* encoded, for the engine thread */
    size_t n_encoding;         /* generate requests that the engine thread has not taken */
    struct fair_share *shares; /* [n_shares] for the core, where new_shares */
    int32_t n_shares;
    bool new_shares;
    bool quit;
    struct core_stats stats; /* as of the last step */
    struct err failure;

    /* The engine thread's alone. */
    struct backend *backend;
    struct core *core;
    struct id_map live;    /* id -> struct generation */
    struct id_map pins;    /* id -> struct job whose prompt is being computed */
    struct job *questions; /* by round: in each, one of every client that asks */
    struct id_map asked;   /* client -> round of its last question, as a number; while any wait */
    uint64_t ask_round;    /* of the question answered last */
    uint64_t ask_us;       /* none is before, while steps are in flight */
    struct event_list out; /* not yet published */
    struct step_cost cost;
    struct engine_step steps[BACKEND_IN_FLIGHT]; /* step n is steps[n % BACKEND_IN_FLIGHT] */
    uint64_t committed_us;                       /* when the last step was read back */
    struct engine_end *ends;                     /* [max_seqs] */
    int in_flight;
};

uint64_t engine_now_us(void); /* CLOCK_MONOTONIC */

/* engine.c */
void engine_inbox_add(struct engine *g, struct job *j); /* with the lock held */

/* engine_jobs.c */
void job_run(struct work *w);
void job_free(struct job *j); /* hands the owner back; takes NULL */
/* Ends a job with the event it was given beforehand. */
void job_fail(struct job *j, enum engine_error error, const char *field, const char *text,
              struct event_list *out);

/* engine_inspect.c */
void engine_answer(struct engine *g, struct job *j); /* takes it over */
/* The core has ended what it computed for a pin. */
void engine_pin_computed(struct engine *g, struct job *j, const struct core_event *finished);

/* engine_loop.c */
void engine_close(struct engine *g, uint64_t id); /* its terminal event is being pushed */
void *engine_main(void *engine);

#endif
