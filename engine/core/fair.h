/* fair.h - users, their virtual times, and the queue of what waits for a slot.
 *
 * fair.c states the rule and what it guarantees. Once a user has joined nothing here can fail.
 * Owned by the engine thread. */
#ifndef NVLLM_ENGINE_CORE_FAIR_H
#define NVLLM_ENGINE_CORE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/core/core.h"
#include "engine/step_cost.h"
#include "engine/util/id_map.h"
#include "engine/util/list.h"

enum { FAIR_USUAL_SHARE = 100, FAIR_MAX_SHARE = 10000 };

/* A user whose share is not the usual one. */
struct fair_share {
    uint64_t client;
    int32_t share; /* 1 .. FAIR_MAX_SHARE */
};

struct sequence;

/* One user's account. */
struct fair_user {
    uint64_t id;
    int32_t share;
    double vtime;         /* µs charged, scaled to the usual share */
    double mean_mask_us;  /* that the masks of one choice and token took, of late */
    double spent_mask_us; /* that masks took since a step was planned; not charged yet */
    int64_t n_joined;
    struct list link;                       /* among the active, while n_joined > 0 */
    struct list waiting[CORE_N_PRIORITIES]; /* sequences of each class, in order */

    /* What the schedule counts; all zero when the user leaves. */
    int32_t n_running; /* sequences */
    int32_t n_waiting; /* in the queue */
    int32_t n_blocks;  /* taken by its running sequences; blocks found in the cache do not count */
    bool prompt_waits; /* its prompts go before its decodes: the masks of one did not fit */

    /* Of the step being planned, from fair_step_begin() on. */
    int32_t decodes;  /* that its running sequences could have */
    int32_t n_masked; /* rows with masks that these and its prompts could have at once */
    int32_t rows[CORE_N_PRIORITIES]; /* of prompts in this class and above, up to a step's rows */
    int32_t klass;                   /* the highest class of these; -1: none */
    int32_t n_planned;               /* decodes and rows planned so far */
    double quota_us;                 /* its part of the step by its share; INFINITY: no limit */
    double planned_us;               /* what its rows add to the step */
    double planned_masks_us;         /* what the masks of its rows are expected to take */
    double charged_us;
    int32_t n_skipped;    /* waiting sequences that do not fit now */
    bool has_masks;       /* some of its running sequences do */
    bool held;            /* it gets no more rows, so that its next one begins a later step */
    bool closed;          /* admits no more */
    struct list decoding; /* sequences that may still be granted a decode, in order */
    struct list prompts;  /* and those of the class being planned that may be granted a chunk */
};

struct fair {
    struct id_map users;
    struct list active;
    struct list skipped; /* sequences, while others are admitted */
    int32_t n_active;
    int64_t active_shares;     /* all together */
    double vtime;              /* the greatest of users that have left */
    struct fair_share *shares; /* [n_shares] */
    int32_t n_shares;

    double last_step_us; /* what the step planned before takes without masks */

    /* Of the step being planned. */
    const struct step_cost *cost;
    double base_us, decode_us, row_us; /* what the step, a decode and a prompt row are charged */
    double planned_masks_us;           /* what the masks of all its rows are expected to take */
};

/* for each active user */
#define FAIR_EACH(u, f) LIST_EACH (struct fair_user, u, link, &(f)->active)

/* ---- users */

void fair_init(struct fair *f);
void fair_deinit(struct fair *f); /* no user may be active */

/* These users have these shares from now on, all others the usual one. The array is taken over, to
 * be freed; NULL where n is 0. */
void fair_set_shares(struct fair *f, struct fair_share *shares, int32_t n);

/* The account of a user, active until as many leaves as joins. -ENOMEM. */
int fair_join(struct fair *f, struct fair_user **out, uint64_t id);
void fair_leave(struct fair *f, struct fair_user *u);

/* ---- the queue, of sequences that wait for a slot */

void fair_push(struct sequence *s);
void fair_remove(struct sequence *s);
/* The next to be admitted: class first; then the users with the fewest skipped sequences; then
 * virtual time, with what the user has admitted and not computed yet; then arrival. Closed users
 * are left out. Of one user and class those that were preempted go first. NULL: none. */
struct sequence *fair_top(const struct fair *f);

/* Overtaking. A sequence that does not fit is skipped, out of the queue until all are put back;
 * others may pass it until that has happened too often. One of a user that stays within its part of
 * the pool's blocks, with the n_lacking that it needs, passes one whose user has its part: it takes
 * nothing that the other could claim. */
void fair_skip(struct fair *f, struct sequence *s);
void fair_unskip(struct fair *f);
bool fair_may_pass(const struct fair *f, const struct sequence *s, int32_t pool);
void fair_pass(struct fair *f, const struct sequence *s, int32_t pool);

/* Of n slots or blocks, the user's part by its share among the active users; at least one. */
int32_t fair_part(const struct fair *f, const struct fair_user *u, int32_t n);
/* By how many a user that has `has` of n exceeds its part; 0 up to a tolerance. */
int32_t fair_excess(const struct fair *f, const struct fair_user *u, int32_t has, int32_t n);
/* True where one more leaves the user within its part, up to the same tolerance. */
bool fair_lacks(const struct fair *f, const struct fair_user *u, int32_t has, int32_t n);

/* A step is planned in this order: fair_step_begin(); the caller counts decodes, rows and klass of
 * each user; fair_step_limit() sets each user's quota and returns how many µs the step may take, or
 * INFINITY; fair_charge() for rows as they are planned; fair_step_end(). */
void fair_step_begin(struct fair *f, const struct step_cost *cost);
double fair_step_limit(struct fair *f, int32_t max_rows);
void fair_charge(struct fair *f, struct fair_user *u, int32_t decodes, int32_t rows);
void fair_step_end(struct fair *f);

/* Counts the microseconds that making the masks of one choice and token took. They are charged when
 * the next step is planned. */
void fair_add_mask_time(struct fair_user *u, double us);

/* What us microseconds add to a user's virtual time. */
static inline double fair_vtime_of(const struct fair_user *u, double us)
{
    return us * FAIR_USUAL_SHARE / u->share;
}

#endif
