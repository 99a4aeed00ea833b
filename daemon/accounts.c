/* accounts.c - see accounts.h. */
#include "daemon/accounts.h"

#include <stdlib.h>
#include <string.h>

#include "engine/util/must.h"

void accounts_init(struct accounts *a)
{
    memset(a, 0, sizeof(*a));
    a->total.all = a;
}

static void must_be_zero(const struct account *one)
{
    for (int i = 0; i < N_ACCOUNT_ITEMS; i++)
        must(atomic_load(&one->amounts[i]) == 0);
}

void accounts_deinit(struct accounts *a)
{
    must(a->by_uid.n == 0); /* nobody refers to one */
    must_be_zero(&a->total);
    id_map_deinit(&a->by_uid);
    memset(a, 0, sizeof(*a));
}

struct account *account_get(struct accounts *a, uid_t uid)
{
    struct account *one = id_map_get(&a->by_uid, uid);

    if (!one) {
        one = calloc(1, sizeof(*one));
        if (!one)
            return NULL;
        one->all = a;
        one->uid = uid;
        if (id_map_put(&a->by_uid, uid, one) < 0) {
            free(one);
            return NULL;
        }
    }
    one->refs++;
    return one;
}

void account_ref(struct account *one)
{
    must(one->refs > 0);
    one->refs++;
}

void account_unref(struct account *one)
{
    must(one->refs > 0);
    if (--one->refs)
        return;
    must_be_zero(one);
    must(id_map_take(&one->all->by_uid, one->uid) == one);
    free(one);
}

void account_add(struct account *one, enum account_item item, uint64_t n)
{
    atomic_fetch_add(&one->amounts[item], n);
    atomic_fetch_add(&one->all->total.amounts[item], n);
}

void account_sub(struct account *one, enum account_item item, uint64_t n)
{
    if (n == 0)
        return;
    must(atomic_fetch_sub(&one->all->total.amounts[item], n) >= n);
    must(atomic_fetch_sub(&one->amounts[item], n) >= n);
}
