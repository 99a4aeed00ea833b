/* test_request.c - every field of a request: absent, at its bounds, beyond them, and no number. */
#include "daemon/request.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/text_stream.h"
#include "tests/unit/field_path.h"
#include "tests/unit/run_suite.h"

static const struct model_defaults defaults = {
    .temperature = 0.6f,
    .top_k = 20,
    .top_p = 0.95f,
    .min_p = 0.01f,
    .repetition_penalty = 1.1f,
    .n_eos = 1,
    .eos = {3},
};
static struct options options;
static const struct request_rules rules = {.options = &options,
                                           .defaults = &defaults,
                                           .vocab_size = 2048,
                                           .max_seq_len = 1000};

static struct unpacked *u;
static Nvllm__V1__Generate g;
static Nvllm__V1__Sampling s;
static struct engine_request r;
static bool admin;
static struct refusal e;

/* A good request, to be spoilt by a test. */
static void setup(void)
{
    ck_assert_int_eq(options_init(&options, NULL), 0);
    ck_assert_int_eq(unpack(&u, &nvllm__v1__generate__descriptor, NULL, 0), UNPACK_OK);
    nvllm__v1__generate__init(&g);
    nvllm__v1__sampling__init(&s);
    g.input_case = NVLLM__V1__GENERATE__INPUT_PROMPT;
    g.prompt = (ProtobufCBinaryData){5, (uint8_t *)"hello"};
    g.sampling = &s;
    admin = false;
    memset(&e, 0, sizeof(e));
}

static void teardown(void)
{
    unpacked_free(u);
    options_deinit(&options);
}

static int start(const Nvllm__V1__ClientFrame *f)
{
    return request_start(&r, f, u, &rules, &(struct request_origin){7, admin, 5000}, &e);
}

static int build(void)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;

    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_GENERATE;
    f.generate = &g;
    return start(&f);
}

static void ck_refused(const char *field)
{
    ck_assert_int_eq(build(), -EINVAL);
    ck_assert_str_eq(e.field, field);
    ck_assert(is_field_path(&nvllm__v1__generate__descriptor, e.field));
    ck_assert_int_eq(e.code, NVLLM__V1__ERROR_CODE__ERROR_INVALID);
    ck_assert_msg(strncmp(e.message.text, field, strlen(field)) == 0, "%s", e.message.text);
}

/* Absent fields are the model's defaults, the neutral ones where it has none. */
TEST(absent_fields_are_defaults)
{
    for (int round = 0; round < 2; round++) {
        ck_assert_int_eq(build(), 0);
        ck_assert_float_eq(r.sampling.temperature, 0.6f);
        ck_assert_int_eq(r.sampling.top_k, 20);
        ck_assert_float_eq(r.sampling.top_p, 0.95f);
        ck_assert_float_eq(r.sampling.min_p, 0.01f);
        ck_assert_float_eq(r.sampling.repetition_penalty, 1.1f);
        ck_assert_float_eq(r.sampling.presence_penalty, 0);
        ck_assert_int_eq(r.sampling.n_logprobs, -1);
        ck_assert_int_eq(r.sampling.n_stop_ids, 0);
        ck_assert_int_eq(r.max_tokens, 0);
        ck_assert_int_eq(r.n, 1);
        ck_assert_int_eq(r.priority, CORE_NORMAL);
        ck_assert_uint_eq(r.deadline_us, 0);
        ck_assert(!r.stream && !r.keep_special && !r.ignore_eos);
        ck_assert_int_eq(r.input, ENGINE_PROMPT);
        ck_assert_uint_eq(r.prompt.len, 5);
        g.sampling = NULL; /* and again without any */
    }
}

/* A seed that is absent is another each time; one that is there is taken. */
TEST(seed_is_drawn_or_taken)
{
    uint64_t first;

    ck_assert_int_eq(build(), 0);
    first = r.sampling.seed;
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_ne(first, r.sampling.seed);
    s.has_seed = true;
    s.seed = 7;
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_eq(r.sampling.seed, 7);
}

