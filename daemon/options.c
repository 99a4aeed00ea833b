/* options.c - see options.h. */
#include "daemon/options.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <ini.h>

#include "daemon/log.h"
#include "engine/backend.h"
#include "engine/engine.h"
#include "engine/text/text_stream.h"
#include "proto/frame.h"
#include "proto/program.h"

enum kind {
    KIND_TEXT,
    KIND_SHARES,  /* users and their shares */
    KIND_DEVICES, /* indices of devices */
    KIND_INT,     /* a whole number */
    KIND_POWER,   /* a whole number that is a power of two */
    KIND_MODE,    /* octal file mode */
    KIND_BYTES,   /* with K, M, G or T */
    KIND_MEMORY,  /* bytes, or a fraction, or auto */
    KIND_CHOICE,  /* one of names, its index is the value */
};

struct option {
    const char *key;
    enum kind kind;
    size_t offset;
    int64_t min, max;
    const char *names; /* of CHOICE, with '|' between, in the order of the enum */
    const char *fallback;
    const char *help;
};

enum { DEVICE_MAX = 1023 };
_Static_assert((int)DEVICES_MAX == (int)BACKEND_MAX_DEVICES, "a backend takes all");

#define UNITS      "KMGT" /* powers of 1024 */
#define AT(member) offsetof(struct options, member)

