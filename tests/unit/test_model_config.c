/* test_model_config.c - config.json and generation_config.json: both spellings, each refusal. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/util/json_util.h"
#include "engine/model/model_config.h"
#include "tests/unit/quotes.h"
#include "tests/unit/run_suite.h"

static const char *const qwen3 =
    "{'architectures':['Qwen3ForCausalLM'],'model_type':'qwen3','attention_bias':false,'torch_"
    "dtype':'bfloat16','eos_token_id':151645,'head_dim':128,'hidden_act':'silu','hidden_size':1024,"
    "'intermediate_size':3072,'max_position_embeddings':40960,'num_attention_heads':16,'num_hidden_"
    "layers':28,'num_key_value_heads':8,'rms_norm_eps':1e-06,'rope_scaling':null,'rope_theta':"
    "1000000,'sliding_window':null,'tie_word_embeddings':true,'use_sliding_window':false,'vocab_"
    "size':151936,'max_window_layers':28}";

static const char *const qwen2 =
    "{'architectures':['Qwen2ForCausalLM'],'model_type':'qwen2','dtype':'bfloat16','eos_token_id':["
    "151643,151645],'hidden_act':'silu','hidden_size':896,'intermediate_size':4864,'max_position_"
    "embeddings':32768,'num_attention_heads':14,'num_hidden_layers':24,'num_key_value_heads':2,'"
    "rms_norm_eps':1e-06,'rope_parameters':{'rope_theta':1000000.0,'rope_type':'default'},'sliding_"
    "window':32768,'use_sliding_window':false,'vocab_size':151936}";

/* As Qwen3-30B-A3B and Mixtral-8x7B have them. */
static const char *const qwen3_moe =
    "{'architectures':['Qwen3MoeForCausalLM'],'model_type':'qwen3_moe','attention_bias':false,"
    "'decoder_sparse_step':1,'eos_token_id':151645,'head_dim':128,'hidden_act':'silu','hidden_size'"
    ":2048,'intermediate_size':6144,'max_position_embeddings':40960,'max_window_layers':48,"
    "'mlp_only_layers':[],'moe_intermediate_size':768,'norm_topk_prob':true,'num_attention_heads':"
    "32,'num_experts':128,'num_experts_per_tok':8,'num_hidden_layers':48,'num_key_value_heads':4,"
    "'output_router_logits':false,'rms_norm_eps':1e-06,'rope_scaling':null,'rope_theta':1000000.0,"
    "'router_aux_loss_coef':0.001,'sliding_window':null,'tie_word_embeddings':false,'torch_dtype':"
    "'bfloat16','use_sliding_window':false,'vocab_size':151936}";

static const char *const mixtral =
    "{'architectures':['MixtralForCausalLM'],'model_type':'mixtral','attention_dropout':0.0,"
    "'bos_token_id':1,'eos_token_id':2,'hidden_act':'silu','hidden_size':4096,'intermediate_size':"
    "14336,'max_position_embeddings':32768,'num_attention_heads':32,'num_experts_per_tok':2,"
    "'num_hidden_layers':32,'num_key_value_heads':8,'num_local_experts':8,'output_router_logits':"
    "false,'rms_norm_eps':1e-05,'rope_theta':1000000.0,'router_aux_loss_coef':0.02,"
    "'sliding_window':null,'tie_word_embeddings':false,'torch_dtype':'bfloat16','vocab_size':"
    "32000}";

static struct model_config c;
static struct model_defaults d;
static struct problems p;

/* Parses base with the fields of change; a field "-" is removed. */
static void parse(const char *base, const char *change)
{
    json_t *root = json_loads(quotes(base), 0, NULL), *value;
    json_t *over = json_loads(quotes(change), 0, NULL);
    const char *key;

    ck_assert(root && over);
    json_object_foreach(over, key, value)
    {
        if (json_is_string(value) && strcmp(json_string_value(value), "-") == 0)
            json_object_del(root, key);
        else
            json_object_set(root, key, value);
    }
    memset(&p, 0, sizeof(p));
    model_config_parse(&c, &d, root, &p);
    json_decref(root);
    json_decref(over);
}

