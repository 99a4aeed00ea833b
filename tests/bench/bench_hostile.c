/* bench_hostile.c - frames as large and as full as the limits let them be: the CPU time that each
 * takes of the loop which all clients share, from its first byte to the last of its answer, and how
 * long another client waits meanwhile. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/frame.h"
#include "proto/nvllm.pb-c.h"
#include "tests/bench/bench_daemon.h"
#include "tests/bench/daemon_rig.h"

enum {
    FRAME_BYTES = FRAME_DEFAULT_MAX - 64, /* a little less than may be */
    TOKENIZE_BYTES = 1 << 20,
    MESSAGES = 4000,
    ANSWER_TOKENS = 30000,
    CROWD = 4000,
    CROWD_EACH = 1000, /* requests of a connection */
    RUNS = 7,
    MOST_MS = 10,
    TIMEOUT_MS = 30000,
};

/* ---- frames */

struct frame {
    uint8_t *data;
    size_t n;
};

static void *room(size_t n)
{
    void *p = malloc(n);

    if (!p)
        die("out of memory");
    return p;
}

static struct frame pack(Nvllm__V1__ClientFrame *f)
{
    struct frame_buffer b = {0};

    f->has_id = true;
    f->id = f->op_case == NVLLM__V1__CLIENT_FRAME__OP_HELLO ? 0 : 1;
    if (frame_buffer_put(&b, &f->base) < 0)
        die("out of memory");
    return (struct frame){b.data, b.end};
}

static struct frame hello(void)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Hello h = NVLLM__V1__HELLO__INIT;

    h.has_protocol = true;
    h.protocol = 1;
    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_HELLO;
    f.hello = &h;
    return pack(&f);
}

static ProtobufCBinaryData repeated(const char *piece, size_t bytes)
{
    size_t len = strlen(piece), n = bytes / len;
    uint8_t *text = room(bytes);

    for (size_t i = 0; i < n; i++)
        memcpy(text + i * len, piece, len);
    return (ProtobufCBinaryData){n * len, text};
}

static struct frame prompt(const char *piece)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Generate g;
    struct frame out;

    nvllm__v1__generate__init(&g);
    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_GENERATE;
    f.generate = &g;
    g.input_case = NVLLM__V1__GENERATE__INPUT_PROMPT;
    g.prompt = repeated(piece, FRAME_BYTES);
    out = pack(&f);
    free(g.prompt.data);
    return out;
}

static struct frame tokenize(const char *piece)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Tokenize t = NVLLM__V1__TOKENIZE__INIT;
    struct frame out;

    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE;
    f.tokenize = &t;
    t.has_text = true;
    t.text = repeated(piece, TOKENIZE_BYTES);
    out = pack(&f);
    free(t.text.data);
    return out;
}

static struct frame ids(const char *which)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Detokenize d = NVLLM__V1__DETOKENIZE__INIT;
    Nvllm__V1__Generate g;
    Nvllm__V1__TokenIds t = NVLLM__V1__TOKEN_IDS__INIT;
    struct frame out;

    t.n_ids = 500000;
    t.ids = room(t.n_ids * sizeof(*t.ids));
    for (size_t i = 0; i < t.n_ids; i++)
        t.ids[i] = (int32_t)(i % 1000 + 1000); /* of two bytes */
    if (strcmp(which, "detokenize") == 0) {
        f.op_case = NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE;
        f.detokenize = &d;
        d.n_ids = t.n_ids;
        d.ids = t.ids;
    } else {
        nvllm__v1__generate__init(&g);
        f.op_case = NVLLM__V1__CLIENT_FRAME__OP_GENERATE;
        f.generate = &g;
        g.input_case = NVLLM__V1__GENERATE__INPUT_PROMPT_IDS;
        g.prompt_ids = &t;
    }
    out = pack(&f);
    free(t.ids);
    return out;
}

/* An answer of many tokens in one piece, each with the most that can be told of it. */
static struct frame long_answer(const char *unused)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Sampling s = NVLLM__V1__SAMPLING__INIT;
    Nvllm__V1__TokenIds t = NVLLM__V1__TOKEN_IDS__INIT;
    Nvllm__V1__Generate g;
    int32_t id = 1;

    (void)unused;
    nvllm__v1__generate__init(&g);
    t.n_ids = 1;
    t.ids = &id;
    s.has_logprobs = s.has_ignore_eos = s.ignore_eos = true;
    s.logprobs = 20;
    g.input_case = NVLLM__V1__GENERATE__INPUT_PROMPT_IDS;
    g.prompt_ids = &t;
    g.sampling = &s;
    g.has_max_tokens = true;
    g.max_tokens = ANSWER_TOKENS;
    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_GENERATE;
    f.generate = &g;
    return pack(&f);
}