#define LIMIT_ROW(name, key, member, kind, min, max, fallback, code, retry_ms, unit, help)         \
    {"limits." #key, KIND_##kind, AT(member), min, max, NULL, fallback, help},

/* In order of section, which is the order of --help. */
static const struct option table[] = {
    {"model.path", KIND_TEXT, AT(model_path), 0, 0, NULL, "",
     "folder of the model, as downloaded from a hub"},
    {"model.chat_template", KIND_TEXT, AT(chat_template), 0, 0, NULL, "",
     "file of a chat template (Jinja) to use instead of the folder's"},
    {"model.draft", KIND_TEXT, AT(draft), 0, 0, NULL, "",
     "folder of a smaller model of the same vocabulary that drafts what may come next; empty: "
     "none"},
    {"model.tensor_parallel", KIND_CHOICE, AT(tensor_parallel), 0, 0, "auto|1|2|4|8", "auto",
     "ranks that each hold a part of every layer and compute it together; auto: 1, or in a cluster "
     "all devices"},
    {"model.quantize", KIND_CHOICE, AT(quantize), 0, 0, "off|fp8|int4", "off",
     "what the weights of layers are rounded to while a model that is not quantized is loaded"},
    {"daemon.socket", KIND_TEXT, AT(socket), 0, 0, NULL, "/run/nvllm/nvllm.sock",
     "path of the socket; a socket passed by systemd takes precedence"},
    {"daemon.socket_mode", KIND_MODE, AT(socket_mode), 0, 0777, NULL, "0666",
     "who may connect, as a file mode; all local users by default"},
    {"daemon.socket_group", KIND_TEXT, AT(socket_group), 0, 0, NULL, "",
     "group of the socket; empty: the daemon's own"},
    {"daemon.admin_socket", KIND_TEXT, AT(admin_socket), 0, 0, NULL, "",
     "path of a second socket, whose clients are administrators; empty: none"},
    {"daemon.admin_socket_mode", KIND_MODE, AT(admin_socket_mode), 0, 0777, NULL, "0600",
     "who may connect to the second socket, as a file mode"},
    {"daemon.admin_group", KIND_TEXT, AT(admin_group), 0, 0, NULL, "",
     "group whose members are administrators, as root and the daemon's user are; empty: none"},
    {"daemon.backend", KIND_CHOICE, AT(backend), 0, 0, "auto|cpu|cuda", "auto",
     "what runs the model; auto: cuda if there is an NVIDIA device and the module, else cpu"},
    {"daemon.drain_timeout_s", KIND_INT, AT(drain_timeout_s), 0, 86400, NULL, "30",
     "seconds that accepted requests may continue after SIGTERM"},
    {"daemon.idle_sleep_s", KIND_INT, AT(idle_sleep_s), 0, 365 * 86400, NULL, "0",
     "seconds without a request after which the model's memory is given back until the next; 0: "
     "never"},
    {"daemon.log_level", KIND_CHOICE, AT(log_level), 0, 0, "error|warning|info|debug", "info",
     "the least important level that is logged"},
    {"backend.module", KIND_TEXT, AT(backend_module), 0, 0, NULL, NVLLM_MODULE_DIR "/nvllm-cuda.so",
     "absolute path of the cuda backend's module"},
    {"cache.block_len", KIND_POWER, AT(block_len), 16, 4096, NULL, "16", "tokens in one KV block"},
    {"cache.kv_memory", KIND_MEMORY, AT(kv_memory), 0, 0, NULL, "auto",
     "memory for KV blocks; auto: 90% of what is free on a GPU; on the CPU as much as the weights "
     "take, 512M at least, and a quarter of the available memory at most"},
    {"cache.host_memory", KIND_BYTES, AT(host_memory), 0, INT64_C(1) << 46, NULL, "0",
     "host memory for cached KV blocks that device memory has no room for; 0: none"},
    {"cache.disk", KIND_BYTES, AT(disk), 0, INT64_C(1) << 46, NULL, "0",
     "disk space in cache.folder for cached KV blocks, which outlive the daemon; 0: none"},
    {"cache.folder", KIND_TEXT, AT(cache_folder), 0, 0, NULL, "",
     "folder of the cache's files and of its secret; empty: $STATE_DIRECTORY, or none"},
    {"cache.kv_dtype", KIND_CHOICE, AT(kv_dtype), 0, 0, "auto|f32|bf16|fp8", "auto",
     "type of cached keys and values; auto: f32 on the CPU, bf16 on a GPU"},
    {"cache.prefix_cache", KIND_CHOICE, AT(prefix_cache), 0, 0, "off|on", "on",
     "keep computed prefixes for later requests"},
    {"cache.scope", KIND_CHOICE, AT(scope), 0, 0, "uid|all", "uid",
     "who shares cached prefixes: the requests of one user, or all"},
    {"scheduler.max_batch_tokens", KIND_INT, AT(max_batch_tokens), 1, 1 << 20, NULL, "2048",
     "maximum number of tokens in one step"},
    {"scheduler.max_seqs", KIND_INT, AT(max_seqs), 1, 65536, NULL, "256",
     "maximum number of running sequences"},
    {"scheduler.max_seq_len", KIND_INT, AT(max_seq_len), 0, INT32_MAX, NULL, "0",
     "maximum tokens of a sequence, prompt and answer; 0: the model's length"},
    {"scheduler.max_preemptions", KIND_INT, AT(max_preemptions), 0, 1000, NULL, "3",
     "a sequence preempted this many times is the last of its priority to be preempted again"},
    {"scheduler.max_step_ms", KIND_INT, AT(max_step_ms), 0, 3600000, NULL, "50",
     "milliseconds that a step with prompts and running answers should take; 0: no limit"},
    {"scheduler.speculation", KIND_CHOICE, AT(speculation), 0, 0, "off|auto", "auto",
     "compute several tokens of an answer in one step where earlier text shows what is likely to "
     "come; auto: where it is faster"},
    {"scheduler.shares", KIND_SHARES, AT(shares), 0, 0, NULL, "",
     "users whose share of the service is not the default, 100: USER:SHARE, separated by spaces"},
    {"cpu.threads", KIND_INT, AT(cpu_threads), 0, 1024, NULL, "0",
     "threads of the cpu backend; 0: one per core that the daemon may use"},
    {"cpu.tokenizer_threads", KIND_INT, AT(tokenizer_threads), 2, 64, NULL, "2",
     "threads that render and tokenize"},
    {"cuda.devices", KIND_DEVICES, AT(cuda_devices), 0, DEVICE_MAX, NULL, "",
     "indices of the devices, in CUDA's order, one for each rank: 0,1; empty: from 0 on"},
    {"cuda.graphs", KIND_CHOICE, AT(cuda_graphs), 0, 0, "off|on", "on",
     "run steps without prompts as captured graphs, one launch each"},
    {"cuda.invariant", KIND_CHOICE, AT(cuda_invariant), 0, 0, "off|on", "off",
     "make the tokens of a request independent of what else runs; slower"},
    {"cuda.cache_folder", KIND_TEXT, AT(cuda_cache_folder), 0, 0, NULL, "",
     "folder that keeps measured choices of algorithms for the next start; empty: none"},
    {"cuda.tune", KIND_CHOICE, AT(cuda_tune), 0, 0, "idle|before_ready", "idle",
     "when to measure algorithms that are not yet known: while idle, or for up to 6 s before the "
     "daemon is ready"},
    {"cuda.nccl", KIND_TEXT, AT(nccl), 0, 0, NULL, "",
     "path of NCCL's library, which only a cluster needs; empty: the system's"},
    {"cluster.world_size", KIND_INT, AT(world_size), 0, CLUSTER_MAX, NULL, "0",
     "processes, each on its host, whose ranks share the model; 0: what a launcher says, else 1"},
    {"cluster.rank", KIND_INT, AT(cluster_rank), 0, CLUSTER_MAX - 1, NULL, "0",
     "number of this process; 0 serves, the others follow it"},
    {"cluster.rendezvous", KIND_TEXT, AT(rendezvous), 0, 0, NULL, "",
     "where the processes meet: a file in a folder that all see, or HOST:PORT of number 0; empty: "
     "$NCCL_COMM_ID"},
    {"metrics.path", KIND_TEXT, AT(metrics_path), 0, 0, NULL, "",
     "where metrics are: a socket that answers HTTP or, if it ends in .prom, a file; empty: "
     "nowhere"},
    {"metrics.mode", KIND_MODE, AT(metrics_mode), 0, 0777, NULL, "0660",
     "who may read them, as a file mode"},
    {"metrics.group", KIND_TEXT, AT(metrics_group), 0, 0, NULL, "",
     "group of the socket or file; empty: the daemon's own"},
    {"metrics.interval_s", KIND_INT, AT(metrics_interval_s), 1, 3600, NULL, "15",
     "seconds between two versions of the file"},
    LIMITS(LIMIT_ROW){
        "limits.admin_connections", KIND_INT, AT(admin_connections), 0, 1000, NULL, "16",
        "connections of administrators beyond limits.connections and limits.connections_per_uid"},
    {"limits.admin_requests", KIND_INT, AT(admin_requests), 0, 100000, NULL, "64",
     "requests of administrators beyond limits.requests and limits.requests_per_uid"},
};

enum { N_OPTIONS = sizeof(table) / sizeof(*table) };
_Static_assert((int)N_OPTIONS <= (int)OPTIONS_MAX, "options_change has room for all");

static void *value_at(const struct options *o, const struct option *t)
{
    return (char *)(uintptr_t)o + t->offset;
}

static char **text_at(const struct options *o, const struct option *t)
{
    return value_at(o, t);
}

static size_t value_bytes(const struct option *t)
{
    switch (t->kind) {
    case KIND_TEXT:
        return sizeof(char *);
    case KIND_MEMORY:
        return sizeof(struct option_memory);
    case KIND_SHARES:
        return sizeof(struct shares);
    case KIND_DEVICES:
        return sizeof(struct device_list);
    default:
        return sizeof(int64_t);
    }
}

static const struct option *find(const char *key)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (strcmp(table[i].key, key) == 0)
            return &table[i];
    return NULL;
}

