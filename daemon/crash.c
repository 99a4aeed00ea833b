/* crash.c - see crash.h. Prompts, answers and the KV cache are in memory that is private to the
 * process, as are stacks, to which they are copied in parts; so a core has neither, only registers
 * and the list of what is mapped. The calls that led to the crash are in the log instead. */
#include "daemon/crash.h"

#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_FRAMES = 64 };

static bool to_journal;

static void put(const char *text)
{
    (void)!write(STDERR_FILENO, text, strlen(text));
}

/* Once, then the signal does what it does by default. */
static void on_crash(int number)
{
    void *frames[MAX_FRAMES];
    const char *name = sigabbrev_np(number);

    put(to_journal ? "<2>" : ""); /* its priority */
    put("nvllmd: level=error event=crashed signal=");
    put(name ? name : "?");
    put("\n");
    backtrace_symbols_fd(frames, backtrace(frames, MAX_FRAMES), STDERR_FILENO);
    raise(number);
}

void crash_init(void)
{
    static const int signals[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV};
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;
    void *frame;
    int fd;

    to_journal = getenv("JOURNAL_STREAM") != NULL;
    fd = open("/proc/self/coredump_filter", O_WRONLY | O_CLOEXEC);

    if (fd >= 0) {
        (void)!write(fd, "0x10", 4); /* headers of ELF files alone */
        close(fd);
    }
    backtrace(&frame, 1); /* what it loads at its first call, it cannot load in a crash */
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(signals[i], &action, NULL); /* a sanitizer has its own */
}
