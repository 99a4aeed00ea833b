/* test_options.c - the option table: what is taken, what is refused, and in which words. */
#include "daemon/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"

static struct options o;
static struct err e;

static void setup(void)
{
    ck_assert_int_eq(options_init(&o, &e), 0);
}

static void teardown(void)
{
    options_deinit(&o);
}

/* Sets from a file of this text. */
static int read_text(const char *text, size_t n)
{
    char path[] = "/tmp/nvllm-test-XXXXXX";
    int fd = mkstemp(path), r;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, n), (ssize_t)n);
    close(fd);
    r = options_read(&o, path, &e);
    if (r < 0)
        ck_assert_msg(strncmp(e.text, path, strlen(path)) == 0, "%s", e.text);
    unlink(path);
    return r;
}

static int read_file(const char *text)
{
    return read_text(text, strlen(text));
}

static void ck_says(const char *word)
{
    ck_assert_msg(strstr(e.text, word) != NULL, "\"%s\" does not say \"%s\"", e.text, word);
}

/* What people rely on without setting anything. */
TEST(defaults_are_those_of_the_manual)
{
    ck_assert_str_eq(o.socket, "/run/nvllm/nvllm.sock");
    ck_assert_int_eq(o.socket_mode, 0666);
    ck_assert_int_eq(o.backend, OPTION_BACKEND_AUTO);
    ck_assert_int_eq(o.block_len, 16);
    ck_assert_int_eq(o.max_batch_tokens, 2048);
    ck_assert_int_eq(o.max_seqs, 256);
    ck_assert_int_eq(o.prefix_cache, 1);
    ck_assert_int_eq(o.scope, OPTION_SCOPE_UID);
    ck_assert_str_eq(o.cache_folder, "");
    ck_assert_int_eq(o.max_frame_bytes, 4 << 20);
    ck_assert_int_eq(o.cuda_devices.n, 0);
    ck_assert_int_eq(options_tp_size(&o), 1);
    ck_assert_int_eq(o.cuda_graphs, 1);
    ck_assert_int_eq(o.cuda_invariant, 0);
    ck_assert_str_eq(o.cuda_cache_folder, "");
    ck_assert_int_eq(o.kv_memory.bytes, 0);
    ck_assert_str_eq(o.model_path, "");
}

/* Numbers hold at both ends of their range and are refused beyond, as what is no number is; block
 * lengths are powers of two, modes octal, choices whole words. */
TEST(values_keep_their_kind)
{
    static const struct {
        const char *key, *value, *refused; /* NULL: taken */
        const int64_t *result;             /* what it is then, or still */
        int64_t number;
    } cases[] = {
#define CASE(key, member, value, number, refused) {key, value, refused, &o.member, number}
#define TOKENS(value, number, refused)                                                             \
    CASE("scheduler.max_batch_tokens", max_batch_tokens, value, number, refused)
        TOKENS("1", 1, NULL),
        TOKENS("1048576", 1048576, NULL),
        TOKENS("0", 1048576, "scheduler.max_batch_tokens: \"0\" is not a whole number from 1 to"),
        TOKENS("1048577", 1048576, "from 1 to 1048576"),
        TOKENS("-1", 1048576, "from 1"),
        TOKENS("+5", 1048576, "from 1"),
        TOKENS(" 5", 1048576, "from 1"),
        TOKENS("5 ", 1048576, "from 1"),
        TOKENS("", 1048576, "from 1"),
        TOKENS("x", 1048576, "from 1"),
        TOKENS("5x", 1048576, "from 1"),
        TOKENS("1e3", 1048576, "from 1"),
        TOKENS("0x10", 1048576, "from 1"),
        TOKENS("99999999999999999999", 1048576, "from 1"),
        CASE("cache.block_len", block_len, "16", 16, NULL),
        CASE("cache.block_len", block_len, "4096", 4096, NULL),
        CASE("cache.block_len", block_len, "8", 4096, "a power of two from 16 to 4096"),
        CASE("cache.block_len", block_len, "8192", 4096, "a power of two from 16 to 4096"),
        CASE("cache.block_len", block_len, "48", 4096, "a power of two from 16 to 4096"),
        CASE("daemon.backend", backend, "cuda", OPTION_BACKEND_CUDA, NULL),
        CASE("daemon.backend", backend, "cu", OPTION_BACKEND_CUDA, "auto|cpu|cuda"),
        CASE("daemon.backend", backend, "auto|cpu", OPTION_BACKEND_CUDA, "auto|cpu|cuda"),
        CASE("daemon.backend", backend, "", OPTION_BACKEND_CUDA, "auto|cpu|cuda"),
        CASE("cache.prefix_cache", prefix_cache, "off", 0, NULL),
        CASE("model.tensor_parallel", tensor_parallel, "8", 4, NULL),
        CASE("model.tensor_parallel", tensor_parallel, "3", 4, "auto|1|2|4|8"),
        CASE("model.tensor_parallel", tensor_parallel, "16", 4, "auto|1|2|4|8"),
        CASE("model.quantize", quantize, "int4", 2, NULL),
        CASE("model.quantize", quantize, "int8", 2, "off|fp8|int4"),
        CASE("cuda.graphs", cuda_graphs, "off", 0, NULL),
        CASE("cuda.graphs", cuda_graphs, "1", 0, "off|on"),
        CASE("cuda.invariant", cuda_invariant, "on", 1, NULL),
        CASE("limits.frame_bytes", max_frame_bytes, "8192", 8192, NULL),
        CASE("limits.frame_bytes", max_frame_bytes, "5 ", 8192, "a size from 4096"),
        CASE("limits.frame_bytes", max_frame_bytes, "65536 ", 8192, "a size from 4096"),
        CASE("limits.frame_bytes", max_frame_bytes, "64K ", 8192, "a size from 4096"),
        CASE("daemon.socket_mode", socket_mode, "0660", 0660, NULL),
        CASE("daemon.socket_mode", socket_mode, "1777", 0660, "octal"),
        CASE("daemon.socket_mode", socket_mode, "0668", 0660, "octal"),
#undef TOKENS
#undef CASE
    };

    for (size_t i = 0; i < N(cases); i++) {
        ck_assert_msg(options_set(&o, cases[i].key, cases[i].value, &e) ==
                          (cases[i].refused ? -EINVAL : 0),
                      "%s = %s", cases[i].key, cases[i].value);
        if (cases[i].refused)
            ck_says(cases[i].refused);
        ck_assert_int_eq(*cases[i].result, cases[i].number);
    }
}