/* Describes the allowed values, for errors and --help. */
static void describe(const struct option *t, char *buf, size_t n)
{
    const char *words = t->kind == KIND_INT     ? "a whole number"
                        : t->kind == KIND_POWER ? "a power of two"
                                                : "a size";

    switch (t->kind) {
    case KIND_TEXT:
        snprintf(buf, n, "TEXT");
        break;
    case KIND_SHARES:
        snprintf(buf, n, "USER:SHARE of 1 to %d", FAIR_MAX_SHARE);
        break;
    case KIND_DEVICES:
        snprintf(buf, n, "at most %d numbers from 0 to %d with commas between", DEVICES_MAX,
                 DEVICE_MAX);
        break;
    case KIND_MODE:
        snprintf(buf, n, "an octal mode from 0000 to 0777");
        break;
    case KIND_MEMORY:
        snprintf(buf, n, "bytes like 512M or 8G, a fraction like 0.5 or 50%%, or auto");
        break;
    case KIND_CHOICE:
        snprintf(buf, n, "one of %s", t->names);
        break;
    default:
        snprintf(buf, n, "%s from %" PRId64 " to %" PRId64 "%s", words, t->min, t->max,
                 t->kind == KIND_BYTES ? ", like 64K, 16M or 2G" : "");
        break;
    }
}

