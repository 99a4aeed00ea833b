/* ctl_doctor_model.c - the model's folder: may the daemon read it, and is it whole? What the files
 * mean is the daemon's to say: “nvllmd check” does. */
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl_doctor.h"

#define ABOUT "model"

enum { LFS_POINTER_BYTES = 1024 }; /* no pointer is larger, and no weights are smaller */

static int take_line(void *arg, const char *section, const char *name, const char *value)
{
    struct doctor *d = arg;

    if (strcmp(section, "model") == 0 && strcmp(name, "path") == 0)
        snprintf(d->model, sizeof(d->model), "%s", value);
    return 1;
}

/* The folder that is given, that the daemon has, or that it will have. */
static bool find_folder(struct doctor *d)
{
    char *whole;
    int line;

    if (d->given_model) {
        whole = realpath(d->given_model, NULL);
        snprintf(d->model, sizeof(d->model), "%s", whole ? whole : d->given_model);
        free(whole);
    }
    if (d->model[0])
        return true;
    line = ini_parse(d->config, take_line, d);
    if (line < 0)
        doctor_say(d, DOCTOR_NOTE, ABOUT, "nvllmctl doctor --model DIR",
                   "%s: %s; which model is not known", d->config, strerror(errno));
    else if (line > 0)
        doctor_say(d, DOCTOR_WRONG, ABOUT, NULL, "%s, line %d: is none of name = value", d->config,
                   line);
    else if (!d->model[0])
        doctor_say(d, DOCTOR_WRONG, ABOUT, NULL, "%s: there is no path in [model]", d->config);
    return line == 0 && d->model[0];
}

static bool is_lfs_pointer(const char *path)
{
    static const char begin[] = "version https://git-lfs";
    char data[sizeof(begin) - 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, data, sizeof(data));

    if (fd >= 0)
        close(fd);
    return n == (ssize_t)sizeof(data) && memcmp(data, begin, sizeof(data)) == 0;
}

static bool check_file(struct doctor *d, const char *name, bool needed)
{
    char path[4400], mend[4500];
    struct stat st;

    if (strchr(name, '/')) {
        doctor_say(d, DOCTOR_WRONG, ABOUT, NULL, "the index names %s, which is no file beside it",
                   name);
        return false;
    }
    snprintf(path, sizeof(path), "%s/%.255s", d->model, name);
    if (stat(path, &st) < 0) {
        if (needed)
            doctor_say(d, DOCTOR_WRONG, ABOUT,
                       "download the model anew, and check the room on the disk", "%s: %s", path,
                       strerror(errno));
        return false;
    }
    if (!doctor_path(d, ABOUT, &d->user, path, 4))
        return false;
    if (st.st_size < LFS_POINTER_BYTES && is_lfs_pointer(path)) {
        snprintf(mend, sizeof(mend), "git -C '%s' lfs pull", d->model);
        doctor_say(d, DOCTOR_WRONG, ABOUT, mend, "%s is a pointer of Git LFS, not the file", path);
        return false;
    }
    if (strstr(name, ".safetensors") && !strstr(name, ".json"))
        d->weight_bytes += (uint64_t)st.st_size;
    return true;
}

/* Each file that the index names, once. */
static bool check_shards(struct doctor *d, const char *index_path)
{
    json_error_t where;
    json_t *index = json_load_file(index_path, 0, &where), *seen = json_object();
    const json_t *member;
    const char *name;
    bool ok = index != NULL;

    if (!index)
        doctor_say(d, DOCTOR_WRONG, ABOUT, "download the model anew", "%s: %s", index_path,
                   where.text);
    json_object_foreach(json_object_get(index, "weight_map"), name, member)
    {
        const char *file = json_string_value(member);

        if (!file || json_object_get(seen, file))
            continue;
        json_object_set_new(seen, file, json_true());
        ok = check_file(d, file, true) && ok;
    }
    json_decref(index);
    json_decref(seen);
    return ok;
}

static bool check_weights(struct doctor *d)
{
    char index[4400], whole[4400];

    snprintf(whole, sizeof(whole), "%s/model.safetensors", d->model);
    snprintf(index, sizeof(index), "%s/model.safetensors.index.json", d->model);
    if (access(index, F_OK) == 0)
        return check_file(d, "model.safetensors.index.json", true) && check_shards(d, index);
    return check_file(d, "model.safetensors", true);
}

void doctor_model(struct doctor *d)
{
    bool ok;

    if (!find_folder(d))
        return;
    if (d->model[0] != '/' && d->is_running) {
        doctor_say(d, DOCTOR_GOOD, ABOUT, NULL, "%s, seen from where nvllmd was started", d->model);
        return;
    }
    if (!doctor_path(d, ABOUT, &d->user, d->model, 5))
        return;
    ok = check_file(d, "config.json", true);
    ok = check_file(d, "tokenizer.json", true) && ok;
    ok = check_weights(d) && ok;
    if (ok && access(d->model, R_OK | X_OK) == 0 && d->weight_bytes > 0)
        doctor_say(d, DOCTOR_GOOD, ABOUT, NULL, "%s: %.1f MiB of weights, for user %s to read",
                   d->model, (double)d->weight_bytes / (1 << 20), d->user.name);
}
