/* history.c - see history.h. */
#include "client/ctl/history.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/ctl/json.h"

enum { HISTORY_BYTES = 8 << 20 }; /* of the newest lines that are read */

char *history_find(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    struct text_buffer path = {0};

    if (state && state[0] == '/') {
        text_buffer_add(&path, state, strlen(state));
    } else if (home && home[0] == '/' && access(home, F_OK) == 0) { /* only what is below is made */
        text_buffer_add(&path, home, strlen(home));
        text_buffer_add(&path, "/.local/state", 13);
    } else {
        return NULL;
    }
    text_buffer_add(&path, "/nvllm/chat_history", 19);
    for (char *at = strchr(path.data + 1, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        (void)mkdir(path.data, 0700);
        *at = '/';
    }
    return path.data;
}

/* Below 0: no regular file can be opened there. */
static int open_file(const char *path, int flags)
{
    const int fd = open(path, flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    struct stat st;

    if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)))
        return fd;
    close(fd);
    return -1;
}

/* The last HISTORY_BYTES of a file, to be freed; *is_all: there are no more. */
static char *read_end(int fd, size_t *n, bool *is_all)
{
    const off_t size = lseek(fd, 0, SEEK_END);
    const off_t from = size > HISTORY_BYTES ? size - HISTORY_BYTES : 0;
    char *data = ctl_alloc(HISTORY_BYTES, 1);
    ssize_t k;

    *is_all = from == 0;
    for (*n = 0; *n < HISTORY_BYTES; *n += (size_t)k) {
        k = pread(fd, data + *n, HISTORY_BYTES - *n, from + (off_t)*n);
        if (k <= 0)
            break;
    }
    return data;
}

static bool write_all(int fd, const char *data, size_t n)
{
    while (n > 0) {
        const ssize_t k = write(fd, data, n);

        if (k <= 0)
            return false;
        data += k;
        n -= (size_t)k;
    }
    return true;
}

/* The file becomes these bytes, or stays as it is. */
static void replace(const char *path, const char *data, size_t n)
{
    struct text_buffer beside = {0};
    bool ok;
    int fd;

    text_buffer_add(&beside, path, strlen(path));
    text_buffer_add(&beside, ".new", 4);
    fd = open_file(beside.data, O_WRONLY | O_TRUNC);
    if (fd >= 0) {
        ok = write_all(fd, data, n);
        ok = close(fd) == 0 && ok && rename(beside.data, path) == 0;
        if (!ok)
            unlink(beside.data);
    }
    text_buffer_deinit(&beside);
}

static const char *next_line(const char *at, const char *end)
{
    const char *newline = memchr(at, '\n', (size_t)(end - at));

    return newline ? newline + 1 : NULL;
}

void history_load(const char *path, void (*enter)(void *arg, const char *line), void *arg)
{
    const int fd = open_file(path, O_RDONLY);
    const char *at, *next, *end;
    size_t n, n_lines = 0;
    bool is_all;
    char *data;

    if (fd < 0)
        return;
    data = read_end(fd, &n, &is_all);
    close(fd);
    end = data + n;
    for (at = data; (next = next_line(at, end)); at = next)
        n_lines++;
    at = data;
    if (!is_all || n_lines > 2 * HISTORY_LINES) {
        for (next = is_all ? data : next_line(data, end); next && n_lines > HISTORY_LINES;
             n_lines--)
            next = next_line(next, end);
        at = next ? next : end;
        replace(path, at, (size_t)(end - at));
    }
    for (; (next = next_line(at, end)); at = next) {
        json_t *line = json_loadb(at, (size_t)(next - at), JSON_DECODE_ANY, NULL);

        if (json_is_string(line)) /* somebody may have changed the file */
            enter(arg, json_string_value(line));
        json_decref(line);
    }
    free(data);
}

void history_add(const char *path, const char *line)
{
    json_t *value = ctl_json_text(nvllm_str(line));
    struct text_buffer out = {0};
    char *text = json_dumps(value, JSON_ENCODE_ANY);
    const int fd = text ? open_file(path, O_WRONLY | O_APPEND) : -1;

    if (fd >= 0) {
        text_buffer_add(&out, text, strlen(text));
        text_buffer_add(&out, "\n", 1);
        (void)write_all(fd, out.data, out.len);
        close(fd);
    }
    text_buffer_deinit(&out);
    free(text);
    json_decref(value);
}
