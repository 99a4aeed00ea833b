/* model_list.c - see offline.h: finds model folders, and prints what each holds or why it would not
 * run. How much of a directory is read is bounded, whatever it holds. */
#include "daemon/offline.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "daemon/backend_choice.h"
#include "engine/cpu/cpu_backend.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "proto/utf8.h"

enum {
    MAX_DEPTH = 3,       /* a hub's cache: models--ORG--NAME/snapshots/HASH */
    MAX_ENTRIES = 65536, /* of all folders together */
    MAX_MODELS = 1024,
};

/* What the walk has found: a model folder, or what could not be looked into. */
struct found {
    char *path;
    int why; /* errno; 0: a model folder */
};

struct model_list {
    struct found found[MAX_MODELS];
    size_t n_found;
    size_t n_entries; /* read so far */
    int r;            /* -E2BIG, -ENOMEM: it ended there */
};

/* What would run the models. */
struct runner {
    const struct backend_ops *ops; /* NULL: it is not known */
    struct backend_options options;
};

/* A folder that the walk is in. */
struct level {
    const struct level *above;
    int depth;
    dev_t dev;
    ino_t ino;
};

/* ---- the walk */

/* A folder with modules.json but no config.json is one of an embedding model, too: that it has none
 * is then said of it, and those of its modules, such as 1_Pooling/config.json, make no models. */
static bool is_model_folder(int fd)
{
    struct stat st;

    return fstatat(fd, MODEL_CONFIG_FILE, &st, AT_SYMLINK_NOFOLLOW) == 0 ||
           fstatat(fd, "modules.json", &st, AT_SYMLINK_NOFOLLOW) == 0;
}

/* Takes the path over. */
static void add(struct model_list *l, char *path, int why)
{
    if (l->n_found < MAX_MODELS) {
        l->found[l->n_found++] = (struct found){path, why};
        return;
    }
    l->r = -E2BIG;
    free(path);
}

/* A link may lead back up. */
static bool is_above(const struct level *level, const struct stat *st)
{
    for (; level; level = level->above)
        if (level->dev == st->st_dev && level->ino == st->st_ino)
            return true;
    return false;
}

static void walk(struct model_list *l, DIR *folder, const char *path, const struct level *level);

/* Takes the path over. */
static void enter(struct model_list *l, char *path, const struct level *above)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    struct stat st;

    if (!folder || fstat(fd, &st) < 0) {
        add(l, path, errno);
        if (folder)
            closedir(folder);
        else if (fd >= 0)
            close(fd);
        return;
    }
    if (is_above(above, &st)) {
        free(path);
    } else if (is_model_folder(fd)) {
        add(l, path, 0);
    } else {
        if (above->depth + 1 < MAX_DEPTH)
            walk(l, folder, path, &(struct level){above, above->depth + 1, st.st_dev, st.st_ino});
        free(path);
    }
    closedir(folder);
}

/* Links count as what they lead to; those that lead nowhere as folders that cannot be opened. */
static bool may_be_folder(int fd, const struct dirent *entry)
{
    struct stat st;

    if (entry->d_name[0] == '.')
        return false;
    if (entry->d_type != DT_LNK && entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    return fstatat(fd, entry->d_name, &st, 0) < 0 || S_ISDIR(st.st_mode);
}

static void walk(struct model_list *l, DIR *folder, const char *path, const struct level *level)
{
    const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
    struct dirent *entry;
    char *below;

    while (l->r == 0 && (errno = 0, entry = readdir(folder)) != NULL) {
        if (++l->n_entries > MAX_ENTRIES)
            l->r = -E2BIG;
        else if (!may_be_folder(dirfd(folder), entry))
            continue;
        else if (asprintf(&below, "%s%s%s", path, slash, entry->d_name) < 0)
            l->r = -ENOMEM;
        else
            enter(l, below, level);
    }
    if (l->r == 0 && errno != 0 && (below = strdup(path)) != NULL)
        add(l, below, errno);
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->path, ((const struct found *)b)->path);
}

/* Adds a directory that is a model folder, or what is below it; a negative errno if it cannot be
 * opened. */
static int find(struct model_list *l, const char *directory)
{
    DIR *folder = *directory ? opendir(directory) : (errno = ENOENT, NULL);
    const size_t before = l->n_found;
    struct stat st;
    char *path;
    int r = folder && fstat(dirfd(folder), &st) == 0 ? 0 : -errno;

    if (r == 0 && is_model_folder(dirfd(folder))) {
        path = strdup(directory);
        if (path)
            add(l, path, 0);
        else
            l->r = -ENOMEM;
    } else if (r == 0) {
        walk(l, folder, directory, &(struct level){NULL, 0, st.st_dev, st.st_ino});
    }
    if (folder)
        closedir(folder);
    qsort(l->found + before, l->n_found - before, sizeof(*l->found), compare);
    return r;
}

/* ---- what is printed */

static void print_row(const char *folder, const struct model *m)
{
    const struct model_config *c = model_config(m);
    const double n = (double)model_n_parameters(m), mib = (double)model_weight_bytes(m) / 0x1p20;

    printf("%9.2f%c  %7.1f %s  %-11s  %8" PRId32 "  %-18s  %s\n", n < 1e9 ? n / 1e6 : n / 1e9,
           n < 1e9 ? 'M' : 'B', mib < 1024 ? mib : mib / 1024, mib < 1024 ? "MiB" : "GiB",
           model_dtype_name(m), c->max_seq_len, c->arch, folder);
}

