/* io.c - messages, output, stdin, interrupts and the connection of nvllmctl. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/clock.h"
#include "client/ctl/ctl.h"
#include "proto/program.h"
#include "proto/utf8.h"

enum {
    MAX_INPUT_BYTES = 512 << 20, /* no frame is larger */
    ANSWER_TIMEOUT_MS = 10000,
    CANCEL_WAIT_MS = 5000,
    LATE_WAIT_MS = 1000,
};

/* ---- messages */

void ctl_message(const char *fmt, ...)
{
    char text[1200], line[1300] = "";
    FILE *to = fmemopen(line, sizeof(line), "w"); /* one write for the line */
    va_list args;

    if (!to)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    fputs("nvllmctl: ", to);
    ctl_put_line(to, text, 0);
    fputc('\n', to);
    fclose(to);
    fputs(line, stderr);
}

/* exit() would have sanitizers report what functions under way hold as leaked. */
void ctl_exit(int rc)
{
    fflush(stdout);
    _exit(rc);
}

void ctl_exit_usage(const struct ctl *ctl)
{
    fprintf(stderr, "See “nvllmctl help%s%s”.\n", ctl->command ? " " : "",
            ctl->command ? ctl->command->name : "");
    ctl_exit(EXIT_USAGE);
}

bool ctl_invalid(struct nvllm_error *err, const char *fmt, ...)
{
    va_list args;

    memset(err, 0, sizeof(*err));
    err->code = NVLLM_E_INVALID;
    va_start(args, fmt);
    vsnprintf(err->message, sizeof(err->message), fmt, args);
    va_end(args);
    return false;
}

int ctl_report_timeout(void)
{
    ctl_message("timed out (--timeout)");
    return EXIT_DEADLINE;
}

void *ctl_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    if (!p)
        ctl_no_memory();
    return p;
}

void *ctl_grow(void *old, size_t n, size_t size)
{
    void *p = reallocarray(old, n, size);

    if (!p)
        ctl_no_memory();
    return p;
}

void text_buffer_add(struct text_buffer *b, const char *data, size_t n)
{
    if (n >= b->cap - b->len) {
        b->cap = 2 * (b->len + n) + 256;
        b->data = ctl_grow(b->data, b->cap, 1);
    }
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
}

void text_buffer_deinit(struct text_buffer *b)
{
    free(b->data);
    *b = (struct text_buffer){0};
}

int ctl_exit_code(enum nvllm_code code)
{
    static const unsigned char rc[] = {
        [NVLLM_E_NOT_RUNNING] = EXIT_NOT_RUNNING, [NVLLM_E_BUSY] = EXIT_REFUSED,
        [NVLLM_E_UNAVAILABLE] = EXIT_REFUSED,     [NVLLM_E_TOO_LONG] = EXIT_REFUSED,
        [NVLLM_E_DEADLINE] = EXIT_DEADLINE,       [NVLLM_E_TIMEOUT] = EXIT_DEADLINE,
        [NVLLM_E_DENIED] = EXIT_DENIED,
    };

    if (code == NVLLM_OK)
        return EXIT_OK;
    return code < sizeof(rc) && rc[code] ? rc[code] : EXIT_ERROR;
}

/* Commands that can be pasted; none if the socket's path would move the terminal. */
static void advise(const struct ctl *ctl, const struct nvllm_error *err)
{
    bool was_connected =
        err->sys_errno == 0 || err->sys_errno == EPIPE || err->sys_errno == ECONNRESET;
    char path[4 * 1024];

    if (program_has_control(ctl->socket_path))
        return;
    program_quote(path, sizeof(path), ctl->socket_path);
    if (err->code == NVLLM_E_NOT_RUNNING)
        fprintf(stderr,
                "Start it with “systemctl start nvllmd” or “nvllmd --model DIR --socket %s”, or\n"
                "use --socket if it listens elsewhere. “nvllmctl --socket %s doctor” finds the\n"
                "problem.\n",
                path, path);
    else if (err->code == NVLLM_E_DENIED && err->sys_errno != 0)
        fprintf(stderr,
                "Ask an administrator for access: “nvllmctl --socket %s doctor” shows what is\n"
                "missing.\n",
                path);
    else if (err->code == NVLLM_E_CONNECTION && was_connected)
        fprintf(stderr,
                "Its log says why; “nvllmctl --socket %s status” shows whether it is back.\n",
                path);
}