/* A chat of messages that share the bytes between them. */
static struct frame render(const char *piece)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Render r = NVLLM__V1__RENDER__INIT;
    Nvllm__V1__Chat c = NVLLM__V1__CHAT__INIT;
    Nvllm__V1__Message m = NVLLM__V1__MESSAGE__INIT, *all[MESSAGES];
    struct frame out;

    m.role = (char *)(uintptr_t) "user";
    m.has_content = true;
    m.content = repeated(piece, FRAME_BYTES / MESSAGES - 16);
    for (int i = 0; i < MESSAGES; i++)
        all[i] = &m;
    c.messages = all;
    c.n_messages = MESSAGES;
    r.chat = &c;
    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_RENDER;
    f.render = &r;
    out = pack(&f);
    free(m.content.data);
    return out;
}

/* Bytes that no library would write: head, then piece again and again, in a frame of its own. */
static struct frame filled(const char *piece)
{
    ProtobufCBinaryData body = repeated(piece, FRAME_BYTES);
    uint8_t *data = room(body.len + FRAME_MAX_PREFIX);
    size_t n = 0;

    for (size_t left = body.len; left; left >>= 7)
        data[n++] = (uint8_t)(left >> 7 ? left | 0x80 : left);
    memcpy(data + n, body.data, body.len);
    n += body.len;
    free(body.data);
    return (struct frame){data, n};
}

static struct frame question(const char *which)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__ListRequests l = NVLLM__V1__LIST_REQUESTS__INIT;
    Nvllm__V1__GetBlocks b = NVLLM__V1__GET_BLOCKS__INIT;

    if (strcmp(which, "requests") == 0) {
        f.op_case = NVLLM__V1__CLIENT_FRAME__OP_LIST_REQUESTS;
        f.list_requests = &l;
    } else {
        f.op_case = NVLLM__V1__CLIENT_FRAME__OP_GET_BLOCKS;
        f.get_blocks = &b;
        b.has_map = b.map = true;
    }
    return pack(&f);
}

static const struct kind {
    const char *name;
    struct frame (*make)(const char *arg);
    const char *arg;
} kinds[] = {
    {"prompt of words", prompt, "a word and more of them "},
    {"prompt of é", prompt, "\xc3\xa9"},
    {"prompt of aé", prompt, "a\xc3\xa9"},
    {"prompt of 世", prompt, "\xe4\xb8\x96"},
    {"prompt of 🙂", prompt, "\xf0\x9f\x99\x82"},
    {"prompt of half a million ids", ids, "generate"},
    {"tokenize words, 1 MiB", tokenize, "a word and more of them "},
    {"tokenize digits, 1 MiB", tokenize, "1"},
    {"detokenize half a million ids", ids, "detokenize"},
    {"render 4,000 messages", render, "a word and more of them "},
    {"an answer of 30,000 tokens with 20 logprobs each", long_answer, NULL},
    {"unknown fields", filled, "\xc0\x3e\x01"},
    {"the id again and again", filled, "\x08\x01"},
    {"one request again and again", filled, "\x22\x00"},
    {"bytes of no sense", filled, "\x08\xff\x80\x13"},
    {"list 4,000 requests", question, "requests"},
    {"blocks of 4,000 requests, and their map", question, "blocks"},
};

/* ---- a client that is up to something */

static int dial(const struct daemon_rig *rig)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", rig->socket);
    if (fd < 0 || connect(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0)
        die("connect: %s", strerror(errno));
    return fd;
}

static void write_all(int fd, struct frame f)
{
    while (f.n) {
        ssize_t n = send(fd, f.data, f.n, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR)
            return; /* it was turned away: its answer says so */
        f.data += n < 0 ? 0 : n;
        f.n -= n < 0 ? 0 : (size_t)n;
    }
}

/* Reads frames until the one of an id, or the end. */
static void read_until(int fd, uint64_t id)
{
    static uint8_t buf[256 << 10];
    struct frame_decoder d;
    const uint8_t *frame;
    bool found = false;
    size_t n;

    frame_decoder_init(&d, FRAME_LARGEST_MAX);
    while (!found) {
        ssize_t got = read(fd, buf, sizeof(buf));

        if (got <= 0 || frame_decoder_push(&d, buf, (size_t)got) < 0)
            break;
        while (!found && frame_decoder_take(&d, &frame, &n) == FRAME_OK)
            found = n > 1 && frame[0] == 0x08 && (frame[1] == id || frame[1] == 0);
    }
    frame_decoder_deinit(&d);
    if (!found)
        die("no answer to a hostile frame");
}

/* ---- another client */

struct other {
    const struct daemon_rig *rig;
    atomic_bool quit;
    double worst_ms; /* the thread's alone until it has ended */
};

