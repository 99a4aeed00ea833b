/* bare_wakeups.h - what the machine takes for the wake-ups of a token by themselves.
 *
 * A child and the caller do what nvllmd and a client do, with nothing between: the child sleeps
 * until a step is over and writes a few bytes to a socket that the caller waits on. */
#ifndef NVLLM_TESTS_BENCH_BARE_WAKEUPS_H
#define NVLLM_TESTS_BENCH_BARE_WAKEUPS_H

/* late_us[n]: of each step, from its end until the caller has read the bytes. What goes wrong ends
 * the program. */
void bare_wakeups(double *late_us, int n, int step_us);

#endif
