/* fuzz_main.c - runs files through a fuzz target: the seeds, where there is no libFuzzer, and what
 * a fuzzer has found.
 *
 * usage: fuzz_X FILE|FOLDER… */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

enum { PATH_BYTES = 4096 };

static int n_run;

/* In memory of exactly its size, so that a read behind it is seen. */
static void run_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    long size = -1;

    if (f && fseek(f, 0, SEEK_END) == 0)
        size = ftell(f);
    if (size >= 0)
        data = malloc(size ? (size_t)size : 1);
    if (!data || fseek(f, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)size, f) != (size_t)size) {
        fprintf(stderr, "%s: cannot be read\n", path);
        exit(2);
    }
    fclose(f);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
    n_run++;
}

static void run_folder(const char *folder)
{
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    char path[PATH_BYTES];

    if (!dir) {
        fprintf(stderr, "%s: %s\n", folder, strerror(errno));
        exit(2);
    }
    while ((entry = readdir(dir))) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        run_file(path);
    }
    closedir(dir);
}

int main(int argc, char **argv)
{
    struct stat st;

    for (int i = 1; i < argc; i++) {
        if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode))
            run_folder(argv[i]);
        else
            run_file(argv[i]);
    }
    printf("%d inputs\n", n_run);
    return n_run ? EXIT_SUCCESS : 2;
}