/* A configuration as transformers 4 writes it. */
TEST(old_spelling)
{
    parse(qwen3, "{}");
    ck_assert_msg(p.n == 0, "%s", p.first.text);
    ck_assert_str_eq(c.arch, "Qwen3ForCausalLM");
    ck_assert(c.qk_norm && !c.qkv_bias);
    ck_assert_int_eq(c.hidden_dim, 1024);
    ck_assert_int_eq(c.n_layers, 28);
    ck_assert_int_eq(c.n_heads, 16);
    ck_assert_int_eq(c.n_kv_heads, 8);
    ck_assert_int_eq(c.head_dim, 128);
    ck_assert_int_eq(c.ffn_dim, 3072);
    ck_assert_int_eq(c.vocab_size, 151936);
    ck_assert_int_eq(c.max_seq_len, 40960);
    ck_assert(c.rope_theta == 1e6 && c.rms_norm_eps == 1e-6f && c.tied);
    ck_assert_int_eq(d.n_eos, 1);
    ck_assert_int_eq(d.eos[0], 151645);
}

/* A configuration as transformers 5 writes it, with default head_dim and tying. */
TEST(new_spelling)
{
    parse(qwen2, "{}");
    ck_assert_msg(p.n == 0, "%s", p.first.text);
    ck_assert_str_eq(c.arch, "Qwen2ForCausalLM");
    ck_assert(c.qkv_bias && !c.qk_norm);
    ck_assert_int_eq(c.head_dim, 64);
    ck_assert(c.rope_theta == 1e6 && !c.tied);
    ck_assert_int_eq(d.n_eos, 2);
    ck_assert_int_eq(d.eos[1], 151645);
    ck_assert(d.temperature == 1.0f && d.top_p == 1.0f && d.top_k == 0);
    ck_assert(d.min_p == 0.0f && d.repetition_penalty == 1.0f);
}

/* Harmless variants of real files pass and keep their meaning. */
TEST(variants_pass)
{
    parse(qwen3, "{'head_dim':'-'}"); /* Qwen3's own default */
    ck_assert(p.n == 0 && c.head_dim == 128);
    parse(qwen3, "{'head_dim':null}");
    ck_assert(p.n == 0 && c.head_dim == 64);
    parse(qwen3, "{'num_key_value_heads':null}");
    ck_assert(p.n == 0 && c.n_kv_heads == 16);
    parse(qwen3, "{'rope_theta':'-','rope_parameters':{'rope_theta':5e6}}");
    ck_assert(p.n == 0 && c.rope_theta == 5e6);
    parse(qwen3, "{'rope_parameters':{'rope_theta':1000000.0,'rope_type':'default'}}");
    ck_assert(p.n == 0 && c.rope_theta == 1e6);
    parse(qwen3, "{'rope_scaling':{'type':'default'}}");
    ck_assert(p.n == 0 && c.rope_theta == 1e6);
    parse(qwen3, "{'eos_token_id':null}");
    ck_assert(p.n == 0 && d.n_eos == 0);
    parse(qwen3, "{'quantization_config':null,'torch_dtype':null,'unheard_of':[1,{}]}");
    ck_assert(p.n == 0);
    parse(qwen2, "{'attention_bias':true,'num_hidden_layers':1,'layer_types':['full_attention']}");
    ck_assert_msg(p.n == 0, "%s", p.first.text);
}

/* A window that config.json has bounds the context; theta has a default in these families. */
TEST(llama_and_mistral)
{
    static const char llama[] = "'architectures':['LlamaForCausalLM'],'model_type':'llama',"
                                "'rope_theta':'-','head_dim':'-','num_attention_heads':8";
    static const char mistral[] = "'architectures':['MistralForCausalLM'],'model_type':'mistral'";
    char change[512];

    snprintf(change, sizeof(change), "{%s}", llama);
    parse(qwen3, change);
    ck_assert_msg(p.n == 0, "%s", p.first.text);
    ck_assert(c.rope_theta == 1e4 && !c.qk_norm && !c.qkv_bias && c.head_dim == 128);
    ck_assert_str_eq(c.arch, "LlamaForCausalLM");
    snprintf(change, sizeof(change), "{%s,'sliding_window':4096}", mistral);
    parse(qwen3, change);
    ck_assert(p.n == 0 && c.max_seq_len == 4096);
    snprintf(change, sizeof(change), "{%s,'sliding_window':'-'}", mistral); /* its own default */
    parse(qwen3, change);
    ck_assert(p.n == 0 && c.max_seq_len == 4096);
    snprintf(change, sizeof(change), "{%s,'sliding_window':null}", mistral);
    parse(qwen3, change);
    ck_assert(p.n == 0 && c.max_seq_len == 40960);
    parse(qwen3, "{'sliding_window':4096}"); /* Qwen has it and does not use it */
    ck_assert(p.n == 0 && c.max_seq_len == 40960);
}

