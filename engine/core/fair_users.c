/* fair_users.c - the users of fair.h: who is active, with which share, from which virtual time. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "engine/core/fair.h"
#include "engine/util/must.h"
#include "engine/util/plant.h"

enum { MAX_IDLE = 1024 }; /* accounts kept of idle users; of more, the least charged is forgotten */

void fair_init(struct fair *f)
{
    *f = (struct fair){.n_active = 0};
    list_init(&f->active);
    list_init(&f->skipped);
}

void fair_deinit(struct fair *f)
{
    struct fair_user *u;
    size_t at = 0;

    must(f->n_active == 0);
    while ((u = id_map_next(&f->users, &at)))
        free(u);
    id_map_deinit(&f->users);
    free(f->shares);
}

static int32_t share_of(const struct fair *f, uint64_t id)
{
    for (int32_t i = 0; i < f->n_shares; i++)
        if (f->shares[i].client == id)
            return f->shares[i].share;
    return FAIR_USUAL_SHARE;
}

void fair_set_shares(struct fair *f, struct fair_share *shares, int32_t n)
{
    struct fair_user *u;
    size_t at = 0;

    for (int32_t i = 0; i < n; i++)
        must(shares[i].share >= 1 && shares[i].share <= FAIR_MAX_SHARE);
    free(f->shares);
    f->shares = shares;
    f->n_shares = n;
    f->active_shares = 0;
    while ((u = id_map_next(&f->users, &at))) {
        u->share = share_of(f, u->id);
        f->active_shares += u->n_joined > 0 ? u->share : 0;
    }
}

static struct fair_user *user_new(struct fair *f, uint64_t id)
{
    struct fair_user *u = calloc(1, sizeof(*u));

    if (!u)
        return NULL;
    if (id_map_put(&f->users, id, u) < 0) {
        free(u);
        return NULL;
    }
    u->id = id;
    u->share = share_of(f, id);
    list_init(&u->decoding);
    list_init(&u->prompts);
    for (int k = 0; k < CORE_N_PRIORITIES; k++)
        list_init(&u->waiting[k]);
    return u;
}

/* The virtual time at which a newcomer starts. */
static double system_vtime(const struct fair *f)
{
    double least = INFINITY;

    FAIR_EACH (u, f)
        least = fmin(least, u->vtime);
    return isinf(least) ? f->vtime : least;
}

int fair_join(struct fair *f, struct fair_user **out, uint64_t id)
{
    struct fair_user *u = id_map_get(&f->users, id);

    if (!u)
        u = user_new(f, id);
    if (!u)
        return -ENOMEM;
    if (u->n_joined++ == 0) {
        u->vtime = fmax(u->vtime, PLANT(PLANT_IDLE_CREDIT) ? 0 : system_vtime(f));
        if (PLANT(PLANT_NEWCOMER_LAST))
            u->vtime = fmax(u->vtime, f->vtime) + 1e6;
        list_append(&f->active, &u->link);
        f->active_shares += u->share;
        f->n_active++;
    }
    *out = u;
    return 0;
}

void fair_leave(struct fair *f, struct fair_user *u)
{
    struct fair_user *least = NULL;
    size_t at = 0;

    must(u->n_joined > 0);
    if (--u->n_joined > 0)
        return;
    must(u->n_running == 0 && u->n_waiting == 0 && u->n_blocks == 0);
    u->vtime += fair_vtime_of(u, u->spent_mask_us);
    u->spent_mask_us = 0;
    u->prompt_waits = false;
    list_remove(&u->link);
    f->active_shares -= u->share;
    f->n_active--;
    f->vtime = fmax(f->vtime, u->vtime);
    if (f->users.n - (size_t)f->n_active <= MAX_IDLE)
        return;
    while ((u = id_map_next(&f->users, &at)))
        if (u->n_joined == 0 && (!least || u->vtime < least->vtime))
            least = u;
    must(id_map_take(&f->users, least->id) == least);
    free(least);
}
