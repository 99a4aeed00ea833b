/* commands.c - the commands and options of nvllmctl, as data alone. */
#include "client/ctl/ctl.h"

/* The options of one command. */
#define OPTIONS(...)                                                                               \
    (const struct usage_option[])                                                                  \
    {                                                                                              \
        __VA_ARGS__, OPTIONS_END                                                                   \
    }

/* ---- options that several commands share */

static const struct usage_option common_options[] = {
    OPTION("socket", "PATH", "default: $NVLLM_SOCKET, " NVLLM_DEFAULT_SOCKET ", the quick start's",
           .values = USAGE_FILE),
    OPTION("timeout", "SECONDS", "give up after this time (exit code 5)"),
    OPTION("wait", NULL, "wait until nvllmd is running"),
    OPTION("no-wait", NULL, "fail while nvllmd loads its model (exit code 4)"),
    OPTION("help", NULL, "print help on the command", .letter = 'h'),
    OPTIONS_END,
};

static const struct usage_option before_command[] = {
    OPTION("version", NULL, "print the version"),
    OPTIONS_END,
};

static const struct usage_option request_options[] = {
    OPTION("max-tokens", "N", "generate at most N tokens"),
    OPTION("min-tokens", "N", "generate at least N tokens"),
    OPTION("temperature", "T", "sampling temperature; 0 is greedy"),
    OPTION("top-k", "K", "sample from the K most likely tokens; 0 is off"),
    OPTION("top-p", "P", "sample from the most likely tokens that add up to probability P"),
    OPTION("min-p", "P", "sample from tokens at least P times as likely as the most likely one"),
    OPTION("repetition-penalty", "X", "divide the logits of tokens that have occurred by X"),
    OPTION("presence-penalty", "X", "lower the logits of tokens that have occurred by X"),
    OPTION("frequency-penalty", "X", "lower a token's logit by X for each time it has occurred"),
    OPTION("logit-bias", "ID:BIAS", "add BIAS to a token's logit; may be repeated",
           .repeats = true),
    OPTION("seed", "N", "seed of the sampling; the same seed gives the same text"),
    OPTION("stop", "TEXT", "end the answer before this text; may be repeated", .repeats = true),
    OPTION("stop-token-id", "ID", "end the answer at this token; may be repeated", .repeats = true),
    OPTION("ignore-eos", NULL, "continue past the model's end of sequence"),
    OPTION("priority", "low|normal|high", "scheduling priority; high is for administrators",
           .values = USAGE_WORDS),
    OPTION("cache-salt", "TEXT", "share the cached prompt only with requests of the same salt"),
    OPTION("session", "NAME", "a turn of a session, which “nvllmctl sessions” lists",
           .values = USAGE_SESSION),
    OPTION("deadline-ms", "MS", "end after this time, queueing included (exit code 5)"),
    OPTION("keep-special", NULL, "show special tokens in the text"),
    OPTION("raw-text", NULL, "leave reasoning and tool calls in the text, with their tags"),
    OPTION("json-object", NULL, "the answer is a JSON object"),
    OPTION("json-schema", "FILE",
           "the answer is JSON that follows the schema in FILE; “-” is stdin",
           .values = USAGE_FILE),
    OPTION("regex", "EXPR", "the regular expression matches all of the answer"),
    OPTION("grammar", "FILE", "the answer follows the grammar in FILE, in GBNF; “-” is stdin",
           .values = USAGE_FILE),
    OPTION("choice", "TEXT", "the answer is one of the texts given; may be repeated",
           .repeats = true),
    OPTIONS_END,
};

static const struct usage_option choice_options[] = {
    OPTION("logprobs", "K", "report the K most likely tokens at each position; needs --json"),
    OPTION("n", "N", "generate N answers", .letter = 'n'),
    OPTIONS_END,
};

static const struct usage_option prompt_options[] = {
    OPTION("prompt", "TEXT", "the prompt; “-” is stdin"),
    OPTION(
        "prompt-file", "FILE",
        "read the prompt from FILE, or from stdin if “-”; a JSON object with messages, prompt or "
        "prompt_ids is read as a line of “batch”",
        .values = USAGE_FILE),
    OPTION("chat", NULL,
           "the prompt is a user's message (default if the model has a chat template)"),
    OPTION("raw", NULL, "the model continues the prompt as it is"),
    OPTIONS_END,
};

