/* sessions.c - nvllmctl sessions, and the earlier turns of nvllmctl chat --session. */
#include "client/ctl/sessions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/ctl/json.h"
#include "client/ctl/request.h"
#include "client/ctl/show.h"

enum { DEFAULT_LIMIT = 1000 };

enum verb { LIST, SHOW, CREATE, FORK, REWIND, DELETE }; /* as the command's words */

/* ---- list */

enum { TURNS, MESSAGES, TOKENS, SIZE, IDLE, STATE, USER, N_COLUMNS };

static const struct table_column columns_of_all[N_COLUMNS] = {
    [TURNS] = {"TURNS", 6, 0}, [MESSAGES] = {"MESSAGES", 8, 1}, [TOKENS] = {"TOKENS", 8, 5},
    [SIZE] = {"KIB", 8, 2},    [IDLE] = {"IDLE", 8, 6},         [STATE] = {"STATE", -5, 3},
    [USER] = {"USER", -10, 4},
};

/* Since then, for people. */
static void put_since(char *out, size_t n, uint64_t at_us)
{
    struct timespec now;
    uint64_t now_us;

    clock_gettime(CLOCK_REALTIME, &now);
    now_us = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    show_duration(out, n, now_us > at_us ? now_us - at_us : 0);
}

static void fill_cells(struct table *t, const struct nvllm_session_info *s)
{
    const size_t n = TABLE_CELL_BYTES;

    snprintf(t->cells[TURNS], n, "%u", s->turns);
    snprintf(t->cells[MESSAGES], n, "%u", s->messages);
    snprintf(t->cells[TOKENS], n, "%u", s->tokens);
    snprintf(t->cells[SIZE], n, "%" PRIu64, (s->bytes + 1023) / 1024);
    put_since(t->cells[IDLE], n, s->used_us);
    snprintf(t->cells[STATE], n, "%s", s->busy ? "busy" : "");
    show_user(t->cells[USER], n, s->uid);
}

/* The name is last, whole. */
static void print_list(const struct nvllm_session_list *list)
{
    struct table t;

    table_init(&t, columns_of_all, N_COLUMNS, show_width(STDOUT_FILENO));
    for (size_t i = 0; i <= list->n_sessions; i++) {
        table_print(&t, stdout);
        putchar(' ');
        ctl_put_line(stdout, i == 0 ? "NAME" : list->sessions[i - 1]->name, 0);
        putchar('\n');
        if (i < list->n_sessions)
            fill_cells(&t, list->sessions[i]);
    }
    if (list->total > list->n_sessions)
        printf("… and %zu more\n", list->total - list->n_sessions);
}

static int list(struct ctl *ctl)
{
    const struct nvllm_session_list *sessions;
    struct nvllm_sessions_options options;

    nvllm_sessions_options_init(&options);
    options.limit = (uint32_t)ctl_whole(ctl, "limit", DEFAULT_LIMIT, 1, UINT32_MAX);
    options.all = ctl_option(ctl, "all");
    ctl_check(ctl,
              nvllm_list_sessions(ctl->client, &options, ctl_ask_ms(ctl), &sessions, &ctl->err));
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, report_json_session_list(sessions));
    print_list(sessions);
    return EXIT_OK;
}

/* ---- show */

/* A message on one line, cut to the width of a terminal. */
static void put_message(FILE *to, const struct nvllm_message *m, const char *turn, int width)
{
    const int room = width > 20 ? width - 16 : 0;
    struct text_buffer line = {0};

    text_buffer_add(&line, m->content.data ? m->content.data : "", m->content.len);
    for (size_t i = 0; i < m->n_tool_calls; i++) {
        const struct nvllm_tool_call *call = &m->tool_calls[i];

        text_buffer_add(&line, " ", line.len > 0);
        text_buffer_add(&line, call->name.data, call->name.len);
        text_buffer_add(&line, call->arguments.data, call->arguments.len);
    }
    fprintf(to, "%4s ", turn);
    ctl_put_line(to, m->role, 10);
    fprintf(to, "%*s", strlen(m->role) < 10 ? (int)(10 - strlen(m->role)) + 1 : 1, "");
    ctl_put_line(to, line.data ? line.data : "", room);
    putc('\n', to);
    text_buffer_deinit(&line);
}

