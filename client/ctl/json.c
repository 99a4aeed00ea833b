/* json.c - see json.h. */
#include "client/ctl/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/utf8.h"

json_t *ctl_json_parse(const char *data, size_t n, struct nvllm_error *err)
{
    json_error_t where;
    json_t *value =
        json_loadb(data, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &where);

    if (!value && where.line > 1)
        ctl_invalid(err, "not JSON: %s (line %d, column %d)", where.text, where.line, where.column);
    else if (!value)
        ctl_invalid(err, "not JSON: %s (column %d)", where.text, where.column);
    return value;
}

json_t *ctl_json_text(struct nvllm_text text)
{
    json_t *value = json_stringn(text.data ? text.data : "", text.len);
    struct text_buffer clean = {0};

    if (value)
        return value;
    for (size_t i = 0; i < text.len;) {
        int step = utf8_step(text.data + i, text.len - i);

        if (step > 0)
            text_buffer_add(&clean, text.data + i, (size_t)step);
        else
            text_buffer_add(&clean, "\xef\xbf\xbd", 3);
        i += (size_t)abs(step);
    }
    value = json_stringn(clean.data, clean.len);
    text_buffer_deinit(&clean);
    return value;
}

json_t *ctl_json_number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *ctl_json_ids(const int32_t *ids, size_t n)
{
    json_t *array = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer(ids[i]));
    return array;
}

json_t *ctl_json_error(const struct nvllm_error *err)
{
    json_t *e = json_object();

    json_object_set_new(e, "code", json_string(nvllm_code_name(err->code)));
    json_object_set_new(e, "message", ctl_json_text(nvllm_str(err->message)));
    if (err->field[0])
        json_object_set_new(e, "field", ctl_json_text(nvllm_str(err->field)));
    if (err->limit[0]) {
        json_object_set_new(e, "limit", ctl_json_text(nvllm_str(err->limit)));
        json_object_set_new(e, "limit_value", json_integer((json_int_t)err->limit_value));
    }
    return e;
}

void ctl_json_print(int fd, json_t *value)
{
    /* Nine digits distinguish any two floats. */
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    size_t n;

    json_decref(value);
    if (!text)
        ctl_no_memory();
    n = strlen(text);
    text[n] = '\n'; /* in place of the NUL: each line is one write */
    ctl_write(fd, text, n + 1);
    free(text);
}

int ctl_json_answer(json_t *value)
{
    ctl_json_print(STDOUT_FILENO, value);
    return EXIT_OK;
}