/* Experts, their width and how they are weighed; a field that one version of transformers writes is
 * as good as the other's. */
TEST(mixtures_of_experts)
{
    parse(qwen3_moe, "{}");
    ck_assert_msg(p.n == 0, "%s", p.first.text);
    ck_assert(c.n_experts == 128 && c.n_experts_per_tok == 8 && c.ffn_dim == 768);
    ck_assert(c.norm_topk && c.qk_norm && !c.block_sparse_moe && c.head_dim == 128);
    parse(qwen3_moe, "{'norm_topk_prob':'-','head_dim':'-','rope_theta':'-','mlp_only_layers':null,"
                     "'decoder_sparse_step':'-','num_experts':'-','num_local_experts':64}");
    ck_assert_msg(p.n == 0, "%s", p.first.text);
    ck_assert(c.n_experts == 64 && !c.norm_topk && c.head_dim == 64 && c.rope_theta == 1e4);
    parse(qwen3_moe, "{'num_local_experts':128,'intermediate_size':'-','num_experts_per_tok':128}");
    ck_assert(p.n == 0 && c.n_experts == 128 && c.n_experts_per_tok == 128);
    parse(mixtral, "{}");
    ck_assert_msg(p.n == 0, "%s", p.first.text);
    ck_assert(c.n_experts == 8 && c.n_experts_per_tok == 2 && c.ffn_dim == 14336);
    ck_assert(c.norm_topk && !c.qk_norm && c.block_sparse_moe && c.head_dim == 128);
    ck_assert_int_eq(c.max_seq_len, 32768);
    parse(mixtral, "{'sliding_window':4096,'rope_theta':'-','router_jitter_noise':0.1}");
    ck_assert(p.n == 0 && c.max_seq_len == 4096 && c.rope_theta == 1e6);
    parse(mixtral, "{'sliding_window':'-'}");
    ck_assert(p.n == 0 && c.max_seq_len == 32768);
    parse(qwen3, "{'num_experts':null}");
    ck_assert(p.n == 0 && c.n_experts == 0);
}

/* Scaling in both spellings; YaRN is asked for to go beyond the original length. */
TEST(rope_scaling)
{
    parse(qwen3, "{'rope_scaling':{'type':'linear','factor':2}}");
    ck_assert(p.n == 0 && c.rope.kind == ROPE_LINEAR && c.rope.factor == 2);
    ck_assert_int_eq(c.max_seq_len, 40960);
    parse(qwen3, "{'rope_scaling':{'rope_type':null,'type':'linear','factor':2},"
                 "'rope_parameters':{'rope_type':'linear','factor':2}}");
    ck_assert(p.n == 0 && c.rope.kind == ROPE_LINEAR && c.rope.factor == 2);
    parse(qwen3, "{'rope_parameters':{'rope_theta':1e6,'rope_type':'llama3','factor':8,"
                 "'low_freq_factor':1,'high_freq_factor':4,"
                 "'original_max_position_embeddings':8192}}");
    ck_assert(p.n == 0 && c.rope.kind == ROPE_LLAMA3 && c.rope.original_len == 8192);
    ck_assert(c.rope.low_freq_factor == 1 && c.rope.high_freq_factor == 4);
    ck_assert_int_eq(c.max_seq_len, 40960);
    parse(qwen3, "{'rope_scaling':{'rope_type':'yarn','factor':4.0,"
                 "'original_max_position_embeddings':32768}}");
    ck_assert(p.n == 0 && c.rope.kind == ROPE_YARN && c.max_seq_len == 131072);
    ck_assert(c.rope.beta_fast == 32 && c.rope.beta_slow == 1);
    ck_assert_double_eq_tol(c.rope.attention_factor, 1.1386294361119891, 1e-12);
    parse(qwen3, "{'rope_scaling':{'rope_type':'yarn','factor':4.0,'attention_factor':1}}");
    ck_assert(p.n == 0 && c.rope.original_len == 40960 && c.rope.attention_factor == 1);
}