struct float_field {
    const char *name;
    protobuf_c_boolean *has;
    float *value;
    const float *result;
    float good[4], bad[6];
    int n_good, n_bad;
};

#define FLOAT(field) "sampling." #field, &s.has_##field, &s.field, &r.sampling.field

/* Each real number: both bounds, beyond them, NaN and infinity. */
TEST(reals_keep_their_range)
{
    const float tiny = 1e-30f, eps = 1e-6f;
    const struct float_field fields[] = {
        {FLOAT(temperature), {0, 0.7f, 100}, {-eps, NAN, INFINITY, -INFINITY}, 3, 4},
        {FLOAT(top_p), {tiny, 0.5f, 1}, {0, -0.5f, 1 + eps, 7, NAN, INFINITY}, 3, 6},
        {FLOAT(min_p), {0, 0.5f, 1}, {-eps, 1 + eps, NAN, INFINITY}, 3, 4},
        {FLOAT(repetition_penalty), {tiny, 1, 5}, {0, -1, NAN, INFINITY}, 3, 4},
        {FLOAT(presence_penalty), {-2, 0, 2}, {-2.001f, 2.001f, NAN, INFINITY}, 3, 4},
        {FLOAT(frequency_penalty), {-2, 0, 2}, {-2.001f, 2.001f, NAN, -INFINITY}, 3, 4},
    };

    for (size_t i = 0; i < N(fields); i++) {
        const struct float_field *f = &fields[i];

        *f->has = true;
        for (int k = 0; k < f->n_good; k++) {
            *f->value = f->good[k];
            ck_assert_msg(build() == 0, "%s", e.message.text);
            ck_assert_float_eq(*f->result, f->good[k]);
        }
        for (int k = 0; k < f->n_bad; k++) {
            *f->value = f->bad[k];
            ck_refused(f->name);
        }
        *f->has = false;
    }
}

struct uint_field {
    const char *name;
    protobuf_c_boolean *has;
    uint32_t *value;
    const int32_t *result;
    uint32_t good[2], bad[3];
    int n_bad;
};

/* Each whole number: both bounds and beyond. */
TEST(whole_numbers_keep_their_range)
{
    const struct uint_field fields[] = {
        {FLOAT(top_k), {0, INT32_MAX}, {0x80000000u, UINT32_MAX}, 2},
        {FLOAT(min_tokens), {0, 1000}, {1001, UINT32_MAX}, 2},
        {"sampling.logprobs",
         &s.has_logprobs,
         &s.logprobs,
         &r.sampling.n_logprobs,
         {0, SAMPLING_MAX_LOGPROBS},
         {SAMPLING_MAX_LOGPROBS + 1, UINT32_MAX},
         2},
        {"n",
         &g.has_n,
         &g.n,
         &r.n,
         {1, OPTIONS_MAX_CHOICES},
         {0, OPTIONS_MAX_CHOICES + 1, UINT32_MAX},
         3},
        {"max_tokens", &g.has_max_tokens, &g.max_tokens, &r.max_tokens, {1, 1000}, {0}, 1},
    };

    for (size_t i = 0; i < N(fields); i++) {
        const struct uint_field *f = &fields[i];

        *f->has = true;
        for (int k = 0; k < 2; k++) {
            *f->value = f->good[k];
            ck_assert_msg(build() == 0, "%s", e.message.text);
            ck_assert_int_eq(*f->result, (int32_t)f->good[k]);
        }
        for (int k = 0; k < f->n_bad; k++) {
            *f->value = f->bad[k];
            ck_refused(f->name);
        }
        *f->has = false;
    }
}

