/* gguf_keys.c - see gguf_keys.h. Keys and their meaning: gguf_config.c and gguf_arch.c, which read them. */
#include "model/gguf/gguf_keys.h"

#include "base/json/json.h"
#include "model/gguf/gguf_translation.h"

#include <math.h>
#include <stdio.h>

struct put {
    const struct model_spec *s;
    struct gguf_writer *w;
    struct gguf_keys *out;
    struct arena *arena;
    struct error *err;
};

/* ---- one key of the architecture ---- */

static const char *key(const struct put *p, const char *leaf) {
    static _Thread_local char name[160];
    snprintf(name, sizeof name, "%s.%s", p->out->arch->name, leaf);
    return name;
}

static void put_int(const struct put *p, const char *leaf, int64_t value) {
    gguf_put_u32(p->w, key(p, leaf), (uint32_t)value);
}

static void put_int_if(const struct put *p, const char *leaf, int64_t value) {
    if (value > 0)
        put_int(p, leaf, value);
}

static void put_real(const struct put *p, const char *leaf, double value) {
    gguf_put_f32(p->w, key(p, leaf), (float)value);
}

static void put_real_if(const struct put *p, const char *leaf, double value) {
    if (value > 0)
        put_real(p, leaf, value);
}

static void add_extra(const struct put *p, const char *name, const float *values, int n) {
    BUG_IF(p->out->n_extra == GGUF_MAX_EXTRA);
    p->out->extra[p->out->n_extra++] = (struct gguf_extra){name, values, n};
}

/* ---- rope ---- */

static float *plain_frequencies(const struct put *p, const struct rope *r, double theta) {
    float *out = arena_alloc(p->arena, (size_t)(r->dim / 2) * sizeof *out);
    for (int i = 0; i < r->dim / 2; i++)
        out[i] = (float)pow(theta, -2.0 * i / r->dim);
    return out;
}

/* What each plain frequency is divided by; 1e30 for a pair that does not turn. Readers look for ones. */
static void put_divisors(const struct put *p, const struct rope *r, const float *inv_freq, double theta,
                         const char *name) {
    float *out = plain_frequencies(p, r, theta);
    for (int i = 0; i < r->dim / 2; i++) {
        out[i] = inv_freq[i] > 0 ? out[i] / inv_freq[i] : 1e30f;
        if (fabsf(out[i] - 1) < 1e-5f)
            out[i] = 1;
    }
    add_extra(p, name, out, r->dim / 2);
}

static void put_yarn(const struct put *p, const struct rope *r, const json_t *said) {
    static const char *const betas[][2] = {{"beta_fast", "rope.scaling.yarn_beta_fast"},
                                           {"beta_slow", "rope.scaling.yarn_beta_slow"}};
    double factor = json_number_value(json_object_get(said, "factor"));
    double all_dim = json_number_value(json_object_get(said, "mscale_all_dim"));
    for (size_t i = 0; i < ARRAY_LEN(betas); i++)
        put_real_if(p, betas[i][1], json_number_value(json_object_get(said, betas[i][0])));
    double attention = (double)r->factor / (0.1 * log(MAX(factor, 1)) + 1);
    if (all_dim > 0)
        put_real(p, "rope.scaling.yarn_log_multiplier", 0.1 * all_dim);
    else if (fabs(attention - 1) > 1e-5)
        put_real(p, "rope.scaling.yarn_attn_factor", attention);
}

static enum status put_scaling(const struct put *p, const struct rope *r, const json_t *said, double theta) {
    const char *type = json_string_value(json_object_get(said, "rope_type"));
    type = type ? type : json_string_value(json_object_get(said, "type"));
    double factor = json_number_value(json_object_get(said, "factor"));
    json_int_t original = json_integer_value(json_object_get(said, "original_max_position_embeddings"));
    if (!type || strcmp(type, "default") == 0)
        return OK;
    if (strcmp(type, "llama3") == 0 && p->out->arch->interleaved) {
        put_divisors(p, r, r->inv_freq, theta, "rope_freqs.weight");
        return OK;
    }
    bool is_long = r->by_length == ROPE_LONG;
    if (!is_long && strcmp(type, "linear") != 0 && strcmp(type, "yarn") != 0)
        return fail(p->err, ERR_UNSUPPORTED, "%s: rope type \"%s\" has no place in a GGUF file of architecture %s",
                    p->s->path, type, p->out->arch->name);
    gguf_put_string(p->w, key(p, "rope.scaling.type"), str_of(is_long ? "longrope" : type));
    put_real_if(p, "rope.scaling.factor", factor);
    put_int_if(p, "rope.scaling.original_context_length", original ? original : r->original_context);
    if (is_long) {
        put_divisors(p, r, r->inv_freq_long, theta, "rope_factors_long.weight");
        put_divisors(p, r, r->inv_freq, theta, "rope_factors_short.weight");
        put_real(p, "rope.scaling.attn_factor", (double)r->factor);
    } else if (strcmp(type, "yarn") == 0) {
        put_yarn(p, r, said);
    }
    return OK;
}