/* A whole number without spaces and signs; with units also "16MiB". May set *out when it fails. */
static bool parse_whole(int64_t *out, const char *s, int base, const char *units)
{
    const char *u;
    char *end;

    if (*s < '0' || *s > '9')
        return false;
    errno = 0;
    *out = strtoll(s, &end, base);
    if (errno != 0 || !*end)
        return errno == 0;
    u = strchr(units, *end & ~0x20); /* either case */
    if (!u || !*u || (end[1] && strcmp(end + 1, "iB") != 0))
        return false;
    for (long i = u - units; i >= 0; i--)
        if (__builtin_mul_overflow(*out, 1024, out))
            return false;
    return true;
}

static bool parse_memory(struct option_memory *out, const char *s)
{
    struct option_memory m = {0};
    size_t n = strlen(s);
    int64_t bytes;
    char *end;

    if (strcmp(s, "auto") == 0) {
        *out = m;
        return true;
    }
    if (*s < '0' || *s > '9')
        return false;
    if (strchr(s, '.') || s[n - 1] == '%') {
        m.fraction = strtod(s, &end);
        if (*end == '%') {
            m.fraction /= 100;
            end++;
        }
        if (*end || !(m.fraction > 0 && m.fraction <= 1))
            return false;
    } else {
        if (!parse_whole(&bytes, s, 10, UNITS) || bytes <= 1)
            return false; /* 0 and 1: a fraction was meant, or nothing useful */
        m.bytes = (uint64_t)bytes;
    }
    *out = m;
    return true;
}

/* One of names, with '|' between; its index. */
static bool parse_choice(int64_t *out, const char *s, const char *names)
{
    size_t n = strlen(s);
    int64_t i = 0;

    for (const char *p = names;; i++) {
        const char *bar = strchrnul(p, '|');

        if ((size_t)(bar - p) == n && memcmp(p, s, n) == 0) {
            *out = i;
            return true;
        }
        if (!*bar)
            return false;
        p = bar + 1;
    }
}

/* By number or name. */
static bool parse_user(int64_t *out, const char *s)
{
    const struct passwd *p;

    if (parse_whole(out, s, 10, "") && *out < (uid_t)-1) /* (uid_t)-1 is nobody's */
        return true;
    p = getpwnam(s);
    if (!p)
        return false;
    *out = p->pw_uid;
    return true;
}

