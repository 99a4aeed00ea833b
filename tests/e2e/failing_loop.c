/* failing_loop.c - for LD_PRELOAD: epoll_wait fails once the file that FAIL_LOOP names is there. */
#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((visibility("default"))) int epoll_wait(int fd, struct epoll_event *events, int n,
                                                      int timeout_ms)
{
    const char *path = getenv("FAIL_LOOP");

    if (path && access(path, F_OK) == 0) {
        errno = EBADF;
        return -1;
    }
    return (int)syscall(SYS_epoll_pwait, fd, events, n, timeout_ms, NULL, 0);
}
