/* slow_users.c - for LD_PRELOAD: who knows the users takes a second to say so, as one behind a
 * network may. There is one, "molasses". */
#include <pwd.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

__attribute__((visibility("default"))) struct passwd *getpwnam(const char *name)
{
    static struct passwd only = {.pw_name = (char *)"molasses", .pw_uid = 61001};
    struct timespec while_asked = {.tv_sec = 1};

    nanosleep(&while_asked, NULL);
    return strcmp(name, only.pw_name) == 0 ? &only : NULL;
}