/* More tokens than the longest sequence has are too long, not invalid. */
TEST(what_never_fits_is_too_long)
{
    Nvllm__V1__TokenIds ids = NVLLM__V1__TOKEN_IDS__INIT;
    static int32_t many[1000];

    g.has_max_tokens = true;
    g.max_tokens = 1001;
    ck_assert_int_eq(build(), -EINVAL);
    ck_assert_int_eq(e.code, NVLLM__V1__ERROR_CODE__ERROR_TOO_LONG);
    ck_assert_str_eq(e.field, "max_tokens");
    g.max_tokens = 10;
    g.input_case = NVLLM__V1__GENERATE__INPUT_PROMPT_IDS;
    g.prompt_ids = &ids;
    ids.ids = many;
    ids.n_ids = 1000;
    ck_assert_int_eq(build(), -EINVAL);
    ck_assert_int_eq(e.code, NVLLM__V1__ERROR_CODE__ERROR_TOO_LONG);
    ids.n_ids = 999;
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_eq(r.n_prompt_ids, 999);
}

/* min_tokens may reach max_tokens and not exceed it. */
TEST(min_tokens_stays_below_max_tokens)
{
    g.has_max_tokens = s.has_min_tokens = true;
    g.max_tokens = s.min_tokens = 5;
    ck_assert_int_eq(build(), 0);
    s.min_tokens = 6;
    ck_refused("sampling.min_tokens");
}

/* Biases: id and value must be there and in range, and not be too many. */
TEST(logit_bias_is_checked)
{
    static Nvllm__V1__LogitBias all[SAMPLING_MAX_BIAS + 1];
    static Nvllm__V1__LogitBias *pointers[SAMPLING_MAX_BIAS + 1];

    for (int i = 0; i <= SAMPLING_MAX_BIAS; i++) {
        nvllm__v1__logit_bias__init(&all[i]);
        all[i].has_id = all[i].has_bias = true;
        all[i].id = i;
        all[i].bias = i % 2 ? -100 : 100;
        pointers[i] = &all[i];
    }
    s.logit_bias = pointers;
    s.n_logit_bias = SAMPLING_MAX_BIAS;
    ck_assert_int_eq(build(), 0);
    ck_assert_int_eq(r.sampling.n_bias, SAMPLING_MAX_BIAS);
    ck_assert_int_eq(r.sampling.bias[7].id, 7);
    ck_assert_float_eq(r.sampling.bias[7].bias, -100);
    s.n_logit_bias++;
    ck_refused("sampling.logit_bias");
    s.n_logit_bias = 4;
    all[3].bias = NAN;
    ck_refused("sampling.logit_bias[3].bias");
    all[3].bias = 100.5f;
    ck_refused("sampling.logit_bias[3].bias");
    all[3].bias = 1;
    all[3].id = 2048;
    ck_refused("sampling.logit_bias[3].id");
    all[3].id = -1;
    ck_refused("sampling.logit_bias[3].id");
    all[3].id = 2047;
    ck_assert_int_eq(build(), 0);
    all[3].has_id = false;
    ck_refused("sampling.logit_bias[3].id");
    all[3].has_id = true;
    all[3].has_bias = false;
    ck_refused("sampling.logit_bias[3].bias");
}

/* Stop ids are the vocabulary's, and not too many. */
TEST(stop_ids_are_checked)
{
    int32_t ids[SAMPLING_MAX_REQUEST_STOP_IDS + 1] = {0, 2047};

    s.stop_token_ids = ids;
    s.n_stop_token_ids = SAMPLING_MAX_REQUEST_STOP_IDS;
    ck_assert_int_eq(build(), 0);
    s.n_stop_token_ids++;
    ck_refused("sampling.stop_token_ids");
    s.n_stop_token_ids = 2;
    ids[1] = 2048;
    ck_refused("sampling.stop_token_ids[1]");
    ids[1] = -1;
    ck_refused("sampling.stop_token_ids[1]");
}