void sessions_put_turns(FILE *to, const struct nvllm_session *s, uint32_t from, int width)
{
    for (uint32_t i = from; i < s->n_turn_messages; i++) {
        const uint32_t first = i > 0 ? s->turn_messages[i - 1] : 0;

        for (uint32_t k = first; k < s->turn_messages[i]; k++) {
            char turn[16] = "";

            if (i > 0 && k == first)
                snprintf(turn, sizeof(turn), "%u", i);
            put_message(to, &s->chat->messages[k], turn, width);
        }
    }
}

static json_t *parsed(struct nvllm_text text)
{
    json_t *value = ctl_json_parse(text.data, text.len, NULL);

    return value ? value : ctl_json_text(text);
}

json_t *sessions_json(const struct nvllm_session *s)
{
    json_t *o = report_json_session_info(s->info), *turns = json_array(), *tools = json_array();

    /* a number beside the list of that name */
    json_object_del(o, "messages");
    json_object_set_new(o, "messages", ctl_json_messages(s->chat));
    for (size_t i = 0; i < s->n_turn_messages; i++)
        json_array_append_new(turns, json_integer(s->turn_messages[i]));
    json_object_set_new(o, "turn_messages", turns);
    for (size_t i = 0; i < s->chat->n_tools; i++)
        json_array_append_new(tools, parsed(s->chat->tools[i]));
    json_object_set_new(o, "tools", tools);
    if (s->chat->chat_template_kwargs.data)
        json_object_set_new(o, "chat_template_kwargs", parsed(s->chat->chat_template_kwargs));
    if (s->chat->enable_thinking != NVLLM_UNSET)
        json_object_set_new(o, "enable_thinking",
                            json_boolean(s->chat->enable_thinking == NVLLM_ON));
    if (s->token_ids)
        json_object_set_new(o, "token_ids", ctl_json_ids(s->token_ids, s->n_token_ids));
    return o;
}

static int show(struct ctl *ctl)
{
    const bool ids = ctl_option(ctl, "ids");
    const struct nvllm_session *s;

    ctl_check(ctl, nvllm_show_session(ctl->client, ctl->line.words[1], ids, ctl_ask_ms(ctl), &s,
                                      &ctl->err));
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, sessions_json(s));
    sessions_put_turns(stdout, s, 0, show_width(STDOUT_FILENO));
    for (size_t i = 0; ids && i < s->n_token_ids; i++)
        printf("%d%c", s->token_ids[i], i + 1 < s->n_token_ids ? ' ' : '\n');
    return EXIT_OK;
}

/* ---- changes */

static int print_info(const struct ctl *ctl, const char *what,
                      const struct nvllm_session_info *info)
{
    if (ctl_option(ctl, "json"))
        return ctl_json_print(STDOUT_FILENO, report_json_session_info(info));
    printf("%s %s: %u turn%s, %u message%s, %u token%s\n", what, info->name, info->turns,
           info->turns == 1 ? "" : "s", info->messages, info->messages == 1 ? "" : "s",
           info->tokens, info->tokens == 1 ? "" : "s");
    return EXIT_OK;
}

/* The array of tools in a file, as a member of q's chat. */
static void read_tools(struct ctl *ctl, struct ctl_request *q, const char *path)
{
    struct nvllm_error err;
    size_t n;
    char *text = ctl_read_file(path, "tools", &n);
    json_t *tools = ctl_json_parse(text, n, &err);
    json_t *chat = tools ? json_pack("{s[]sO}", "messages", "tools", tools) : NULL;

    if (!chat || !ctl_request_read_chat(q, chat, &err))
        ctl_usage(ctl, "--tools %s: %s", path, err.message);
    json_array_append_new(q->sources, chat);
    json_decref(tools);
    free(text);
}

