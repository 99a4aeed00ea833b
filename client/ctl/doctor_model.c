/* doctor_model.c - the model's folder: may the daemon read it, and is it whole? What the files
 * mean is the daemon's to say: see doctor_config.c. */
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

    if (d->given_model) { /* which is seen from here, whatever the daemon has */
        whole = realpath(d->given_model, NULL);
        here = whole || d->given_model[0] == '/' ? NULL : getcwd(NULL, 0);
        snprintf(d->model, sizeof(d->model), "%s%s%s", here ? here : "", here ? "/" : "",
                 whole ? whole : d->given_model);
        free(whole);
        free(here);
    }
    if (!d->model[0] && !d->has_config)
        doctor_say(d, DOCTOR_NOTE, ABOUT, NULL,
                   "%s is not there, so nobody knows which model: --model DIR says", d->config);
    return d->model[0];
}

/* What is wrong with the folder in whole, and whether there is room for what is missing: what mends
 * it is to fetch the model again, from where it came. */
static const char *look(char out[DOCTOR_COMMAND], const struct doctor *d)
{
    char folder[5000], program[5000] = "nvllmd";

    program_quote(folder, sizeof(folder), d->model);
    if (d->nvllmd[0]) /* which need not be where a shell looks */
        program_quote(program, sizeof(program), d->nvllmd);
    snprintf(out, DOCTOR_COMMAND, "%s check --model %s; df -h %s   # then download it anew",
             program, folder, folder);
    return out;
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
    char path[4400], quoted[6000], mend[DOCTOR_COMMAND];
    struct stat st;

    if (strchr(name, '/')) {
        doctor_say(d, DOCTOR_WRONG, ABOUT, look(mend, d),
                   "the index names %s, which is no file beside it", name);
        return false;
    }
    snprintf(path, sizeof(path), "%s/%.255s", d->model, name);
    if (stat(path, &st) < 0) {
        if (needed)
            doctor_say(d, DOCTOR_WRONG, ABOUT, look(mend, d), "%s: %s", path, strerror(errno));
        return false;
    }
    if (!doctor_path(d, ABOUT, &d->user, path, 4))
        return false;
    if (st.st_size < LFS_POINTER_BYTES && is_lfs_pointer(path)) {
        snprintf(mend, sizeof(mend), "git -C %s lfs pull",
                 program_quote(quoted, sizeof(quoted), d->model));
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
    char mend[DOCTOR_COMMAND];
    const char *name;
    bool ok = index != NULL;

    if (!index)
        doctor_say(d, DOCTOR_WRONG, ABOUT, look(mend, d), "%s: %s", index_path, where.text);
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

static bool check_files(struct doctor *d)
{
    bool ok;

    if (!doctor_path(d, ABOUT, &d->user, d->model, 5))
        return false;
    ok = check_file(d, "config.json", true);
    ok = check_file(d, "tokenizer.json", true) && ok;
    return check_weights(d) && ok;
}

/* Whether the daemon may read the files, and has them all, is said before what it thinks of them.
 */
void doctor_model(struct doctor *d)
{
    if (!find_folder(d)) {
        doctor_take_model(d);
    } else if (d->model[0] != '/' && d->is_running) {
        doctor_say(d, DOCTOR_GOOD, ABOUT, NULL, "%s, seen from where nvllmd was started", d->model);
    } else if (check_files(d)) {
        if (doctor_take_model(d) && access(d->model, R_OK | X_OK) == 0 && d->weight_bytes > 0)
            doctor_say(d, DOCTOR_GOOD, ABOUT, NULL, "%s: %.1f MiB of weights, for user %s to read",
                       d->model, (double)d->weight_bytes / (1 << 20), d->user.name);
    }
}
