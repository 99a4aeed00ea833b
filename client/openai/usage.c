/* usage.c - nvllm-openai's command line, for the program and for what is generated from it. */
#include "client/openai/usage.h"

#include "client/lib/nvllm_client.h"

static const struct usage_option options[] = {
    OPTION("socket", "PATH",
           "the socket of nvllmd; default: $NVLLM_SOCKET, " NVLLM_DEFAULT_SOCKET
           ", the quick start's",
           .values = USAGE_FILE),
    OPTION("listen", "ADDRESS",
           "serve unix:PATH, 127.0.0.1:PORT or [::1]:PORT; may be repeated; default: what systemd "
           "passes",
           .repeats = true),
    OPTION("api-keys", "FILE", "serve only requests with a key of FILE, a name and a key per line",
           .values = USAGE_FILE),
    OPTION("allow-remote", NULL, "allow addresses that other hosts reach; needs --api-keys"),
    OPTION("max-connections", "N", "open connections; default: 512"),
    OPTION("max-requests", "N", "prompts in progress, more are refused; default: 256"),
    OPTION("max-body", "BYTES", "size of a request, as in 4M; default: 4M"),
    OPTION("max-memory", "BYTES", "memory of requests and unread answers; default: 256M"),
    OPTION("timeout", "SECONDS",
           "limit for a request to arrive, and for a client that stops reading; default: 30"),
    OPTION("drain-timeout", "SECONDS",
           "time for answers in progress to finish after SIGTERM; default: 20"),
    OPTION("help", NULL, "print usage"),
    OPTION("version", NULL, "print the version"),
    OPTIONS_END,
};

const struct usage_program openai_program = {
    .name = "nvllm-openai",
    .common = options,
};
