/* doctor_mend.c - the commands that mend what doctor finds, as they can be pasted here: with
 * systemd or without, with sudo where root's rights are needed. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/ctl/doctor.h"

#define BUNDLED_MODEL NVLLM_MODELS_DIR "/nvllm-tiny"

enum { QUOTED = 6000 };

const char *doctor_sudo(uid_t owner)
{
    return geteuid() == 0 || geteuid() == owner ? "" : "sudo ";
}

const char *doctor_as_root(const char *command)
{
    return geteuid() == 0 ? command + strlen("sudo ") : command;
}

bool doctor_has_service(void)
{
    return access("/run/systemd/system", F_OK) == 0 &&
           (access("/usr/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
            access("/usr/local/lib/systemd/system/nvllmd.service", F_OK) == 0 ||
            access("/etc/systemd/system/nvllmd.service", F_OK) == 0);
}

bool doctor_is_by_service(const struct doctor *d)
{
    return doctor_has_service() && !d->by_hand;
}

const char *doctor_start(char out[DOCTOR_COMMAND], const struct doctor *d)
{
    char program[QUOTED] = "nvllmd", file[QUOTED], socket[QUOTED];
    const char *model = d->given_model ? d->given_model : d->model;

    if (doctor_is_by_service(d)) {
        snprintf(out, DOCTOR_COMMAND, "%ssystemctl start nvllmd", doctor_sudo(0));
        return out;
    }
    if (!model[0] && access(BUNDLED_MODEL, F_OK) == 0)
        model = BUNDLED_MODEL;
    if (d->nvllmd[0])
        program_quote(program, sizeof(program), d->nvllmd);
    program_quote(socket, sizeof(socket), d->ctl->socket_path);
    if (!d->given_model && access(d->config, R_OK) == 0)
        snprintf(out, DOCTOR_COMMAND, "%s --config %s --socket %s", program,
                 program_quote(file, sizeof(file), d->config), socket);
    else
        snprintf(out, DOCTOR_COMMAND, "%s --model %s --socket %s", program,
                 model[0] ? program_quote(file, sizeof(file), model) : "DIR", socket);
    return out;
}

/* Adds a part and, where it is not NULL, a value that the shell takes as it is. */
static void add(char out[DOCTOR_COMMAND], const char *part, const char *value)
{
    char quoted[QUOTED];
    size_t n = strlen(out);

    snprintf(out + n, DOCTOR_COMMAND - n, "%s%s", part,
             value ? program_quote(quoted, sizeof(quoted), value) : "");
}

static void begin(char out[DOCTOR_COMMAND], const struct doctor *d, const char *sudo)
{
    char own[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);

    own[n > 0 ? n : 0] = '\0';
    out[0] = '\0';
    add(out, sudo, access(own, X_OK) == 0 ? own : "nvllmctl");
    if (strcmp(d->ctl->socket_path, NVLLM_DEFAULT_SOCKET) != 0)
        add(out, " --socket ", d->ctl->socket_path);
}

const char *doctor_ask(char out[DOCTOR_COMMAND], const struct doctor *d, const char *words)
{
    begin(out, d, doctor_sudo(d->user.uid)); /* whom the daemon takes for an admin */
    add(out, " ", NULL);
    add(out, words, NULL);
    return out;
}

const char *doctor_again(char out[DOCTOR_COMMAND], const struct doctor *d)
{
    begin(out, d, doctor_sudo(0));
    add(out, " doctor", NULL);
    if (d->given_config)
        add(out, " --config ", d->given_config);
    if (d->given_model)
        add(out, " --model ", d->given_model);
    if (d->user_given)
        add(out, " --user ", d->user.name);
    return out;
}

const char *doctor_restart(char out[DOCTOR_COMMAND], const struct doctor *d)
{
    char start[DOCTOR_COMMAND];
    size_t n;

    if (doctor_is_by_service(d)) {
        snprintf(out, DOCTOR_COMMAND, "%ssystemctl restart nvllmd", doctor_sudo(0));
        return out;
    }
    n = strlen(doctor_ask(out, d, "stop --wait"));
    snprintf(out + n, DOCTOR_COMMAND - n, " && %s", doctor_start(start, d));
    return out;
}

const char *doctor_log(char out[DOCTOR_COMMAND], const struct doctor *d)
{
    char program[QUOTED], file[QUOTED];

    if (doctor_is_by_service(d))
        snprintf(out, DOCTOR_COMMAND, "%sjournalctl -u nvllmd -n 50", doctor_sudo(0));
    else if (d->nvllmd[0] && access(d->config, R_OK) == 0)
        snprintf(out, DOCTOR_COMMAND, "%s check-config --config %s",
                 program_quote(program, sizeof(program), d->nvllmd),
                 program_quote(file, sizeof(file), d->config));
    else
        return doctor_restart(out, d);
    return out;
}

const char *doctor_edit(char out[DOCTOR_COMMAND], const struct doctor *d)
{
    char file[QUOTED];

    snprintf(out, DOCTOR_COMMAND, "%s${EDITOR:-vi} %s", access(d->config, W_OK) == 0 ? "" : "sudo ",
             program_quote(file, sizeof(file), d->config));
    return out;
}
