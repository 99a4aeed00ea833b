/* file.h - regular files by name in a folder: opened so that nothing but a regular file can be
 * met, and read at an offset to the last byte or not at all.
 *
 * No state; any thread. */
#ifndef NVLLM_ENGINE_UTIL_FILE_H
#define NVLLM_ENGINE_UTIL_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/util/err.h"

/* Opens name below the folder dir, following links. -EINVAL for what is no regular file: a FIFO or
 * a device is neither waited for nor read. */
int file_open(int *fd, uint64_t *bytes, int dir, const char *name, struct err *e);

/* Reads exactly bytes at offset; -EIO when the file ends before. name is for the message. */
int file_read(int fd, const char *name, uint64_t offset, void *dst, size_t bytes, struct err *e);

/* A whole file of at most max_bytes: *text is malloc'ed, one NUL after its end. -EFBIG over it. */
int file_read_all(char **text, size_t *bytes, int dir, const char *name, size_t max_bytes,
                  struct err *e);

/* The same with the folder by its path. */
int file_read_folder(char **text, size_t *bytes, const char *folder, const char *name,
                     size_t max_bytes, struct err *e);

#endif