/* Calls take for each word of a text, up to its first error; *list is what it fills. */
static int each_word(const char *key, const char *text, const char *between,
                     int (*take)(void *list, char *word, struct err *e), void *list, struct err *e)
{
    char *copy = strdup(text), *at = copy, *word;
    int r = 0;

    if (!copy)
        return err_set(e, -ENOMEM, "%s: out of memory", key);
    while (r == 0 && (word = strsep(&at, between)))
        if (*word)
            r = take(list, word, e);
    free(copy);
    return r;
}

static int add_share(void *list, char *word, struct err *e)
{
    struct shares *out = list;
    char *colon = strchr(word, ':');
    int64_t client, share;

    if (!colon)
        return err_set(e, -EINVAL, "scheduler.shares: \"%s\" is not USER:SHARE", word);
    *colon = '\0';
    if (!parse_user(&client, word))
        return err_set(e, -EINVAL, "scheduler.shares: there is no user \"%s\"", word);
    if (!parse_whole(&share, colon + 1, 10, "") || share < 1 || share > FAIR_MAX_SHARE)
        return err_set(e, -EINVAL, "scheduler.shares: \"%s\" is not a share from 1 to %d",
                       colon + 1, FAIR_MAX_SHARE);
    for (int32_t i = 0; i < out->n; i++)
        if (out->list[i].client == (uint64_t)client)
            return err_set(e, -EINVAL, "scheduler.shares: user \"%s\" is listed twice", word);
    if (out->n == SHARES_MAX)
        return err_set(e, -EINVAL, "scheduler.shares: more than %d users", SHARES_MAX);
    out->list[out->n].client = (uint64_t)client;
    out->list[out->n++].share = (int32_t)share;
    return 0;
}

/* Users, each once, with shares of 1 to 10000 (default 100), separated by spaces: "1000:300
 * alice:50". *out is set on success only. */
static int parse_shares(struct shares *out, const char *text, struct err *e)
{
    struct shares shares;
    int r;

    memset(&shares, 0, sizeof(shares)); /* padding, too: options are compared as bytes */
    r = each_word("scheduler.shares", text, " \t", add_share, &shares, e);
    if (r == 0)
        *out = shares;
    return r;
}

static int add_device(void *list, char *word, struct err *e)
{
    struct device_list *out = list;
    int64_t index;

    if (!parse_whole(&index, word, 10, "") || index > DEVICE_MAX)
        return err_set(e, -EINVAL, "cuda.devices: \"%s\" is not a number from 0 to %d", word,
                       DEVICE_MAX);
    for (int32_t i = 0; i < out->n; i++)
        if (out->list[i] == (int32_t)index)
            return err_set(e, -EINVAL, "cuda.devices: device %s is listed twice", word);
    if (out->n == DEVICES_MAX)
        return err_set(e, -EINVAL, "cuda.devices: more than %d devices", DEVICES_MAX);
    out->list[out->n++] = (int32_t)index;
    return 0;
}

/* Numbers, each once, with commas or spaces between. *out is set on success only. */
static int parse_devices(struct device_list *out, const char *text, struct err *e)
{
    struct device_list devices = {0};
    const int r = each_word("cuda.devices", text, ", \t", add_device, &devices, e);

    if (r == 0)
        *out = devices;
    return r;
}

static bool parse_number(const struct option *t, int64_t *out, const char *s)
{
    int64_t n;
    bool ok = t->kind == KIND_CHOICE ? parse_choice(&n, s, t->names)
                                     : parse_whole(&n, s, t->kind == KIND_MODE ? 8 : 10,
                                                   t->kind == KIND_BYTES ? UNITS : "");

    if (!ok || (t->kind != KIND_CHOICE && (n < t->min || n > t->max)) ||
        (t->kind == KIND_POWER && (n & (n - 1)) != 0))
        return false;
    *out = n;
    return true;
}

