/* thread.h - starts threads that block signals.
 *
 * A signal to the process goes to any thread that does not block it. Threads started here block all
 * signals from outside, so that those of the daemon reach its loop at once. Signals that a thread's
 * own faults raise, such as SIGSEGV, are not blocked. */
#ifndef NVLLM_ENGINE_UTIL_THREAD_H
#define NVLLM_ENGINE_UTIL_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create, but returns a negative errno; the name has at most 15 bytes. */
static inline int thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg)
{
    static const int own[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t blocked, before;
    int code;

    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    code = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code == 0)
        (void)pthread_setname_np(*thread, name);
    return -code;
}

#endif