enum nvllm_code sessions_create(struct ctl *ctl, const char *name,
                                const struct nvllm_session_info **info)
{
    const char *system = ctl_option(ctl, "system");
    const struct nvllm_message message = {.role = "system", .content = nvllm_str(system)};
    const char *tools =
        usage_find_option(ctl->command->options, "tools") ? ctl_option(ctl, "tools") : NULL;
    struct ctl_request q;
    enum nvllm_code code;

    ctl_request_init(&q);
    if (tools)
        read_tools(ctl, &q, tools);
    if (system && system[0]) {
        q.chat.messages = &message;
        q.chat.n_messages = 1;
    }
    q.chat.enable_thinking = ctl_prompt_thinking(ctl);
    code = nvllm_create_session(ctl->client, name, &q.chat, ctl_ask_ms(ctl), info, &ctl->err);
    ctl_request_deinit(&q);
    return code;
}

static int create(struct ctl *ctl)
{
    const struct nvllm_session_info *info;

    ctl_check(ctl, sessions_create(ctl, ctl->line.words[1], &info));
    return print_info(ctl, "created", info);
}

static int fork_one(struct ctl *ctl)
{
    const int64_t turns = ctl_whole(ctl, "turns", -1, 0, UINT32_MAX);
    const struct nvllm_session_info *info;

    ctl_check(ctl, nvllm_fork_session(ctl->client, ctl->line.words[1], ctl->line.words[2], turns,
                                      ctl_ask_ms(ctl), &info, &ctl->err));
    return print_info(ctl, "created", info);
}

static int rewind_one(struct ctl *ctl)
{
    const struct nvllm_session_info *info;
    uint64_t turns;

    if (!ctl_parse_u64(&turns, ctl->line.words[2]) || turns > UINT32_MAX)
        ctl_usage(ctl, "“%s” is not a number of turns", ctl->line.words[2]);
    ctl_check(ctl, nvllm_rewind_session(ctl->client, ctl->line.words[1], (uint32_t)turns,
                                        ctl_ask_ms(ctl), &info, &ctl->err));
    return print_info(ctl, "rewound", info);
}

static int delete_one(struct ctl *ctl)
{
    const char *user = ctl_option(ctl, "user");
    const struct nvllm_session_info *info;
    struct nvllm_delete_options options;

    nvllm_delete_options_init(&options);
    options.has_uid = user != NULL;
    options.uid = user ? ctl_user(ctl, user) : 0;
    ctl_check(ctl, nvllm_delete_session(ctl->client, ctl->line.words[1], &options, ctl_ask_ms(ctl),
                                        &info, &ctl->err));
    return print_info(ctl, "deleted", info);
}

/* ---- the command line */

/* The options of each verb beside --json: those of another are refused. */
static void check_options(const struct ctl *ctl, enum verb verb)
{
    static const struct {
        const char *option;
        enum verb verb;
    } rows[] = {{"limit", LIST},      {"all", LIST},      {"ids", SHOW},
                {"tools", CREATE},    {"system", CREATE}, {"think", CREATE},
                {"no-think", CREATE}, {"turns", FORK},    {"user", DELETE}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].verb != verb && ctl_option(ctl, rows[i].option))
            ctl_usage(ctl, "--%s is not an option of this", rows[i].option);
}

int ctl_sessions(struct ctl *ctl)
{
    static const struct {
        int (*run)(struct ctl *ctl);
        int n_words;
        const char *wants;
    } verbs[] = {
        [LIST] = {list, 1, "sessions list"},
        [SHOW] = {show, 2, "sessions show NAME"},
        [CREATE] = {create, 2, "sessions create NAME"},
        [FORK] = {fork_one, 3, "sessions fork NAME NEW-NAME"},
        [REWIND] = {rewind_one, 3, "sessions rewind NAME TURNS"},
        [DELETE] = {delete_one, 2, "sessions delete NAME"},
    };
    const int n = ctl->line.n_words;
    enum verb verb = n > 0 ? (enum verb)ctl_word(ctl, ctl->line.words[0]) : LIST;

    if ((n > 0 ? n : 1) != verbs[verb].n_words)
        ctl_usage(ctl, "it is “nvllmctl %s”", verbs[verb].wants);
    check_options(ctl, verb);
    ctl->needs_model = verb == CREATE || verb == FORK; /* the others wait for it as long as short
                                                        * answers may take */
    ctl_connect(ctl);
    return verbs[verb].run(ctl);
}
