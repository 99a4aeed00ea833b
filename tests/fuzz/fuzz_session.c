/* fuzz_session.c - the file of a session, behind its checksum: a disk may be handed to a daemon.
 *
 * An input is the message in the file. What is taken must be a conversation that can go on: forked,
 * rewound to any turn and written again, from which the same is read. */
#include <errno.h>
#include <string.h>

#include "daemon/chat_session_file.h"
#include "tests/fuzz/fuzz.h"

enum { HEAD = 32, VOCAB = 2048 };

static const XXH128_hash_t model = {.low64 = 1, .high64 = 2};
static struct options options; /* as where nobody says otherwise */
static const struct request_rules rules = {.options = &options,
                                           .vocab_size = FUZZ_PLANT ? INT32_MAX : VOCAB};
static struct accounts accounts;

static void load_once(void)
{
    static bool loaded;
    struct err e = {""};

    if (!loaded)
        FUZZ_CHECK(options_init(&options, &e) == 0);
    loaded = true;
}

static void check_transcript(const struct transcript *t)
{
    size_t n = 0;

    for (size_t i = 0; i < t->n_pieces; i++) {
        FUZZ_CHECK(t->pieces[i].n_ids > 0);
        n += t->pieces[i].n_ids;
    }
    FUZZ_CHECK(n == t->ids.n);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK(t->ids.ids[i] >= 0 && t->ids.ids[i] < VOCAB);
}

static void check_conversation(const struct conversation *c)
{
    size_t messages = 0, tokens = 0;

    check_transcript(&c->transcript);
    for (size_t i = 0; i <= c->n_turns; i++) {
        FUZZ_CHECK(c->turns[i].n_messages >= messages && c->turns[i].n_ids >= tokens);
        messages = c->turns[i].n_messages;
        tokens = c->turns[i].n_ids;
    }
    FUZZ_CHECK(messages == c->chat.n_messages && tokens >= c->transcript.ids.n);
    FUZZ_CHECK(conversation_bytes(c) >= sizeof(*c) + c->transcript.ids.n * sizeof(int32_t));
}

/* Forks it at each turn, and rewinds it turn by turn. */
static void check_turns(struct conversation *c)
{
    struct conversation *fork;

    for (size_t turns = c->n_turns + 1; turns-- > 0;) {
        FUZZ_CHECK(conversation_fork(&fork, c, turns) == 0);
        check_conversation(fork);
        conversation_rewind(c, turns);
        check_conversation(c);
        FUZZ_CHECK(fork->chat.n_messages == c->chat.n_messages);
        FUZZ_CHECK(fork->transcript.ids.n == c->transcript.ids.n);
        conversation_free(fork);
    }
}

/* What is written is read as it was, and written again as the same bytes. */
static void check_file(const struct chat_session_record *r)
{
    struct chat_session_record again;
    struct chat_session *c;
    uint8_t *first, *second;
    size_t n_first, n_second;
    struct err e;

    FUZZ_CHECK(chat_session_name_valid(r->name));
    FUZZ_CHECK(chat_session_new(&c, &accounts, r->uid, r->name, r->talk, r->used_us) == 0);
    c->created_us = r->created_us;
    FUZZ_CHECK(chat_session_pack(&first, &n_first, c, model) == 0);
    check_turns(c->talk);
    chat_session_free(c);
    FUZZ_CHECK(chat_session_unpack(&again, first, n_first, model, &rules, &e) == 0);
    FUZZ_CHECK(strcmp(again.name, r->name) == 0 && again.uid == r->uid);
    FUZZ_CHECK(chat_session_new(&c, &accounts, again.uid, again.name, again.talk, again.used_us) ==
               0);
    c->created_us = again.created_us;
    FUZZ_CHECK(chat_session_pack(&second, &n_second, c, model) == 0);
    FUZZ_CHECK(n_first == n_second && memcmp(first, second, n_first) == 0);
    chat_session_free(c);
    free(first);
    free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct chat_session_record record;
    uint8_t *file = malloc(HEAD + size);
    XXH128_canonical_t sum;
    struct err e = {""};
    int r;

    load_once();
    FUZZ_CHECK(file);
    memcpy(file, "nvllm session 1", 16);
    XXH128_canonicalFromHash(&sum, XXH3_128bits(data, size));
    memcpy(file + 16, &sum, sizeof(sum));
    if (size)
        memcpy(file + HEAD, data, size);
    r = chat_session_unpack(&record, file, HEAD + size, model, &rules, &e);
    FUZZ_CHECK(r == 0 || (r == -EBADMSG && *e.text));
    if (r == 0) {
        check_conversation(record.talk);
        check_file(&record);
    }
    free(file);
    return 0;
}
