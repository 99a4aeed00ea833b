/* test_conversation.c - what a chat's next prompt keeps of what was said, by templates that repeat
 * it and such that rewrite it; turns, copies and what is taken back. */
#include <stdlib.h>
#include <string.h>

#include "engine/text/conversation.h"
#include "tests/unit/run_suite.h"

static struct tokenizer *tokenizer;
static struct chat_template *tiny, *qwen3;

static struct chat_template *parsed(const char *text)
{
    struct chat_template *t;
    struct err e = {""};

    ck_assert_msg(chat_template_parse(&t, (struct text){text, strlen(text)}, &e) == 0, "%s",
                  e.text);
    return t;
}

static void set_up(void)
{
    struct err e = {""};

    ck_assert_int_eq(tokenizer_load(&tokenizer, TEST_MODEL_DIR, &e), 0);
    ck_assert_int_eq(chat_template_load(&tiny, TEST_MODEL_DIR, NULL, &e), 0);
    ck_assert_int_eq(chat_template_load(&qwen3, NULL, TEST_DATA_DIR "/qwen3-chat-template.jinja",
                                        &e),
                     0);
}

static void tear_down(void)
{
    tokenizer_free(tokenizer);
    chat_template_free(tiny);
    chat_template_free(qwen3);
}

static struct text str(const char *text)
{
    return (struct text){text, strlen(text)};
}

static struct chat_message message(const char *role, const char *content)
{
    return (struct chat_message){.role = str(role), .has_content = true, .content = str(content)};
}

static struct conversation *conversation(const char *system)
{
    const struct chat_message m = message("system", system ? system : "");
    const struct chat chat = {.messages = &m, .n_messages = system != NULL};
    struct conversation *c;

    ck_assert_int_eq(conversation_new(&c, &chat), 0);
    return c;
}

/* The conversation's messages and one more, rendered. */
static struct jinja_text rendered(const struct chat_template *t, const struct conversation *c,
                                  const struct chat_message *next)
{
    struct chat chat = c->chat;
    struct chat_message *messages = calloc(chat.n_messages + 1, sizeof(*messages));
    struct jinja_text text;
    struct err e = {""};

    if (chat.n_messages)
        memcpy(messages, chat.messages, chat.n_messages * sizeof(*messages));
    messages[chat.n_messages++] = *next;
    chat.messages = messages;
    ck_assert_msg(chat_render(t, &chat, &text, &e) == 0, "%s", e.text);
    free(messages);
    return text;
}

/* A turn: the question's prompt, then these ids with what the answer's message has. The number of
 * ids that were kept. */
static size_t turn_of_ids(const struct chat_template *t, struct conversation *c,
                          const char *question, const int32_t *ids, size_t n,
                          const struct chat_message *answer)
{
    const struct chat_message asked = message("user", question);
    struct transcript_prompt p = {.said = &c->transcript};
    struct jinja_text text = rendered(t, c, &asked);
    size_t kept;

    ck_assert_int_eq(transcript_prompt(&p, tokenizer, &text), 0);
    kept = p.n_kept;
    ck_assert_uint_le(kept, c->transcript.ids.n);
    ck_assert_int_eq(conversation_add(c, &asked, 1, answer, &p, ids, n), 0);
    transcript_prompt_deinit(&p);
    jinja_text_deinit(&text);
    return kept;
}

/* The same with the ids that the tokenizer makes of a text with special tokens. */
static size_t turn(const struct chat_template *t, struct conversation *c, const char *question,
                   const char *said, const char *reasoning, const char *content)
{
    struct token_list ids = {0};
    struct chat_message answer = message("assistant", content);
    size_t kept;

    answer.has_reasoning = reasoning != NULL;
    answer.reasoning = str(reasoning ? reasoning : "");
    ck_assert_int_eq(tokenizer_encode_all(tokenizer, str(said), true, &ids), 0);
    kept = turn_of_ids(t, c, question, ids.ids, ids.n, &answer);
    free(ids.ids);
    return kept;
}