static json_t *row_object(const char *folder, const struct model *m)
{
    const struct model_config *c = model_config(m);

    return json_pack("{sssbsssIsIsssi}", "folder", folder, "runs", 1, "architecture", c->arch,
                     "parameters", (json_int_t)model_n_parameters(m), "bytes",
                     (json_int_t)model_weight_bytes(m), "format", model_dtype_name(m),
                     "max_seq_len", c->max_seq_len);
}

/* Opens a folder that would run; otherwise the first reason why not. */
static int open_found(struct model **out, const struct found *f, const struct runner *runner,
                      struct err *why)
{
    struct problems problems = {0};
    struct model *model;
    int r;

    if (f->why)
        return err_set(why, -f->why, "%s", strerror(f->why));
    offline_check_folder(f->path, NULL, &problems);
    if (problems.n > 0) {
        *why = problems.first;
        return problems.code;
    }
    r = model_open(&model, f->path, why);
    if (r < 0)
        return r;
    if (runner->ops && runner->ops->check)
        r = runner->ops->check(model, &runner->options, why);
    if (r < 0 && r != -ENOMEM) { /* other options might need less memory */
        model_close(model);
        return r;
    }
    *out = model;
    return 0;
}

/* Prints a folder, or adds it to *rows unless that is NULL. */
static void show(const struct found *f, const struct runner *runner, json_t *rows)
{
    struct model *model = NULL;
    struct err why = {0};
    const int r = open_found(&model, f, runner, &why);

    utf8_clean(f->path); /* from here on it is shown only */
    utf8_clean(why.text);
    if (rows)
        json_array_append_new(rows, r == 0 ? row_object(f->path, model)
                                           : json_pack("{sssbss}", "folder", f->path, "runs", 0,
                                                       "why", why.text));
    else if (r == 0)
        print_row(f->path, model);
    else
        printf("%10s  %11s  %-11s  %8s  %-18s  %s: %s\n", "-", "-", "-", "-", "does not run",
               f->path, why.text);
    if (r == 0)
        model_close(model);
}

static void print(const struct model_list *l, const struct runner *runner, bool json)
{
    json_t *rows = json ? json_array() : NULL, *all;

    if (!json && l->n_found > 0)
        printf("%10s  %11s  %-11s  %8s  %-18s  %s\n", "PARAMETERS", "SIZE", "FORMAT", "CONTEXT",
               "ARCHITECTURE", "FOLDER");
    for (size_t i = 0; i < l->n_found && !ferror(stdout); i++) {
        show(&l->found[i], runner, rows);
        if (!json)
            fflush(stdout);
    }
    if (!json)
        return;
    all = json_pack("{so}", "models", rows);
    json_dumpf(all, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(all);
}

static int complain(const char *directory, int r)
{
    struct err e;

    err_set(&e, r, "%s%s%s", directory ? directory : "", directory ? ": " : "", strerror(-r));
    utf8_clean(e.text);
    fprintf(stderr, "nvllmd: %s\n", e.text);
    return 1;
}

static void say_none(const char *where)
{
    struct err e;

    err_set(&e, 0, "there is no folder with a " MODEL_CONFIG_FILE " in %s", where);
    utf8_clean(e.text);
    fprintf(stderr, "nvllmd: %s\n", e.text);
}

/* Chooses as the daemon would. */
static void choose_runner(struct runner *out, const struct options *options, const struct err *why)
{
    struct backend_choice choice;
    struct err e;

    *out = (struct runner){0};
    if (options && backend_choose(&choice, options, &cpu_backend, "/dev", &e) == 0)
        *out = (struct runner){choice.ops, backend_options_of(options)};
    else
        fprintf(stderr, "nvllmd: %s; no backend is asked whether it can run the models\n",
                options ? e.text : why->text);
}

int model_list_run(const char *directory, const struct options *options, const struct err *why,
                   bool json)
{
    static const char *const usual[] = {NVLLM_OWN_MODELS_DIR, NVLLM_MODELS_DIR, NULL};
    const char *const given[] = {directory, NULL}, *const *at = directory ? given : usual;
    struct model_list *l = calloc(1, sizeof(*l));
    int status = l ? 0 : complain(NULL, -ENOMEM);
    struct runner runner = {0};

    for (; l && *at; at++) {
        const int r = find(l, *at);

        if (r < 0 && !(r == -ENOENT && !directory)) /* who installs nothing has neither */
            status = complain(*at, r);
    }
    if (l && l->n_found > 0)
        choose_runner(&runner, options, why);
    if (l)
        print(l, &runner, json);
    if (l && l->n_found == 0 && status == 0)
        say_none(directory ? directory : NVLLM_OWN_MODELS_DIR " or " NVLLM_MODELS_DIR);
    if (l && l->r == -E2BIG)
        fprintf(stderr,
                "nvllmd: there are more than %d entries or %d models: the rest is not listed\n",
                MAX_ENTRIES, MAX_MODELS);
    else if (l && l->r < 0)
        complain(NULL, l->r);
    status = l && l->r < 0 ? 1 : status;
    for (size_t i = 0; l && i < l->n_found; i++)
        free(l->found[i].path);
    free(l);
    return status;
}