/* The option given that a field of a request was filled from: of “sampling.top_p” it is “top-p”;
 * NULL: none. */
static const char *option_of(const struct ctl *ctl, const char *field)
{
    char name[sizeof(((struct nvllm_error *)NULL)->field)];

    for (; *field; field += strspn(field, ".")) {
        const size_t n = strcspn(field, ".");

        snprintf(name, sizeof(name), "%.*s", (int)n, field);
        name[strcspn(name, "[")] = 0;
        if (strcmp(name, "stop_token_ids") == 0)
            strcpy(name, "stop_token_id"); /* the option that is not named as its field */
        for (char *c = name; *c; c++)
            *c = (char)(*c == '_' ? '-' : *c);
        for (size_t i = 0; i < ctl->line.n_given; i++)
            if (strcmp(ctl->line.given[i].option->name, name) == 0)
                return ctl->line.given[i].option->name;
        field += n;
    }
    return NULL;
}

/* Whether people know a field by its name: not what they typed or piped, nor where the library
 * connects to. */
static bool is_known_by_name(const char *field)
{
    static const char *const unknown[] = {"chat", "prompt", "request", "socket_path"};

    for (size_t i = 0; i < sizeof(unknown) / sizeof(*unknown); i++)
        if (strcmp(field, unknown[i]) == 0)
            return false;
    return true;
}

int ctl_report(const struct ctl *ctl, const struct nvllm_error *err)
{
    const bool known = err->field[0] && is_known_by_name(err->field);
    const char *option = known ? option_of(ctl, err->field) : NULL;
    const size_t n = strlen(err->field);
    const char *what = err->message; /* behind the field, which many begin with */

    if (n && strncmp(what, err->field, n) == 0 && strncmp(what + n, ": ", 2) == 0)
        what += n + 2;
    if (option)
        ctl_message("--%s: %s", option, what);
    else if (known && (what != err->message || !strstr(what, err->field)))
        ctl_message("%s: %s", err->field, what);
    else if (!known && strncmp(what, "is ", 3) == 0) /* the prompt is empty */
        ctl_message("the %s %s", err->field, what);
    else
        ctl_message("%s", what);
    advise(ctl, err);
    if (err->retryable && err->retry_after_ms > 0)
        fprintf(stderr, "Try again in %.1f s.\n", (double)err->retry_after_ms / 1000);
    else if (err->code == NVLLM_E_BUSY)
        fprintf(stderr, "Try again later.\n");
    if (err->limit[0] && !strstr(err->message, err->limit))
        fprintf(stderr, "%s is %llu here; see nvllmd.conf(5).\n", err->limit,
                (unsigned long long)err->limit_value);
    return ctl_exit_code(err->code);
}

void ctl_check(const struct ctl *ctl, enum nvllm_code code)
{
    if (code != NVLLM_OK)
        ctl_exit(ctl_report(ctl, &ctl->err));
}

/* ---- connection */

int ctl_left_ms(const struct ctl *ctl)
{
    return clock_left_ms(ctl->deadline);
}

int ctl_ask_ms(const struct ctl *ctl)
{
    return ctl->deadline == INT64_MAX ? ANSWER_TIMEOUT_MS : ctl_left_ms(ctl);
}

int64_t ctl_cancel_end(const struct ctl *ctl)
{
    return clock_ms() + (ctl_left_ms(ctl) == 0 ? LATE_WAIT_MS : CANCEL_WAIT_MS);
}

static bool waiting_shown;

