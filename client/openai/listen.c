/* listen.c - see listen.h. */
#include "client/openai/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <systemd/sd-daemon.h>

enum { BACKLOG = 512 };

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un un;
};

__attribute__((format(printf, 3, 4))) static int fail(char why[LISTEN_WHY], int code,
                                                      const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(why, LISTEN_WHY, fmt, args);
    va_end(args);
    return code;
}

/* Only processes of this host reach it. */
static bool is_local(const union address *a)
{
    return a->any.sa_family == AF_UNIX ||
           (a->any.sa_family == AF_INET && ntohl(a->v4.sin_addr.s_addr) >> 24 == 127) ||
           (a->any.sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr));
}

static int check_local(const union address *a, bool remote, const char *name, char why[LISTEN_WHY])
{
    if (is_local(a) || remote)
        return 0;
    return fail(why, -EPERM,
                "%.100s: other hosts reach this address; give --allow-remote and --api-keys, or "
                "listen on 127.0.0.1",
                name);
}

void listen_name(char name[LISTEN_WHY], int fd)
{
    char host[INET6_ADDRSTRLEN] = "?";
    union address a = {0};
    socklen_t n = sizeof(a) - 1;

    (void)getsockname(fd, &a.any, &n);
    if (a.any.sa_family == AF_UNIX)
        snprintf(name, LISTEN_WHY, "unix:%s", a.un.sun_path);
    else if (a.any.sa_family == AF_INET6)
        snprintf(name, LISTEN_WHY, "[%s]:%u",
                 inet_ntop(AF_INET6, &a.v6.sin6_addr, host, sizeof(host)), ntohs(a.v6.sin6_port));
    else
        snprintf(name, LISTEN_WHY, "%s:%u", inet_ntop(AF_INET, &a.v4.sin_addr, host, sizeof(host)),
                 ntohs(a.v4.sin_port));
}

int listen_check(int fd, bool remote, char why[LISTEN_WHY])
{
    char name[LISTEN_WHY];
    union address a = {0};
    socklen_t n = sizeof(a);

    if (sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0 || getsockname(fd, &a.any, &n) < 0)
        return fail(why, -EINVAL, "systemd must pass listening stream sockets");
    listen_name(name, fd);
    return check_local(&a, remote, name, why);
}

/* ---- opening */

/* Removes the socket of a process that has ended, and nothing else. */
static int clear_path(const struct sockaddr_un *address, char why[LISTEN_WHY])
{
    const char *path = address->sun_path;
    struct stat st;
    int fd, r;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : fail(why, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISSOCK(st.st_mode))
        return fail(why, -ENOTSOCK, "%s is not a socket; remove it or choose another path", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    r = connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ? 0 : errno;
    close(fd);
    if (r != ECONNREFUSED)
        return fail(why, -EADDRINUSE, "%s: another program serves this socket", path);
    return unlink(path) == 0 ? 0 : fail(why, -errno, "%s: %s", path, strerror(errno));
}

static int take_path(union address *a, socklen_t *n, const char *path, char why[LISTEN_WHY])
{
    if (!*path || strlen(path) >= sizeof(a->un.sun_path))
        return fail(why, -EINVAL, "--listen: the path of a socket has 1 to %zu bytes",
                    sizeof(a->un.sun_path) - 1);
    a->un.sun_family = AF_UNIX;
    strcpy(a->un.sun_path, path);
    *n = sizeof(a->un);
    return clear_path(&a->un, why);
}

/* “127.0.0.1:8000” or “[::1]:8000”. */
static int take_host(union address *a, socklen_t *n, const char *address, char why[LISTEN_WHY])
{
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                                   .ai_socktype = SOCK_STREAM};
    const char *colon = strrchr(address, ':');
    struct addrinfo *found;
    char host[64], *end;
    size_t length = colon ? (size_t)(colon - address) : 0;

    if (length >= 2 && address[0] == '[' && address[length - 1] == ']')
        snprintf(host, sizeof(host), "%.*s", (int)length - 2, address + 1);
    else
        snprintf(host, sizeof(host), "%.*s", (int)length, address);
    /* getaddrinfo() takes a larger port modulo 65536. */
    if (!*host || !colon[1] || strtoul(colon + 1, &end, 10) > UINT16_MAX || *end ||
        getaddrinfo(host, colon + 1, &hints, &found) != 0)
        return fail(why, -EINVAL,
                    "--listen takes unix:PATH, 127.0.0.1:PORT or [::1]:PORT, PORT at most 65535, "
                    "not “%.100s”",
                    address);
    *n = found->ai_addrlen;
    memcpy(a, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    return 0;
}

int listen_open(const char *address, bool remote, char why[LISTEN_WHY])
{
    const bool is_path = strncmp(address, "unix:", 5) == 0;
    union address a = {0};
    const int on = 1;
    socklen_t n;
    int fd, r = is_path ? take_path(&a, &n, address + 5, why) : take_host(&a, &n, address, why);

    if (r == 0)
        r = check_local(&a, remote, address, why);
    if (r < 0)
        return r;
    fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail(why, -errno, "%.100s: %s", address, strerror(errno));
    if (!is_path)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, &a.any, n) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    r = fail(why, -errno, "%.100s: %s", address, strerror(errno));
    close(fd);
    return r;
}