/* Memory is bytes with a unit, a fraction, a percentage or auto; nothing in between. */
TEST(memory_is_bytes_or_a_fraction)
{
    static const char *const bad[] = {"",      "0",   "1",  "-1",  "0.0",         "1.5", "5 ",
                                      "101%",  "0%",  "M",  "5Q",  "12MB",        "nan", "inf",
                                      "0.5.5", "5%%", ".5", "1e9", "99999999999T"};
    static const struct {
        const char *text;
        uint64_t bytes;
        double fraction;
    } good[] = {
        {"512M", 512u << 20, 0}, {"8g", UINT64_C(8) << 30, 0},
        {"64KiB", 64 << 10, 0},  {"4096", 4096, 0},
        {"0.5", 0, 0.5},         {"1.0", 0, 1},
        {"50%", 0, 0.5},         {"100%", 0, 1},
        {"12.5%", 0, 0.125},     {"auto", 0, 0},
    };

    for (size_t i = 0; i < N(good); i++) {
        ck_assert_int_eq(options_set(&o, "cache.kv_memory", good[i].text, &e), 0);
        ck_assert_uint_eq(o.kv_memory.bytes, good[i].bytes);
        ck_assert_double_eq(o.kv_memory.fraction, good[i].fraction);
    }
    for (size_t i = 0; i < N(bad); i++) {
        ck_assert_msg(options_set(&o, "cache.kv_memory", bad[i], &e) == -EINVAL, "%s", bad[i]);
        ck_says("512M");
    }
}

/* Users by number and name, with any blanks between; nothing is no share. */
TEST(users_and_shares_are_taken)
{
    ck_assert_int_eq(options_set(&o, "scheduler.shares", "", &e), 0);
    ck_assert_int_eq(o.shares.n, 0);
    ck_assert_int_eq(options_set(&o, "scheduler.shares", "  \t ", &e), 0);
    ck_assert_int_eq(o.shares.n, 0);
    ck_assert_int_eq(options_set(&o, "scheduler.shares", " 1000:300\troot:1  4294967294:10000 ",
                                 &e),
                     0);
    ck_assert_int_eq(o.shares.n, 3);
    ck_assert_uint_eq(o.shares.list[0].client, 1000);
    ck_assert_int_eq(o.shares.list[0].share, 300);
    ck_assert_uint_eq(o.shares.list[1].client, 0);
    ck_assert_int_eq(o.shares.list[1].share, 1);
    ck_assert_uint_eq(o.shares.list[2].client, 4294967294);
    ck_assert_int_eq(o.shares.list[2].share, 10000);
}

