/* file.h - opens, reads and writes regular files by name in a folder: all bytes that are asked for,
 * or an error.
 *
 * No state; any thread. */
#ifndef NVLLM_ENGINE_UTIL_FILE_H
#define NVLLM_ENGINE_UTIL_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"

/* Opens a file in the folder dir, following links. -ENOENT if there is none of that name; -EINVAL
 * unless it is a regular file: a FIFO or a device is neither waited for nor read, and a broken
 * link is not an absent file. */
int file_open(int *fd, uint64_t *bytes, int dir, const char *name, struct err *e);

/* Reads exactly bytes at offset; -EIO if the file ends before. name is for the message. */
int file_read(int fd, const char *name, uint64_t offset, void *dst, size_t bytes, struct err *e);

/* Reads a whole file of at most max_bytes (else -EFBIG): *text is malloc'ed, with a NUL behind. */
int file_read_all(char **text, size_t *bytes, int dir, const char *name, size_t max_bytes,
                  struct err *e);

/* The same with the path of the folder. */
int file_read_folder(char **text, size_t *bytes, const char *folder, const char *name,
                     size_t max_bytes, struct err *e);

/* Writes all bytes; negative errno. */
int file_write(int fd, const void *from, size_t bytes);

/* Replaces the file `name` of the folder dir, or makes it, for its owner alone: written as
 * `beside`, synced and renamed, so after a crash it is as it was before or after. What an earlier
 * process has left as `beside` is replaced. Negative errno; then `name` is as before. */
int file_replace(int dir, const char *name, const char *beside, const void *from, size_t bytes);

#endif
