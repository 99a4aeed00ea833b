/* rendezvous.h - the file through which the processes of a cluster find each other: the first one
 * writes NCCL's id, the others wait for it. It lies in a folder that all of them see. */
#ifndef NVLLM_CUDA_RENDEZVOUS_H
#define NVLLM_CUDA_RENDEZVOUS_H

#include <stddef.h>

#include "engine/util/err.h"

enum { RENDEZVOUS_BYTES = 128 };

/* Writes the file whole, in place of one that is there; only its owner can read it. */
int rendezvous_write(const char *path, const char id[RENDEZVOUS_BYTES], struct err *e);

/* -ENOENT: it is not there yet. Other errors name what is wrong with it: it must be a regular file
 * of this user that rendezvous_write() has written. */
int rendezvous_read(char id[RENDEZVOUS_BYTES], const char *path, struct err *e);

/* Once all have met: an id can be used once. */
void rendezvous_remove(const char *path);

#endif