/* Devices in the order given, each once; nothing is no list. */
TEST(devices_are_taken)
{
    static const struct {
        const char *text, *refused;
    } bad[] = {
        {"0,0", "device 0 is listed twice"}, {"0,1024", "\"1024\" is not a number from 0 to 1023"},
        {"-1", "\"-1\" is not a number"},    {"cuda:0", "\"cuda:0\" is not a number"},
        {"0;1", "\"0;1\" is not a number"},  {"0,1,2,3,4,5,6,7,8", "more than 8 devices"},
        {"0,1x", "\"1x\" is not a number"},  {"99999999999999999999", "is not a number"},
    };

    ck_assert_int_eq(options_set(&o, "cuda.devices", "3, 1023,0", &e), 0);
    ck_assert_int_eq(o.cuda_devices.n, 3);
    ck_assert_int_eq(o.cuda_devices.list[0], 3);
    ck_assert_int_eq(o.cuda_devices.list[1], 1023);
    ck_assert_int_eq(o.cuda_devices.list[2], 0);
    for (size_t i = 0; i < N(bad); i++) {
        ck_assert_int_eq(options_set(&o, "cuda.devices", bad[i].text, &e), -EINVAL);
        ck_assert_ptr_eq(strstr(e.text, "cuda.devices: "), e.text);
        ck_says(bad[i].refused);
        ck_assert_int_eq(o.cuda_devices.n, 3);
    }
    ck_assert_int_eq(options_set(&o, "cuda.devices", "0,1,2,3,4,5,6,7", &e), 0);
    ck_assert_int_eq(o.cuda_devices.n, DEVICES_MAX);
    ck_assert_int_eq(options_set(&o, "cuda.devices", "", &e), 0);
    ck_assert_int_eq(o.cuda_devices.n, 0);
}

/* As many ranks as the choice says. */
TEST(ranks_are_counted)
{
    static const char *const values[] = {"auto", "1", "2", "4", "8"};
    static const int32_t ranks[] = {1, 1, 2, 4, 8};

    for (size_t i = 0; i < N(values); i++) {
        ck_assert_int_eq(options_set(&o, "model.tensor_parallel", values[i], &e), 0);
        ck_assert_int_eq(options_tp_size(&o), ranks[i]);
    }
}

/* What cannot be meant is refused by name, and nothing of it is taken. */
TEST(nonsense_is_refused)
{
    static const char *const bad[] = {
        "1000",
        "1000:",
        ":5",
        ":",
        "1000:0",
        "1000:10001",
        "1000:-5",
        "1000:+5",
        "1000:1.5",
        "1000:5x",
        "-1:5",
        "4294967295:5",
        "4294967296:5",
        "1000:5,7:5",
        "1000 : 5",
        "1000:5:6",
        "0:5 root:6",
        "1000:5 1000:5",
        "no-such-user-here:5",
        "99999999999999999999:5",
        "1000:99999999999999999999",
    };

    ck_assert_int_eq(options_set(&o, "scheduler.shares", "7:8", &e), 0);
    for (size_t i = 0; i < N(bad); i++) {
        ck_assert_msg(options_set(&o, "scheduler.shares", bad[i], &e) == -EINVAL, "%s", bad[i]);
        ck_assert_ptr_eq(strstr(e.text, "scheduler.shares: "), e.text);
        ck_assert_int_eq(o.shares.n, 1);
        ck_assert_uint_eq(o.shares.list[0].client, 7);
    }
}