/* The same network without an LM head, as embedders are saved. */
TEST(without_a_head)
{
    parse(qwen3, "{'architectures':['Qwen3Model'],'tie_word_embeddings':false,'is_causal':true}");
    ck_assert(p.n == 0 && c.headless && c.tied && c.qk_norm);
    parse(qwen3, "{}");
    ck_assert(p.n == 0 && !c.headless);
}

struct refused {
    const char *change;
    int code;
    const char *text; /* after "config.json: " */
};

static const struct refused refused[] = {
    {"{'architectures':['GemmaForCausalLM']}", -ENOTSUP,
     "architectures: \"GemmaForCausalLM\" is not supported; these are: LlamaForCausalLM, Mistral"},
    {"{'architectures':['Qwen2MoeForCausalLM']}", -ENOTSUP,
     "architectures: \"Qwen2MoeForCausalLM\""},
    {"{'architectures':[]}", -EINVAL, "architectures: must be"},
    {"{'architectures':'Qwen3ForCausalLM'}", -EINVAL, "architectures: must be"},
    {"{'architectures':'-'}", -EINVAL, "architectures: must be"},
    {"{'architectures':['Qwen3ForCausalLM','Qwen2ForCausalLM']}", -EINVAL, "architectures: "},
    {"{'model_type':'qwen2'}", -EINVAL, "model_type: \"qwen2\" contradicts"},
    {"{'num_experts':128}", -ENOTSUP, "num_experts: Qwen3ForCausalLM with experts"},
    {"{'num_local_experts':8}", -ENOTSUP, "num_local_experts: Qwen3ForCausalLM with experts"},
    {"{'moe_intermediate_size':768}", -ENOTSUP, "moe_intermediate_size: "},
    {"{'is_causal':false}", -ENOTSUP, "is_causal: false is not supported"},
    {"{'use_bidirectional_attention':true}", -ENOTSUP, "use_bidirectional_attention: true is not"},
    {"{'use_sliding_window':true}", -ENOTSUP, "use_sliding_window: true is not supported"},
    {"{'use_sliding_window':1}", -EINVAL, "use_sliding_window: must be true or false"},
    {"{'hidden_act':'gelu'}", -ENOTSUP, "hidden_act: \"gelu\" is not supported"},
    {"{'attention_bias':true}", -ENOTSUP, "attention_bias: true contradicts"},
    {"{'mlp_bias':true}", -ENOTSUP, "mlp_bias: "},
    {"{'torch_dtype':'float8_e4m3fn'}", -ENOTSUP, "torch_dtype: \"float8_e4m3fn\""},
    {"{'dtype':'int8'}", -ENOTSUP, "dtype: \"int8\""},
    {"{'rope_scaling':{'rope_type':'longrope','factor':4.0}}", -ENOTSUP,
     "rope_scaling.rope_type: \"longrope\" is not supported; default, linear, llama3 and yarn are"},
    {"{'rope_scaling':{'type':'dynamic','factor':2.0}}", -ENOTSUP,
     "rope_scaling.type: \"dynamic\" is not supported"},
    {"{'rope_scaling':{'type':'linear'}}", -EINVAL, "rope_scaling.factor: is missing"},
    {"{'rope_scaling':{'type':'linear','factor':0.5}}", -EINVAL,
     "rope_scaling.factor: 0.5 is not in"},
    {"{'rope_scaling':{'rope_type':'yarn','factor':2,'truncate':false}}", -ENOTSUP,
     "rope_scaling.truncate: false is not supported"},
    {"{'rope_scaling':{'rope_type':'yarn','factor':2,'beta_fast':'x'}}", -EINVAL,
     "rope_scaling.beta_fast: must be a number"},
    {"{'rope_scaling':{'rope_type':'llama3','factor':8}}", -EINVAL,
     "rope_scaling.original_max_position_embeddings: is missing"},
    {"{'rope_scaling':{'rope_type':'llama3','factor':8,'original_max_position_embeddings':8192,"
     "'low_freq_factor':4,'high_freq_factor':4}}",
     -EINVAL, "rope_scaling.high_freq_factor: 4 is not above low_freq_factor, 4"},
    {"{'rope_scaling':{'rope_type':'llama3','factor':8,'original_max_position_embeddings':8192,"
     "'low_freq_factor':4}}",
     -EINVAL, "rope_scaling.high_freq_factor: is missing"},
    {"{'rope_scaling':{'factor':8}}", -EINVAL, "rope_scaling.rope_type: is missing beside factor"},
    {"{'rope_scaling':{'type':'linear','factor':2},'rope_parameters':{'rope_type':'linear','factor'"
     ":"
     "8,'rope_theta':1e6}}",
     -EINVAL, "rope_scaling: contradicts rope_parameters"},
    {"{'dual_chunk_attention_config':{'chunk_size':262144}}", -ENOTSUP,
     "dual_chunk_attention_config: dual chunk attention is not supported"},
    {"{'rope_scaling':'yarn'}", -EINVAL, "rope_scaling: must be an object, not a string"},
    {"{'rope_parameters':{'rope_theta':1e6,'rope_type':'yarn'}}", -EINVAL,
     "rope_parameters.factor: is missing"},
    {"{'rope_parameters':{'rope_theta':2e6}}", -EINVAL,
     "rope_parameters.rope_theta: 2e+06 contradicts"},
    {"{'partial_rotary_factor':0.5}", -ENOTSUP, "partial_rotary_factor: 0.5"},
    {"{'rope_theta':'-'}", -EINVAL, "rope_theta: is missing"},
    {"{'rope_theta':0}", -EINVAL, "rope_theta: 0 is not in"},
    {"{'rope_theta':-1e6}", -EINVAL, "rope_theta: -1e+06 is not in"},
    {"{'rope_theta':'1e6'}", -EINVAL, "rope_theta: must be a number, not a string"},
    {"{'hidden_size':'-'}", -EINVAL, "hidden_size: is missing"},
    {"{'hidden_size':null}", -EINVAL, "hidden_size: is missing"},
    {"{'hidden_size':0}", -EINVAL, "hidden_size: 0 is not in 1 .. 131072"},
    {"{'hidden_size':-1024}", -EINVAL, "hidden_size: -1024 is not in"},
    {"{'hidden_size':1024.0}", -EINVAL, "hidden_size: must be an integer"},
    {"{'hidden_size':'1024'}", -EINVAL, "hidden_size: must be an integer, not a string"},
    {"{'hidden_size':4294968320}", -EINVAL, "hidden_size: 4294968320 is not in"},
    {"{'num_hidden_layers':0}", -EINVAL, "num_hidden_layers: 0"},
    {"{'num_hidden_layers':1000000}", -EINVAL, "num_hidden_layers: 1000000"},
    {"{'num_attention_heads':0}", -EINVAL, "num_attention_heads: 0"},
    {"{'num_key_value_heads':0}", -EINVAL, "num_key_value_heads: 0"},
    {"{'num_key_value_heads':5}", -EINVAL, "num_key_value_heads: 5 does not divide"},
    {"{'num_key_value_heads':32}", -EINVAL, "num_key_value_heads: 32 does not divide"},
    {"{'head_dim':127}", -EINVAL, "head_dim: 127 is odd"},
    {"{'head_dim':0}", -EINVAL, "head_dim: 0"},
    {"{'head_dim':null,'hidden_size':1000}", -EINVAL, "head_dim: is missing"},
    {"{'intermediate_size':1e3}", -EINVAL, "intermediate_size: must be an integer"},
    {"{'vocab_size':2147483648}", -EINVAL, "vocab_size: 2147483648 is not in"},
    {"{'max_position_embeddings':0}", -EINVAL, "max_position_embeddings: 0"},
    {"{'rms_norm_eps':0}", -EINVAL, "rms_norm_eps: 0 is not in"},
    {"{'rms_norm_eps':2}", -EINVAL, "rms_norm_eps: 2 is not in"},
    {"{'rms_norm_eps':'-'}", -EINVAL, "rms_norm_eps: is missing"},
    {"{'tie_word_embeddings':'yes'}", -EINVAL, "tie_word_embeddings: must be true or false"},
    {"{'layer_types':['full_attention','sliding_attention']}", -ENOTSUP,
     "layer_types: entry 1 is \"sliding_attention\""},
    {"{'layer_types':['full_attention']}", -EINVAL, "layer_types: has 1 entries for 28 layers"},
    {"{'layer_types':{}}", -EINVAL, "layer_types: must be an array"},
    {"{'eos_token_id':151936}", -EINVAL, "eos_token_id: 151936 is not in 0 .. 151935"},
    {"{'eos_token_id':-1}", -EINVAL, "eos_token_id: -1"},
    {"{'eos_token_id':[1,'2']}", -EINVAL, "eos_token_id: must be an id"},
    {"{'eos_token_id':[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", -ENOTSUP,
     "eos_token_id: has 17 ids"},
};

