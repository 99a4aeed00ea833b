/* test_rope.c - rotary frequencies as transformers 5.24 computes them. */
#include <math.h>

#include "engine/model/rope.h"
#include "tests/unit/run_suite.h"

enum { DIM = 32 };

static const struct {
    struct model_config config;
    float scale;
    float inv_freq[DIM / 2];
} cases[] = {
    {{.head_dim = DIM, .rope_theta = 1e4},
     1,
     {1.000000000e+00f, 5.623413324e-01f, 3.162277639e-01f, 1.778279394e-01f, 1.000000015e-01f,
      5.623412877e-02f, 3.162277862e-02f, 1.778279431e-02f, 9.999999776e-03f, 5.623413250e-03f,
      3.162277862e-03f, 1.778279431e-03f, 1.000000047e-03f, 5.623413017e-04f, 3.162277862e-04f,
      1.778279402e-04f}},
    {{.head_dim = DIM, .rope_theta = 1e4, .rope = {.kind = ROPE_LINEAR, .factor = 4}},
     1,
     {2.500000000e-01f, 1.405853331e-01f, 7.905694097e-02f, 4.445698485e-02f, 2.500000037e-02f,
      1.405853219e-02f, 7.905694656e-03f, 4.445698578e-03f, 2.499999944e-03f, 1.405853312e-03f,
      7.905694656e-04f, 4.445698578e-04f, 2.500000119e-04f, 1.405853254e-04f, 7.905694656e-05f,
      4.445698505e-05f}},
    {{.head_dim = DIM,
      .rope_theta = 5e5,
      .rope = {.kind = ROPE_LLAMA3,
               .factor = 8,
               .original_len = 8192,
               .low_freq_factor = 1,
               .high_freq_factor = 4}},
     1,
     {1.000000000e+00f, 4.403666258e-01f, 1.939227581e-01f, 8.539710194e-02f, 3.760603070e-02f,
      1.656044088e-02f, 7.292665076e-03f, 3.211446106e-03f, 5.248460220e-04f, 7.784655463e-05f,
      3.428102355e-05f, 1.509621779e-05f, 6.647869668e-06f, 2.927499736e-06f, 1.289173156e-06f,
      5.677088097e-07f}},
    {{.head_dim = DIM,
      .rope_theta = 1e6,
      .rope = {.kind = ROPE_YARN,
               .factor = 4,
               .original_len = 32768,
               .beta_fast = 32,
               .beta_slow = 1,
               .attention_factor = 1.1386294361119891}},
     1.13862944f,
     {1.000000000e+00f, 4.216965139e-01f, 1.778279394e-01f, 7.498941571e-02f, 3.162277862e-02f,
      1.333521493e-02f, 4.779901356e-03f, 1.659961650e-03f, 5.499999970e-04f, 1.686785836e-04f,
      4.445698505e-05f, 1.874735608e-05f, 7.905693565e-06f, 3.333803534e-06f, 1.405853368e-06f,
      5.928434348e-07f}},
};

/* Each kind, to the rounding of a float. */
TEST(frequencies, .n = N(cases))
{
    float inv_freq[DIM / 2];

    rope_frequencies(&cases[_i].config, inv_freq);
    for (int i = 0; i < DIM / 2; i++)
        ck_assert_msg(fabsf(inv_freq[i] - cases[_i].inv_freq[i]) <= 2e-7f * cases[_i].inv_freq[i],
                      "%d: %.9g, not %.9g", i, (double)inv_freq[i], (double)cases[_i].inv_freq[i]);
    ck_assert_float_eq(rope_scale(&cases[_i].config), cases[_i].scale);
}

RUN_TESTS("rope", NULL, NULL)
