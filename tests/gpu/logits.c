/* logits.c - writes the CUDA backend's raw logits of the last token of each prompt, for
 * compare_logits.py.
 *
 *   logits MODEL_FOLDER PROMPTS OUTPUT [TOKENS [RANKS [TYPE [KV]]]]
 *
 * PROMPTS: int32 numbers: for each prompt its length, then its ids. OUTPUT: vocab_size float32 for
 * each, of the row that the last of TOKENS (1) is sampled from. RANKS (1): on as many devices as
 * there are. TYPE, "fp8" or "int4": the model is quantized as it is loaded. KV, "fp8": so are keys
 * and values. */
#include "cuda/ranks.h"
#include "tests/gpu/drive.h"
#include "tests/gpu/gpu_rig.h"

extern const struct backend_ops nvllm_backend;

enum { MAX_TOKENS = 64 };

static int n_tokens = 1;

static void write_prompt(struct backend *b, const struct backend_options *o, const int32_t *ids,
                         int32_t n, int vocab, FILE *out)
{
    int32_t sampled[MAX_TOKENS];
    struct drive_seq s = {.prompt = ids,
                          .n_prompt = n,
                          .max_tokens = n_tokens,
                          .end_id = -1,
                          .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f},
                          .out = sampled};
    const size_t bytes = (size_t)vocab * sizeof(float);
    const int each = cuda_backend_rank(b)->forward.sampler.ids_per_rank;
    float *logits = malloc(bytes);
    struct drive_times times;
    struct err e;

    err_must(drive(&(struct driver){.ops = &nvllm_backend, .backend = b, .options = o}, &s, 1,
                   &times, &e),
             &e);
    for (int first = 0; first < vocab; first += each)
        cuda_must(cudaMemcpy(logits + first,
                             ranks_at(cuda_backend_ranks(b), first / each)->forward.logits,
                             (size_t)(each < vocab - first ? each : vocab - first) * sizeof(float),
                             cudaMemcpyDeviceToHost));
    if (fwrite(logits, 1, bytes, out) != bytes) {
        perror("writing");
        exit(1);
    }
    free(logits);
}

int main(int argc, char **argv)
{
    struct backend_options o = {.block_len = 16,
                                .max_batch_tokens = 1500,
                                .max_seqs = 8,
                                .tier_bytes = {4ull << 30}};
    struct backend *b;
    struct model *model;
    FILE *in, *out;
    int32_t n;
    struct err e;

    if (argc > 4)
        n_tokens = atoi(argv[4]);
    if (argc > 5)
        o.tp_size = atoi(argv[5]);
    o.kv_dtype = kv_dtype_of(argc > 7 ? argv[7] : NULL);
    if (argc < 4 || n_tokens < 1 || n_tokens > MAX_TOKENS || o.tp_size > MAX_RANKS) {
        fprintf(stderr, "usage: %s MODEL_FOLDER PROMPTS OUTPUT [TOKENS [RANKS [TYPE [KV]]]]\n",
                argv[0]);
        return 2;
    }
    if (o.tp_size > 1)
        divide_among_devices(&o, o.tp_size);
    in = fopen(argv[2], "rbe");
    out = fopen(argv[3], "wbe");
    if (!in || !out) {
        perror("opening");
        return 1;
    }
    err_must(model_open(&model, argv[1], &e), &e);
    quantize_to(model, argc > 6 ? argv[6] : NULL);
    o.max_seq_len = model_config(model)->max_seq_len;
    err_must(nvllm_backend.open(&b, model, &o, &e), &e);
    while (fread(&n, sizeof(n), 1, in) == 1 && n > 0 && n < o.max_seq_len) {
        int32_t *ids = malloc((size_t)n * sizeof(*ids));

        if (fread(ids, sizeof(*ids), (size_t)n, in) != (size_t)n)
            return 1;
        write_prompt(b, &o, ids, n, model_config(model)->vocab_size, out);
        free(ids);
    }
    fclose(in);
    nvllm_backend.close(b);
    model_close(model);
    return fclose(out) ? 1 : 0;
}
