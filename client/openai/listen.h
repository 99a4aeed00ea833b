/* listen.h - the sockets that nvllm-openai listens on: named by options, or systemd's. */
#ifndef NVLLM_CLIENT_OPENAI_LISTEN_H
#define NVLLM_CLIENT_OPENAI_LISTEN_H

#include <stdbool.h>

enum { LISTEN_WHY = 300 };

/* Opens “unix:PATH”, “127.0.0.1:PORT” or “[::1]:PORT”; with remote any “ADDRESS:PORT”. The
 * descriptor, or a negative errno with a message. */
int listen_open(const char *address, bool remote, char why[LISTEN_WHY]);

/* Checks a socket that was passed. 0, or a negative errno with a message. */
int listen_check(int fd, bool remote, char why[LISTEN_WHY]);

/* Where a socket listens, as people write it. */
void listen_name(char name[LISTEN_WHY], int fd);

#endif
