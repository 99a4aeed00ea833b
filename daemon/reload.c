/* reload.c - see reload.h. */
#include "daemon/reload.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "engine/util/must.h"
#include "engine/util/thread.h"

enum { END_MS = 200 };

struct reload {
    reload_read read;
    void *arg;
    int fd; /* eventfd */
    bool under_way;
    pthread_t thread;
    struct reload_result result; /* the thread's until fd is readable */
};

int reload_new(struct reload **out, reload_read read, void *arg)
{
    struct reload *r = calloc(1, sizeof(*r));

    if (!r)
        return -ENOMEM;
    r->read = read;
    r->arg = arg;
    r->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->fd < 0) {
        int code = -errno;

        free(r);
        return code;
    }
    *out = r;
    return 0;
}

void reload_free(struct reload *r)
{
    if (!r)
        return;
    must(!r->under_way);
    close(r->fd);
    free(r);
}

static void *read_anew(void *arg)
{
    const uint64_t one = 1;
    struct reload *r = arg;
    struct reload_result *got = &r->result;

    got->r = r->read(r->arg, &got->options, &got->why);
    if (got->r == 0) {
        got->r = shares_parse(&got->shares, got->options.shares, &got->why);
        if (got->r < 0)
            options_deinit(&got->options);
    }
    must(write(r->fd, &one, sizeof(one)) == sizeof(one));
    return NULL;
}

int reload_begin(struct reload *r)
{
    int code;

    must(!r->under_way);
    code = thread_start(&r->thread, NULL, read_anew, r);
    r->under_way = code == 0;
    return code;
}

bool reload_under_way(const struct reload *r)
{
    return r->under_way;
}

int reload_fd(const struct reload *r)
{
    return r->fd;
}

bool reload_take(struct reload *r, struct reload_result *out)
{
    uint64_t count;

    if (read(r->fd, &count, sizeof(count)) != sizeof(count))
        return false;
    pthread_join(r->thread, NULL); /* it is about to end */
    r->under_way = false;
    *out = r->result;
    return true;
}

bool reload_end(struct reload *r)
{
    struct pollfd p = {.fd = r->fd, .events = POLLIN};
    struct reload_result got;

    if (!r->under_way)
        return true;
    if (poll(&p, 1, END_MS) != 1 || !reload_take(r, &got))
        return false;
    if (got.r == 0)
        options_deinit(&got.options);
    return true;
}
