/* field_path.h - whether the field that an error names is one of the protocol's, by the rule of
 * nvllm-protocol(7): names from the request's message on, an entry of a list with its index. */
#ifndef NVLLM_TESTS_UNIT_FIELD_PATH_H
#define NVLLM_TESTS_UNIT_FIELD_PATH_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <protobuf-c/protobuf-c.h>

static inline bool is_field_path(const ProtobufCMessageDescriptor *m, const char *path)
{
    const ProtobufCFieldDescriptor *field = NULL;
    char name[64], index[24];

    if (strcmp(path, "input") == 0 || strcmp(path, "about") == 0)
        return true; /* names of a oneof, which descriptors do not have */
    for (;;) {
        int n = 0, bracket = 0;

        if (!m || sscanf(path, "%63[a-z_]%n", name, &n) != 1)
            return false;
        field = protobuf_c_message_descriptor_get_field_by_name(m, name);
        if (!field)
            return false;
        path += n;
        if (sscanf(path, "[%20[0-9]]%n", index, &bracket) == 1 && bracket > 0) {
            if (field->label != PROTOBUF_C_LABEL_REPEATED)
                return false;
            path += bracket;
        }
        if (*path == '\0')
            return true;
        if (*path++ != '.' || field->type != PROTOBUF_C_TYPE_MESSAGE)
            return false;
        m = field->descriptor;
    }
}

#endif