static const struct usage_option chat_options[] = {
    OPTION("system", "TEXT", "begin the chat with a system message"),
    OPTION("think", NULL, "let the model reason before it answers"),
    OPTION("no-think", NULL, "do not let the model reason before it answers"),
    OPTIONS_END,
};

static const struct usage_option json_option[] = {
    OPTION("json", NULL, "print one JSON object"),
    OPTIONS_END,
};

static const struct usage_option text_options[] = {
    OPTION("json", NULL, "print one JSON object"),
    OPTION("jsonl", NULL, "read one JSON value per line, print one object per line"),
    OPTIONS_END,
};

/* ---- commands: talking to the model, looking at the daemon, changing it, the rest */

static const struct usage_command commands[] = {
    COMMAND(
        "chat", "chat with the model",
        .text = "A conversation, with line editing and history (Ctrl-R searches). Earlier turns\n"
                "are found in the prefix cache; the line after each answer shows how much.\n"
                "Without a terminal each line of stdin is a turn. Commands in the chat: /reset,\n"
                "/system TEXT, /save FILE, /help, /quit. Ctrl-C stops an answer. Sampling\n"
                "options default to the model's generation_config.json. With --session nvllmd\n"
                "holds the conversation: the next chat of that name goes on with it. The first\n"
                "creates it, with --system, --think and --no-think.\n",
        .options = {chat_options,
                    OPTIONS(OPTION("quiet", NULL, "print only the answers, not the token counts"),
                            OPTION("no-history", NULL,
                                   "neither read the questions of earlier chats nor keep these")),
                    request_options},
        .examples = "  nvllmctl chat --system \"Answer in one sentence.\" --no-think\n"
                    "  nvllmctl chat --session animals\n"
                    "  nvllmctl chat --temperature 0 <questions.txt >answers.txt\n"),
    COMMAND("generate", "stream text for a prompt", .synopsis = "[OPTION…] [TEXT|-]",
            .text =
                "Prints the model's answer to TEXT, or to stdin if TEXT is missing or “-”, as it\n"
                "is generated. Ctrl-C cancels. Sampling options default to the model's\n"
                "generation_config.json.\n",
            .options = {prompt_options, chat_options, json_option, request_options, choice_options},
            .max_words = 1,
            .examples =
                "  nvllmctl generate \"What is 17 + 25?\"\n"
                "  nvllmctl generate --temperature 0 --max-tokens 200 --prompt-file question.txt\n"
                "  nvllmctl generate --raw --json --logprobs 3 \"Once upon a time\"\n"
                "  nvllmctl generate --choice yes --choice no \"Is a lion a fish?\"\n"),
    COMMAND("batch", "run many prompts from a file in parallel", .synopsis = "[OPTION…] FILE|-",
            .text =
                "Each line of FILE is a JSON object with prompt, prompt_ids or messages\n"
                "(and tools, tool_choice, parallel_tool_calls, documents, enable_thinking,\n"
                "add_generation_prompt, chat_template_kwargs), any sampling field, and id; or\n"
                "with embed, a text, or embed_ids (and prompt_name, dimensions). Each gives one\n"
                "line of output, in the same order. A line that fails gives an error, and the\n"
                "others continue. Sampling options set the fields that a line does not have.\n",
            .options =
                {OPTIONS(OPTION("input", "FILE", "the same as the argument", .values = USAGE_FILE),
                         OPTION("output", "FILE", "file for the answers (“-”: stdout)",
                                .values = USAGE_FILE),
                         OPTION("concurrency", "N", "requests in flight at a time (64)"),
                         OPTION("json", NULL, "write the summary to stderr as one JSON object")),
                 request_options, choice_options},
            .values = USAGE_FILE, .max_words = 1,
            .examples = "  nvllmctl batch questions.jsonl --output answers.jsonl --seed 1\n"
                        "  echo '{\"prompt\": \"Once\"}' | nvllmctl batch -\n"),
    COMMAND("embed", "turn text into an embedding", .synopsis = "[OPTION…] [TEXT|-]",
            .text =
                "Prints the embedding of TEXT, or of stdin if TEXT is missing or “-”, as a JSON\n"
                "array, if the model makes embeddings. For many texts “batch” is faster.\n",
            .options = {OPTIONS(OPTION("prompt-name", "NAME",
                                       "put the model's prompt of this name before the text"),
                                OPTION("dimensions", "N", "print the first N values only")),
                        text_options},
            .max_words = 1,
            .examples = "  nvllmctl embed --prompt-name query \"Where do lions live?\"\n"
                        "  echo '\"a text\"' | nvllmctl embed --jsonl\n"),
    COMMAND("tokenize", "turn text into token ids", .synopsis = "[OPTION…] [TEXT|-]",
            .text = "Prints the token ids of TEXT, or of stdin if TEXT is missing or “-”.\n",
            .options = {OPTIONS(OPTION("special", NULL,
                                       "match special tokens spelled out in the text")),
                        text_options},
            .max_words = 1,
            .examples = "  nvllmctl tokenize \"Hello, world\"\n"
                        "  nvllmctl tokenize --special --json <prompt.txt\n"),
    COMMAND("detokenize", "turn token ids into text", .synopsis = "[OPTION…] [ID…|-]",
            .text =
                "Prints the text of token ids: of the arguments, or from stdin of a JSON array,\n"
                "an object with \"ids\", or plain numbers.\n",
            .options = {OPTIONS(OPTION("skip-special", NULL, "leave special tokens out")),
                        text_options},
            .max_words = -1,
            .examples = "  nvllmctl detokenize 39 68 75 75 78\n"
                        "  nvllmctl tokenize --json \"Hello\" | nvllmctl detokenize\n"),
    COMMAND(
        "render", "turn chat messages into the model's prompt", .synopsis = "[OPTION…] [JSON|-]",
        .text =
            "Prints, byte for byte, what the model's chat template makes of one JSON object\n"
            "{\"messages\", \"tools\", \"documents\", \"add_generation_prompt\",\n"
            "\"enable_thinking\", \"chat_template_kwargs\"}, read from stdin if it is missing\n"
            "or “-”.\n",
        .options = {text_options}, .max_words = 1,
        .examples =
            "  nvllmctl render '{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}'\n"),
    COMMAND("sessions", "list, show, create, fork, rewind or delete sessions",
            .synopsis = "[list] [--limit N] [--all] [--json]\n"
                        "show NAME [--ids] [--json]\n"
                        "create NAME [OPTION…]\n"
                        "fork NAME NEW-NAME [--turns N] [--json]\n"
                        "rewind NAME TURNS [--json]\n"
                        "delete NAME [--user NAME|UID] [--json]",
            .text =
                "Sessions are conversations that nvllmd holds; “nvllmctl help chat” says how to\n"
                "have one.\n"
                "Lists them, the last used one first; shows the messages of one, by turns;\n"
                "creates one with a system message and tools, a JSON array; copies all or the\n"
                "first turns of one to another; drops all but the first turns; deletes one.\n"
                "Users have sessions of their own; administrators list and delete those of all.\n",
            .options = {OPTIONS(OPTION("limit", "N", "list at most N sessions"),
                                OPTION("all", NULL, "list the sessions of all users"),
                                OPTION("ids", NULL, "show the token ids, too"),
                                OPTION("tools", "FILE", "a JSON array of tools; “-” is stdin",
                                       .values = USAGE_FILE),
                                OPTION("turns", "N", "copy the first N turns only"),
                                OPTION("user", "NAME|UID", "delete that user's session",
                                       .values = USAGE_USER)),
                        chat_options, json_option},
            .words = "list|show|create|fork|rewind|delete", .values = USAGE_WORDS, .max_words = -1,
            .examples = "  nvllmctl sessions\n"
                        "  nvllmctl sessions fork animals plants --turns 2\n"
                        "  nvllmctl sessions rewind animals 3\n"),
    COMMAND("status", "show what nvllmd is doing",
            .text = "Shows what nvllmd is doing. With --wait, waits until it is ready.\n",
            .options = {json_option},
            .examples = "  nvllmctl status --wait --timeout 60\n"
                        "  nvllmctl status --json | jq .blocks\n"),
    COMMAND("requests", "list running and waiting requests",
            .text = "Lists running requests, then waiting ones in the order of the queue: user,\n"
                    "place in the queue, prompt tokens, cached tokens, generated tokens, tokens\n"
                    "per second, blocks. Users see their own, administrators all. A narrow\n"
                    "terminal shows fewer columns; a pipe or file gets all.\n",
            .options = {OPTIONS(OPTION("limit", "N", "list at most N requests")), json_option},
            .examples =
                "  nvllmctl requests\n"
                "  nvllmctl requests --json | jq '.requests[] | select(.state == \"waiting\")'\n"),
    COMMAND("blocks", "show who uses the KV cache",
            .text =
                "Shows the blocks of the KV cache: used, cached (free, with content that may be\n"
                "found again) and free, by user and by request. Users see their own and the\n"
                "totals.\n",
            .options = {OPTIONS(OPTION("map", NULL, "draw the pool, one character per block")),
                        json_option},
            .examples = "  nvllmctl blocks --map\n"),
    COMMAND("cache", "show, clear or pin prefixes of the prefix cache",
            .synopsis = "[show] [--limit N] [--json]\n"
                        "clear [--all] [--json]\n"
                        "pin|unpin [OPTION…] --prompt TEXT|-\n"
                        "pin|unpin [OPTION…] --prompt-file FILE|-",
            .text =
                "Shows prefixes in the order of their last use: tokens, blocks, hits, age, idle\n"
                "time, sequences that hold them, user, and how they begin. “clear” removes them,\n"
                "pinned ones too; “pin” computes what is missing of a prompt's full blocks and\n"
                "keeps them until “unpin” or “clear”, and is for administrators. A narrow\n"
                "terminal shows fewer columns; a pipe or file gets all.\n",
            .options = {OPTIONS(OPTION("limit", "N", "show at most N prefixes (50)"),
                                OPTION("all", NULL, "clear the prefixes of all users"),
                                OPTION("user", "NAME|UID", "pin in that user's cache",
                                       .values = USAGE_USER),
                                OPTION("cache-salt", "TEXT", "pin under this salt")),
                        json_option, prompt_options, chat_options},
            .words = "show|clear|pin|unpin", .values = USAGE_WORDS, .max_words = -1,
            .examples = "  nvllmctl cache show --limit 10\n"
                        "  nvllmctl cache pin --prompt-file system-prompt.json\n"
                        "  nvllmctl cache clear --all\n"),
    COMMAND("explain", "say why a request waits, or how much of a prompt is cached",
            .synopsis = "[OPTION…] REQUEST\n"
                        "[OPTION…] --prompt TEXT|-\n"
                        "[OPTION…] --prompt-file FILE|-",
            .text =
                "Says why a request waits, by its number in “nvllmctl requests”; or how much of\n"
                "a prompt is cached now, as “generate” would find it, at which token it differs\n"
                "from the cached prompts, and what those have in its place.\n",
            .options = {OPTIONS(OPTION("cache-salt", "TEXT",
                                       "look the prompt up as a request with this salt would")),
                        json_option, prompt_options, chat_options},
            .values = USAGE_REQUEST, .max_words = -1,
            .examples = "  nvllmctl explain 17\n"
                        "  nvllmctl explain --prompt \"What is 17 + 25?\"\n"),
    COMMAND("top", "show requests and throughput live; q quits",
            .text = "Shows requests, tokens per second, blocks and the prefix cache, updated\n"
                    "every second and when the terminal is resized. q quits. A narrow terminal\n"
                    "shows fewer columns.\n",
            .options = {OPTIONS(OPTION("interval", "SECONDS", "time between two updates (1)"),
                                OPTION("once", NULL, "print one update and exit"))},
            .examples = "  nvllmctl top --interval 0.5\n"
                        "  nvllmctl top --once\n"),
    COMMAND("trace", "record what requests and steps do", .synopsis = "[OPTION…] FILE|-",
            .text =
                "Records steps, what the engine's thread does, and the phases of each request,\n"
                "and writes them to FILE, or to stdout if that is “-”, as Chrome's trace events:\n"
                "open it with https://ui.perfetto.dev or chrome://tracing. It holds no text of\n"
                "requests. Ctrl-C ends it before its time. For administrators.\n",
            .options = {OPTIONS(OPTION("seconds", "S", "how long to record (5)"))},
            .values = USAGE_FILE, .max_words = 1,
            .examples = "  nvllmctl trace --seconds 5 trace.json\n"),
    COMMAND("cancel", "cancel requests", .synopsis = "REQUEST…",
            .text =
                "Cancels requests by their number in “nvllmctl requests”; their clients keep what\n"
                "was generated until then. Exit code 1 if one had already ended. Users may\n"
                "cancel their own requests.\n",
            .values = USAGE_REQUEST, .max_words = -1, .examples = "  nvllmctl cancel 17 18\n"),
    COMMAND("drain", "stop accepting requests",
            .text =
                "New requests are refused, accepted ones continue; “nvllmctl resume” reverts it.\n"
                "For administrators.\n",
            .options = {OPTIONS(
                OPTION("wait", NULL, "wait until no request is left"),
                OPTION("end-after", "SECONDS",
                       "cancel requests that take longer; default: daemon.drain_timeout_s"))},
            .examples = "  nvllmctl drain --wait --timeout 60 && systemctl restart nvllmd\n"),
    COMMAND("resume", "accept requests again", .synopsis = "",
            .text = "Reverts “nvllmctl drain”. For administrators.\n",
            .examples = "  nvllmctl resume\n"),
    COMMAND("reload", "reload the configuration",
            .text =
                "Makes nvllmd reload its configuration, as SIGHUP does. Limits, shares and the\n"
                "log level change, all or none; options that need a restart are named. For\n"
                "administrators.\n",
            .options = {json_option}, .examples = "  nvllmctl reload\n"),
    COMMAND("log-level", "set how much nvllmd logs", .synopsis = "error|warning|info|debug",
            .text = "Holds until nvllmd exits or reloads its configuration. For administrators.\n",
            .words = "error|warning|info|debug", .values = USAGE_WORDS, .max_words = -1,
            .examples = "  nvllmctl log-level debug\n"),
    COMMAND("sleep", "give the model's memory back until it is needed",
            .text =
                "Gives memory back until “nvllmctl wake” or the next request: that of the\n"
                "weights and, unless --level is weights, that of the KV cache on the device,\n"
                "which is first copied to host memory or disk as far as there is room; the rest\n"
                "is lost. Refused while requests are in progress. For administrators.\n",
            .options = {OPTIONS(OPTION("level", "weights|all", "what to give back (all)",
                                       .values = USAGE_WORDS)),
                        json_option},
            .examples = "  nvllmctl sleep\n"
                        "  nvllmctl sleep --level weights\n"),
    COMMAND("wake", "load the model's weights again",
            .text = "Reverts “nvllmctl sleep”, as the next request would. For administrators.\n",
            .options = {json_option}, .examples = "  nvllmctl wake\n"),
    COMMAND("stop", "shut nvllmd down",
            .text =
                "Shuts nvllmd down as SIGTERM does: it drains first. If systemd runs it and may\n"
                "restart it, use “systemctl stop nvllmd” instead. For administrators.\n",
            .options = {OPTIONS(OPTION("wait", NULL, "wait until nvllmd has exited"))},
            .examples = "  nvllmctl stop --wait --timeout 30\n"),
    COMMAND("bench", "measure nvllmd under load",
            .text =
                "Sends prompts of random tokens, counts what comes back, and prints throughput,\n"
                "time to the first token and time between tokens. Answers have exactly the\n"
                "length that was asked for: end-of-sequence tokens are ignored, and only the\n"
                "temperature shapes the sampling. A workload is a file with lines of\n"
                "{\"prompt_tokens\", \"output_tokens\", \"at_ms\"}; at_ms may be missing.\n",
            .options = {OPTIONS(
                OPTION("streams", "N", "requests in flight at a time (8; unlimited with --rate)"),
                OPTION("rate", "R", "send R requests per second, at random times"),
                OPTION("prompt-tokens", "N|A-B", "length of prompts, or a range of lengths (256)"),
                OPTION("output-tokens", "N|A-B", "length of answers, or a range of lengths (128)"),
                OPTION("requests", "N", "number of requests (64)"),
                OPTION("duration", "SECONDS",
                       "stop after this time; requests then in flight are cut short"),
                OPTION("workload", "FILE", "read lengths from FILE, or from stdin if “-”",
                       .values = USAGE_FILE),
                OPTION("conversations", "N", "hold N conversations instead of single requests"),
                OPTION("turns", "T", "turns of each conversation (8)"),
                OPTION("think", "SECONDS", "time between an answer and the next turn (0)"),
                OPTION("nano-vllm", NULL, "run nano-vLLM's benchmark: 256 requests, all at once"),
                OPTION("temperature", "T", "sampling temperature (0.6)"),
                OPTION("seed", "N", "seed of lengths, times and tokens (0)"),
                OPTION("warm-cache", NULL, "find prompts of an earlier run in the prefix cache"),
                OPTION("json", NULL, "print one JSON object"))},
            .examples =
                "  nvllmctl bench --nano-vllm\n"
                "  nvllmctl bench --streams 1 --prompt-tokens 1 --output-tokens 512 --requests 1\n"
                "  nvllmctl bench --rate 20 --duration 60 --prompt-tokens 100-1000 --json\n"
                "  nvllmctl bench --conversations 64 --think 5 --prompt-tokens 1000\n"),
    COMMAND("doctor", "find what is broken, and the commands that fix it",
            .text =
                "Checks the socket and its permissions, the configuration as nvllmd itself would\n"
                "read it, the model's folder and its parents, devices, memory and kernel limits,\n"
                "whether nvllmd is running or not. Names each problem and the command that fixes\n"
                "it; changes nothing. Exit code 3 if the only problem is that nvllmd is not\n"
                "running, 1 for any other.\n",
            .options = {OPTIONS(
                OPTION("config", "FILE",
                       "nvllmd's configuration file (" NVLLM_CONFIG_DIR "/nvllmd.conf)",
                       .values = USAGE_FILE),
                OPTION("model", "DIR", "check this model instead of the configured one",
                       .values = USAGE_FOLDER),
                OPTION("user", "NAME", "the user that nvllmd runs as (nvllm, or the caller)",
                       .values = USAGE_USER),
                OPTION("json", NULL, "print one JSON object"))},
            .examples = "  sudo nvllmctl doctor\n"
                        "  nvllmctl doctor --model ~/models/Qwen3-0.6B\n"),
    COMMAND("list", "list the models that nvllmd could serve", .synopsis = "[OPTION…] [DIRECTORY]",
            .text = "Lists the model folder DIRECTORY or those below it, or where models are\n"
                    "installed: what each holds, or why nvllmd would not run it. Folders may be\n"
                    "those of a hub's cache. Needs nvllmd installed, but not running.\n",
            .options = {json_option}, .values = USAGE_FOLDER, .max_words = 1,
            .examples = "  nvllmctl list\n"
                        "  nvllmctl list ~/.cache/huggingface/hub\n"),
    COMMAND("version", "print the version", .synopsis = "",
            .text = "Prints the versions of nvllmctl and of its library.\n"),
    COMMAND("help", "print help on a command", .synopsis = "[COMMAND]",
            .text = "Prints help on a command, or the list of all commands.\n",
            .values = USAGE_COMMAND, .max_words = 1, .examples = "  nvllmctl help generate\n"),
};

const struct usage_program ctl_program = {
    .name = "nvllmctl",
    .commands = commands,
    .n_commands = sizeof(commands) / sizeof(commands[0]),
    .common = common_options,
    .own = before_command,
};
