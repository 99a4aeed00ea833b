/* read_file.h - a whole small file in memory: configurations, vocabularies, templates. */
#ifndef NVLLM_READ_FILE_H
#define NVLLM_READ_FILE_H

#include <stddef.h>

#include "engine/err.h"

/* Reads folder/name, a regular file of at most max bytes. *data is malloc'd and NUL-terminated.
 * -ENOENT and other errors of open and read, -EINVAL, -EFBIG, -ENOMEM. */
int read_file(char **data, size_t *len, const char *folder, const char *name, size_t max,
              struct err *e);

#endif