/* There is room for so many users, and no more. */
TEST(users_are_bounded)
{
    char text[SHARES_MAX * 16 + 16] = "";

    for (int i = 0; i < SHARES_MAX; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d:50 ", i + 1);
    ck_assert_int_eq(options_set(&o, "scheduler.shares", text, &e), 0);
    ck_assert_int_eq(o.shares.n, SHARES_MAX);
    snprintf(text + strlen(text), sizeof(text) - strlen(text), "5000:50");
    ck_assert_int_eq(options_set(&o, "scheduler.shares", text, &e), -EINVAL);
}

/* A typing error gets the key that was meant; a key like no other gets the way to the list. */
TEST(typing_errors_get_the_nearest_key)
{
    ck_assert_int_eq(options_set(&o, "cache.blok_len", "16", &e), -ENOENT);
    ck_says("did you mean cache.block_len?");
    ck_assert_int_eq(options_set(&o, "scheduler.block_len", "16", &e), -ENOENT);
    ck_says("did you mean cache.block_len?");
    ck_assert_int_eq(options_set(&o, "max_seqs", "16", &e), -ENOENT);
    ck_says("did you mean scheduler.max_seqs?");
    ck_assert_int_eq(options_set(&o, "something.entirely_else", "16", &e), -ENOENT);
    ck_says("--help");
    ck_assert_int_eq(options_set(&o, "", "16", &e), -ENOENT);
}

/* A file sets what it names, with comments, blank lines and blanks around the sign. */
TEST(file_sets_its_keys)
{
    ck_assert_int_eq(read_file("# a comment\n"
                               "[model]\n"
                               "path = /srv/models/a b\n"
                               "\n"
                               "; another\n"
                               "[cache]\n"
                               "block_len=64\n"
                               "kv_memory = 50% ; half\n"
                               "[cuda]\n"
                               "cache_folder = /var/cache/nvllm\n"
                               "[daemon]\n"
                               "socket_group =\n"),
                     0);
    ck_assert_str_eq(o.cuda_cache_folder, "/var/cache/nvllm");
    ck_assert_int_eq(options_set(&o, "cuda.cache_folder", "", &e), 0);
    ck_assert_str_eq(o.cuda_cache_folder, "");
    ck_assert_str_eq(o.model_path, "/srv/models/a b");
    ck_assert_int_eq(o.block_len, 64);
    ck_assert_double_eq(o.kv_memory.fraction, 0.5);
    ck_assert_int_eq(read_file(""), 0);
}

/* What is wrong in a file is named with its line. */
TEST(file_errors_name_the_line)
{
    static const struct {
        const char *text, *line, *word;
    } bad[] = {
        {"[cache]\n\nblock_len = 17\n", ":3:", "power of two"},
        {"[cache]\nblocklen = 16\n", ":2:", "did you mean cache.block_len?"},
        {"[cash]\nblock_len = 16\n", ":2:", "did you mean cache.block_len?"},
        {"block_len = 16\n", ":1:", "did you mean cache.block_len?"},
        {"[cache]\nblock_len\n", ":2:", "key = value"},
        {"[cache\nblock_len = 16\n", ":1:", "[section]"},
        {"[cache]\nblock_len = 16\nblock_len = 32\n", ":3:", "twice"},
        {"[model]\npath = /a\n  /b\n", ":3:", "a space or tab"},
        {"[cache]\nblock_len = 99\nnonsense\n", ":2:", "power of two"},
    };

    for (size_t i = 0; i < N(bad); i++) {
        ck_assert_msg(read_file(bad[i].text) == -EINVAL, "%s", bad[i].text);
        ck_says(bad[i].line);
        ck_says(bad[i].word);
    }
}

/* Files that are no text are refused or harmless. */
TEST(file_of_garbage_is_refused)
{
    static char big[100000];

    memset(big, 'x', sizeof(big));
    ck_assert_int_eq(read_text(big, sizeof(big)), -EINVAL);
    memset(big, 0, sizeof(big));
    ck_assert_int_eq(read_text(big, sizeof(big)), -EINVAL);
    ck_assert_int_eq(read_text("[cache]\nblock_len = 16\0 32\n", 27), -EINVAL);
    ck_assert_int_eq(read_text("\xff\xfe\x00[", 4), -EINVAL);
    ck_assert_int_eq(options_read(&o, "/nowhere/at/all", &e), -ENOENT);
    ck_assert_int_eq(options_read(&o, "/", &e), -EISDIR);
}

/* What --help prints of the options; to be freed. */
static char *print_options(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);

    ck_assert_ptr_nonnull(f);
    options_print(f);
    fclose(f);
    return text;
}

/* --help names each option with its default. */
TEST(help_prints_the_table)
{
    char *text = print_options();

    ck_assert_ptr_nonnull(strstr(text, "  cache.block_len\n"));
    ck_assert_ptr_nonnull(strstr(text, "a power of two from 16 to 4096; default 16\n"));
    ck_assert_ptr_nonnull(strstr(text, "  limits.frame_bytes\n"));
    free(text);
}

/* A text of more than 80 columns goes on in further lines, between words and indented alike. */
TEST(help_is_wrapped)
{
    char *text = print_options();

    ck_assert_ptr_nonnull(
        strstr(text,
               "  cache.kv_memory\n"
               "      memory for KV blocks; auto: 90% of what is free on a GPU; on the CPU as\n"
               "      much as the weights take, 512M at least, and a quarter of the available\n"
               "      memory at most\n"
               "      bytes like 512M or 8G"));
    free(text);
}

