/* folder_files.h - the files of a new model folder: written to the disk to their end, or copied
 * from the old one.
 *
 * Any thread. */
#ifndef NVLLM_ENGINE_MODEL_FOLDER_FILES_H
#define NVLLM_ENGINE_MODEL_FOLDER_FILES_H

#include <stddef.h>

#include "engine/util/err.h"

/* A file that was not there before; its name is the caller's. */
struct new_file {
    int fd; /* below 0: none is open */
    const char *name;
};

int new_file_open(struct new_file *f, int dir, const char *name, struct err *e);
int new_file_write(struct new_file *f, const void *from, size_t bytes, struct err *e);
/* Closes it, if it is open, and if r, the result so far, is 0 sees to it that it is on the disk. */
int new_file_close(struct new_file *f, int r, struct err *e);

/* Copies all files from one folder to another but weights in any form and config.json, and those of
 * its folders, not of theirs. Hidden files stay behind. */
int folder_copy(int from, int to, struct err *e);

/* A folder with what folder_copy() makes in it. */
void folder_remove(int at, const char *name);

#endif
