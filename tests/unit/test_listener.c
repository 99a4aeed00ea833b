/* test_listener.c - the socket's path: who may take it, what is replaced, what is left alone. */
#include "daemon/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"

static char folder[] = "/tmp/nvllm-test-XXXXXX";
static char path[64], lock_path[64];
static struct err e;

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/s", folder);
    snprintf(lock_path, sizeof(lock_path), "%s/s.lock", folder);
}

static void teardown(void)
{
    unlink(path);
    unlink(lock_path);
    ck_assert_int_eq(rmdir(folder), 0);
}

static int open_path(struct listener **l)
{
    const struct listener_options o = {.path = path, .mode = 0640, .group = ""};

    return listener_open(l, &o, &e);
}

static int connect_path(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), r;

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    r = connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ? -errno : 0;
    close(fd);
    return r;
}

/* Binds the path and leaves the socket there, listening or not. */
static int leave_socket(bool listening)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    if (listening)
        ck_assert_int_eq(listen(fd, 1), 0);
    return fd;
}

/* The socket is there with its mode, takes clients, and is gone with its lock afterwards. */
TEST(socket_comes_and_goes)
{
    struct listener *l;
    struct stat st;

    ck_assert_int_eq(open_path(&l), 0);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 07777, 0640);
    ck_assert_int_eq(fcntl(listener_fd(l), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(connect_path(), 0);
    listener_stop(l);
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_assert_int_eq(access(lock_path, F_OK), 0); /* still ours */
    listener_free(l);
    ck_assert_int_eq(access(lock_path, F_OK), -1);
}

/* A second one on the same path refuses, even after the first has stopped listening. */
TEST(second_listener_refuses)
{
    struct listener *l, *second = NULL;

    ck_assert_int_eq(open_path(&l), 0);
    ck_assert_int_eq(open_path(&second), -EADDRINUSE);
    ck_assert_ptr_nonnull(strstr(e.text, path));
    ck_assert_int_eq(connect_path(), 0); /* unharmed */
    listener_stop(l);
    ck_assert_int_eq(open_path(&second), -EADDRINUSE);
    listener_free(l);
    ck_assert_int_eq(open_path(&second), 0);
    listener_free(second);
}

/* A socket that nobody listens on any more is replaced. */
TEST(stale_socket_is_replaced)
{
    struct listener *l;

    close(leave_socket(true));
    ck_assert_int_eq(connect_path(), -ECONNREFUSED);
    ck_assert_int_eq(open_path(&l), 0);
    ck_assert_int_eq(connect_path(), 0);
    listener_free(l);
}

/* A socket that another program serves, without our lock, is left alone. */
TEST(foreign_socket_is_left_alone)
{
    struct listener *l;
    int fd = leave_socket(true);

    ck_assert_int_eq(open_path(&l), -EADDRINUSE);
    ck_assert_int_eq(connect_path(), 0);
    close(fd);
}

/* What is no socket is refused and left alone: a file, a folder, a link to a file. */
TEST(other_files_are_left_alone)
{
    struct listener *l;
    struct stat st;
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    ck_assert_int_eq(write(fd, "precious", 8), 8);
    close(fd);
    ck_assert_int_eq(open_path(&l), -ENOTSOCK);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_size, 8);
    unlink(path);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(open_path(&l), -ENOTSOCK);
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(symlink("/etc/passwd", path), 0);
    ck_assert_int_eq(open_path(&l), -ENOTSOCK);
}