static int set(struct options *o, const struct option *t, const char *value, struct err *e)
{
    char allowed[128], *copy;

    switch (t->kind) {
    case KIND_TEXT:
        copy = strdup(value);
        if (!copy)
            return err_set(e, -ENOMEM, "%s: out of memory", t->key);
        free(*text_at(o, t));
        *text_at(o, t) = copy;
        return 0;
    case KIND_SHARES:
        return parse_shares(value_at(o, t), value, e);
    case KIND_DEVICES:
        return parse_devices(value_at(o, t), value, e);
    case KIND_MEMORY:
        if (parse_memory(value_at(o, t), value))
            return 0;
        break;
    default:
        if (parse_number(t, value_at(o, t), value))
            return 0;
        break;
    }
    describe(t, allowed, sizeof(allowed));
    return err_set(e, -EINVAL, "%s: \"%s\" is not %s", t->key, value, allowed);
}

int options_init(struct options *o, struct err *e)
{
    int r = 0;

    memset(o, 0, sizeof(*o));
    for (int i = 0; r == 0 && i < N_OPTIONS; i++)
        r = set(o, &table[i], table[i].fallback, e);
    if (r < 0)
        options_deinit(o);
    return r;
}

void options_deinit(struct options *o)
{
    for (int i = 0; i < N_OPTIONS; i++)
        if (table[i].kind == KIND_TEXT) {
            free(*text_at(o, &table[i]));
            *text_at(o, &table[i]) = NULL;
        }
}

/* The closest key, or NULL: a few letters differ, or only the section is wrong. */
static const char *nearest(const char *key)
{
    const char *word = strchr(key, '.'), *best = NULL;
    int least = 4;

    for (int i = 0; i < N_OPTIONS; i++) {
        int d = program_distance(key, table[i].key);

        if (strcmp(strchr(table[i].key, '.') + 1, word ? word + 1 : key) == 0)
            d = 1;
        if (d < least) {
            least = d;
            best = table[i].key;
        }
    }
    return best;
}

int options_set(struct options *o, const char *key, const char *value, struct err *e)
{
    const struct option *t = find(key);
    const char *meant;

    if (t)
        return set(o, t, value, e);
    meant = nearest(key);
    if (*key == '.')
        key++; /* of a file, before any section */
    if (meant)
        return err_set(e, -ENOENT, "%s: no such option; did you mean %s?", key, meant);
    return err_set(e, -ENOENT, "%s: no such option; nvllmd --help lists all", key);
}

const char *options_state_folder(const struct options *o)
{
    return *o->cache_folder ? o->cache_folder : getenv("STATE_DIRECTORY");
}

enum dtype options_quantize(const struct options *o)
{
    static const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_E4M3, DTYPE_INT4};

    return dtypes[o->quantize];
}

int32_t options_tp_size(const struct options *o)
{
    const int32_t n = o->cuda_devices.n;

    if (o->tensor_parallel > 0)
        return 1 << (o->tensor_parallel - 1);
    return o->world_size > 1 ? (int32_t)o->world_size * (n > 0 ? n : 1) : 1;
}

/* The state of options_read. inih does not pass line numbers, so they are counted here. */
struct reading {
    FILE *f;
    const char *path;
    int line;
    struct options *o;
    bool seen[N_OPTIONS];
    int r; /* the first error */
    struct err *e;
};

static void refuse(struct reading *rd, int code, const char *text)
{
    if (rd->r == 0)
        rd->r = err_set(rd->e, code, "%s:%d: %s", rd->path, rd->line, text);
}

static char *read_line(char *buf, int n, void *ctx)
{
    struct reading *rd = ctx;
    size_t len;

    if (rd->r < 0 || !fgets(buf, n, rd->f))
        return NULL;
    rd->line++;
    len = strlen(buf);
    if (!len || (buf[len - 1] != '\n' && !feof(rd->f)))
        refuse(rd, -EINVAL, "the line is too long or contains a NUL byte");
    else if ((buf[0] == ' ' || buf[0] == '\t') && buf[strspn(buf, " \t\r\n")] &&
             !strchr(";#", buf[strspn(buf, " \t")]))
        refuse(rd, -EINVAL,
               "a line begins with a space or tab"); /* inih would add it to the value before */
    return rd->r < 0 ? NULL : buf;
}