/* Of a mixture of experts. */
static const struct refused refused_moe[] = {
    {"{'num_experts':0}", -EINVAL, "num_experts: 0 is not in 1 .. 1024"},
    {"{'num_experts':-128}", -EINVAL, "num_experts: -128 is not in"},
    {"{'num_experts':1025}", -EINVAL, "num_experts: 1025 is not in"},
    {"{'num_experts':4294967424}", -EINVAL, "num_experts: 4294967424 is not in"},
    {"{'num_experts':'128'}", -EINVAL, "num_experts: must be an integer, not a string"},
    {"{'num_experts':[128]}", -EINVAL, "num_experts: must be an integer, not an array"},
    {"{'num_experts':'-'}", -EINVAL, "num_experts: is missing, and so is num_local_experts"},
    {"{'num_experts':null}", -EINVAL, "num_experts: is missing, and so is num_local_experts"},
    {"{'num_local_experts':8}", -EINVAL, "num_local_experts: 8 contradicts num_experts, 128"},
    {"{'num_experts_per_tok':0}", -EINVAL, "num_experts_per_tok: 0 is not in 1 .. 128"},
    {"{'num_experts_per_tok':129}", -EINVAL, "num_experts_per_tok: 129 is not in 1 .. 128"},
    {"{'num_experts_per_tok':-8}", -EINVAL, "num_experts_per_tok: -8 is not in"},
    {"{'num_experts_per_tok':'-'}", -EINVAL, "num_experts_per_tok: is missing"},
    {"{'num_experts_per_tok':2.0}", -EINVAL, "num_experts_per_tok: must be an integer"},
    {"{'moe_intermediate_size':'-'}", -EINVAL, "moe_intermediate_size: is missing"},
    {"{'moe_intermediate_size':0}", -EINVAL, "moe_intermediate_size: 0 is not in"},
    {"{'moe_intermediate_size':1048576}", -EINVAL, "moe_intermediate_size: 1048576 is not in 1 .."},
    {"{'num_experts':1024,'moe_intermediate_size':16385}", -EINVAL,
     "moe_intermediate_size: 16385 is not in 1 .. 16384"},
    {"{'norm_topk_prob':1}", -EINVAL, "norm_topk_prob: must be true or false"},
    {"{'decoder_sparse_step':2}", -ENOTSUP, "decoder_sparse_step: 2 is not supported"},
    {"{'decoder_sparse_step':0}", -EINVAL, "decoder_sparse_step: 0 is not in"},
    {"{'mlp_only_layers':[0]}", -ENOTSUP, "mlp_only_layers: layers without experts"},
    {"{'mlp_only_layers':{}}", -EINVAL, "mlp_only_layers: must be an array"},
};

