/* shares.c - see shares.h. */
#include "daemon/shares.h"

#include <errno.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "daemon/option_values.h"

/* By number or name. */
static bool parse_user(int64_t *out, const char *s)
{
    const struct passwd *p;

    if (option_parse_whole(out, s, 10) && *out < (uid_t)-1) /* (uid_t)-1 is nobody's */
        return true;
    p = getpwnam(s);
    if (!p)
        return false;
    *out = p->pw_uid;
    return true;
}

static int parse_one(struct shares *out, char *word, struct err *e)
{
    char *colon = strchr(word, ':');
    int64_t client, share;

    if (!colon)
        return err_set(e, -EINVAL, "scheduler.shares: \"%s\" is not USER:SHARE", word);
    *colon = '\0';
    if (!parse_user(&client, word))
        return err_set(e, -EINVAL, "scheduler.shares: there is no user \"%s\"", word);
    if (!option_parse_whole(&share, colon + 1, 10) || share < 1 || share > FAIR_MAX_SHARE)
        return err_set(e, -EINVAL, "scheduler.shares: \"%s\" is not a share from 1 to %d",
                       colon + 1, FAIR_MAX_SHARE);
    for (int32_t i = 0; i < out->n; i++)
        if (out->list[i].client == (uint64_t)client)
            return err_set(e, -EINVAL, "scheduler.shares: user \"%s\" is there twice", word);
    if (out->n == SHARES_MAX)
        return err_set(e, -EINVAL, "scheduler.shares: more than %d users", SHARES_MAX);
    out->list[out->n++] = (struct fair_share){.client = (uint64_t)client, .share = (int32_t)share};
    return 0;
}

int shares_parse(struct shares *out, const char *text, struct err *e)
{
    char *copy = strdup(text), *at = copy, *word;
    struct shares shares = {.n = 0};
    int r = 0;

    if (!copy)
        return err_set(e, -ENOMEM, "scheduler.shares: out of memory");
    while (r == 0 && (word = strsep(&at, " \t")))
        if (*word)
            r = parse_one(&shares, word, e);
    free(copy);
    if (r == 0)
        *out = shares;
    return r;
}
