/* core_rig.h - a core and a backend that checks it, driven step by step by a test. */
#ifndef NVLLM_TESTS_UNIT_CORE_RIG_H
#define NVLLM_TESTS_UNIT_CORE_RIG_H

#include "engine/inspect.h"
#include "tests/sim/sim_backend.h"

enum { RIG_MAX_EVENTS = 4096, RIG_MAX_PROMPT = 512 };

struct rig {
    struct core_options options;
    struct sim_backend_options backend_options;
    struct core *core;
    struct sim_backend *backend;
    uint64_t now_us; /* 1000 a step */
    uint64_t last_id;
    int32_t n_events; /* all that was ever told */
    struct core_event events[RIG_MAX_EVENTS];
    struct inspect_report *report; /* the last one */
    struct sampling sampling;      /* of the last rig_request(): change it before that is asked */
};

/* 64 blocks of 4, 32 rows, 8 sequences, all else as a daemon has it. Change, then start. */
extern struct rig rig;
void rig_defaults(void);
void rig_start(void);
void rig_set_up(void); /* both */
void rig_end(void);
void rig_restart(void); /* with what has been changed */

/* A request of client 1 for max_tokens after n tokens that follow from text; change, then ask. */
struct core_request rig_request(int32_t text, int32_t n_prompt, int32_t max_tokens);
uint64_t rig_ask(struct core_request *r); /* must be admitted; gives its id */
uint64_t rig_ask_for(int32_t text, int32_t n_prompt, int32_t max_tokens); /* both */
uint64_t rig_ask_of(uint64_t client, int32_t text, int32_t n_prompt, int32_t max_tokens);
uint64_t rig_ask_as(uint64_t client, enum core_priority priority, int32_t text, int32_t n_prompt,
                    int32_t max_tokens);

const struct batch *rig_next(void); /* submitted; NULL: CORE_WAIT or CORE_IDLE */
void rig_commit(void);
void rig_step(void); /* both */
void rig_steps(int n);
void rig_step_unverified(void); /* to measure time: nothing is looked at */
void rig_run(void);             /* until nothing is left */
void rig_look(void);            /* takes events and verifies */

/* Asks, with a prompt of n tokens where the query has one; rig.report is the answer. */
int rig_inspect(const struct inspect_query *q, const int32_t *prompt, int32_t n);
/* Of everybody, as an admin does. */
void rig_look_into(enum inspect_kind kind);

int32_t rig_count(uint64_t id, enum core_event_type type);
const struct core_event *rig_finished(uint64_t id); /* NULL: not yet */
int32_t rig_token(uint64_t id, int32_t choice, int32_t i);
struct core_stats rig_stats(void);

#endif