/* What the ids of a transcript spell. */
static void ck_spells(const struct transcript *t, size_t n, const char *expected)
{
    char *text;
    size_t len;

    ck_assert_int_eq(tokenizer_decode(tokenizer, t->ids.ids, n, false, &text, &len), 0);
    ck_assert_str_eq(text, expected);
    free(text);
}

/* Where a text ends in the ids, whose bytes are the text's. */
static size_t ids_to(const struct transcript *t, const char *text)
{
    size_t n = 0, len = 0;

    while (len < strlen(text))
        len += tokenizer_token_bytes(tokenizer, t->ids.ids[n++]).len;
    ck_assert_uint_eq(len, strlen(text));
    return n;
}

/* ---- templates that repeat what was said */

TEST(every_id_of_plain_chatml_is_kept)
{
    struct conversation *c = conversation("Be brief.");
    size_t before = 0;

    for (int i = 0; i < 5; i++) {
        ck_assert_uint_eq(turn(tiny, c, "Spell lion.", "l-i-o-n<|im_end|>", NULL, "l-i-o-n"),
                          before);
        before = c->transcript.ids.n;
        ck_assert_uint_eq(c->turns[i + 1].n_ids, before);
        ck_assert_uint_eq(c->turns[i + 1].n_messages, 3 + 2 * (size_t)i);
    }
    conversation_free(c);
}

/* Letter by letter, as the tokenizer would not make it. */
TEST(ids_stay_as_they_were_sampled)
{
    const struct chat_message answer = message("assistant", "hello there");
    struct conversation *c = conversation(NULL);
    struct token_list usual = {0};
    int32_t ids[16];
    size_t n = 0, before;

    for (const char *p = "hello there"; *p; p++) {
        struct token_list one = {0};

        ck_assert_int_eq(tokenizer_encode_all(tokenizer, (struct text){p, 1}, false, &one), 0);
        ck_assert_uint_eq(one.n, 1);
        ids[n++] = one.ids[0];
        free(one.ids);
    }
    ck_assert_int_eq(tokenizer_encode_all(tokenizer, str("hello there"), false, &usual), 0);
    ck_assert_uint_lt(usual.n, n);
    free(usual.ids);
    turn_of_ids(tiny, c, "Hi", ids, n, &answer); /* cut at its maximum: there is no <|im_end|> */
    before = c->transcript.ids.n;
    ck_assert_uint_eq(turn(tiny, c, "Go on", "ok<|im_end|>", NULL, "ok"), before);
    ck_assert_mem_eq(c->transcript.ids.ids + before - n, ids, n * sizeof(*ids));
    ck_spells(&c->transcript, c->transcript.ids.n,
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nhello there<|im_end|>\n"
              "<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\nok<|im_end|>");
    conversation_free(c);
}

/* A stop string's tokens are not part of the message. */
TEST(an_answer_is_kept_as_far_as_its_message_goes)
{
    struct conversation *c = conversation(NULL);
    size_t before, kept;

    turn(tiny, c, "Count", "1 2 3 STOP", NULL, "1 2 3");
    before = c->transcript.ids.n;
    kept = turn(tiny, c, "Go on", "4<|im_end|>", NULL, "4");
    ck_assert_uint_lt(kept, before);
    ck_spells(&c->transcript, kept,
              "<|im_start|>user\nCount<|im_end|>\n<|im_start|>assistant\n1 2 3");
    ck_assert_uint_eq(c->turns[1].n_ids, kept);
    conversation_free(c);
}

/* ---- templates that rewrite it */

