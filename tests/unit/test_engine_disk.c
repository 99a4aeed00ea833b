/* test_engine_disk.c - an engine while its disk tier is still being read, over the CPU backend and
 * the bundled model. */
#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/core/prefix_cache.h"
#include "tests/unit/engine_rig.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/temp_dir.h"

enum {
    LEN = 16,
    RECORD = sizeof(struct node_record) + LEN * sizeof(int32_t),
    HEADER = 4096,
};

static const char *const prompts[] = {
    "Once upon a time there was a fox that lived alone in a deep forest, far from all houses.",
    "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday and the weekend.",
    "One, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve and so on.",
    "The capital of Spain is Madrid, that of France is Paris, and that of Italy is Rome.",
};

static sem_t reading; /* of the index goes on with it, once it has found a record that is broken */
static _Atomic bool breaks;

static void wait_at_broken_record(const char *text)
{
    (void)text;
    sem_wait(&reading);
}

/* Whose first row is not finite, while it breaks. The next step reads what the backend has sampled.
 */
static int breaking_wait(struct backend *b, struct step_result *out, struct err *e)
{
    static int32_t ids[64];
    const int r = cpu_backend.wait(b, out, e);

    if (r < 0 || !breaks || out->n_rows == 0)
        return r;
    ck_assert_int_le(out->n_rows, N(ids));
    memcpy(ids, out->ids, (size_t)out->n_rows * sizeof(*ids));
    ids[0] = BATCH_NUMERICS;
    out->ids = ids;
    return 0;
}

static void set_up(void)
{
    set_up_engine();
    make_dir();
    sem_init(&reading, 0, 0);
    ops.wait = breaking_wait;
    breaks = false;
    options.backend_options.tier_bytes[TIER_HOST] = 16u << 20;
    options.disk_folder = dir;
    options.disk_bytes = 16u << 20;
    options.warn = wait_at_broken_record;
}

static void tear_down(void)
{
    sem_post(&reading);
    end_engine();
    remove_dir();
    sem_destroy(&reading);
}

static struct core_usage usage_of(struct engine *g, int prompt)
{
    struct engine_request r = request(1, prompts[prompt]);
    struct answer a;

    r.max_tokens = 2;
    generate(g, &r);
    gather(g, &a, 1);
    return a.usage;
}

/* Changes the last record of the index. */
static void break_last_record(void)
{
    char path[128];
    struct stat st;
    int fd;

    snprintf(path, sizeof(path), "%s/kv-index", dir);
    fd = open(path, O_WRONLY);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_int_gt(st.st_size, HEADER + RECORD);
    ck_assert_int_eq((st.st_size - HEADER) % RECORD, 0);
    ck_assert_int_eq(pwrite(fd, "?", 1, st.st_size - RECORD), 1);
    close(fd);
}

/* An engine that has kept two prompts on disk and waits at a third one, whose record is broken. */
static struct engine *start_waiting(void)
{
    struct engine *g = start();

    for (int i = 0; i < 3; i++)
        (void)usage_of(g, i);
    end_engine();
    break_last_record();
    return start();
}

/* Blocks that are known to be on disk, or with `stored` have been written by this engine; waits for
 * the first, a bounded time. */
static int32_t blocks_on_disk(struct engine *g, bool stored)
{
    struct engine_status status;
    int32_t n = 0;

    for (int i = 0; i < 30000 && n == 0; i++) {
        usleep(1000);
        engine_status(g, &status);
        n = stored ? (int32_t)status.core.tiers[TIER_DISK].stored
                   : status.core.tiers[TIER_DISK].cached;
    }
    return n;
}

/* What could not go to disk before all that is there was known goes there then: no request need
 * come for it. */
TEST(idle_engine_stores_what_has_waited)
{
    struct engine *g = start_waiting();

    (void)usage_of(g, 3);
    sem_post(&reading);
    ck_assert_int_gt(blocks_on_disk(g, true), 0);
}

/* A request whose numbers are broken erases what is on disk of its own, and nothing that is not
 * known yet. */
TEST(broken_request_spares_what_is_not_known)
{
    struct engine *g = start_waiting();

    breaks = true;
    ck_assert_int_eq(usage_of(g, 3).completion_tokens, 0);
    breaks = false;
    sem_post(&reading);
    end_engine();
    g = start();
    ck_assert_int_gt(blocks_on_disk(g, false), 0);
    for (int i = 0; i < 2; i++)
        ck_assert_int_ge(usage_of(g, i).cached_tokens, LEN);
}

RUN_TESTS("engine_disk", set_up, tear_down)
