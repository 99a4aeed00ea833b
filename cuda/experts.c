/* experts.c - see experts.h. */
#include "cuda/experts.h"

#include "cuda/forward.h"

/* Rows of an expert, on average, up to which its weights are read for each EXPERT_FEW of them.
 * (Both products of Qwen3-30B-A3B's shape on an H200: 64 rows 337 us so, 385 the other way; 256
 * rows 478 and 388. Of 256 rows on an H100 FP8 374 and 528, INT4 376 and 462.) */
enum { FEW_EACH = 8, QUANTIZED_FEW_EACH = 16 };

void experts_lay(struct experts *x, struct arena *a, const struct model_config *c, size_t rows)
{
    const size_t n_experts = (size_t)c->n_experts, n = rows * (size_t)c->n_experts_per_tok;
    const size_t groups = n_experts + n / EXPERT_FEW;
    struct expert_picks *p = &x->picks;

    p->n_experts = c->n_experts;
    p->n_picks = c->n_experts_per_tok;
    x->norm_topk = c->norm_topk;
    x->hidden = c->hidden_dim;
    x->ffn = c->ffn_dim;
    p->experts = arena_take(a, n * sizeof(*p->experts) + 16); /* read 16 bytes at a time */
    p->weights = arena_take(a, n * sizeof(*p->weights));
    p->members = arena_take(a, n * sizeof(*p->members));
    p->groups = arena_take(a, groups * sizeof(*p->groups));
    p->n_groups = arena_take(a, sizeof(*p->n_groups));
    x->scores = arena_take(a, rows * n_experts * sizeof(*x->scores));
    x->act = arena_take(a, n * (size_t)c->ffn_dim * sizeof(*x->act));
    x->out = arena_take(a, n * (size_t)c->hidden_dim * sizeof(*x->out));
}

/* The scores are the same for any number of rows, so the choice is. */
static int choose(const struct experts *x, const struct launch *l, const struct layer_weights *w,
                  const struct experts_rows *r, bool few, struct err *e)
{
    const struct skinny router = {.y = x->scores,
                                  .y_stride = x->picks.n_experts,
                                  .x = r->x,
                                  .w = w->router.data,
                                  .m = r->n,
                                  .n = x->picks.n_experts,
                                  .k = x->hidden,
                                  .out = SKINNY_F32};
    const struct expert_route route = {.scores = x->scores,
                                       .n_rows = r->n,
                                       .first_row = r->first,
                                       .most_rows = few ? EXPERT_FEW : EXPERT_MANY,
                                       .norm_topk = x->norm_topk,
                                       .counts = r->counts};
    const int rc = cuda_check(skinny_gemm(l, &router), "a router", e);

    return rc < 0 ? rc : cuda_check(expert_route(l, &x->picks, &route), "choosing experts", e);
}

static int product(const struct experts *x, const struct launch *l, bool few,
                   const struct expert_product *p, struct err *e)
{
    return cuda_check(few ? expert_skinny(l, &x->picks, p) : expert_gemm(l, &x->picks, p),
                      "a product of experts", e);
}

int experts_run(const struct experts *x, const struct launch *l, const struct layer_weights *w,
                const struct experts_rows *r, struct err *e)
{
    const int64_t few_each = w->gate_up.scales ? QUANTIZED_FEW_EACH : FEW_EACH;
    const bool few = r->path == EXPERTS_FEW ||
                     (r->path == EXPERTS_BY_ROWS &&
                      (int64_t)r->n * x->picks.n_picks <= few_each * x->picks.n_experts);
    const struct expert_product gate_up = {.y = x->act,
                                           .x = r->x,
                                           .x_of_rows = true,
                                           .w = w->gate_up.data,
                                           .quant = forward_quant(&w->gate_up),
                                           .gated = true,
                                           .n_rows = r->n,
                                           .n = x->ffn,
                                           .ld = x->hidden,
                                           .k = x->hidden};
    struct expert_product down = {.y = x->out,
                                  .x = x->act,
                                  .w = w->down.data,
                                  .quant = forward_quant(&w->down),
                                  .n_rows = r->n,
                                  .n = x->hidden,
                                  .ld = x->ffn,
                                  .k = r->in_halves ? x->ffn / 2 : x->ffn};
    int rc = choose(x, l, w, r, few, e);

    if (rc == 0)
        rc = product(x, l, few, &gate_up, e);
    for (; down.first < x->ffn && rc == 0; down.first += down.k) {
        rc = product(x, l, few, &down, e);
        if (rc == 0)
            rc = cuda_check(expert_sum(l, r->y, r->out, x->out, &x->picks, r->n, x->hidden),
                            "a sum of experts", e);
    }
    return rc;
}
