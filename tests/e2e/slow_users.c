/* slow_users.c - for LD_PRELOAD: who knows the users takes three seconds to say so, as one behind a
 * network may. There is one, "molasses". The file that SLOW_USERS_ASKED names is there once
 * somebody has asked. */
#include <fcntl.h>
#include <pwd.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

__attribute__((visibility("default"))) struct passwd *getpwnam(const char *name)
{
    static struct passwd only = {.pw_name = (char *)"molasses", .pw_uid = 61001};
    struct timespec while_asked = {.tv_sec = 3};
    const char *asked = getenv("SLOW_USERS_ASKED");

    if (asked)
        close(open(asked, O_WRONLY | O_CREAT, 0600));
    nanosleep(&while_asked, NULL);
    return strcmp(name, only.pw_name) == 0 ? &only : NULL;
}
