/* engine_private.h - the engine's own state, shared by engine.c (the face, and the load),
 * engine_jobs.c (the pool's work), engine_loop.c (the engine thread), engine_requests.c,
 * engine_sleep.c, engine_inspect.c, engine_disk.c, engine_stats.c, engine_trace.c, engine_format.c,
 * engine_draft.c, generation.c and embedding.c. */
#ifndef NVLLM_ENGINE_ENGINE_PRIVATE_H
#define NVLLM_ENGINE_ENGINE_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "engine/step_cost.h"
#include "engine/disk_tier.h"
#include "engine/drafter.h"
#include "engine/engine.h"
#include "engine/text/text_stream.h"
#include "engine/util/id_map.h"
#include "engine/work_pool.h"

/* Events on their way to the daemon's loop. A zeroed struct is empty. */
struct event_list {
    struct engine_event *head, *tail;
    size_t bytes;
};

/* From the last step, the start or a wake-up to idle work: a client's next request often follows an
 * answer at once, and would wait for a piece of that. (Prompts of 128 tokens one after another,
 * 0.6B on an H200, daemons started for the first time, 2026-11-30: first tokens after 1.5 to 1.8
 * ms; without the pause medians of 4.3 to 8.6, and up to 17.) */
enum { ENGINE_QUIET_US = 50000 };

/* Which thread has a job. */
enum job_phase {
    JOB_IN_POOL,   /* a thread of the pool, or its queue */
    JOB_IN_INBOX,  /* none: the engine thread takes it next */
    JOB_IN_ENGINE, /* the engine thread; in the inbox again where it has been cancelled */
};

/* One request from its start to its terminal event. Of generate, embed and inspect requests the
 * pool encodes the prompt, if there is one, and the engine thread does the rest; the pool answers
 * the others.
 *
 * This is one of the structs that make up a generate request:
 *   struct pending         the daemon's: who waits for it, and what is charged for it
 *   struct engine_request  its arguments, from the daemon to the engine
 *   struct job             the engine's: from start to terminal event
 *   struct core_request    its arguments, from the engine to the core
 *   struct request         the core's, with a struct sequence for each choice
 *   struct generation      the text of the answer, which becomes events
 * An embed request has a struct embedding in place of the generation. */
struct job {
    struct engine_event terminal; /* first: the job's memory is freed as its terminal event */
    struct err message;           /* of the terminal event */
    char field[96];               /* the same, where it is one inside a chat */
    struct work work;             /* waits in the pool, then among inspect requests */
    struct list link;             /* in the inbox */
    struct engine *engine;
    enum job_phase phase; /* under the engine's lock */
    atomic_bool cancelled;
    bool has_token; /* its first token has been counted */
    uint64_t arrival_us;
    struct engine_request request;
    struct token_list prompt;      /* encoded */
    struct answer_parser answer;   /* as the answer begins */
    struct format_source format;   /* the request's, with what a chat adds */
    struct guide *guide;           /* unless the format is free */
    struct generation *generation; /* ENGINE_GENERATE, in the core */
    struct embedding *embedding;   /* ENGINE_EMBED, in the core */
};

/* A choice to end once the core's events have been read: at most one a row. */
struct engine_end {
    uint64_t id;
    int32_t choice;
    bool lost;
};

struct engine {
    struct engine_options options; /* owns its texts */

    int event_fd; /* readable while there are events */
    struct work_pool *pool;
    struct engine_packer packer;
    pthread_t thread;
    bool thread_runs;
    atomic_bool quit;
    _Atomic uint64_t beat;           /* odd: the engine thread works, even: it waits for others */
    _Atomic enum sleep_level asleep; /* set by the engine thread */

    /* Set by the engine thread before state becomes READY, constant afterwards. */
    _Atomic enum engine_state state;
    struct model *model;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: none, chat_why says why */
    struct err chat_why;
    bool has_masks; /* the backend takes masks */

    pthread_mutex_t vocabulary_lock;
    struct vocabulary *vocabulary; /* made for the first response format */

    pthread_mutex_t lock;      /* for all below */
    pthread_cond_t wake;       /* of the engine thread */
    pthread_cond_t room;       /* of producers, while too many events are not taken */
    struct event_list events;  /* to be taken */
    struct id_map jobs;        /* all without a terminal event, by id */
    struct list inbox;         /* struct job, for the engine thread: new, or cancelled */
    struct fair_share *shares; /* [n_shares] for the core, where new_shares */
    int32_t n_shares;
    bool new_shares;
    uint64_t idle_sleep_us; /* after which the engine sleeps; 0: never */
    bool new_idle_sleep;
    struct list formats; /* struct kept_format, the last used one last */
    int32_t n_formats;
    size_t format_bytes;           /* of all in the list */
    struct engine_status status;   /* without state and asleep; written by the engine thread but for
                                    * n_encoding and progress */
    struct engine_metrics metrics; /* a copy of counts, as old as status.core */

