/* fuzz_main.c - stands in for libFuzzer where there is none: runs files through a fuzz target, and
 * each of them after so many mutations, which are the same in every run.
 *
 * usage: fuzz_X MUTATIONS FILE|FOLDER… */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/fuzz/fuzz.h"

enum { PATH_BYTES = 4096, MAX_BYTES = 16384 };

static int n_run, n_mutations;

/* Below some number. */
static size_t draw(size_t below)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005 + 1442695040888963407;
    return (size_t)(state >> 33) % below;
}

/* One to four changes of a kind that a hostile or a broken file shows. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size)
{
    static const char bytes[] = "{}[]\",:0123456789-.eE\\u\0\xff\x80 ntf";

    if (size > max_size)
        size = max_size;
    for (size_t i = draw(4) + 1; i > 0 && size > 1; i--) {
        size_t at = draw(size), n = draw(12) + 1;

        if (n > size - at)
            n = size - at;
        switch (draw(5)) {
        case 0:
            data[at] ^= (uint8_t)(1 << draw(8));
            break;
        case 1:
            data[at] = (uint8_t)bytes[draw(sizeof(bytes) - 1)];
            break;
        case 2: /* leave out */
            memmove(data + at, data + at + n, size - at - n);
            size -= n;
            break;
        case 3: /* repeat what stands elsewhere */
            memmove(data + at, data + draw(size - n + 1), n);
            break;
        default:
            size = at + 1;
        }
    }
    return size;
}

/* In memory of exactly its size, so that a sanitizer sees a read behind it. */
static void run_mutated(const uint8_t *seed, size_t size)
{
    static uint8_t copy[MAX_BYTES];
    uint8_t *exact;

    memcpy(copy, seed, size);
    size = LLVMFuzzerCustomMutator
               ? LLVMFuzzerCustomMutator(copy, size, MAX_BYTES, (unsigned int)draw(UINT32_MAX))
               : LLVMFuzzerMutate(copy, size, MAX_BYTES);
    exact = malloc(size ? size : 1);
    if (!exact)
        exit(2);
    memcpy(exact, copy, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    n_run++;
}

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
    n_run++;
    for (int i = 0; i < n_mutations && size <= MAX_BYTES; i++)
        run_mutated(data, (size_t)size);
    free(data);
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

    n_mutations = argc > 1 ? atoi(argv[1]) : 0;
    for (int i = 2; i < argc; i++) {
        if (stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode))
            run_folder(argv[i]);
        else
            run_file(argv[i]);
    }
    printf("%d inputs\n", n_run);
    return n_run ? EXIT_SUCCESS : 2;
}