/* The rope of full layers, which are all but those that slide. */
static enum status put_rope(const struct put *p, int index) {
    const struct rope_said *said = &p->s->rope_said[index];
    json_t *parameters = said->parameters ? json_loads(said->parameters, 0, NULL) : NULL;
    put_real(p, "rope.freq_base", said->theta);
    enum status st = put_scaling(p, &p->s->ropes[index], parameters, said->theta);
    json_decref(parameters);
    return st;
}

static int rope_of(const struct model_spec *s, enum mixer mixer) {
    for (int l = 0; l < s->n_layers; l++)
        if (s->layers[l].mixer == mixer && s->layers[l].rope >= 0)
            return s->layers[l].rope;
    return 0;
}

/* ---- architectures ---- */

static void put_experts(const struct put *p) {
    put_int(p, "expert_count", p->s->moe.n_experts);
    put_int(p, "expert_used_count", p->s->moe.top_k);
    if (strcmp(p->s->model_type, "mixtral") != 0) // whose feed_forward_length is that
        put_int(p, "expert_feed_forward_length", p->s->moe.ffn_size);
}

static void put_heads(const struct put *p, int64_t turned) {
    put_int(p, "attention.key_length", p->s->head_dim);
    put_int(p, "attention.value_length", p->s->head_dim);
    put_int(p, "rope.dimension_count", turned);
}

static enum status put_usual(const struct put *p) {
    int index = rope_of(p->s, MIX_FULL);
    put_heads(p, p->s->ropes ? p->s->ropes[index].dim : p->s->head_dim);
    put_int(p, "attention.head_count_kv", p->s->n_kv_heads);
    put_int_if(p, "attention.sliding_window", p->s->sliding_window);
    if (p->s->moe.n_experts)
        put_experts(p);
    return put_rope(p, index);
}

static enum status put_gemma(const struct put *p) {
    put_real_if(p, "attn_logit_softcapping", p->s->attention_softcap);
    put_real_if(p, "final_logit_softcapping", p->s->final_softcap);
    return put_usual(p);
}

static enum status put_gemma3(const struct put *p) {
    put_real(p, "rope.freq_base_swa", p->s->rope_said[rope_of(p->s, MIX_SLIDING)].theta);
    return put_gemma(p);
}

static enum status put_deepseek(const struct put *p) {
    const struct model_spec *s = p->s;
    put_int(p, "attention.head_count_kv", 1);
    put_int_if(p, "attention.q_lora_rank", s->mla.q_rank);
    put_int(p, "attention.kv_lora_rank", s->mla.kv_rank);
    put_int(p, "attention.key_length", s->mla.kv_rank + s->mla.rope_dim);
    put_int(p, "attention.value_length", s->mla.kv_rank);
    put_int(p, "attention.key_length_mla", s->mla.nope_dim + s->mla.rope_dim);
    put_int(p, "attention.value_length_mla", s->mla.v_dim);
    put_int(p, "rope.dimension_count", s->mla.rope_dim);
    put_int(p, "leading_dense_block_count", s->first_dense_layers);
    put_experts(p);
    put_int(p, "expert_shared_count", s->moe.shared_ffn_size / MAX(s->moe.ffn_size, 1));
    put_real(p, "expert_weights_scale", (double)s->moe.scale);
    gguf_put_bool(p->w, key(p, "expert_weights_norm"), s->moe.renormalise);
    put_int_if(p, "expert_group_count", s->moe.n_groups);
    put_int_if(p, "expert_group_used_count", s->moe.top_groups);
    put_int(p, "expert_gating_func", strcmp(s->model_type, "deepseek_v2") == 0 ? 1 : 2);
    return put_rope(p, 0);
}

static void put_each_layer(const struct put *p, const char *leaf, enum gguf_type type) {
    gguf_put_array(p->w, key(p, leaf), type, (uint64_t)p->s->n_layers);
}

