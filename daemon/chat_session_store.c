/* chat_session_store.c - see chat_session_store.h. */
#include "daemon/chat_session_store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/chat_session_file.h"
#include "engine/util/file.h"
#include "engine/util/must.h"
#include "engine/util/thread.h"

static const char new_name[] = "new"; /* of a file that is being written: sessions' have digits */
static const char damaged_prefix[] = "damaged-";

struct job {
    struct list link;
    char file[CHAT_SESSION_FILE_NAME];
    uint8_t *data; /* NULL: the file is to be removed */
    size_t bytes;
    uint64_t id;
    int r;
    struct err why;
};

struct chat_session_store {
    char path[PATH_MAX];
    int dir;
    int event_fd;
    pthread_t thread;
    bool thread_runs;
    pthread_mutex_t lock; /* for all below */
    pthread_cond_t work;
    struct list jobs, done;
    bool stop;
};

/* ---- the thread */

static void run(const struct chat_session_store *s, struct job *j)
{
    if (j->data)
        j->r = file_replace(s->dir, j->file, new_name, j->data, j->bytes);
    else if (unlinkat(s->dir, j->file, 0) < 0 && errno != ENOENT)
        j->r = -errno;
    if (j->r == 0 && fsync(s->dir) < 0)
        j->r = -errno;
    if (j->r < 0)
        err_set(&j->why, j->r, "cannot %s %s/%s: %s", j->data ? "write" : "remove", s->path,
                j->file, strerror(-j->r));
}