static void show_waiting(void *arg, enum nvllm_state state, float progress)
{
    (void)arg;
    if (state == NVLLM_STATE_UNKNOWN)
        fprintf(stderr, "\r\033[Kwaiting for nvllmd to be started …");
    else
        fprintf(stderr, "\r\033[Knvllmd is loading its model (%d %%) …",
                progress >= 0 && progress <= 1 ? (int)(progress * 100) : 0);
    waiting_shown = true;
}

enum nvllm_code ctl_try_connect(struct ctl *ctl)
{
    struct nvllm_options options;
    enum nvllm_code code;

    nvllm_options_init(&options);
    options.socket_path = ctl->socket_path;
    options.name = "nvllmctl/" NVLLM_VERSION;
    options.wait_start = ctl->wait;
    options.wait_ready = ctl->needs_model ? !ctl->no_wait : ctl->wait;
    options.reconnect = ctl->needs_model; /* others tell of the daemon itself, or see it exit */
    options.timeout_ms = ctl_left_ms(ctl);
    if (options.timeout_ms < 0 && !ctl->needs_model && !ctl->wait)
        options.timeout_ms = ANSWER_TIMEOUT_MS;
    if (isatty(STDERR_FILENO))
        options.on_wait = show_waiting;
    code = nvllm_connect(&ctl->client, &options, &ctl->err);
    if (waiting_shown)
        fprintf(stderr, "\r\033[K");
    return code;
}

void ctl_connect(struct ctl *ctl)
{
    ctl_check(ctl, ctl_try_connect(ctl));
}

static volatile sig_atomic_t interrupted_by;
static volatile sig_atomic_t n_interrupts;
static int n_interrupts_told; /* those that ctl_next() or ctl_wait_input() has reported */
static bool interrupts_spared;

static void on_interrupt(int signal)
{
    if (interrupted_by && !(interrupts_spared && signal == SIGINT))
        _exit(128 + signal);
    interrupted_by = signal;
    n_interrupts++;
}

void ctl_catch_interrupts(bool interactive)
{
    struct sigaction action = {.sa_handler = on_interrupt};

    interrupts_spared = interactive;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool ctl_forget_interrupt(void)
{
    if (!interrupts_spared || !interrupted_by)
        return false;
    if (interrupted_by == SIGINT)
        interrupted_by = 0;
    return true;
}

int ctl_interrupted(void)
{
    return interrupted_by ? 128 + interrupted_by : 0;
}

/* As poll(), ended by an interrupt, also by one that comes just before it, and by signals that the
 * caller has blocked to have them handled here alone. */
static void wait_for(struct pollfd *p, nfds_t n, int timeout_ms)
{
    struct timespec t = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    sigset_t block, before, none;

    sigemptyset(&none);
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigaddset(&block, SIGTERM);
    sigprocmask(SIG_BLOCK, &block, &before);
    if (n_interrupts == n_interrupts_told)
        ppoll(p, n, timeout_ms < 0 ? NULL : &t, &none);
    sigprocmask(SIG_SETMASK, &before, NULL);
}

static bool is_interrupt_new(void)
{
    if (n_interrupts == n_interrupts_told)
        return false;
    n_interrupts_told = n_interrupts;
    return true;
}

enum nvllm_code ctl_next(struct ctl *ctl, int also_fd, int timeout_ms,
                         const struct nvllm_event **event, struct nvllm_error *err)
{
    int64_t deadline = clock_deadline(timeout_ms);
    struct pollfd p[2] = {{0}, {.fd = also_fd, .events = POLLIN}};

    for (;;) {
        unsigned wants;
        enum nvllm_code code;
        int left, own;

        /* Before any event: a stream that never pauses must not hide an interrupt. */
        if (is_interrupt_new())
            return NVLLM_E_TIMEOUT;
        code = nvllm_next(ctl->client, 0, event, err);
        left = clock_left_ms(deadline);
        if (code != NVLLM_E_TIMEOUT || left == 0 || p[1].revents)
            return code;
        wants = nvllm_wants(ctl->client);
        own = nvllm_timeout(ctl->client);
        p[0].fd = nvllm_fd(ctl->client);
        p[0].events = (short)((wants & NVLLM_WANT_READ ? POLLIN : 0) |
                              (wants & NVLLM_WANT_WRITE ? POLLOUT : 0));
        wait_for(p, 2, own >= 0 && (left < 0 || own < left) ? own : left);
    }
}

bool ctl_wait_input(int fd, int timeout_ms)
{
    wait_for(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, timeout_ms);
    return !is_interrupt_new();
}

/* ---- input and output */

/* The file that a command writes. */
static struct {
    int fd;
    const char *path;
} output = {.fd = -1};

void ctl_write(int fd, const void *data, size_t n)
{
    const char *p = data;

    while (n > 0) {
        ssize_t k = write(fd, p, n);

        if (k >= 0) {
            p += k;
            n -= (size_t)k;
        } else if (errno == EAGAIN) {
            poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, -1);
        } else if (errno == EPIPE) {
            ctl_exit(EXIT_ERROR);
        } else if (errno != EINTR) {
            ctl_die("cannot write %s: %s", fd == output.fd ? output.path : "the output",
                    strerror(errno));
        }
    }
}