static void check_refusal(const char *base, const struct refused *r)
{
    char text[256];

    parse(base, r->change);
    ck_assert_msg(p.n > 0, "%s passes", r->change);
    snprintf(text, sizeof(text), "config.json: %s", r->text);
    ck_assert_msg(strncmp(p.first.text, text, strlen(text)) == 0, "%s: %s", r->change,
                  p.first.text);
    ck_assert_int_eq(p.code, r->code);
}

/* What is not computed, or makes no sense, is refused; the message names file and field. */
TEST(bad_config_is_refused, .n = N(refused))
{
    check_refusal(qwen3, &refused[_i]);
}

TEST(bad_experts_are_refused, .n = N(refused_moe))
{
    check_refusal(qwen3_moe, &refused_moe[_i]);
}

/* A Qwen2 whose biases are said to be absent is another network. */
TEST(qwen2_without_bias_is_refused)
{
    parse(qwen2, "{'attention_bias':false}");
    ck_assert_uint_eq(p.n, 1);
    ck_assert_ptr_nonnull(strstr(p.first.text, "config.json: attention_bias: false contradicts"));
}

/* One pass finds all problems, not only the first. */
TEST(all_problems_are_found)
{
    parse(qwen3, "{'hidden_size':0,'vocab_size':'x','hidden_act':'relu','rope_theta':'-'}");
    ck_assert_uint_eq(p.n, 4);
}

