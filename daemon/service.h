/* service.h - what systemd is told; nothing happens where it does not ask. Loop thread only. */
#ifndef NVLLM_DAEMON_SERVICE_H
#define NVLLM_DAEMON_SERVICE_H

#include <stdint.h>

void service_ready(void);
void service_stopping(void);

/* The line that `systemctl status` shows; sent when it differs from the last. */
__attribute__((format(printf, 1, 2))) void service_status(const char *fmt, ...);

/* Loading goes on: the time until READY=1 is due begins anew. */
void service_extend_start(void);

/* The daemon ends with a failure, after the text has been shown. */
void service_failed(const char *text);

/* Microseconds between two signs of life that systemd wants, or 0. */
uint64_t service_watchdog_us(void);
void service_alive(void);

#endif
