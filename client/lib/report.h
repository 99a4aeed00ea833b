/* report.h - the answers about the daemon itself, as the public headers show them. */
#ifndef NVLLM_CLIENT_LIB_REPORT_H
#define NVLLM_CLIENT_LIB_REPORT_H

#include "client/lib/event.h"

/* Fills the part of e that the frame is for; it points into e's memory. EVENT_OK, EVENT_E_NOMEM. */
int report_read(struct event *e, const Nvllm__V1__ServerFrame *frame);

#endif
