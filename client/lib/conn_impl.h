/* conn_impl.h - what conn.c and conn_resume.c share. */
#ifndef NVLLM_CLIENT_LIB_CONN_IMPL_H
#define NVLLM_CLIENT_LIB_CONN_IMPL_H

#include "client/lib/conn.h"

/* ---- conn.c */

/* Queues a frame. */
enum nvllm_code conn_put(struct conn *c, const Nvllm__V1__ClientFrame *frame,
                         struct nvllm_error *err);

/* Removes a request. */
void conn_forget(struct conn *c, struct pending *request);

/* Marks a request as one that no daemon has, or that this one has. */
void conn_set_held(struct conn *c, struct pending *request, bool held);

/* Has conn_take() end a request with an error of the library. */
void conn_end(struct conn *c, struct pending *request, enum nvllm_code code);

void conn_die_no_memory(struct conn *c);

/* ---- conn_resume.c */

/* The operations that a program can cancel, and that may be sent again. */
static inline bool takes_time(int answer)
{
    return answer == ANSWER(DELTA) || answer == ANSWER(EMBEDDING) || answer == ANSWER(TOKENS) ||
           answer == ANSWER(TEXT);
}

/* Keeps a request, so that it can be sent again. False: there is no room. */
bool conn_keep(struct conn *c, struct pending *request, const Nvllm__V1__ClientFrame *frame);
void conn_drop(struct conn *c, struct pending *request);

/* Takes a refusal of an exiting daemon, or the answer to the library's own question, which the
 * program does not see. False: the frame is neither. */
bool conn_take_own_answer(struct conn *c, struct pending *request,
                          const Nvllm__V1__ServerFrame *frame);

/* After the last word of a daemon that is exiting: nothing is answered any more. */
void conn_hold_rest(struct conn *c);

/* The event for a request of conn_end(). NULL: there is none, or no memory, see death. */
struct event *conn_take_end(struct conn *c);

#endif