static int parse_text(const char *quoted)
{
    const char *text = quotes(quoted);
    struct err e;
    json_t *root = NULL;
    int rc = json_object_parse(&root, "config.json", text, strlen(text), &e);

    if (rc == 0)
        json_decref(root);
    else
        ck_assert_msg(strncmp(e.text, "config.json: ", 13) == 0, "%s", e.text);
    return rc;
}

/* What is no JSON object, or says a thing twice, or holds what is no number, is refused. */
TEST(bad_json_is_refused)
{
    ck_assert_int_eq(parse_text("{}"), 0);
    ck_assert_int_eq(parse_text(""), -EINVAL);
    ck_assert_int_eq(parse_text("[]"), -EINVAL);
    ck_assert_int_eq(parse_text("{'a':1,'a':1}"), -EINVAL);
    ck_assert_int_eq(parse_text("{'a':NaN}"), -EINVAL);
    ck_assert_int_eq(parse_text("{'a':Infinity}"), -EINVAL);
    ck_assert_int_eq(parse_text("{'a':1e999}"), -EINVAL);
    ck_assert_int_eq(parse_text("{'a':99999999999999999999}"), -EINVAL);
    ck_assert_int_eq(parse_text("{'a':'\xff'}"), -EINVAL);
}

static void parse_defaults(const char *text)
{
    json_t *root = json_loads(quotes(text), 0, NULL);

    ck_assert_ptr_nonnull(root);
    parse(qwen3, "{}");
    model_defaults_parse(&d, c.vocab_size, root, &p);
    json_decref(root);
}

/* generation_config.json decides where it says something; the rest stays neutral. */
TEST(generation_config)
{
    parse_defaults("{'do_sample':true,'temperature':0.6,'top_k':20,'top_p':0.95,'min_p':0.05,'"
                   "repetition_penalty':1.05,'eos_token_id':[151645,151643]}");
    ck_assert_msg(p.n == 0, "%s", p.first.text);
    ck_assert(d.temperature == 0.6f && d.top_k == 20 && d.top_p == 0.95f && d.min_p == 0.05f);
    ck_assert(d.repetition_penalty == 1.05f);
    ck_assert_int_eq(d.n_eos, 2);
    parse_defaults("{}");
    ck_assert(p.n == 0 && d.temperature == 1.0f && d.n_eos == 1 && d.eos[0] == 151645);
    parse_defaults("{'do_sample':false,'temperature':0.7}"); /* greedy, whatever else */
    ck_assert(p.n == 0 && d.temperature == 0.0f);
    parse_defaults("{'temperature':null,'top_k':null,'eos_token_id':null}");
    ck_assert(p.n == 0 && d.temperature == 1.0f && d.n_eos == 1);
}

/* Out of range values of generation_config.json are refused by name. */
TEST(bad_generation_config_is_refused, .n = 10)
{
    static const struct {
        const char *text, *field;
    } cases[] = {
        {"{'temperature':-0.1}", "temperature: "},
        {"{'temperature':'hot'}", "temperature: "},
        {"{'top_k':-1}", "top_k: "},
        {"{'top_k':1.5}", "top_k: "},
        {"{'top_p':7}", "top_p: "},
        {"{'top_p':0}", "top_p: "},
        {"{'min_p':1.1}", "min_p: "},
        {"{'repetition_penalty':0}", "repetition_penalty: "},
        {"{'do_sample':'no'}", "do_sample: "},
        {"{'eos_token_id':151936}", "eos_token_id: "},
    };
    char text[128];

    parse_defaults(cases[_i].text);
    snprintf(text, sizeof(text), "generation_config.json: %s", cases[_i].field);
    ck_assert_uint_eq(p.n, 1);
    ck_assert_msg(strncmp(p.first.text, text, strlen(text)) == 0, "%s", p.first.text);
}

RUN_TESTS("model_config", NULL, NULL)