/* Stop strings are UTF-8, of some length, and not too many. */
TEST(stop_strings_are_checked)
{
    static uint8_t text[TEXT_STREAM_MAX_STOP_BYTES + 1];
    ProtobufCBinaryData stops[ENGINE_MAX_STOPS + 1];

    memset(text, 'a', sizeof(text));
    for (int i = 0; i <= ENGINE_MAX_STOPS; i++)
        stops[i] = (ProtobufCBinaryData){TEXT_STREAM_MAX_STOP_BYTES, text};
    g.stop = stops;
    g.n_stop = ENGINE_MAX_STOPS;
    ck_assert_int_eq(build(), 0);
    ck_assert_int_eq(r.n_stops, ENGINE_MAX_STOPS);
    g.n_stop++;
    ck_refused("stop");
    g.n_stop = 2;
    stops[1].len = TEXT_STREAM_MAX_STOP_BYTES + 1;
    ck_refused("stop[1]");
    stops[1].len = 0;
    ck_refused("stop[1]");
    stops[1] = (ProtobufCBinaryData){1, (uint8_t *)"\xff"};
    ck_refused("stop[1]");
}

/* One kind of prompt must be there, and not be empty or broken. */
TEST(prompts_are_checked)
{
    Nvllm__V1__TokenIds ids = NVLLM__V1__TOKEN_IDS__INIT;
    int32_t two[2] = {5, 2048};

    g.prompt.len = 0;
    ck_refused("prompt");
    g.prompt = (ProtobufCBinaryData){3, (uint8_t *)"ab\xc3"};
    ck_refused("prompt");
    g.prompt = (ProtobufCBinaryData){3, (uint8_t *)"a\0b"};
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_eq(r.prompt.len, 3);
    g.input_case = NVLLM__V1__GENERATE__INPUT__NOT_SET;
    ck_refused("input");
    g.input_case = NVLLM__V1__GENERATE__INPUT_PROMPT_IDS;
    g.prompt_ids = &ids;
    ck_refused("prompt_ids");
    ids.ids = two;
    ids.n_ids = 2;
    ck_refused("prompt_ids.ids[1]");
    two[1] = INT32_MIN;
    ck_refused("prompt_ids.ids[1]");
    two[1] = 2047;
    ck_assert_int_eq(build(), 0);
}

/* Priorities, deadline and salt. */
TEST(the_rest_is_taken)
{
    static uint8_t salt[256 + 1];

    g.has_priority = g.has_deadline_ms = g.has_stream = g.has_keep_special = true;
    g.stream = g.keep_special = true;
    admin = true;
    g.priority = NVLLM__V1__PRIORITY__PRIORITY_HIGH;
    g.deadline_ms = UINT32_MAX;
    g.has_cache_salt = true;
    g.cache_salt = (ProtobufCBinaryData){256, salt};
    s.has_ignore_eos = s.ignore_eos = true;
    ck_assert_int_eq(build(), 0);
    ck_assert_int_eq(r.priority, CORE_HIGH);
    ck_assert_uint_eq(r.deadline_us, 5000 + UINT64_C(1000) * UINT32_MAX);
    ck_assert_uint_eq(r.cache_salt.len, 256);
    ck_assert(r.stream && r.keep_special && r.ignore_eos);
    g.deadline_ms = 0;
    g.priority = NVLLM__V1__PRIORITY__PRIORITY_LOW;
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_eq(r.deadline_us, 0);
    ck_assert_int_eq(r.priority, CORE_LOW);
    g.cache_salt.len++;
    ck_refused("cache_salt");
    g.cache_salt.len = 0;
    g.priority = (Nvllm__V1__Priority)77;
    ck_refused("priority");
}

/* High is for admins; what is not above others is everybody's. */
TEST(high_priority_is_for_admins)
{
    g.has_priority = true;
    g.priority = NVLLM__V1__PRIORITY__PRIORITY_HIGH;
    ck_assert_int_eq(build(), -EINVAL);
    ck_assert_str_eq(e.field, "priority");
    ck_assert_int_eq(e.code, NVLLM__V1__ERROR_CODE__ERROR_DENIED);
    g.priority = NVLLM__V1__PRIORITY__PRIORITY_NORMAL;
    ck_assert_int_eq(build(), 0);
    g.priority = NVLLM__V1__PRIORITY__PRIORITY_LOW;
    ck_assert_int_eq(build(), 0);
}

