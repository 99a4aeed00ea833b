/* keys.c - see keys.h. */
#include "client/openai/keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_KEYS = 4096,
    MIN_KEY = 16, /* a key that can be guessed is none */
    MAX_KEY = 256,
    MAX_FILE = 1 << 20,
};

struct key {
    char name[KEYS_MAX_NAME + 1];
    char key[MAX_KEY]; /* zeros behind it, so that all are compared alike */
    size_t len;
};

struct keys {
    struct key *list; /* [n] */
    size_t n;
};

void keys_free(struct keys *k)
{
    if (!k)
        return;
    free(k->list);
    free(k);
}

__attribute__((format(printf, 4, 5))) static int wrong(char why[KEYS_WHY], const char *path,
                                                       size_t line, const char *fmt, ...)
{
    va_list args;
    int n = snprintf(why, KEYS_WHY, "%.150s:%zu: ", path, line);

    va_start(args, fmt);
    vsnprintf(why + n, (size_t)(KEYS_WHY - n), fmt, args);
    va_end(args);
    return -EINVAL;
}

/* The file's text, ended by a NUL. */
static int read_file(char **out, const char *path, char why[KEYS_WHY])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), r = 0;
    struct stat st;
    char *text = NULL;
    ssize_t n;

    if (fd < 0 || fstat(fd, &st) < 0)
        r = -errno;
    else if (!S_ISREG(st.st_mode) || st.st_size > MAX_FILE)
        r = -EINVAL;
    else if (st.st_mode & S_IRWXO)
        r = -EPERM;
    else if (!(text = calloc(1, (size_t)st.st_size + 1)))
        r = -ENOMEM;
    else if ((n = read(fd, text, (size_t)st.st_size)) < 0)
        r = -errno;
    if (fd >= 0)
        close(fd);
    if (r == 0) {
        *out = text;
        return 0;
    }
    free(text);
    if (r == -EPERM)
        snprintf(why, KEYS_WHY, "%.150s: others may read or write it; run: chmod o= %.80s", path,
                 path);
    else if (r == -EINVAL)
        snprintf(why, KEYS_WHY, "%.200s: is not a file of less than %d KiB", path, MAX_FILE >> 10);
    else
        snprintf(why, KEYS_WHY, "%.200s: %s", path, strerror(-r));
    return r;
}

static bool printable(const char *s)
{
    for (; *s; s++)
        if (*s <= ' ' || *s > '~')
            return false;
    return true;
}

/* Takes a line apart into the next key of k. */
static int take_line(struct keys *k, const char *path, size_t number, char *line,
                     char why[KEYS_WHY])
{
    struct key *key = &k->list[k->n];
    char *save, *name = strtok_r(line, " \t\r", &save), *word = strtok_r(NULL, " \t\r", &save);

    if (!name || name[0] == '#')
        return 0;
    if (!word || strtok_r(NULL, " \t\r", &save))
        return wrong(why, path, number, "a line is a name and a key");
    if (strlen(name) > KEYS_MAX_NAME || !printable(name))
        return wrong(why, path, number, "a name is at most %d printable characters", KEYS_MAX_NAME);
    if (strlen(word) < MIN_KEY || strlen(word) > MAX_KEY || !printable(word))
        return wrong(why, path, number, "a key is %d to %d printable characters", MIN_KEY, MAX_KEY);
    key->len = strlen(word);
    memcpy(key->key, word, key->len);
    strcpy(key->name, name);
    for (size_t i = 0; i < k->n; i++)
        if (strcmp(k->list[i].name, name) == 0 ||
            (k->list[i].len == key->len && memcmp(k->list[i].key, word, key->len) == 0))
            return wrong(why, path, number, "this name or key is there twice");
    k->n++;
    return 0;
}

int keys_load(struct keys **out, const char *path, char why[KEYS_WHY])
{
    struct keys *k = calloc(1, sizeof(*k));
    char *text = NULL, *rest;
    int r = read_file(&text, path, why);

    if (r == 0 && k)
        k->list = calloc(MAX_KEYS + 1, sizeof(*k->list));
    if (r == 0 && (!k || !k->list)) {
        snprintf(why, KEYS_WHY, "%.200s: out of memory", path);
        r = -ENOMEM;
    }
    rest = text;
    for (size_t number = 1; r == 0 && rest; number++) {
        r = take_line(k, path, number, strsep(&rest, "\n"), why);
        if (r == 0 && k->n > MAX_KEYS)
            r = wrong(why, path, number, "there are more than %d keys", MAX_KEYS);
    }
    if (r == 0 && k->n == 0)
        r = wrong(why, path, 1, "there is no key");
    free(text);
    if (r == 0)
        *out = k;
    else
        keys_free(k);
    return r;
}

/* Whether the texts are the same; every byte is looked at. */
static bool same(const struct key *key, const char given[MAX_KEY], size_t n)
{
    unsigned char diff = key->len != n;

    for (size_t i = 0; i < MAX_KEY; i++)
        diff |= (unsigned char)(key->key[i] ^ given[i]);
    return diff == 0;
}

const char *keys_find(const struct keys *k, struct nvllm_text authorization)
{
    static const char scheme[] = "Bearer ";
    const size_t n_scheme = sizeof(scheme) - 1;
    char given[MAX_KEY] = {0};
    const char *found = NULL;
    size_t n;

    if (authorization.len <= n_scheme || authorization.len - n_scheme > MAX_KEY ||
        strncasecmp(authorization.data, scheme, n_scheme) != 0)
        return NULL;
    n = authorization.len - n_scheme;
    memcpy(given, authorization.data + n_scheme, n);
    for (size_t i = 0; i < k->n; i++)
        if (same(&k->list[i], given, n))
            found = k->list[i].name;
    return found;
}
