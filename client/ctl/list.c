/* list.c - nvllmctl list: runs “nvllmd list”, because the daemon alone knows what it can serve. */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/ctl/ctl.h"

bool ctl_find_nvllmd(char *out)
{
    const char *path = getenv("PATH");
    char own[PATH_MAX], *folders, *rest, *folder, *program, *from;
    bool found = false;
    struct stat st;

    if (!realpath("/proc/self/exe", own))
        own[0] = '\0';
    from = dirname(own); /* where it is not known ".", and nothing below that is taken */
    if (asprintf(&folders, "%s:%s/../sbin:%s/../daemon:%s:/usr/local/sbin:/usr/sbin", from, from,
                 from, path ? path : "") < 0)
        ctl_no_memory();
    for (rest = folders; !found && (folder = strsep(&rest, ":")) != NULL; free(program)) {
        if (asprintf(&program, "%s/nvllmd", folder) < 0)
            ctl_no_memory();
        found = program[0] == '/' && realpath(program, out) && stat(out, &st) == 0 &&
                S_ISREG(st.st_mode) && access(out, X_OK) == 0;
    }
    free(folders);
    return found;
}

/* Waits for the child until --timeout, and gives its exit code. */
static int end_of(const struct ctl *ctl, pid_t child)
{
    struct pollfd ended = {.fd = pidfd_open(child, 0), .events = POLLIN};
    int status;
    bool late;

    do
        late = ended.fd >= 0 && poll(&ended, 1, ctl_left_ms(ctl)) == 0;
    while (!late && ended.fd >= 0 && !ended.revents);
    if (late)
        kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    close(ended.fd);
    if (late)
        return ctl_report_timeout();
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int ctl_list(struct ctl *ctl)
{
    const char *argv[6] = {"nvllmd", "list"};
    char nvllmd[PATH_MAX];
    size_t n = 2;
    pid_t child;

    if (!ctl_find_nvllmd(nvllmd))
        ctl_die("nvllmd is not installed here: it alone knows which models it can serve");
    if (ctl_option(ctl, "json"))
        argv[n++] = "--json";
    argv[n++] = "--"; /* a directory may begin with a dash */
    if (ctl->line.n_words > 0)
        argv[n++] = ctl->line.words[0];
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* whatever ends nvllmctl ends it */
        execv(nvllmd, (char *const *)argv);
        ctl_message("cannot run %s: %s", nvllmd, strerror(errno));
        _exit(EXIT_ERROR);
    }
    if (child < 0)
        ctl_die("cannot run %s: %s", nvllmd, strerror(errno));
    return end_of(ctl, child);
}