/* Embed requests share most with generate; their ids may fill the longest sequence. */
TEST(embeds_are_checked)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Embed m;
    Nvllm__V1__TokenIds ids = NVLLM__V1__TOKEN_IDS__INIT;
    int32_t one[1001] = {0};

    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_EMBED;
    f.embed = &m;
    nvllm__v1__embed__init(&m);
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_str_eq(e.field, "input");
    m.input_case = NVLLM__V1__EMBED__INPUT_PROMPT;
    m.prompt = g.prompt;
    ck_assert_int_eq(start(&f), 0);
    ck_assert(r.kind == ENGINE_EMBED && r.prompt.len == 5 && !r.prompt_name && r.dimensions == 0);
    ck_assert(r.priority == CORE_NORMAL && r.deadline_us == 0);
    m.prompt_name = (char *)"query";
    m.has_dimensions = m.has_deadline_ms = m.has_priority = true;
    m.dimensions = 64;
    m.deadline_ms = 3;
    m.priority = NVLLM__V1__PRIORITY__PRIORITY_LOW;
    ck_assert_int_eq(start(&f), 0);
    ck_assert_str_eq(r.prompt_name, "query");
    ck_assert(r.dimensions == 64 && r.deadline_us == 8000 && r.priority == CORE_LOW);
    m.priority = NVLLM__V1__PRIORITY__PRIORITY_HIGH;
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_int_eq(e.code, NVLLM__V1__ERROR_CODE__ERROR_DENIED);
    m.priority = NVLLM__V1__PRIORITY__PRIORITY_NORMAL;
    m.dimensions = 0;
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_str_eq(e.field, "dimensions");
    m.dimensions = 1;
    m.input_case = NVLLM__V1__EMBED__INPUT_PROMPT_IDS;
    m.prompt_ids = &ids;
    ids.ids = one;
    ids.n_ids = 1;
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_str_eq(e.field, "prompt_name");
    m.prompt_name = NULL;
    ids.n_ids = 1000; /* a generate request of as many has no room for an answer */
    ck_assert_int_eq(start(&f), 0);
    ids.n_ids = 1001;
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_int_eq(e.code, NVLLM__V1__ERROR_CODE__ERROR_TOO_LONG);
    ck_assert_str_eq(e.field, "prompt_ids");
}