/* The keys of a list, in the order of the table, with blanks between. */
static const char *keys(const char *const *list, int n)
{
    static char text[1024];

    text[0] = '\0';
    for (int i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "", list[i]);
    return text;
}

/* Options read anew: limits, the drain's time and the log's level change, all else is named. */
TEST(what_can_change_changes)
{
    struct options fresh;
    struct options_change c;

    ck_assert_int_eq(options_init(&fresh, &e), 0);
    options_take(&o, &fresh, &c);
    ck_assert_int_eq(c.n_changed + c.n_needs_restart, 0);
    ck_assert_int_eq(options_set(&fresh, "limits.requests", "5", &e), 0);
    ck_assert_int_eq(options_set(&fresh, "limits.frame_bytes", "1M", &e), 0);
    ck_assert_int_eq(options_set(&fresh, "daemon.log_level", "debug", &e), 0);
    ck_assert_int_eq(options_set(&fresh, "scheduler.shares", "7:300", &e), 0);
    ck_assert_int_eq(options_set(&fresh, "daemon.drain_timeout_s", "7", &e), 0);
    ck_assert_int_eq(options_set(&fresh, "daemon.socket", "/tmp/other", &e), 0);
    ck_assert_int_eq(options_set(&fresh, "cache.kv_memory", "50%", &e), 0);
    ck_assert_int_eq(options_set(&fresh, "cache.block_len", "32", &e), 0);
    options_take(&o, &fresh, &c);
    ck_assert_str_eq(keys(c.changed, c.n_changed),
                     "daemon.drain_timeout_s daemon.log_level scheduler.shares limits.frame_bytes "
                     "limits.requests");
    ck_assert_str_eq(keys(c.needs_restart, c.n_needs_restart),
                     "daemon.socket cache.block_len cache.kv_memory");
    ck_assert_int_eq(o.max_requests, 5);
    ck_assert_int_eq(o.shares.list[0].share, 300);
    ck_assert_int_eq(o.max_frame_bytes, 1 << 20);
    ck_assert_int_eq(o.drain_timeout_s, 7);
    ck_assert_str_eq(o.socket, "/run/nvllm/nvllm.sock");
    ck_assert_int_eq(o.block_len, 16);
    ck_assert_int_eq(options_set(&fresh, "scheduler.shares", "7:300", &e), 0); /* as read again */
    options_take(&o, &fresh, &c); /* what needs a restart goes on needing it */
    ck_assert_int_eq(c.n_changed, 0);
    ck_assert_int_eq(c.n_needs_restart, 3);
    options_deinit(&fresh);
}

/* Sets a key to something else than it is; the test fails where none of the values will do. */
static void set_otherwise(const char *key, struct options_change *c)
{
    static const char *const values[] = {"on",     "off",   "5",     "64",   "1M",
                                         "/tmp/x", "debug", "cpu",   "bf16", "all",
                                         "12",     "611",   "7:300", "8K",   "before_ready",
                                         "2",      "fp8"};

    for (size_t i = 0; i < N(values); i++) {
        struct options fresh;
        int n = 0;

        ck_assert_int_eq(options_init(&fresh, &e), 0);
        if (options_set(&fresh, key, values[i], &e) == 0) {
            options_take(&o, &fresh, c);
            n = c->n_changed + c->n_needs_restart;
        }
        options_deinit(&fresh);
        if (n == 0)
            continue;
        ck_assert_int_eq(n, 1);
        ck_assert_str_eq(c->n_changed ? c->changed[0] : c->needs_restart[0], key);
        return;
    }
    ck_abort_msg("no value will do for %s", key);
}

/* Of all options those that change while the daemon runs are the limits and four more. */
TEST(all_else_needs_a_restart)
{
    struct options_change c;
    char *text = NULL, *line, *rest;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);
    int n = 0;

    ck_assert_ptr_nonnull(f);
    options_print(f);
    fclose(f);
    for (line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        const char *key = line + 2;

        if (strncmp(line, "  ", 2) != 0 || *key == ' ')
            continue;
        teardown();
        setup(); /* the options before are the defaults, for each */
        set_otherwise(key, &c);
        ck_assert_msg(c.n_changed == (strncmp(key, "limits.", 7) == 0 ||
                                      strcmp(key, "daemon.log_level") == 0 ||
                                      strcmp(key, "daemon.drain_timeout_s") == 0 ||
                                      strcmp(key, "daemon.idle_sleep_s") == 0 ||
                                      strcmp(key, "scheduler.shares") == 0),
                      "%s", key);
        n++;
    }
    ck_assert_int_gt(n, 40);
    free(text);
}

RUN_TESTS("options", setup, teardown)
