/* service.c - see service.h. */
#include "daemon/service.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <systemd/sd-daemon.h>

static char last_status[512];

void service_status(const char *fmt, ...)
{
    char text[sizeof(last_status)];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++)
        if (*p == '\n')
            *p = ' '; /* a newline would begin another assignment */
    if (strcmp(text, last_status) == 0)
        return;
    memcpy(last_status, text, sizeof(text));
    sd_notifyf(0, "STATUS=%s", text);
}

void service_failed(const char *text)
{
    service_status("Failed: %s", text);
}

uint64_t service_watchdog_us(void)
{
    uint64_t us = 0;

    return sd_watchdog_enabled(0, &us) > 0 ? us : 0;
}