/* A chat keeps what is absent apart from what is empty, and names what is broken. */
TEST(chats_are_checked)
{
    Nvllm__V1__Chat chat = NVLLM__V1__CHAT__INIT;
    Nvllm__V1__Message m[2] = {NVLLM__V1__MESSAGE__INIT, NVLLM__V1__MESSAGE__INIT};
    Nvllm__V1__Message *mp[2] = {&m[0], &m[1]};
    Nvllm__V1__ToolCall call = NVLLM__V1__TOOL_CALL__INIT, *calls[1] = {&call};
    ProtobufCBinaryData tool = {2, (uint8_t *)"{}"}, document = {1, (uint8_t *)"\x80"};

    g.input_case = NVLLM__V1__GENERATE__INPUT_CHAT;
    g.chat = &chat;
    ck_refused("chat.messages");
    chat.messages = mp;
    chat.n_messages = 2;
    chat.tools = &tool;
    chat.n_tools = 1;
    m[0].role = m[1].role = (char *)"user";
    m[0].has_content = true;
    ck_assert_int_eq(build(), 0);
    ck_assert_int_eq(r.input, ENGINE_CHAT);
    ck_assert_uint_eq(r.chat->n_messages, 2);
    ck_assert(r.chat->messages[0].has_content && !r.chat->messages[1].has_content);
    ck_assert(r.chat->add_generation_prompt);
    ck_assert_int_eq(r.chat->thinking, CHAT_THINKING_UNSET);
    chat.has_enable_thinking = chat.has_add_generation_prompt = true;
    ck_assert_int_eq(build(), 0);
    ck_assert(!r.chat->add_generation_prompt);
    ck_assert_int_eq(r.chat->thinking, CHAT_THINKING_OFF);
    m[1].tool_calls = calls;
    m[1].n_tool_calls = 1;
    ck_refused("chat.messages[1].tool_calls[0].name");
    call.has_name = call.has_arguments = true;
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_eq(r.chat->messages[1].n_tool_calls, 1);
    m[1].role = NULL;
    ck_refused("chat.messages[1].role");
    m[1].role = (char *)"\xff";
    ck_refused("chat.messages[1].role");
    m[1].role = (char *)"user";
    m[0].content = (ProtobufCBinaryData){1, (uint8_t *)"\x80"};
    ck_refused("chat.messages[0].content");
    m[0].content.len = 0;
    tool = (ProtobufCBinaryData){1, (uint8_t *)"\x80"};
    ck_refused("chat.tools[0]");
    tool.len = 0;
    chat.documents = &document;
    chat.n_documents = 1;
    ck_refused("chat.documents[0]");
    document.len = 0;
    call.id = m[1].name = m[1].tool_call_id = chat.chat_template_kwargs =
        (ProtobufCBinaryData){2, (uint8_t *)"{}"};
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_eq(r.chat->n_documents, 1);
    ck_assert_uint_eq(r.chat->kwargs.len, 2);
    ck_assert_uint_eq(r.chat->messages[1].tool_call_id.len, 2);
    ck_assert_uint_eq(r.chat->messages[1].tool_calls[0].id.len, 2);
    m[1].name.data = (uint8_t *)"\x80{";
    ck_refused("chat.messages[1].name");
    m[1].name.len = 0;
    chat.chat_template_kwargs.data = (uint8_t *)"\x80{";
    ck_refused("chat.chat_template_kwargs");
}

/* Which calls an answer may have: of tools that there are. */
TEST(tool_choices_are_checked)
{
    Nvllm__V1__Chat chat = NVLLM__V1__CHAT__INIT;
    Nvllm__V1__Message m = NVLLM__V1__MESSAGE__INIT, *mp = &m;
    ProtobufCBinaryData tool = {2, (uint8_t *)"{}"};

    g.input_case = NVLLM__V1__GENERATE__INPUT_CHAT;
    g.chat = &chat;
    m.role = (char *)"user";
    chat.messages = &mp;
    chat.tools = &tool;
    chat.n_messages = chat.n_tools = 1;
    ck_assert_int_eq(build(), 0);
    ck_assert(!r.chat->must_call && !r.chat->one_call);
    chat.has_tool_choice = chat.has_parallel_tool_calls = true;
    chat.tool_choice = NVLLM__V1__TOOL_CHOICE__TOOL_CHOICE_REQUIRED;
    ck_assert_int_eq(build(), 0);
    ck_assert(r.chat->must_call && r.chat->one_call);
    chat.has_called_tool = true;
    ck_refused("chat.called_tool");
    chat.called_tool = (ProtobufCBinaryData){1, (uint8_t *)"\x80"};
    ck_refused("chat.called_tool");
    chat.called_tool.data = (uint8_t *)"f";
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_eq(r.chat->called_tool.len, 1);
    chat.tool_choice = NVLLM__V1__TOOL_CHOICE__TOOL_CHOICE_AUTO;
    ck_refused("chat.called_tool");
    chat.has_called_tool = false;
    chat.called_tool.len = 0;
    chat.tool_choice = NVLLM__V1__TOOL_CHOICE__TOOL_CHOICE_NONE;
    ck_assert_int_eq(build(), 0);
    ck_assert_uint_eq(r.chat->n_tools, 0);
    chat.tool_choice = (Nvllm__V1__ToolChoice)3;
    ck_refused("chat.tool_choice");
    chat.tool_choice = NVLLM__V1__TOOL_CHOICE__TOOL_CHOICE_REQUIRED;
    chat.n_tools = 0;
    ck_refused("chat.tool_choice");
}

