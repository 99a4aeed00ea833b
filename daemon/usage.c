/* usage.c - nvllmd's command line: its commands and options, see options.h. */
#include "daemon/options.h"

static const struct usage_option common_options[] = {
    OPTION("config", "FILE", "configuration file; default, if it exists: " OPTIONS_DEFAULT_FILE,
           .values = USAGE_FILE),
    OPTION("set", "SECTION.KEY=VALUE", "set one option of the configuration; may be repeated",
           .values = USAGE_KEY, .repeats = true),
    OPTION("model", "DIR", "short for --set model.path=DIR", .values = USAGE_FOLDER),
    OPTION("chat-template", "FILE", "short for --set model.chat_template=FILE",
           .values = USAGE_FILE),
    OPTION("socket", "PATH", "short for --set daemon.socket=PATH", .values = USAGE_FILE),
    OPTION("backend", "auto|cpu|cuda", "short for --set daemon.backend=…", .values = USAGE_WORDS),
    OPTION("help", NULL, "print usage and all options of the configuration"),
    OPTION("version", NULL, "print the version"),
    OPTIONS_END,
};

static const struct usage_option json_option[] = {
    OPTION("json", NULL, "print one JSON object"),
    OPTIONS_END,
};

static const struct usage_option unit_options[] = {
    OPTION("unit", "UNIT",
           "check as this unit of systemd would start: as its user, in its sandbox"),
    OPTION("inside", "UNIT", "internal: set by --unit"),
    OPTIONS_END,
};

static const struct usage_option lines_option[] = {
    OPTION("jsonl", NULL, "read one JSON value per line, print one object per line"),
    OPTIONS_END,
};

static const struct usage_option tokenize_options[] = {
    OPTION("special", NULL, "match special tokens spelled out in the text"),
    OPTIONS_END,
};

static const struct usage_option detokenize_options[] = {
    OPTION("skip-special", NULL, "leave special tokens out"),
    OPTIONS_END,
};

static const struct usage_option render_options[] = {
    OPTION("now", "TIME", "the local time that the template is told, as 2026-11-22T12:34:56"),
    OPTIONS_END,
};

static const struct usage_option convert_options[] = {
    OPTION("to", "fp8|int4|bf16", "what the weights of layers become", .values = USAGE_WORDS),
    OPTIONS_END,
};

static const struct usage_command commands[] = {
    COMMAND("check-config", "check whether nvllmd would start, and if not, why",
            .synopsis = "[options]", .options = {json_option, unit_options}),
    COMMAND("tune", "measure which algorithms are fastest here, for the next start",
            .synopsis = "[options]"),
    COMMAND("check", "find what is wrong with a model folder", .synopsis = "[options]"),
    COMMAND("list", "list the model folders below a directory", .synopsis = "[options] [DIRECTORY]",
            .options = {json_option}, .values = USAGE_FOLDER, .max_words = 1),
    COMMAND("convert", "write a model folder again, quantized or not",
            .synopsis = "[options] --to fp8|int4|bf16 IN OUT", .options = {convert_options},
            .values = USAGE_FOLDER, .max_words = 2),
    COMMAND("tokenize", "turn text into token ids", .synopsis = "[options] [TEXT|-]",
            .options = {json_option, lines_option, tokenize_options}, .max_words = 1),
    COMMAND("detokenize", "turn token ids into text", .synopsis = "[options] [IDS|-]",
            .options = {json_option, lines_option, detokenize_options}, .max_words = 1),
    COMMAND("render", "turn chat messages into the model's prompt",
            .synopsis = "[options] [JSON|-]",
            .options = {json_option, lines_option, render_options}, .max_words = 1),
    COMMAND("schema", "say which texts a JSON Schema or another response format allows",
            .synopsis = "[options] [JSON|-]", .options = {json_option, lines_option},
            .max_words = 1),
};

const struct usage_program nvllmd_program = {
    .name = "nvllmd",
    .commands = commands,
    .n_commands = sizeof(commands) / sizeof(commands[0]),
    .common = common_options,
};

void nvllmd_usage_print(void)
{
    puts("usage: nvllmd [options]");
    for (size_t i = 0; i < nvllmd_program.n_commands; i++) {
        const struct usage_command *c = &commands[i];

        printf("       nvllmd %s %s\n", c->name, c->synopsis);
    }
    puts("\nServes a model on a socket, or:\n");
    for (size_t i = 0; i < nvllmd_program.n_commands; i++)
        printf("  %-12s %s\n", commands[i].name, commands[i].about);
    putchar('\n');
    usage_print_options(stdout, common_options);
    puts("\nOptions of commands:");
    usage_print_options(stdout, json_option);
    usage_print_options(stdout, unit_options);
    usage_print_options(stdout, convert_options);
    usage_print_options(stdout, lines_option);
    usage_print_options(stdout, tokenize_options);
    usage_print_options(stdout, detokenize_options);
    usage_print_options(stdout, render_options);
    puts("\nExit status: 0 ok, 1 error, 2 wrong usage\n\nOptions of the configuration:");
    options_print(stdout);
}
