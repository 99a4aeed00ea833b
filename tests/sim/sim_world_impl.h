/* sim_world_impl.h - a world's state, shared by sim_world.c (requests and steps), sim_host.c
 * (drafts and masks), sim_restart.c (the disk), sim_hands.c (pins, clears and looks) and sim_fair.c
 * (users' shares) alone. */
#ifndef NVLLM_TESTS_SIM_SIM_WORLD_IMPL_H
#define NVLLM_TESTS_SIM_SIM_WORLD_IMPL_H

#include "engine/core/core_impl.h"
#include "engine/inspect.h"
#include "tests/sim/core_verify.h"
#include "tests/sim/rng.h"
#include "tests/sim/sim_backend.h"
#include "tests/sim/sim_oracle.h"
#include "tests/sim/sim_world.h"

enum { MAX_ALIVE = 96, N_BASES = 4, MAX_PROMPT = 2048, MAX_PINS = 8, N_SALTS = 3 };

/* A prompt whose full blocks are pinned. */
struct pinned {
    uint64_t client;
    int32_t salt, n;
    int32_t prompt[MAX_PROMPT];
};

struct world {
    struct rng rng;
    struct core_options options;
    uint8_t secret[PREFIX_CACHE_SECRET];
    struct sim_backend_options backend_options;
    struct core *core;
    struct sim_backend *backend;
    struct oracle_prefixes *prefixes;
    struct sim_counts *counts;

    uint64_t now_us, last_id;
    uint64_t n_committed, last_token_step;
    uint64_t n_earlier; /* steps of processes that were killed */
    int32_t in_flight;
    uint64_t kept_waiting;   /* the sequence that comes next, while it has a claim to a slot */
    int32_t n_kept_waiting;  /* steps in a row in which it did not get it */
    int32_t n_without_chunk; /* steps in a row that left out prompts which could have gone on */
    bool fair;               /* clients of equal class that never stop asking */
    bool timed;              /* client 1 has one request at a time, the others never stop asking */
    uint64_t n_decodes[5];   /* rows, by client */
    double served_us[5];     /* charged for its share, by client */
    double spent_mask_us[5]; /* that its masks took since a step was planned */
    double last_step_us;     /* what that takes without masks */
    double least_vtime[5];   /* that it has when the step has been planned, but for its rows */
    struct oracle_request *alive[MAX_ALIVE];
    int32_t n_alive, max_alive;

    int32_t n_clients, n_salts, max_n, vocab;
    int32_t arrival_one_in, cancel_one_in, stop_one_in, deadline_one_in;
    int32_t max_prompt, max_tokens;
    int32_t bases[N_BASES][MAX_PROMPT]; /* beginnings that requests share */
    int32_t n_base[N_BASES];
    int32_t prompt[MAX_PROMPT];

    struct step_cost cost;         /* what steps take, as the core is told */
    uint64_t light_id;             /* client 1's request that runs */
    double light_us, light_own_us; /* of its steps, and of its own rows in these */
    double light_most_us;          /* of its rows in one step */
    double light_share;            /* the least, since it runs */

    bool speaks;                  /* requests may have drafts and masks */
    int32_t max_mask_us;          /* that making these takes */
    bool pools;                   /* requests may have pooling */
    int32_t hand_one_in;          /* pins, clears and looks */
    uint64_t n_cleared[5];        /* times that a client's cache was cleared */
    struct pinned pins[MAX_PINS]; /* what must stay */
    int32_t n_pins;

    struct disk *disk; /* of sim_restart.c */
    bool restoring;
};

/* sim_restart.c */
void sim_disk_open(struct world *w); /* with the core */
void sim_disk_close(struct world *w);
void sim_disk_submitted(struct world *w, const struct batch *batch);
void sim_disk_waited(struct world *w, const struct step_result *result); /* before its commit */
void sim_disk_committed(struct world *w, const struct step_result *result);
void sim_disk_cleared(struct world *w);
void sim_disk_restore(struct world *w); /* some more, while w->restoring */
/* The process is killed now; end lets a copy of it come to its end. */
const char *sim_restart(struct world *w, const char *(*end)(struct world *w));

void sim_fair_choose_cost(struct world *w);
void sim_fair_choose_light(struct world *w); /* a timed world */
void sim_fair_plan(struct world *w);         /* a step is about to be planned */
/* The step just planned, which preempted so many sequences. */
const char *sim_fair_check(struct world *w, const struct batch *batch, uint64_t n_preempted);
/* Where a client that is not active would start, or -1; and whether it did. */
double sim_fair_start(const struct world *w, uint64_t client);
const char *sim_fair_joined(const struct world *w, uint64_t client, double vtime);

/* A request that is alive. */
struct oracle_request *sim_find(const struct world *w, uint64_t id);

struct text sim_salt(int32_t salt);

/* Requests of equal key may share. */
uint64_t sim_namespace_key(const struct world *w, uint64_t client, int32_t salt);

void sim_host(struct world *w); /* the host proposes drafts and sets masks, now and then */
/* Gives the oldest step in flight the masks that it lacks, setting those that are still owed. */
const char *sim_host_masks(struct world *w);
void sim_host_planned(struct world *w, uint64_t step);
const char *sim_host_committed(struct world *w, uint64_t step);

/* NULL, or what was wrong. */
const char *sim_hands(struct world *w);     /* one thing that people do by hand, or none */
const char *sim_hands_off(struct world *w); /* clears all: nothing may be used then */

#endif