/* Texts and ids of the tokenizer's operations. */
TEST(tokenizer_operations_are_checked)
{
    Nvllm__V1__Tokenize t = NVLLM__V1__TOKENIZE__INIT;
    Nvllm__V1__Detokenize d = NVLLM__V1__DETOKENIZE__INIT;
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    int32_t ids[2] = {0, rules.vocab_size - 1};

    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE;
    f.tokenize = &t;
    ck_assert_int_eq(start(&f), 0);
    ck_assert_uint_eq(r.prompt.len, 0);
    t.has_text = true;
    t.text = (ProtobufCBinaryData){2, (uint8_t *)"a\xe2"};
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_str_eq(e.field, "text");
    t.text = (ProtobufCBinaryData){6, (uint8_t *)"abcdef"};
    options.max_tokenize_bytes = 6;
    ck_assert_int_eq(start(&f), 0);
    options.max_tokenize_bytes = 5;
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_int_eq(e.code, NVLLM__V1__ERROR_CODE__ERROR_TOO_LONG);
    ck_assert_str_eq(e.limit, "limits.tokenize_bytes");
    ck_assert_str_eq(e.field, "text");
    options.max_tokenize_bytes = 6;
    options.max_prompt_bytes = 5; /* holds for every text */
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_str_eq(e.limit, "limits.prompt_bytes");
    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE;
    f.detokenize = &d;
    d.ids = ids;
    d.n_ids = 2;
    ck_assert_int_eq(start(&f), 0);
    ids[1] = -1;
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_str_eq(e.field, "ids[1]");
    ids[1] = rules.vocab_size;
    ck_assert_int_eq(start(&f), -EINVAL);
}

/* Frames of each kind become requests of that kind, with what their input counts for. */
TEST(frames_become_requests)
{
    Nvllm__V1__ClientFrame f = NVLLM__V1__CLIENT_FRAME__INIT;
    Nvllm__V1__Tokenize t = NVLLM__V1__TOKENIZE__INIT;
    Nvllm__V1__Detokenize d = NVLLM__V1__DETOKENIZE__INIT;
    Nvllm__V1__Render m = NVLLM__V1__RENDER__INIT;
    int32_t ids[3] = {1, 2, 3};

    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_GENERATE;
    f.generate = &g;
    ck_assert_int_eq(start(&f), 0);
    ck_assert_int_eq(r.kind, ENGINE_GENERATE);
    ck_assert_uint_eq(request_tokens(&r), 2);
    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_TOKENIZE;
    f.tokenize = &t;
    t.has_text = t.has_special = t.special = true;
    t.text = (ProtobufCBinaryData){8, (uint8_t *)"eight by"};
    ck_assert_int_eq(start(&f), 0);
    ck_assert(r.kind == ENGINE_TOKENIZE && r.input == ENGINE_PROMPT && r.special);
    ck_assert_uint_eq(request_tokens(&r), 3);
    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_DETOKENIZE;
    f.detokenize = &d;
    d.ids = ids;
    d.n_ids = 3;
    ck_assert_int_eq(start(&f), 0);
    ck_assert(r.kind == ENGINE_DETOKENIZE && r.input == ENGINE_PROMPT_IDS && !r.special);
    ck_assert_uint_eq(request_tokens(&r), 3);
    f.op_case = NVLLM__V1__CLIENT_FRAME__OP_RENDER;
    f.render = &m;
    ck_assert_int_eq(start(&f), -EINVAL);
    ck_assert_str_eq(e.field, "chat");
}

RUN_TESTS("request", setup, teardown)