static int take_line(void *ctx, const char *section, const char *name, const char *value)
{
    struct reading *rd = ctx;
    const struct option *t;
    char key[128];
    struct err e;
    int r;

    if (rd->r < 0)
        return 0;
    snprintf(key, sizeof(key), "%s.%s", section, name);
    t = find(key);
    if (t && rd->seen[t - table]) {
        snprintf(e.text, sizeof(e.text), "%s is set twice", key);
        refuse(rd, -EINVAL, e.text);
        return 0;
    }
    r = options_set(rd->o, key, value, &e);
    if (r < 0) {
        refuse(rd, r == -ENOMEM ? r : -EINVAL, e.text);
        return 0;
    }
    rd->seen[t - table] = true;
    return 1;
}

int options_read(struct options *o, const char *path, struct err *e)
{
    struct reading rd = {.path = path, .o = o, .e = e};
    struct stat st;
    int r;

    rd.f = fopen(path, "re");
    if (!rd.f)
        return err_set(e, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fileno(rd.f), &st) == 0 && S_ISDIR(st.st_mode)) {
        fclose(rd.f);
        return err_set(e, -EISDIR, "%s is a folder", path);
    }
    r = ini_parse_stream(read_line, &rd, take_line, &rd);
    if (rd.r == 0 && r == -2) {
        rd.r = err_set(e, -ENOMEM, "%s: out of memory", path);
    } else if (r > 0 && (rd.r == 0 || r < rd.line)) {
        rd.r = 0; /* inih continues after its own errors: the first error is reported */
        rd.line = r;
        refuse(&rd, -EINVAL, "the line is neither [section] nor key = value");
    } else if (rd.r == 0 && ferror(rd.f)) {
        rd.r = err_set(e, -EIO, "cannot read %s", path);
    }
    fclose(rd.f);
    return rd.r;
}

/* Whether it may change while the daemon runs: no text does. */
static bool is_live(const struct option *t)
{
    return strncmp(t->key, "limits.", 7) == 0 || t->offset == AT(log_level) ||
           t->offset == AT(drain_timeout_s) || t->offset == AT(idle_sleep_s) ||
           t->offset == AT(shares);
}

static bool same(const struct options *a, const struct options *b, const struct option *t)
{
    if (t->kind == KIND_TEXT)
        return strcmp(*text_at(a, t), *text_at(b, t)) == 0;
    return memcmp(value_at(a, t), value_at(b, t), value_bytes(t)) == 0;
}

void options_take(struct options *running, const struct options *fresh, struct options_change *out)
{
    out->n_changed = out->n_needs_restart = 0;
    for (int i = 0; i < N_OPTIONS; i++) {
        const struct option *t = &table[i];

        if (same(running, fresh, t))
            continue;
        if (is_live(t)) {
            memcpy(value_at(running, t), value_at(fresh, t), value_bytes(t));
            out->changed[out->n_changed++] = t->key;
        } else {
            out->needs_restart[out->n_needs_restart++] = t->key;
        }
    }
}

bool options_row(struct options_row *out, int i)
{
    if (i >= N_OPTIONS)
        return false;
    *out = (struct options_row){
        .key = table[i].key,
        .help = table[i].help,
        .fallback = *table[i].fallback ? table[i].fallback : "empty",
    };
    describe(&table[i], out->allowed, sizeof(out->allowed));
    return true;
}

void options_print(FILE *f)
{
    struct options_row row;

    for (int i = 0; options_row(&row, i); i++) {
        fprintf(f, "  %s\n      ", row.key);
        usage_print_wrapped(f, row.help, 6);
        fprintf(f, "      %s; default %s\n", row.allowed, row.fallback);
    }
}
