/* bare_wakeups.c - see bare_wakeups.h. */
#include "tests/bench/bare_wakeups.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/daemon_rig.h"

enum {
    MESSAGE = 13, /* bytes, as of a delta of one token */
    NICE = -10,   /* as the engine's thread, where that is allowed */
};

struct chain {
    atomic_uint_fast64_t *ended_ns; /* [n], mapped by both processes */
    int n, step_us, out;
};

static void run_steps(const struct chain *c)
{
    const char message[MESSAGE] = {0};
    uint64_t due_ns = instant_now_ns();

    (void)setpriority(PRIO_PROCESS, 0, NICE);
    for (int i = 0; i < c->n; i++) {
        struct timespec due;

        due_ns += (uint64_t)c->step_us * 1000;
        due.tv_sec = (time_t)(due_ns / 1000000000u);
        due.tv_nsec = (long)(due_ns % 1000000000u);
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL) == EINTR)
            ;
        atomic_store(&c->ended_ns[i], instant_now_ns());
        if (send(c->out, message, sizeof(message), MSG_NOSIGNAL) != sizeof(message))
            _exit(1); /* nobody reads any more */
    }
}

static void take(const struct chain *c, int fd, double *late_us)
{
    size_t got = 0;

    for (int i = 0; i < c->n;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        char buf[4096];
        ssize_t r;

        (void)poll(&p, 1, -1);
        r = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
        if (r == 0)
            die("the bare process has ended");
        got += r > 0 ? (size_t)r : 0;
        for (; i < c->n && got >= ((size_t)i + 1) * MESSAGE; i++)
            late_us[i] = (double)(instant_now_ns() - atomic_load(&c->ended_ns[i])) / 1e3;
    }
}

void bare_wakeups(double *late_us, int n, int step_us)
{
    const size_t bytes = (size_t)n * sizeof(atomic_uint_fast64_t);
    struct chain c = {.n = n, .step_us = step_us};
    int pair[2], status;
    pid_t pid;

    c.ended_ns = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c.ended_ns == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
        die("bare wake-ups: %s", strerror(errno));
    pid = fork();
    if (pid < 0)
        die("fork: %s", strerror(errno));
    if (pid == 0) {
        close(pair[0]);
        c.out = pair[1];
        run_steps(&c);
        _exit(0);
    }
    close(pair[1]);
    take(&c, pair[0], late_us);
    close(pair[0]);
    if (waitpid(pid, &status, 0) != pid || status != 0)
        die("the bare process failed");
    munmap(c.ended_ns, bytes);
}
