/* admin.c - the calls that steer the daemon: drain, resume, reload, log level, shutdown. */
#include "client/lib/client.h"
#include "client/lib/error.h"
#include "client/lib/sized.h"

static const struct nvllm_drain_options default_drain = {
    .size = sizeof(default_drain),
    .timeout_ms = -1,
};

void nvllm_drain_options_init_size(struct nvllm_drain_options *options, size_t size)
{
    sized_give(options, size, &default_drain, sizeof(default_drain));
}

/* The frame's op is set, and its answer is Changed. */
static enum nvllm_code change_call(struct nvllm_client *c, Nvllm__V1__ClientFrame *frame,
                                   int timeout_ms, const struct nvllm_change **change,
                                   struct nvllm_error *err)
{
    struct event *e;
    enum nvllm_code code = client_call(c, frame, PENDING_CHANGE, timeout_ms, &e, err);

    if (code == NVLLM_OK && change)
        *change = &e->change;
    return code;
}

enum nvllm_code nvllm_drain(struct nvllm_client *c, const struct nvllm_drain_options *options,
                            int timeout_ms, const struct nvllm_change **change,
                            struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Drain op = NVLLM__V1__DRAIN__INIT;
    struct nvllm_drain_options o = default_drain;

    if (options && !sized_take(&o, sizeof(o), options))
        return error_field(err, "options",
                           "the options were not prepared by nvllm_drain_options_init()");
    if (o.timeout_ms > UINT32_MAX)
        return error_field(err, "timeout_ms", "timeout_ms: %lld is too large",
                           (long long)o.timeout_ms);
    if (o.timeout_ms >= 0) {
        op.has_timeout_ms = true;
        op.timeout_ms = (uint32_t)o.timeout_ms;
    }
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_DRAIN;
    frame.drain = &op;
    return change_call(c, &frame, timeout_ms, change, err);
}

enum nvllm_code nvllm_resume(struct nvllm_client *c, int timeout_ms,
                             const struct nvllm_change **change, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Resume op = NVLLM__V1__RESUME__INIT;

    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_RESUME;
    frame.resume = &op;
    return change_call(c, &frame, timeout_ms, change, err);
}

enum nvllm_code nvllm_set_log_level(struct nvllm_client *c, const char *level, int timeout_ms,
                                    const struct nvllm_change **change, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__SetLogLevel op = NVLLM__V1__SET_LOG_LEVEL__INIT;

    if (!level)
        return error_field(err, "level", "level is NULL");
    op.level = (char *)level;
    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_SET_LOG_LEVEL;
    frame.set_log_level = &op;
    return change_call(c, &frame, timeout_ms, change, err);
}

enum nvllm_code nvllm_shutdown(struct nvllm_client *c, int timeout_ms,
                               const struct nvllm_change **change, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Shutdown op = NVLLM__V1__SHUTDOWN__INIT;

    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_SHUTDOWN;
    frame.shutdown = &op;
    return change_call(c, &frame, timeout_ms, change, err);
}

enum nvllm_code nvllm_reload(struct nvllm_client *c, int timeout_ms,
                             const struct nvllm_reloaded **reloaded, struct nvllm_error *err)
{
    Nvllm__V1__ClientFrame frame = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Reload op = NVLLM__V1__RELOAD__INIT;
    struct event *e;
    enum nvllm_code code;

    frame.op_case = NVLLM__V1__CLIENT_FRAME__OP_RELOAD;
    frame.reload = &op;
    code = client_call(c, &frame, PENDING_RELOAD, timeout_ms, &e, err);
    if (code == NVLLM_OK && reloaded)
        *reloaded = &e->reloaded;
    return code;
}
