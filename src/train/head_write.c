/* head_write.c - a head as files: see head_files.h. */
#include "train/head_parts.h"
#include "train/tensor_file.h"

#include "base/file.h"
#include "base/folder.h"
#include "base/json/json.h"

#include <stdlib.h>
#include <string.h>

static void put_eagle3(const struct head_shape *s, uint16_t *w, struct memory_tensor *out, size_t *n) {
    int64_t H = s->hidden, q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    const uint16_t *qkv = w + head_at(s, HEAD_QKV), *gate_up = w + head_at(s, HEAD_GATE_UP);
    const struct memory_tensor all[] = {
        {"fc.weight", DT_BF16, 2, {H, s->taps}, w + head_at(s, HEAD_FC)},
        {"midlayer.input_layernorm.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_EMBED_NORM)},
        {"midlayer.hidden_norm.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_HIDDEN_NORM)},
        {"midlayer.self_attn.q_proj.weight", DT_BF16, 2, {q, 2 * H}, qkv},
        {"midlayer.self_attn.k_proj.weight", DT_BF16, 2, {kv, 2 * H}, qkv + q * 2 * H},
        {"midlayer.self_attn.v_proj.weight", DT_BF16, 2, {kv, 2 * H}, qkv + (q + kv) * 2 * H},
        {"midlayer.self_attn.o_proj.weight", DT_BF16, 2, {H, q}, w + head_at(s, HEAD_OUT)},
        {"midlayer.post_attention_layernorm.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_FFN_NORM)},
        {"midlayer.mlp.gate_proj.weight", DT_BF16, 2, {s->ffn, H}, gate_up},
        {"midlayer.mlp.up_proj.weight", DT_BF16, 2, {s->ffn, H}, gate_up + s->ffn * H},
        {"midlayer.mlp.down_proj.weight", DT_BF16, 2, {H, s->ffn}, w + head_at(s, HEAD_DOWN)},
        {"norm.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_NORM)},
        {"lm_head.weight", DT_BF16, 2, {s->vocab, H}, w + head_at(s, HEAD_LM_HEAD)},
    };
    memcpy(out, all, sizeof all);
    *n = ARRAY_LEN(all);
}

/* A head's queries and then its gates, head by head; `out` is as large as both. */
static void interleave_gates(const struct head_shape *s, const uint16_t *w, uint16_t *out) {
    size_t a_head = (size_t)(s->head_dim * s->hidden);
    const uint16_t *q = w + head_at(s, HEAD_QKV), *gate = w + head_at(s, HEAD_GATE);
    for (int h = 0; h < s->n_heads; h++) {
        memcpy(out + (size_t)(2 * h) * a_head, q + (size_t)h * a_head, a_head * sizeof *out);
        memcpy(out + (size_t)(2 * h + 1) * a_head, gate + (size_t)h * a_head, a_head * sizeof *out);
    }
}

static void put_mtp(const struct head_shape *s, uint16_t *w, const uint16_t *q_proj, struct memory_tensor *out,
                    size_t *n) {
    int64_t H = s->hidden, q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    const uint16_t *qkv = w + head_at(s, HEAD_QKV), *gate_up = w + head_at(s, HEAD_GATE_UP);
    const struct memory_tensor all[] = {
        {"mtp.fc.weight", DT_BF16, 2, {H, 2 * H}, w + head_at(s, HEAD_FC)},
        {"mtp.pre_fc_norm_embedding.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_EMBED_NORM)},
        {"mtp.pre_fc_norm_hidden.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_HIDDEN_NORM)},
        {"mtp.layers.0.input_layernorm.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_INPUT_NORM)},
        {"mtp.layers.0.self_attn.q_proj.weight", DT_BF16, 2, {2 * q, H}, q_proj},
        {"mtp.layers.0.self_attn.k_proj.weight", DT_BF16, 2, {kv, H}, qkv + q * H},
        {"mtp.layers.0.self_attn.v_proj.weight", DT_BF16, 2, {kv, H}, qkv + (q + kv) * H},
        {"mtp.layers.0.self_attn.q_norm.weight", DT_BF16, 1, {s->head_dim}, w + head_at(s, HEAD_Q_NORM)},
        {"mtp.layers.0.self_attn.k_norm.weight", DT_BF16, 1, {s->head_dim}, w + head_at(s, HEAD_K_NORM)},
        {"mtp.layers.0.self_attn.o_proj.weight", DT_BF16, 2, {H, q}, w + head_at(s, HEAD_OUT)},
        {"mtp.layers.0.post_attention_layernorm.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_FFN_NORM)},
        {"mtp.layers.0.mlp.gate_proj.weight", DT_BF16, 2, {s->ffn, H}, gate_up},
        {"mtp.layers.0.mlp.up_proj.weight", DT_BF16, 2, {s->ffn, H}, gate_up + s->ffn * H},
        {"mtp.layers.0.mlp.down_proj.weight", DT_BF16, 2, {H, s->ffn}, w + head_at(s, HEAD_DOWN)},
        {"mtp.norm.weight", DT_BF16, 1, {H}, w + head_at(s, HEAD_NORM)},
    };
    memcpy(out, all, sizeof all);
    *n = ARRAY_LEN(all);
}

bool head_is_norm(enum head_tensor t) {
    switch (t) {
    case HEAD_EMBED_NORM:
    case HEAD_HIDDEN_NORM:
    case HEAD_INPUT_NORM:
    case HEAD_Q_NORM:
    case HEAD_K_NORM:
    case HEAD_FFN_NORM:
    case HEAD_NORM: return true;
    default: return false;
    }
}

/* What is stored less than the weight: 1 of a predictor's norms. */
static float stored_less(const struct head_shape *s, enum head_tensor t) {
    return s->kind == HEAD_MTP && head_is_norm(t) ? 1 : 0;
}

static void round_all(const struct head_shape *s, const float *weight, uint16_t *out) {
    for (int t = 0; t < N_HEAD_TENSORS; t++) {
        float less = stored_less(s, (enum head_tensor)t);
        for (int64_t i = head_at(s, (enum head_tensor)t); i < head_at(s, (enum head_tensor)(t + 1)); i++)
            out[i] = f32_to_bf16(weight[i] - less);
    }
}

void head_round(const struct head_shape *s, const float *weight, float *out) {
    for (int t = 0; t < N_HEAD_TENSORS; t++) {
        float less = stored_less(s, (enum head_tensor)t);
        for (int64_t i = head_at(s, (enum head_tensor)t); i < head_at(s, (enum head_tensor)(t + 1)); i++)
            out[i] = bf16_to_f32(f32_to_bf16(weight[i] - less)) + less;
    }
}

// ---- config.json ------------------------------------------------------------------------------------------------

static json_t *optional_id(int32_t id) { return id < 0 ? json_null() : json_integer(id); }

static json_t *eagle3_json(const struct head_config *c, const struct model_spec *target) {
    const struct head_shape *s = &c->shape;
    json_t *eagle = json_pack("{s:[iii], s:b}", "eagle_aux_hidden_state_layer_ids", c->layers[0], c->layers[1],
                              c->layers[2], "use_aux_hidden_state", 1);
    return json_pack("{s:[s], s:s, s:b, s:s, s:o, s:o, s:o, s:I, s:f, s:f, s:b, s:i, s:I, s:i, s:i, s:i, s:I, s:i, "
                     "s:s, s:I, s:i, s:o}",
                     "architectures", "LlamaForCausalLMEagle3", "model_type", "llama", "attention_bias", 0,
                     "hidden_act", "silu", "bos_token_id", optional_id(target->bos), "eos_token_id",
                     optional_id(target->n_eos ? target->eos[0] : -1), "pad_token_id", optional_id(target->pad),
                     "max_position_embeddings", (json_int_t)target->max_positions, "rms_norm_eps", s->eps, "rope_theta",
                     s->rope_theta, "tie_word_embeddings", 0, "vocab_size", target->vocab_size, "hidden_size",
                     (json_int_t)s->hidden, "head_dim", s->head_dim, "num_attention_heads", s->n_heads,
                     "num_key_value_heads", s->n_kv_heads, "intermediate_size", (json_int_t)s->ffn, "num_hidden_layers",
                     1, "torch_dtype", "bfloat16", "draft_vocab_size", (json_int_t)s->vocab, "target_hidden_size",
                     target->hidden_size, "eagle_config", eagle);
}

/* The target's own, which says that there is a predictor and that nothing is quantised: this one is not. */
static enum status mtp_json(const struct model_spec *target, json_t **out, struct error *err) {
    enum { MOST_BYTES = 64 << 20 };
    json_t *text;
    TRY(jv_load(target->path, MOST_BYTES, 0, out, err));
    enum status st = jv_object_or_null(*out, target->path, "text_config", &text, err);
    if (st != OK) {
        json_decref(*out);
        return st;
    }
    json_object_del(*out, "quantization_config");
    json_object_del(text, "quantization_config"); // of NULL it does nothing
    json_object_set_new(text ? text : *out, "mtp_num_hidden_layers", json_integer(1));
    return OK;
}

static enum status write_config(const char *folder, const struct head_config *c, const struct model_spec *target,
                                struct error *err) {
    char path[FOLDER_PATH_BYTES];
    json_t *json = NULL;
    if (c->shape.kind == HEAD_MTP)
        TRY(mtp_json(target, &json, err));
    else
        json = eagle3_json(c, target);
    BUG_IF(!json);
    char *text = json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    enum status st = path_join(path, sizeof path, folder, "config.json", err);
    if (st == OK)
        st = file_write(path, str_of(text), err);
    free(text);
    return st;
}

// ---- the folder -------------------------------------------------------------------------------------------------

static enum status write_eagle3(const char *path, const struct head_config *c, const struct draft_vocab *vocab,
                                uint16_t *rounded, struct error *err) {
    struct memory_tensor tensors[16];
    size_t n;
    int64_t *d2t = xcalloc((size_t)vocab->n, sizeof *d2t);
    bool *t2d = xcalloc((size_t)vocab->n_target, sizeof *t2d);
    for (int32_t i = 0; i < vocab->n; i++) {
        d2t[i] = vocab->target_id[i] - i;
        t2d[vocab->target_id[i]] = true;
    }
    put_eagle3(&c->shape, rounded, tensors, &n);
    if (vocab->n != vocab->n_target) {
        tensors[n++] = (struct memory_tensor){"d2t", DT_I64, 1, {vocab->n}, d2t};
        tensors[n++] = (struct memory_tensor){"t2d", DT_BOOL, 1, {vocab->n_target}, t2d};
    }
    enum status st = tensor_file_write(path, tensors, n, err);
    free(d2t);
    free(t2d);
    return st;
}

static enum status write_mtp(const char *path, const struct head_config *c, uint16_t *rounded, struct error *err) {
    struct memory_tensor tensors[16];
    size_t n;
    uint16_t *q_proj = xcalloc((size_t)(2 * head_rows(&c->shape, HEAD_GATE)), (size_t)c->shape.hidden * sizeof *q_proj);
    interleave_gates(&c->shape, rounded, q_proj);
    put_mtp(&c->shape, rounded, q_proj, tensors, &n);
    enum status st = tensor_file_write(path, tensors, n, err);
    free(q_proj);
    return st;
}

enum status head_write(const char *folder, const struct head_config *c, const struct draft_vocab *vocab,
                       const struct model_spec *target, const float *weight, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    TRY(path_join(path, sizeof path, folder, "model.safetensors", err));
    uint16_t *rounded = xcalloc((size_t)head_size(&c->shape), sizeof *rounded);
    round_all(&c->shape, weight, rounded);
    enum status st =
        c->shape.kind == HEAD_MTP ? write_mtp(path, c, rounded, err) : write_eagle3(path, c, vocab, rounded, err);
    free(rounded);
    TRY(st);
    return write_config(folder, c, target, err);
}
