/* crash.h - what a crash leaves: a line of the log, where it happened, and a core without prompts.
 */
#ifndef NVLLM_DAEMON_CRASH_H
#define NVLLM_DAEMON_CRASH_H

/* Once, at the start of the daemon. */
void crash_init(void);

#endif