static void *ask(void *arg)
{
    struct other *o = arg;
    struct nvllm_client *c = daemon_rig_connect(o->rig);
    const struct nvllm_status *status;
    struct timespec pause = {.tv_nsec = 500000};
    struct nvllm_error err;

    while (!atomic_load(&o->quit)) {
        uint64_t start = instant_now_ns();
        double ms;

        want_ok(nvllm_get_status(c, TIMEOUT_MS, &status, &err), &err, "status");
        ms = (double)(instant_now_ns() - start) / 1e6;
        o->worst_ms = ms > o->worst_ms ? ms : o->worst_ms;
        nanosleep(&pause, NULL);
    }
    nvllm_close(c);
    return NULL;
}

/* ---- what it costs */

/* CPU time of the daemon's loop so far: its main thread. */
static double loop_ms(const struct daemon_rig *rig)
{
    unsigned long long ns = 0;
    char path[64];
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", (int)rig->pid, (int)rig->pid);
    f = fopen(path, "r");
    if (!f || fscanf(f, "%llu", &ns) != 1)
        die("%s cannot be read", path);
    fclose(f);
    return (double)ns / 1e6;
}

/* The loop's time for one frame on a connection of its own, which is there already. */
static double cost_ms(const struct daemon_rig *rig, struct frame f)
{
    struct frame greeting = hello();
    struct timespec rest = {.tv_nsec = 2000000};
    int fd = dial(rig);
    double before;

    write_all(fd, greeting);
    read_until(fd, 0);
    nanosleep(&rest, NULL);
    before = loop_ms(rig);
    write_all(fd, f);
    read_until(fd, 1);
    close(fd);
    nanosleep(&rest, NULL); /* what is freed counts, too */
    free(greeting.data);
    return loop_ms(rig) - before;
}

static double wait_ms(const struct daemon_rig *rig, struct frame f)
{
    struct other o = {.rig = rig};
    pthread_t thread;

    if (pthread_create(&thread, NULL, ask, &o) != 0)
        die("cannot start a thread");
    for (int i = 0; i < RUNS; i++)
        cost_ms(rig, f);
    atomic_store(&o.quit, true);
    pthread_join(thread, NULL);
    return o.worst_ms;
}

/* ---- requests that wait */

static void start_crowd(struct nvllm_client **clients, const struct daemon_rig *rig)
{
    const int32_t prompt[] = {1, 2, 3};
    struct nvllm_request r;
    struct nvllm_error err;
    uint64_t id;

    nvllm_request_init(&r);
    r.prompt_ids = prompt;
    r.n_prompt_ids = 3;
    r.max_tokens = 1000;
    r.ignore_eos = true;
    for (int i = 0; i < CROWD; i++) {
        if (i % CROWD_EACH == 0)
            clients[i / CROWD_EACH] = daemon_rig_connect(rig);
        want_ok(nvllm_generate_start(clients[i / CROWD_EACH], &id, &r, &err), &err, "generate");
    }
}

static double measure(const struct daemon_rig *rig, const struct kind *kind)
{
    struct frame f = kind->make(kind->arg);
    double ms[RUNS], median;

    for (int i = 0; i < RUNS; i++)
        ms[i] = cost_ms(rig, f);
    median = quantile(ms, RUNS, 0.5);
    printf("hostile: %s (%.1f MiB): %.1f ms of the loop, %.1f at worst of %d; another client "
           "waits %.1f ms at most\n",
           kind->name, (double)f.n / (1 << 20), median, quantile(ms, RUNS, 1), RUNS,
           wait_ms(rig, f));
    free(f.data);
    return median;
}

bool bench_hostile(const struct bench_setup *s)
{
    const char *options[] = {"scheduler.max_seq_len=32768", "scheduler.max_seqs=1", NULL};
    struct nvllm_client *crowd[CROWD / CROWD_EACH] = {NULL};
    struct daemon_rig rig;
    double dearest = 0;

    daemon_rig_start(&rig, s->nvllmd, s->module, s->model, options);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
        double ms;

        if (kinds[i].make == question && !crowd[0]) {
            atomic_store(&rig.shared->step_us, 5000); /* none of them ends meanwhile */
            start_crowd(crowd, &rig);
        }
        ms = measure(&rig, &kinds[i]);
        dearest = ms > dearest ? ms : dearest;
    }
    printf("hostile: the dearest frame takes %.1f ms of the loop, %d are allowed\n", dearest,
           MOST_MS);
    for (int i = 0; i < CROWD / CROWD_EACH; i++)
        nvllm_close(crowd[i]);
    atomic_store(&rig.shared->step_us, 0);
    daemon_rig_stop(&rig);
    return s->lax || dearest <= MOST_MS;
}
