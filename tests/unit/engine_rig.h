/* engine_rig.h - an engine over the bundled model and what it tells, for tests. */
#ifndef NVLLM_TESTS_UNIT_ENGINE_RIG_H
#define NVLLM_TESTS_UNIT_ENGINE_RIG_H

#include <stdatomic.h>

#include "engine/cpu/cpu_backend.h"
#include "engine/engine.h"

/* For the next start: `ops` as the backend, which are the CPU's, with 64 MiB of cache. */
extern struct engine_options options;
extern struct backend_ops ops;

/* Fixtures: the former sets both, the latter frees the engine, which gives back the memory of all
 * requests. */
void set_up_engine(void);
void end_engine(void);

/* For ops.info: the CPU's, but idle() is to be called every second. */
void info_with_idle(const struct backend *b, struct backend_info *out);

struct engine *start_loading(void);
struct engine *start(void); /* and loaded */

/* Waits for events, a bounded time: an engine that hangs fails the test. */
struct engine_event *take(struct engine *g);

/* Until it is in another state; what it tells meanwhile is dropped. */
void wait_while(struct engine *g, enum engine_state state);

/* Requests whose memory has not been released; release() counts down. */
extern _Atomic int n_owned;
void release(void *owner);

/* A greedy streaming request of client 1000 for 40 tokens; change, then generate. */
struct engine_request request(uint64_t id, const char *prompt);
void generate(struct engine *g, const struct engine_request *r);

/* All that one request was told. */
struct answer {
    char text[4096];
    size_t len;
    int32_t ids[512];
    size_t n_ids;
    int n_deltas, n_terminals;
    enum core_reason reason;
    enum engine_event_type terminal;
    enum engine_error error;
    char field[32];
    struct err message;
    struct core_usage usage;
};

/* Reads events until each of the answers 1 .. n has its terminal event. */
void gather(struct engine *g, struct answer *answers, uint64_t n);

/* The answer to an inspect request, waited for alone; the caller frees it. */
struct inspect_report *report_of(struct engine *g, uint64_t id);

#endif