/* A path is as long as an address holds, and not longer; its folder must be there. */
TEST(paths_are_checked)
{
    struct listener_options o = {.mode = 0600, .group = ""};
    char longest[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
    struct listener *l;

    memset(longest, 'x', sizeof(longest));
    memcpy(longest, folder, strlen(folder));
    longest[strlen(folder)] = '/';
    longest[sizeof(longest) - 1] = '\0'; /* one byte too long */
    o.path = longest;
    ck_assert_int_eq(listener_open(&l, &o, &e), -ENAMETOOLONG);
    ck_assert_ptr_nonnull(strstr(e.text, "107"));
    longest[sizeof(longest) - 2] = '\0';
    ck_assert_int_eq(listener_open(&l, &o, &e), 0);
    ck_assert_str_eq(listener_path(l), longest);
    listener_free(l);
    o.path = "";
    ck_assert_int_eq(listener_open(&l, &o, &e), -EINVAL);
    o.path = "/nowhere/at/all/s";
    ck_assert_int_eq(listener_open(&l, &o, &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.text, "folder"));
}

/* A check says what opening would, and leaves everything as it is. */
TEST(check_says_what_opening_would)
{
    struct listener_options o = {.path = path,
                                 .mode = 0600,
                                 .group = "",
                                 .group_option = "some.option"};
    char none[80], lock[80];
    int fd;

    ck_assert_int_eq(listener_check(&o, &e), 0);
    ck_assert_int_eq(access(path, F_OK) | access(lock_path, F_OK), -1);
    fd = leave_socket(true);
    ck_assert_int_eq(listener_check(&o, &e), -EADDRINUSE);
    close(fd);
    ck_assert_int_eq(listener_check(&o, &e), 0); /* stale: opening replaces it */
    ck_assert_int_eq(access(path, F_OK), 0);
    unlink(path);
    close(open(path, O_CREAT | O_CLOEXEC, 0600));
    ck_assert_int_eq(listener_check(&o, &e), -ENOTSOCK);
    snprintf(none, sizeof(none), "%s/none/s", folder);
    o.path = none;
    ck_assert_int_eq(listener_check(&o, &e), -ENOENT);
    ck_assert_ptr_nonnull(strstr(e.text, "folder does not exist"));
    snprintf(lock, sizeof(lock), "%s/s", path); /* below a file */
    o.path = lock;
    ck_assert_int_eq(listener_check(&o, &e), -ENOTDIR);
    o.path = "";
    ck_assert_int_eq(listener_check(&o, &e), -EINVAL);
    unlink(path);
    o.path = path;
    o.group = "no-such-group-here";
    ck_assert_int_eq(listener_check(&o, &e), -EINVAL);
    ck_assert_ptr_nonnull(strstr(e.text, "some.option: there is no group no-such-group-here"));
}

/* A group that does not exist is refused by the option that names it, and nothing is left behind.
 */
TEST(unknown_group_is_refused)
{
    const struct listener_options o = {.path = path,
                                       .mode = 0660,
                                       .group = "no-such-group-here",
                                       .group_option = "daemon.some_group"};
    struct listener *l;

    ck_assert_int_lt(listener_open(&l, &o, &e), 0);
    ck_assert_ptr_nonnull(strstr(e.text, "no-such-group-here"));
    ck_assert_ptr_eq(strstr(e.text, "daemon.some_group: "), e.text);
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_assert_int_eq(access(lock_path, F_OK), -1);
}

/* Of many that start at once exactly one serves, round after round. */
TEST(one_of_many_wins)
{
    for (int round = 0; round < 20; round++) {
        int go[2], tried[2], hold[2], winners = 0;
        char c;
        pid_t pids[6];

        close(leave_socket(false)); /* there is a stale one to fight over, too */
        ck_assert_int_eq(pipe(go), 0);
        ck_assert_int_eq(pipe(tried), 0);
        ck_assert_int_eq(pipe(hold), 0);
        for (int i = 0; i < 6; i++) {
            pids[i] = fork();
            if (pids[i] == 0) {
                struct listener *l;
                int r;

                close(go[1]);
                close(hold[1]);
                (void)!read(go[0], &c, 1); /* until all are there */
                r = open_path(&l);
                (void)!write(tried[1], "", 1);
                (void)!read(hold[0], &c, 1); /* until all have tried */
                _exit(r == 0 ? 0 : r == -EADDRINUSE ? 1 : 2);
            }
        }
        close(go[1]);
        for (int i = 0; i < 6; i++)
            ck_assert_int_eq(read(tried[0], &c, 1), 1);
        close(hold[1]);
        for (int i = 0; i < 6; i++) {
            int status;

            ck_assert_int_eq(waitpid(pids[i], &status, 0), pids[i]);
            ck_assert(WIFEXITED(status));
            ck_assert_int_le(WEXITSTATUS(status), 1);
            winners += WEXITSTATUS(status) == 0;
        }
        close(go[0]);
        close(tried[0]);
        close(tried[1]);
        close(hold[0]);
        ck_assert_int_eq(winners, 1);
        unlink(path);
    }
}

/* Without systemd there is nothing to inherit. */
TEST(nothing_is_inherited_without_systemd)
{
    struct listener *l = (struct listener *)1;

    unsetenv("LISTEN_FDS");
    ck_assert_int_eq(listener_inherit(&l, &e), 0);
    ck_assert_ptr_null(l);
}

/* A socket of systemd is taken as it is, and not removed at the end. */
TEST(socket_of_systemd_is_taken)
{
    struct listener *l;
    char pid[16];
    int fd = leave_socket(true);

    ck_assert_int_eq(dup2(fd, 3), 3);
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "1", 1);
    ck_assert_int_eq(listener_inherit(&l, &e), 0);
    ck_assert_ptr_nonnull(l);
    ck_assert_int_eq(listener_fd(l), 3);
    ck_assert_str_eq(listener_path(l), path);
    listener_free(l);
    ck_assert_int_eq(access(path, F_OK), 0);
    if (fd != 3)
        close(fd);
}

/* A socket that was removed is made anew with mode and lock; the old descriptor is over. */
TEST(removed_socket_is_mended)
{
    struct listener *l;
    struct stat st;

    ck_assert_int_eq(open_path(&l), 0);
    ck_assert(listener_intact(l));
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(unlink(lock_path), 0);
    ck_assert(!listener_intact(l));
    ck_assert_int_eq(listener_mend(l, &e), 0);
    ck_assert(listener_intact(l));
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0640);
    ck_assert_int_eq(connect_path(), 0);
    ck_assert_int_ge(accept(listener_fd(l), NULL, NULL), 0);
    ck_assert_int_eq(access(lock_path, F_OK), 0);
    listener_free(l);
    ck_assert_int_eq(access(path, F_OK), -1);
    ck_assert_int_eq(access(lock_path, F_OK), -1);
}

/* What others have put in the socket's place is replaced when it is dead, and left alone else. */
TEST(replaced_socket_is_mended_or_left)
{
    struct listener *l;
    int other;

    ck_assert_int_eq(open_path(&l), 0);
    ck_assert_int_eq(unlink(path), 0);
    other = leave_socket(true);
    ck_assert(!listener_intact(l));
    ck_assert_int_eq(listener_mend(l, &e), -EADDRINUSE);
    ck_assert_int_ge(listener_fd(l), 0); /* the old one, whoever still knows it */
    ck_assert(!listener_intact(l));
    close(other);
    ck_assert_int_eq(listener_mend(l, &e), 0);
    ck_assert(listener_intact(l));
    listener_stop(l);
    ck_assert(listener_intact(l)); /* nothing to be looked after any more */
    listener_free(l);
}

RUN_TESTS("listener", setup, teardown)
