/* format.h - what nvllmctl and nvllm-openai read alike: the response format and the choice of tools
 * of a JSON request, and the JSON text of a value. Each has its own memory for requests, and its
 * own errors. */
#ifndef NVLLM_CLIENT_JSON_FORMAT_H
#define NVLLM_CLIENT_JSON_FORMAT_H

#include <jansson.h>

#include "client/lib/nvllm_client.h"

struct format_reading {
    /* Zeroed memory that lives as long as the request; NULL: there is none. */
    void *(*take)(void *owner, size_t n, size_t size);
    void *owner;
    /* Of what returned false: */
    char where[120];    /* what is wrong, "response_format.type"; */
    const char *wanted; /* and what it must be, "a string"; NULL: there was no memory */
};

/* Reads {"type": …} with the member that the type needs; where: the object's name. On success *r
 * has the format, and points into value and memory of the request. */
bool format_read(struct format_reading *in, struct nvllm_request *r, const char *where,
                 const json_t *value);

/* Likewise the schema, expression, grammar or choices alone. */
bool format_read_value(struct format_reading *in, struct nvllm_request *r, enum nvllm_format format,
                       const char *where, const json_t *value);

/* Reads a tool_choice: "none", "auto", "required", or the tool to call as {"type": "function",
 * "function": {"name": …}}. */
bool format_read_tool_choice(struct format_reading *in, struct nvllm_chat *chat, const char *where,
                             const json_t *value);

/* The text of a value; a real number has the fewest digits that give the same one, so that 0.1
 * stays 0.1, which matters to a schema's multipleOf. data NULL: there is no memory. */
struct nvllm_text format_dump(const struct format_reading *in, const json_t *value);

#endif
