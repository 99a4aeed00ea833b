/* thread.h - starts threads that take no signals.
 *
 * A signal to the process goes to any thread that does not block it. Those started here block all
 * that come from outside, so that the daemon's go to its loop alone: none waits for a thread that
 * sleeps on a futex or computes. What a thread's own mistake raises (SIGSEGV and its like) is not
 * blocked. */
#ifndef NVLLM_ENGINE_UTIL_THREAD_H
#define NVLLM_ENGINE_UTIL_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create, with attributes a or, where that is NULL, the usual ones; negative errno. */
static inline int thread_start(pthread_t *thread, const pthread_attr_t *a, void *(*run)(void *),
                               void *arg)
{
    static const int own[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
    sigset_t blocked, before;
    int code;

    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
        sigdelset(&blocked, own[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    code = pthread_create(thread, a, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return -code;
}

#endif