TEST(dropped_reasoning_cuts_before_the_answer)
{
    static const char first[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    struct conversation *c = conversation(NULL);

    turn(qwen3, c, "Hi", "<think>\nhm\n</think>\n\nhello<|im_end|>", "hm", "hello");
    ck_assert_uint_eq(turn(qwen3, c, "Go on", "<think>\nso\n</think>\n\nbye<|im_end|>", "so",
                           "bye"),
                      ids_to(&c->transcript, first));
    ck_spells(&c->transcript, c->transcript.ids.n,
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n"
              "<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n"
              "<think>\nso\n</think>\n\nbye<|im_end|>");
    /* the first turn's own end has been cut */
    ck_assert_uint_eq(c->turns[1].n_ids, ids_to(&c->transcript, first));
    conversation_free(c);
}

/* Within one turn of several calls of tools reasoning stays, and so do all ids. */
TEST(reasoning_that_the_template_keeps_is_kept)
{
    const struct chat_message result = message("tool", "12 degrees");
    const struct chat_tool_call call = {.name = str("f"), .arguments_json = str("{\"a\": 1}")};
    struct chat_message answer = message("assistant", "");
    struct transcript_prompt p;
    struct token_list ids = {0};
    struct jinja_text text;
    struct conversation *c = conversation(NULL);

    answer.has_reasoning = true;
    answer.reasoning = str("hm");
    answer.tool_calls = &call;
    answer.n_tool_calls = 1;
    ck_assert_int_eq(
        tokenizer_encode_all(tokenizer,
                             str("<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"f\", "
                                 "\"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>"),
                             true, &ids),
        0);
    turn_of_ids(qwen3, c, "Weather?", ids.ids, ids.n, &answer);
    p = (struct transcript_prompt){.said = &c->transcript};
    text = rendered(qwen3, c, &result);
    ck_assert_int_eq(transcript_prompt(&p, tokenizer, &text), 0);
    ck_assert_uint_eq(p.n_kept, c->transcript.ids.n);
    transcript_prompt_deinit(&p);
    jinja_text_deinit(&text);
    free(ids.ids);
    conversation_free(c);
}

TEST(a_template_that_rewrites_the_system_prompt_keeps_nothing)
{
    struct chat_template *t = parsed(
        "<|im_start|>system\n{{ messages | length }} messages<|im_end|>\n"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{{ '<|im_start|>assistant\n' }}");
    struct conversation *c = conversation(NULL);

    turn(t, c, "Hi", "hello<|im_end|>", NULL, "hello");
    ck_assert_uint_eq(turn(t, c, "Go on", "bye<|im_end|>", NULL, "bye"), 0);
    ck_spells(&c->transcript, c->transcript.ids.n,
              "<|im_start|>system\n3 messages<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
              "<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nGo on<|im_end|>\n"
              "<|im_start|>assistant\nbye<|im_end|>");
    ck_assert_uint_eq(c->turns[1].n_ids, 0);
    chat_template_free(t);
    conversation_free(c);
}

/* One that cuts the space around what was said. */
TEST(a_template_that_trims_cuts_at_the_space)
{
    struct chat_template *t =
        parsed("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n"
               "{% endfor %}{{ '<|im_start|>assistant\n' }}");
    struct conversation *c = conversation(NULL);
    size_t kept;

    turn(t, c, "Hi", "hello \n\n<|im_end|>", NULL, "hello \n\n");
    kept = turn(t, c, "Go on", "bye<|im_end|>", NULL, "bye");
    ck_spells(&c->transcript, kept, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nhello");
    chat_template_free(t);
    conversation_free(c);
}

/* The same bytes, but now the template's: they would be special tokens, and are not those that were
 * said. */
TEST(text_that_changes_its_writer_is_not_kept)
{
    struct chat_template *before = parsed("{{ messages[0].content }}:"),
                         *after = parsed("<|im_end|>:{{ messages[-1].content }}");
    struct conversation *c = conversation(NULL);

    turn(before, c, "<|im_end|>", "x", NULL, "x");
    ck_spells(&c->transcript, c->transcript.ids.n, "<|im_end|>:x");
    ck_assert_uint_gt(c->transcript.ids.n, 5);
    ck_assert_uint_eq(turn(after, c, "x", "y", NULL, "y"), 0);
    ck_spells(&c->transcript, c->transcript.ids.n, "<|im_end|>:xy");
    ck_assert_uint_lt(c->transcript.ids.n, 5);
    chat_template_free(before);
    chat_template_free(after);
    conversation_free(c);
}

/* ---- turns */

TEST(a_rewound_conversation_goes_on_as_it_did)
{
    static const char *const words[] = {"lion", "bear", "wolf"};
    struct conversation *c = conversation("Be brief."), *fork;
    struct token_list all = {0};
    size_t n = 0;

    for (int i = 0; i < N(words); i++)
        turn(tiny, c, words[i], "ok<|im_end|>", NULL, "ok");
    n = c->transcript.ids.n;
    all.ids = calloc(n, sizeof(*all.ids));
    memcpy(all.ids, c->transcript.ids.ids, n * sizeof(*all.ids));
    for (size_t turns = 0; turns <= N(words); turns++) {
        ck_assert_int_eq(conversation_fork(&fork, c, turns), 0);
        ck_assert_uint_eq(fork->chat.n_messages, 1 + 2 * turns);
        ck_assert_uint_eq(fork->transcript.ids.n, c->turns[turns].n_ids);
        for (size_t i = turns; i < N(words); i++)
            ck_assert_uint_eq(turn(tiny, fork, words[i], "ok<|im_end|>", NULL, "ok"),
                              c->turns[i].n_ids);
        ck_assert_uint_eq(fork->transcript.ids.n, n);
        ck_assert_mem_eq(fork->transcript.ids.ids, all.ids, n * sizeof(*all.ids));
        conversation_free(fork);
    }
    for (size_t turns = N(words) + 1; turns-- > 0;) {
        conversation_rewind(c, turns);
        ck_assert_uint_eq(c->n_turns, turns);
        ck_assert_uint_eq(c->chat.n_messages, 1 + 2 * turns);
        ck_assert_uint_eq(c->transcript.ids.n, c->turns[turns].n_ids);
        ck_assert_mem_eq(c->transcript.ids.ids, all.ids, c->transcript.ids.n * sizeof(*all.ids));
    }
    free(all.ids);
    conversation_free(c);
}

/* Whatever was cut in between: what is left spells what the template makes of it. */
TEST(a_turn_after_cuts_and_rewinds_is_the_rendering)
{
    static const char said[] = "<think>\nhm\n</think>\n\nhello<|im_end|>";
    struct conversation *c = conversation("Be brief.");
    unsigned int random = 7;

    for (int i = 0; i < 200; i++) {
        const char *question = i % 3 ? "Hi" : "Hello, what is new?";
        const struct chat_message asked = message("user", question);
        struct jinja_text text = rendered(qwen3, c, &asked);
        char *expected;

        ck_assert_int_gt(asprintf(&expected, "%.*s%s", (int)text.len, text.data, said), 0);
        turn(qwen3, c, question, said, "hm", "hello");
        ck_spells(&c->transcript, c->transcript.ids.n, expected);
        free(expected);
        jinja_text_deinit(&text);
        random = random * 1103515245 + 12345;
        if (random >> 16 & 1)
            conversation_rewind(c, (random >> 17) % (c->n_turns + 1));
    }
    conversation_free(c);
}

TEST(bytes_count_what_is_held)
{
    struct conversation *c = conversation(NULL);
    const size_t empty = conversation_bytes(c);
    struct conversation *fork;
    size_t one;

    turn(tiny, c, "Hi", "hello<|im_end|>", NULL, "hello");
    one = conversation_bytes(c);
    ck_assert_uint_gt(one, empty + strlen("Hihello"));
    turn(tiny, c, "Hi", "hello<|im_end|>", NULL, "hello");
    ck_assert_uint_gt(conversation_bytes(c), one);
    ck_assert_uint_eq(conversation_fork_bytes(c, 2), conversation_bytes(c));
    for (size_t n = 0; n < 2; n++) {
        ck_assert_uint_ge(conversation_fork_bytes(c, n), n ? one : empty);
        ck_assert_uint_lt(conversation_fork_bytes(c, n), conversation_fork_bytes(c, n + 1));
        ck_assert_int_eq(conversation_fork(&fork, c, n), 0);
        ck_assert_uint_eq(conversation_bytes(fork), n ? one : empty);
        conversation_free(fork);
    }
    conversation_rewind(c, 1);
    ck_assert_uint_eq(conversation_bytes(c), one);
    conversation_rewind(c, 0);
    ck_assert_uint_eq(conversation_bytes(c), empty);
    conversation_free(c);
}

RUN_TESTS("conversation", set_up, tear_down)