void ctl_write_text(struct nvllm_text text)
{
    const bool terminal = isatty(STDOUT_FILENO);
    size_t start = 0;

    for (size_t i = 0; terminal && i < text.len;) {
        const char *at = text.data + i;
        int step = utf8_step(at, text.len - i);
        bool shown = step < 0 || *at == '\n' || *at == '\t' || !utf8_steers(at, step);

        step = abs(step);
        if (!shown) {
            ctl_write(STDOUT_FILENO, text.data + start, i - start);
            ctl_write(STDOUT_FILENO, "\xef\xbf\xbd", 3);
            start = i + (size_t)step;
        }
        i += (size_t)step;
    }
    ctl_write(STDOUT_FILENO, text.data + start, text.len - start);
}

void ctl_put_line(FILE *to, const char *text, int max)
{
    size_t n = strlen(text);

    for (size_t i = 0; i < n;) {
        int step = utf8_step(text + i, n - i);
        bool steers = utf8_steers(text + i, step);

        step = step < 1 ? -step : step;
        if (max > 0 && i + (size_t)step > (size_t)max)
            break;
        if (steers)
            fputc(text[i] == '\n' || text[i] == '\t' || text[i] == '\r' ? ' ' : '?', to);
        else
            fwrite(text + i, 1, (size_t)step, to);
        i += (size_t)step;
    }
}

int ctl_open(const char *path, int standard, int flags)
{
    int fd = strcmp(path, "-") == 0 ? standard : open(path, flags | O_CLOEXEC, 0666);

    if (fd < 0)
        ctl_die("%s: %s", path, strerror(errno));
    if (flags & O_WRONLY && fd != standard) {
        output.fd = fd;
        output.path = path;
    }
    return fd;
}

/* All that fd holds, malloc'd. */
static char *read_all(int fd, size_t *n)
{
    struct text_buffer all = {0};
    char part[64 << 10];
    ssize_t k;

    do {
        k = read(fd, part, sizeof(part));
        if (k < 0 && errno != EINTR)
            ctl_die("cannot read the input: %s", strerror(errno));
        text_buffer_add(&all, part, k > 0 ? (size_t)k : 0);
        if (all.len > MAX_INPUT_BYTES)
            ctl_die("the input holds more than %d MiB", MAX_INPUT_BYTES >> 20);
    } while (k != 0);
    *n = all.len;
    return all.data;
}

char *ctl_read_file(const char *path, const char *what, size_t *n)
{
    int fd = ctl_open(path, STDIN_FILENO, O_RDONLY);
    struct stat st;
    char *all;

    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        ctl_die("%s is a folder", path);
    if (isatty(fd))
        fprintf(stderr, "Type the %s, then press Ctrl-D on an empty line.\n", what);
    all = read_all(fd, n);
    if (fd != STDIN_FILENO)
        close(fd);
    return all;
}
