/* head_write.c - see head_files.h. */
#include "train/head_files.h"
#include "train/tensor_file.h"

#include "base/file.h"
#include "base/folder.h"

#include <stdlib.h>

static void put_tensors(const struct head_shape *s, uint16_t *w, struct memory_tensor *out, size_t *n) {
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

static json_t *optional_id(int32_t id) { return id < 0 ? json_null() : json_integer(id); }

static json_t *config_json(const struct head_config *c, const struct model_spec *target) {
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

static enum status write_config(const char *folder, const struct head_config *c, const struct model_spec *target,
                                struct error *err) {
    char path[FOLDER_PATH_BYTES];
    json_t *json = config_json(c, target);
    BUG_IF(!json);
    char *text = json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    enum status st = path_join(path, sizeof path, folder, "config.json", err);
    if (st == OK)
        st = file_write(path, str_of(text), err);
    free(text);
    return st;
}

enum status head_write(const char *folder, const struct head_config *c, const struct draft_vocab *vocab,
                       const struct model_spec *target, const float *weight, struct error *err) {
    char path[FOLDER_PATH_BYTES];
    struct memory_tensor tensors[16];
    size_t n;
    int64_t size = head_size(&c->shape);
    TRY(path_join(path, sizeof path, folder, "model.safetensors", err));
    uint16_t *rounded = xcalloc((size_t)size, sizeof *rounded);
    int64_t *d2t = xcalloc((size_t)vocab->n, sizeof *d2t);
    bool *t2d = xcalloc((size_t)vocab->n_target, sizeof *t2d);
    for (int64_t i = 0; i < size; i++)
        rounded[i] = f32_to_bf16(weight[i]);
    for (int32_t i = 0; i < vocab->n; i++) {
        d2t[i] = vocab->target_id[i] - i;
        t2d[vocab->target_id[i]] = true;
    }
    put_tensors(&c->shape, rounded, tensors, &n);
    if (vocab->n != vocab->n_target) {
        tensors[n++] = (struct memory_tensor){"d2t", DT_I64, 1, {vocab->n}, d2t};
        tensors[n++] = (struct memory_tensor){"t2d", DT_BOOL, 1, {vocab->n_target}, t2d};
    }
    enum status st = tensor_file_write(path, tensors, n, err);
    free(rounded);
    free(d2t);
    free(t2d);
    TRY(st);
    return write_config(folder, c, target, err);
}
