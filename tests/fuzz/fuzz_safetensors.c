/* fuzz_safetensors.c - the header of a safetensors file, as a stranger may have written it.
 *
 * An input is four bytes, little-endian, of how much data follows the header, then the file's
 * beginning: eight bytes of length and the header. What passes must be true of the file. */
#include <string.h>

#include "engine/model/safetensors.h"
#include "tests/fuzz/fuzz.h"

enum {
    DATA_BYTES = 4, /* of the input */
    FRONT_BYTES = DATA_BYTES + SAFETENSORS_LENGTH_BYTES,
};

static uint64_t little_endian(const uint8_t *p, size_t n)
{
    uint64_t v = 0;

    while (n--)
        v = v << 8 | p[n];
    return v;
}

/* Bits of an element, as the format's page lists them; 0 for what is not on it. */
static uint64_t bits_of(const char *dtype)
{
    static const struct {
        const char *name;
        uint64_t bits;
    } all[] = {{"F64", 64},    {"I64", 64}, {"U64", 64},  {"C64", 64}, {"F32", 32}, {"I32", 32},
               {"U32", 32},    {"F16", 16}, {"BF16", 16}, {"I16", 16}, {"U16", 16}, {"F8_E4M3", 8},
               {"F8_E5M2", 8}, {"I8", 8},   {"U8", 8},    {"BOOL", 8}};

    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (strcmp(all[i].name, dtype) == 0)
            return all[i].bits;
    return 0;
}

static void check_entry(const struct tensor *t, uint64_t data_start, uint64_t file_bytes)
{
    uint64_t elements = 1, bits = bits_of(t->type);

    FUZZ_CHECK(t->offset >= data_start && t->offset <= file_bytes);
    FUZZ_CHECK(t->bytes <= file_bytes - t->offset);
    FUZZ_CHECK(t->rank >= 0);
    for (int32_t i = 0; i < t->rank && i < MODEL_MAX_RANK; i++) {
        FUZZ_CHECK(t->shape[i] >= 0);
        FUZZ_CHECK(!__builtin_mul_overflow(elements, (uint64_t)t->shape[i], &elements));
    }
    if (t->rank <= MODEL_MAX_RANK && bits)
        FUZZ_CHECK(!__builtin_mul_overflow(elements, bits / 8, &elements) && elements == t->bytes);
}

static void check_all(const struct safetensors *s, uint64_t data_start, uint64_t file_bytes)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < s->n; i++) {
        const struct tensor *t = &s->tensors[i];

        check_entry(t, data_start, file_bytes);
        sum += t->bytes;
        FUZZ_CHECK(i == 0 || strcmp(s->tensors[i - 1].name, t->name) < 0);
        FUZZ_CHECK(safetensors_find(s, t->name) == t);
        for (size_t k = 0; k < i && s->n < 200; k++) {
            const struct tensor *o = &s->tensors[k];

            FUZZ_CHECK(t->offset + t->bytes <= o->offset || o->offset + o->bytes <= t->offset);
        }
    }
    FUZZ_CHECK(sum == file_bytes - data_start); /* no holes */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors s;
    struct err e = {""};
    uint64_t file_bytes, told;
    size_t header;

    if (size < FRONT_BYTES)
        return 0;
    file_bytes = size - DATA_BYTES + little_endian(data, DATA_BYTES);
    told = file_bytes + (FUZZ_PLANT ? 8 : 0); /* as if the end of the file were not looked at */
    if (safetensors_header_bytes(&header, "f", data + DATA_BYTES, file_bytes, &e) < 0) {
        FUZZ_CHECK(*e.text);
        return 0;
    }
    FUZZ_CHECK(header <= file_bytes - SAFETENSORS_LENGTH_BYTES);
    if (header > size - FRONT_BYTES)
        return 0; /* the rest of the header would be in the data that is not here */
    if (safetensors_parse(&s, "f", (const char *)data + FRONT_BYTES, header, told, &e) < 0) {
        FUZZ_CHECK(*e.text);
        return 0;
    }
    check_all(&s, SAFETENSORS_LENGTH_BYTES + header, file_bytes);
    safetensors_deinit(&s);
    return 0;
}

/* A header that was changed is given its length; now and then a wrong one. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    if (size < FRONT_BYTES || seed % 8 == 0)
        return LLVMFuzzerMutate(data, size, max_size);
    size = FRONT_BYTES +
           json_mutate(data + FRONT_BYTES, size - FRONT_BYTES, max_size - FRONT_BYTES, seed / 8);
    for (uint64_t i = 0, n = size - FRONT_BYTES; i < SAFETENSORS_LENGTH_BYTES; i++, n >>= 8)
        data[DATA_BYTES + i] = (uint8_t)n;
    return size;
}
