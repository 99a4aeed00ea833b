/* service.h - the status line and the watchdog of systemd; without it they do nothing. Loop thread
 * only. */
#ifndef NVLLM_DAEMON_SERVICE_H
#define NVLLM_DAEMON_SERVICE_H

#include <stdint.h>

/* The line that `systemctl status` shows; sent when it differs from the last. */
__attribute__((format(printf, 1, 2))) void service_status(const char *fmt, ...);

/* The daemon is about to fail; the text becomes its status. */
void service_failed(const char *text);

/* The watchdog's interval in microseconds, or 0. */
uint64_t service_watchdog_us(void);

#endif