    /* Owned by the engine thread. */
    struct backend *backend;
    struct core *core;
    struct work_queue inspects; /* work of struct job, by viewer */
    uint64_t inspect_us;        /* earliest time for the next one while steps are in flight */
    struct event_list out;      /* not yet published */
    uint64_t n_taken_in;        /* not yet published: until then still in status.n_encoding */
    struct step_cost cost;
    /* Step n is at n % BACKEND_IN_FLIGHT; its batch stays until it is committed. */
    const struct batch *batches[BACKEND_IN_FLIGHT];
    uint64_t submitted_us[BACKEND_IN_FLIGHT];
    uint64_t committed_us;   /* when the last step was read back */
    uint64_t resumed_us;     /* end of the last pause: times of earlier steps are not recorded */
    struct engine_end *ends; /* [max_seqs] */
    int in_flight;
    struct drafter *drafter; /* NULL: there is no draft model */
    uint64_t drafting_us;    /* that it has taken since the last step was read back */
    uint64_t masks_us;       /* that masks have taken since then */

    struct engine_metrics counts;
    uint64_t lap_us;     /* until when its time has been counted */
    struct trace *trace; /* NULL: none is on */
    struct job *trace_job;
    uint64_t trace_begin_us, trace_end_us;

    struct disk_tier *disk; /* NULL: none */
    char *above_disk;       /* memory of the tier above it, block after block */
    bool restoring;
    bool broken_blocks;         /* an output was not finite: the core drops what it came from */
    int32_t *disk_blocks;       /* [core_max_copies()] of each copy from or to disk, or -1 */
    struct copy_result *copies; /* [2 * core_max_copies()] that have ended */
    struct node_record *record; /* scratch */
};

/* engine.c */
/* Hands events over; out is empty afterwards. It is never refused: producers call
 * engine_wait_for_room() before they make more, so that the limit of event_bytes is never exceeded
 * by more than one batch of each producer. */
void engine_publish(struct engine *g, struct event_list *out);
/* Waits while more than event_bytes are not taken. True if it waited. */
bool engine_wait_for_room(struct engine *g);

void event_list_push(struct event_list *l, struct engine_event *ev);
/* Opens the model, its tokenizer, the backend and the core. Negative errno. */
int engine_load(struct engine *g, struct err *e);
void engine_publish_state(struct engine *g, enum engine_state state); /* wakes the loop */
void engine_read_memory(struct engine *g); /* updates the backend's figures in the status */

/* engine_jobs.c */
void job_run(struct work *w);
void job_release(struct job *j); /* releases the input; may be called again */
void job_free(struct job *j);
/* Ends a job with its terminal event, which the job becomes. */
void job_end(struct job *j, enum engine_event_type type, struct event_list *out);
/* The field that is a job's prompt. */
const char *job_input(const struct job *j);
__attribute__((format(printf, 5, 6))) void job_fail(struct job *j, struct event_list *out,
                                                    enum engine_error error, const char *field,
                                                    const char *fmt, ...);

/* engine_sleep.c. Each returns a negative errno where the engine cannot go on. */
/* Answers INSPECT_SLEEP and INSPECT_WAKE. */
int engine_answer_sleep(struct engine *g, struct job *j, struct err *e);
/* Makes sure that a job can be computed: 1; or 0, and the job has failed: there is too little
 * memory now. */
int engine_wake_for(struct engine *g, struct job *j, struct err *e);
/* When to sleep, if nothing comes before; 0: never. */
uint64_t engine_sleep_time(struct engine *g);
int engine_sleep_by_itself(struct engine *g, struct err *e);

/* engine_disk.c */
/* Before there is a core. */
int engine_open_disk(struct engine *g, struct err *e);
int engine_start_disk(struct engine *g, struct err *e); /* with the core */
void engine_close_disk(struct engine *g);
/* Gives the core the disk records of an earlier process, until until_us. If records are still being
 * read and no step is in flight, waits up to 1 ms. False: there are none left. After the last one
 * call core_next() again: there may be blocks to copy to disk. */
bool engine_restore(struct engine *g, uint64_t until_us);
/* The batch's copies from and to disk. */
void engine_begin_copies(struct engine *g, const struct batch *batch);
/* Adds those that have ended to the result, and if it has none waits up to wait_ms for one. */
void engine_end_copies(struct engine *g, struct step_result *r, int wait_ms);
/* Once the core has taken these: blocks that it does not keep lose their records on disk. */
void engine_forget_ended(struct engine *g, const struct step_result *r);
void engine_forget_cleared(struct engine *g);

/* engine_inspect.c */
/* Takes the job over. computed: the core has computed the prompt that it pins; else NULL. */
void engine_answer(struct engine *g, struct job *j, const struct core_event *computed);
/* Answers one inspect request. While steps are in flight these get a tenth of this thread's time.
 * 1: one was answered, there may be more; 0; or a negative errno. */
int engine_answer_next(struct engine *g, struct err *e);