static void *thread_main(void *store)
{
    struct chat_session_store *s = store;

    pthread_mutex_lock(&s->lock);
    while (!s->stop || !list_empty(&s->jobs)) {
        struct job *j = CONTAINER_OF(s->jobs.next, struct job, link);

        if (list_empty(&s->jobs)) {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        list_remove(&j->link);
        pthread_mutex_unlock(&s->lock);
        run(s, j);
        pthread_mutex_lock(&s->lock);
        list_append(&s->done, &j->link);
        must(eventfd_write(s->event_fd, 1) == 0);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- the loop */

static void free_jobs(struct list *jobs)
{
    LIST_EACH (struct job, j, link, jobs) {
        free(j->data);
        free(j);
    }
}

void chat_session_store_close(struct chat_session_store *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->thread_runs)
        pthread_join(s->thread, NULL);
    free_jobs(&s->jobs);
    free_jobs(&s->done);
    if (s->dir >= 0)
        close(s->dir);
    if (s->event_fd >= 0)
        close(s->event_fd);
    pthread_cond_destroy(&s->work);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

/* The folder, which is this user's alone and which no other process uses. */
static int open_folder(struct chat_session_store *s, struct err *e)
{
    struct stat st;

    if (mkdir(s->path, 0700) < 0 && errno != EEXIST)
        return err_set(e, -errno, "%s: %s", s->path, strerror(errno));
    s->dir = open(s->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (s->dir < 0 || fstat(s->dir, &st) < 0)
        return err_set(e, -errno, "%s: %s", s->path, strerror(errno));
    if (st.st_uid != geteuid() || (st.st_mode & (S_IRWXG | S_IRWXO)))
        return err_set(e, -EPERM,
                       "%s: others may have access to it; make it mode 0700, of the "
                       "daemon's user",
                       s->path);
    if (flock(s->dir, LOCK_EX | LOCK_NB) < 0)
        return err_set(e, -errno, "%s: %s", s->path,
                       errno == EWOULDBLOCK ? "another process uses it; give each nvllmd a "
                                              "cache.folder of its own"
                                            : strerror(errno));
    return 0;
}

int chat_session_store_open(struct chat_session_store **out, const char *folder,
                            XXH128_hash_t model, struct err *e)
{
    struct chat_session_store *s = calloc(1, sizeof(*s));
    int r;

    if (!s)
        return err_set(e, -ENOMEM, "out of memory");
    s->dir = -1;
    s->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work, NULL);
    list_init(&s->jobs);
    list_init(&s->done);
    r = s->event_fd < 0 ? err_set(e, -errno, "eventfd: %s", strerror(errno)) : 0;
    if (r == 0 && snprintf(s->path, sizeof(s->path), "%s/sessions-%016" PRIx64 "%016" PRIx64,
                           folder, model.high64, model.low64) >= (int)sizeof(s->path))
        r = err_set(e, -ENAMETOOLONG, "cache.folder: the path is too long");
    if (r == 0)
        r = open_folder(s, e);
    if (r == 0) {
        r = thread_start(&s->thread, "sessions", thread_main, s);
        s->thread_runs = r == 0;
        if (r < 0)
            err_set(e, r, "no thread: %s", strerror(-r));
    }
    if (r < 0)
        chat_session_store_close(s);
    else
        *out = s;
    return r;
}

/* A file that is refused is kept, under a name by which it is not read again. */
static void set_aside(const struct chat_session_store *s, const char *file, const struct err *why,
                      void (*warn)(const char *text))
{
    char aside[sizeof(damaged_prefix) + NAME_MAX];
    struct err e;

    snprintf(aside, sizeof(aside), "%s%s", damaged_prefix, file);
    if (renameat(s->dir, file, s->dir, aside) < 0)
        err_set(&e, 0, "%s/%s: %s; it cannot be renamed: %s", s->path, file, why->text,
                strerror(errno));
    else
        err_set(&e, 0, "%s/%s: %s; it is now called %s", s->path, file, why->text, aside);
    warn(e.text);
}

static void read_file(struct chat_session_store *s, const char *file,
                      int (*each)(void *ctx, const char *file, const uint8_t *data, size_t bytes,
                                  struct err *e),
                      void *ctx, void (*warn)(const char *text))
{
    struct err why, all;
    size_t bytes;
    char *data;
    int r = file_read_all(&data, &bytes, s->dir, file, CHAT_SESSION_FILE_MAX, &why);

    if (r == 0) {
        r = each(ctx, file, (const uint8_t *)data, bytes, &why);
        free(data);
    }
    if (r == -EBADMSG || r == -EFBIG || r == -EINVAL) {
        set_aside(s, file, &why, warn);
    } else if (r < 0) { /* nothing need be wrong with it */
        err_set(&all, r, "%s/%s: %s; the session is not there before the next start", s->path, file,
                r == -ENOMEM ? "out of memory" : why.text);
        warn(all.text);
    }
}

void chat_session_store_read(struct chat_session_store *s,
                             int (*each)(void *ctx, const char *file, const uint8_t *data,
                                         size_t bytes, struct err *e),
                             void *ctx, void (*warn)(const char *text))
{
    struct dirent **entries;
    const int n = scandirat(s->dir, ".", &entries, NULL, alphasort);
    struct err e;

    if (n < 0) {
        err_set(&e, -errno, "%s: cannot be read: %s", s->path, strerror(errno));
        warn(e.text);
        return;
    }
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;

        if (name[0] >= '0' && name[0] <= '9')
            read_file(s, name, each, ctx, warn);
        free(entries[i]);
    }
    free(entries);
}

void chat_session_file_name(char *out, uid_t uid, const char *name)
{
    snprintf(out, CHAT_SESSION_FILE_NAME, "%u-%s", (unsigned)uid, name);
}

int chat_session_store_put(struct chat_session_store *s, uid_t uid, const char *name, uint8_t *data,
                           size_t bytes, uint64_t id)
{
    struct job *j = calloc(1, sizeof(*j));

    if (!j)
        return -ENOMEM;
    list_init(&j->link);
    chat_session_file_name(j->file, uid, name);
    j->data = data;
    j->bytes = bytes;
    j->id = id;
    pthread_mutex_lock(&s->lock);
    list_append(&s->jobs, &j->link);
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int chat_session_store_fd(const struct chat_session_store *s)
{
    return s->event_fd;
}

bool chat_session_store_take(struct chat_session_store *s, uint64_t *id, int *r, struct err *e)
{
    struct job *j = NULL;
    eventfd_t count;

    must(eventfd_read(s->event_fd, &count) == 0 || errno == EAGAIN);
    pthread_mutex_lock(&s->lock);
    if (!list_empty(&s->done)) {
        j = CONTAINER_OF(s->done.next, struct job, link);
        list_remove(&j->link);
    }
    pthread_mutex_unlock(&s->lock);
    if (!j)
        return false;
    *id = j->id;
    *r = j->r;
    *e = j->why;
    free(j->data);
    free(j);
    return true;
}
