/* doctor_model.c - the model's folder: whether the daemon may read it, and whether it is complete.
 * What the files contain is nvllmd's to check: see doctor_config.c. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/doctor.h"

#define ABOUT "model"

enum { LFS_POINTER_BYTES = 1024 }; /* no pointer is larger, and no weights are smaller */

/* The folder that is given, that the daemon has, or that it is configured for. */
static bool find_folder(struct doctor *d)
{
    char *whole, *here;

    if (d->given_model) { /* relative to the current folder, whatever the daemon has */
        whole = realpath(d->given_model, NULL);
        here = whole || d->given_model[0] == '/' ? NULL : getcwd(NULL, 0);
        d->model = doctor_text(d, "%s%s%s", here ? here : "", here ? "/" : "",
                               whole ? whole : d->given_model);
        free(whole);
        free(here);
    }
    if (!d->model && !d->has_config)
        doctor_say(d, DOCTOR_NOTE, ABOUT, NULL,
                   "%s does not exist, so the model is unknown: give --model DIR", d->config);
    return d->model && d->model[0];
}

/* The whole list of what is wrong with the folder, and whether there is room for what is missing:
 * the fix is to download the model again. */
static const char *look(struct doctor *d)
{
    const char *folder = doctor_quote(d, d->model);

    return doctor_text(d, "%s check --model %s; df -h %s   # then download it again",
                       d->nvllmd ? doctor_quote(d, d->nvllmd) : "nvllmd", folder, folder);
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

static bool check_file(struct doctor *d, const char *name)
{
    const char *path = doctor_text(d, "%s/%s", d->model, name);
    struct stat st;

    if (strchr(name, '/')) {
        doctor_say(d, DOCTOR_WRONG, ABOUT, look(d),
                   "the index names %s, which is no file beside it", name);
        return false;
    }
    if (stat(path, &st) < 0) {
        doctor_say(d, DOCTOR_WRONG, ABOUT, look(d), "%s: %s", path, strerror(errno));
        return false;
    }
    if (!doctor_path(d, ABOUT, &d->user, path, R_OK))
        return false;
    if (st.st_size < LFS_POINTER_BYTES && is_lfs_pointer(path)) {
        doctor_say(d, DOCTOR_WRONG, ABOUT,
                   doctor_text(d, "git -C %s lfs pull", doctor_quote(d, d->model)),
                   "%s is a pointer of Git LFS, not the file itself", path);
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
        doctor_say(d, DOCTOR_WRONG, ABOUT, look(d), "%s: %s", index_path, where.text);
    json_object_foreach(json_object_get(index, "weight_map"), name, member)
    {
        const char *file = json_string_value(member);

        if (!file || json_object_get(seen, file))
            continue;
        json_object_set_new(seen, file, json_true());
        ok = check_file(d, file) && ok;
    }
    json_decref(index);
    json_decref(seen);
    return ok;
}

static bool check_files(struct doctor *d)
{
    const char *index = doctor_text(d, "%s/model.safetensors.index.json", d->model);
    bool ok;

    if (!doctor_path(d, ABOUT, &d->user, d->model, R_OK | X_OK))
        return false;
    ok = check_file(d, "config.json");
    ok = check_file(d, "tokenizer.json") && ok;
    if (access(index, F_OK) < 0)
        return check_file(d, "model.safetensors") && ok;
    return check_file(d, "model.safetensors.index.json") && check_shards(d, index) && ok;
}

/* Whether the daemon may read all files is reported before what it finds in them. */
void doctor_model(struct doctor *d)
{
    if (!find_folder(d))
        doctor_take_model(d);
    else if (d->model[0] != '/' && d->is_running)
        doctor_say(d, DOCTOR_OK, ABOUT, NULL, "%s, relative to where nvllmd was started", d->model);
    else if (check_files(d) && doctor_take_model(d) && access(d->model, R_OK | X_OK) == 0 &&
             d->weight_bytes > 0)
        doctor_say(d, DOCTOR_OK, ABOUT, NULL, "%s: %.1f MiB of weights, readable by user %s",
                   d->model, (double)d->weight_bytes / (1 << 20), d->user.name);
}
