/* model_check.c - see model_check.h. */
#include "engine/model/model_check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "engine/model/model_config.h"
#include "engine/model/model_files.h"
#include "engine/model/model_tensors.h"

static const char *const lead_ok = "ok     ", *const lead_wrong = "wrong  ";

static void print_sum(const struct model_config *c, const struct model_tensors *t, bool weights,
                      FILE *out)
{
    const char *dtype = dtype_info[t->all[0].dtype].name;

    fprintf(out, "       %s: %d layers of %d, %d query and %d KV heads of %d, ffn %d\n", c->arch,
            c->n_layers, c->hidden_dim, c->n_heads, c->n_kv_heads, c->head_dim, c->ffn_dim);
    fprintf(out, "       vocabulary %d%s, up to %d tokens, %.1f million parameters", c->vocab_size,
            c->tied ? " (tied)" : "", c->max_seq_len, (double)t->n_elements / 1e6);
    for (size_t i = 1; i < t->n; i++)
        if (t->all[i].dtype != t->all[0].dtype)
            dtype = "mixed types";
    if (weights)
        fprintf(out, ", %" PRIu64 " bytes of %s\n", t->bytes, dtype);
    else
        fprintf(out, "\n");
}

/* The files of the weights and, if the configuration is known, the tensors in them. */
static void check_weights(const struct model_config *c, int dir, struct problems *p, FILE *out)
{
    struct model_files files = {0};
    struct model_tensors tensors = {0};
    uint32_t before = p->n;

    model_files_open(&files, dir, p);
    if (!c) {
        if (p->n == before)
            fprintf(out,
                    "%sheaders of %zu safetensors file%s (tensors cannot be checked without "
                    "a right %s)\n",
                    lead_ok, files.n, files.n == 1 ? "" : "s", MODEL_CONFIG_FILE);
        goto out;
    }
    if (model_tensors_list(&tensors, c, p) < 0)
        goto out;
    if (files.n > 0) /* a folder without any file has been reported */
        model_tensors_locate(&tensors, &files, p);
    if (p->n == before)
        fprintf(out, "%s%zu tensors in %zu file%s\n", lead_ok, tensors.n, files.n,
                files.n == 1 ? "" : "s");
    print_sum(c, &tensors, p->n == before, out);
out:
    model_tensors_deinit(&tensors);
    model_files_close(&files);
}

int model_check(int32_t *vocab_size, const char *folder, FILE *out)
{
    struct problems p = {.out = out, .lead = lead_wrong};
    struct model_config c;
    struct model_defaults d;
    bool shape_known;
    uint32_t before;
    int dir;

    *vocab_size = 0;
    dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return problems_add(&p, -errno, "%s: %s", folder, strerror(errno));
    model_config_read(&c, &d, dir, &p);
    shape_known = p.n == 0;
    if (shape_known) {
        fprintf(out, "%s%s\n", lead_ok, MODEL_CONFIG_FILE);
        *vocab_size = c.vocab_size;
    }
    before = p.n;
    model_defaults_read(&d, shape_known ? c.vocab_size : INT32_MAX, dir, &p);
    if (p.n == before)
        fprintf(out, "%s%s%s\n", lead_ok, MODEL_GENERATION_FILE,
                faccessat(dir, MODEL_GENERATION_FILE, F_OK, 0) == 0 ? "" : " (none: neutral)");
    check_weights(shape_known ? &c : NULL, dir, &p, out);
    close(dir);
    return p.code;
}
