/* jumping_clock.c - for LD_PRELOAD: the time of day leaps by ten years back and forth, many times a
 * second; the monotonic clock goes on as it is. */
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define VISIBLE __attribute__((visibility("default")))

enum { TEN_YEARS_S = 315360000 };

VISIBLE int clock_gettime(clockid_t clock, struct timespec *t)
{
    int r = (int)syscall(SYS_clock_gettime, clock, t);

    if (r == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        struct timespec now;

        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
        t->tv_sec += (now.tv_nsec / 50000000 % 3 - 1) * (time_t)TEN_YEARS_S;
    }
    return r;
}

VISIBLE int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
    struct timespec t;
    int r = clock_gettime(CLOCK_REALTIME, &t);

    (void)zone;
    *tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return r;
}

VISIBLE time_t time(time_t *out)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    if (out)
        *out = t.tv_sec;
    return t.tv_sec;
}