static enum status put_gemma4(const struct put *p) {
    const struct model_spec *s = p->s;
    const struct layer_spec *full = NULL, *sliding = NULL;
    put_each_layer(p, "attention.head_count_kv", GGUF_I32);
    for (int l = 0; l < s->n_layers; l++)
        gguf_item_u32(p->w, (uint32_t)s->layers[l].n_kv_heads);
    put_each_layer(p, "attention.sliding_window_pattern", GGUF_BOOL);
    for (int l = 0; l < s->n_layers; l++) {
        gguf_item_bool(p->w, s->layers[l].mixer == MIX_SLIDING);
        *(s->layers[l].mixer == MIX_SLIDING ? &sliding : &full) = &s->layers[l];
    }
    put_each_layer(p, "feed_forward_length", GGUF_I32);
    for (int l = 0; l < s->n_layers; l++)
        gguf_item_u32(p->w, (uint32_t)s->layers[l].ffn_size);
    if (!full || !sliding)
        return fail(p->err, ERR_UNSUPPORTED, "%s: \"layer_types\" must name layers of both kinds for architecture %s",
                    s->path, p->out->arch->name);
    put_int(p, "attention.key_length", full->head_dim);
    put_int(p, "attention.value_length", full->head_dim);
    put_int(p, "attention.key_length_swa", sliding->head_dim);
    put_int(p, "attention.value_length_swa", sliding->head_dim);
    put_int(p, "rope.dimension_count", full->head_dim);
    put_int(p, "rope.dimension_count_swa", sliding->head_dim);
    put_real(p, "rope.freq_base", s->rope_said[full->rope].theta);
    put_real(p, "rope.freq_base_swa", s->rope_said[sliding->rope].theta);
    put_divisors(p, &s->ropes[full->rope], s->ropes[full->rope].inv_freq, s->rope_said[full->rope].theta,
                 "rope_freqs.weight");
    int n_shared = 0;
    for (int l = 0; l < s->n_layers; l++)
        n_shared += s->layers[l].kv_source != l;
    put_int(p, "attention.shared_kv_layers", n_shared);
    put_int(p, "attention.sliding_window", s->sliding_window);
    put_int(p, "embedding_length_per_layer_input", s->per_layer_input_size);
    put_real_if(p, "final_logit_softcapping", s->final_softcap);
    if (s->moe.n_experts)
        put_experts(p);
    return OK;
}

static const struct {
    const char *model_type, *arch;
    enum status (*put)(const struct put *p);
    bool no_ffn_size; // of the dense FFN: written by put, or not there
} rows[] = {
    {"llama", "llama", put_usual},
    {"mistral", "llama", put_usual},
    {"mixtral", "llama", put_usual},
    {"smollm3", "smollm3", put_usual},
    {"qwen2", "qwen2", put_usual},
    {"qwen3", "qwen3", put_usual},
    {"qwen3_moe", "qwen3moe", put_usual},
    {"phi3", "phi3", put_usual},
    {"gemma2", "gemma2", put_gemma},
    {"gemma3_text", "gemma3", put_gemma3},
    {"gemma4_text", "gemma4", put_gemma4, true},
    {"deepseek_v2", "deepseek2", put_deepseek},
    {"deepseek_v3", "deepseek2", put_deepseek},
    {"gpt_oss", "gpt-oss", put_usual},
};

static int row_for(const struct model_spec *spec) {
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (strcmp(rows[i].model_type, spec->model_type) == 0)
            return (int)i;
    return -1;
}

const struct gguf_arch *gguf_arch_for(const struct model_spec *spec) {
    int row = row_for(spec);
    for (const struct gguf_arch *a = gguf_archs; row >= 0 && a->name; a++)
        if (strcmp(a->name, rows[row].arch) == 0 && a->experts == (spec->moe.n_experts > 0))
            return a;
    return NULL;
}

enum status gguf_put_keys(const struct model_spec *s, struct gguf_writer *w, struct arena *arena, struct gguf_keys *out,
                          struct error *err) {
    *out = (struct gguf_keys){.arch = gguf_arch_for(s)};
    struct put p = {s, w, out, arena, err};
    if (!out->arch)
        return fail(err, ERR_UNSUPPORTED, "%s: model type %s has no architecture of GGUF that is written here", s->path,
                    s->model_type);
    int row = row_for(s);
    gguf_put_string(w, "general.architecture", str_of(out->arch->name));
    gguf_put_string(w, "general.type", STR("model"));
    put_int(&p, "block_count", s->n_layers);
    put_int(&p, "context_length", s->max_positions);
    put_int(&p, "embedding_length", s->hidden_size);
    if (!rows[row].no_ffn_size)
        put_int_if(&p, "feed_forward_length", s->ffn_size);
    put_int(&p, "attention.head_count", s->n_heads);
    put_real(&p, "attention.layer_norm_rms_epsilon", s->norm_eps);
    put_int(&p, "vocab_size", s->vocab_size);
    return rows[row].put(&p);
}