/* engine_draft.c */
/* Before the model's backend, which takes what memory is left. */
int engine_open_drafter(struct engine *g, struct err *e);
/* Answers the core's draft requests with drafts of the draft model. 1: there are some, but steps
 * are in flight: commit these first and plan none; 0; or a negative errno. */
int engine_draft(struct engine *g, struct err *e);

/* engine_stats.c */
/* Adds the time since the last call to `part`; N_ENGINE_PARTS discards it. */
void engine_count_time(struct engine *g, enum engine_part part);
/* Counts a token, which is reported at now_us. */
void engine_count_token(struct engine *g, struct job *j, const struct core_event *ev,
                        uint64_t now_us);
void engine_count_end(struct engine *g, const struct job *j); /* with its terminal usage */
/* Counts a step whose result has come, and learns from it what steps cost. Sets committed_us. */
void engine_count_step(struct engine *g, uint64_t step);

/* engine_trace.c */
/* Takes over a job of INSPECT_TRACE. */
void engine_begin_trace(struct engine *g, struct job *j);
/* With a trace on: hands its records over if there are many, or with `all` if there are any; and
 * ends it once its time is over. */
void engine_flush_trace(struct engine *g, bool all);
void engine_end_trace(struct engine *g);

/* engine_requests.c */
/* The next job of the inbox, which enters the engine unless it was cancelled there; or NULL. */
struct job *engine_next_job(struct engine *g, bool *is_new);
/* Takes in all jobs of the inbox, and new shares. A negative errno if the engine cannot go on. */
int engine_take_in(struct engine *g, struct err *e);
/* A generate request is over: generation_error() says how. */
void engine_finish(struct engine *g, struct job *j, const struct core_usage *usage);
/* An embed request is over: the core says why. */
void engine_finish_embedding(struct engine *g, struct job *j, const struct core_event *ev);

/* engine_loop.c */
void *engine_main(void *engine);
int engine_finish_steps(struct engine *g, struct err *e); /* those in flight */
/* Copies cached blocks down by one tier; to_sleep: only those that no lower tier has. 1: all are
 * copied; 0: until_us has passed, or with to_sleep a request or the end has come; or a negative
 * errno. */
int engine_store_down(struct engine *g, bool to_sleep, uint64_t until_us, struct err *e);

/* engine_format.c: what a request's response format asks of its choices. */
/* Compiles the format, or finds it, and sets job->guide. In the pool. -EINVAL, -ENOTSUP, -E2BIG,
 * -ENOMEM as format_new(). */
int guide_new(struct job *j, struct err *e);
void guide_free(struct engine *g, struct guide *u); /* takes NULL */
uint64_t guide_bytes(const struct engine *g, const struct engine_request *r);
/* Sets the first masks of a request that the core has. Errors as of guide_next(). */
int guide_begin(struct engine *g, struct job *j, const int32_t *ends, int32_t n_ends);
/* Takes a token of a choice. True: the text is complete, nothing may follow. */
bool guide_step(struct job *j, const struct core_event *ev);
/* Sets the mask for the next one, and drafts with theirs. -ENOENT, -E2BIG, -ENOMEM as
 * format_mask(); -EDQUOT. */
int guide_next(struct engine *g, struct job *j, int32_t choice);
void engine_free_formats(struct engine *g);

/* generation.c. The request must outlive the generation. -EINVAL, -ENOMEM. */
int generation_new(struct generation **out, const struct engine_request *r,
                   const struct tokenizer *tokenizer, const struct answer_parser *answer);
void generation_free(struct generation *g);                /* takes NULL */
uint64_t generation_bytes(const struct engine_request *r); /* before its first token */

/* Adds one token; over: the text is complete with it. 1: the choice has ended, by that or a stop
 * string: call core_stop. Negative: cancel the request, see generation_error. */
int generation_token(struct generation *g, const struct core_event *ev, bool over,
                     struct event_list *out);
/* Notes why the answer cannot go on. */
void generation_fail(struct generation *g, int32_t choice, int error);
void generation_choice_done(struct generation *g, const struct core_event *ev,
                            struct event_list *out);

/* The choice takes no more tokens: the core may have accepted drafts behind a stop string. */
bool generation_is_over(const struct generation *g, int32_t choice);
int32_t generation_n_tokens(const struct generation *g); /* of all choices */

/* 0, -ENOMEM, -EDQUOT where charge refused memory, -E2BIG or -ENOENT of guide_next(): why the
 * answer is lost. */
int generation_error(const struct generation *g);

/* embedding.c. dim: of hidden states. */
struct embedding *embedding_new(int32_t dim); /* NULL: no memory; freed with free() */
uint64_t embedding_bytes(int32_t dim);        /* with the answer */
void embedding_add(struct embedding *y, const struct core_event *ev); /* CORE_SUM */
/* The first n values of the embedding of n_tokens tokens, to be freed; NULL: no memory. */
float *embedding_take(const struct embedding *y, const struct embedder *how, int32_t n_tokens,
                      int32_t n);

#endif
