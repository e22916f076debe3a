/* draft_rig.c - see draft_rig.h. */
#include "draft_rig.h"

#include "base/buf.h"
#include "base/random.h"
#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void write_file(const char *folder, const char *name, const void *a, size_t n_a, const void *b, size_t n_b) {
    char path[RIG_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    BUG_IF(!f || fwrite(a, 1, n_a, f) != n_a || fwrite(b, 1, n_b, f) != n_b || fclose(f) != 0);
}

static size_t n_elements(const struct rig_tensor *t) {
    size_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= (size_t)t->shape[i];
    return n;
}

static size_t n_bytes(const struct rig_tensor *t) {
    const char *dtype = t->dtype ? t->dtype : "F32";
    return n_elements(t) * (strcmp(dtype, "I64") == 0 ? 8 : strcmp(dtype, "BOOL") == 0 ? 1 : 4);
}

/* Matrices N(0, 1/in), nearly; vectors about 1. */
void rig_fill(const struct rig_tensor *t, float *out) {
    for (size_t i = 0; i < n_elements(t); i++) {
        double u = philox_uniform(t->seed, i, 3) - 0.5;
        out[i] = (float)(t->rank == 1 ? 1 + 0.2 * u : u * sqrt(12.0 / (double)t->shape[t->rank - 1]));
    }
}

void rig_write_draft(const char *config, const char *file_name, const struct rig_tensor *tensors, size_t n,
                     char path[RIG_PATH]) {
    struct buf header = {0};
    size_t total = 0;
    snprintf(path, RIG_PATH, "/tmp/gyre_draft_XXXXXX");
    BUG_IF(!mkdtemp(path));
    buf_str(&header, STR("{"));
    for (size_t i = 0; i < n; i++) {
        const struct rig_tensor *t = &tensors[i];
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", i ? "," : "", t->name,
                   t->dtype ? t->dtype : "F32");
        for (int k = 0; k < t->rank; k++)
            buf_printf(&header, "%s%lld", k ? "," : "", (long long)t->shape[k]);
        buf_printf(&header, "],\"data_offsets\":[%zu,%zu]}", total, total + n_bytes(t));
        total += n_bytes(t);
    }
    buf_str(&header, STR("}"));
    while (header.len % 8)
        buf_push(&header, ' ');
    char *all = xcalloc(total + 8, 1), *at = all + 8;
    uint64_t length = header.len;
    for (size_t i = 0; i < n; at += n_bytes(&tensors[i++]))
        if (tensors[i].data)
            memcpy(at, tensors[i].data, n_bytes(&tensors[i]));
        else
            rig_fill(&tensors[i], (float *)(void *)at);
    struct buf file = {0};
    for (int i = 0; i < 8; i++)
        buf_push(&file, (char)(length >> 8 * i & 255));
    buf_append(&file, header.ptr, header.len);
    write_file(path, file_name, file.ptr, file.len, all + 8, total);
    write_file(path, "config.json", config, strlen(config), "", 0);
    buf_release(&file);
    buf_release(&header);
    free(all);
}

void rig_remove_draft(const char *path) {
    static const char *const names[] = {"model.safetensors", "model-00001-of-00002.safetensors",
                                        "model-00002-of-00002.safetensors", "config.json"};
    char file[RIG_PATH + 32];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        unlink(file);
    }
    rmdir(path);
}

// ---- layers by number -------------------------------------------------------------------------------------------

enum { MOST_TENSORS = 64 };

struct tensors {
    struct rig_tensor t[MOST_TENSORS];
    char names[MOST_TENSORS][64];
    size_t n;
};

/* cols 0: a vector */
static void add(struct tensors *all, int layer, const char *name, int64_t rows, int64_t cols) {
    char *full = all->names[all->n];
    if (layer < 0)
        snprintf(full, sizeof all->names[0], "%s", name);
    else
        snprintf(full, sizeof all->names[0], name, layer);
    all->t[all->n] = (struct rig_tensor){full, cols ? 2 : 1, {rows, cols}, NULL, 500 + all->n, NULL};
    BUG_IF(++all->n == MOST_TENSORS);
}

void rig_dflash(char path[RIG_PATH]) {
    enum { H = 128, Q = 4 * 32, KV = 2 * 32, MLP = 96 };
    static struct tensors all;
    all.n = 0;
    add(&all, -1, "fc.weight", H, 2 * H), add(&all, -1, "hidden_norm.weight", H, 0), add(&all, -1, "norm.weight", H, 0);
    for (int l = 0; l < 2; l++) {
        add(&all, l, "layers.%d.input_layernorm.weight", H, 0);
        add(&all, l, "layers.%d.post_attention_layernorm.weight", H, 0);
        add(&all, l, "layers.%d.self_attn.q_norm.weight", 32, 0);
        add(&all, l, "layers.%d.self_attn.k_norm.weight", 32, 0);
        add(&all, l, "layers.%d.self_attn.q_proj.weight", Q, H);
        add(&all, l, "layers.%d.self_attn.k_proj.weight", KV, H);
        add(&all, l, "layers.%d.self_attn.v_proj.weight", KV, H);
        add(&all, l, "layers.%d.self_attn.o_proj.weight", H, Q);
        add(&all, l, "layers.%d.mlp.gate_proj.weight", MLP, H);
        add(&all, l, "layers.%d.mlp.up_proj.weight", MLP, H);
        add(&all, l, "layers.%d.mlp.down_proj.weight", H, MLP);
    }
    rig_write_draft("{\"architectures\": [\"DFlashDraftModel\"], \"model_type\": \"qwen3\", \"vocab_size\": 1024, "
                    "\"hidden_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                    "\"num_key_value_heads\": 2, \"head_dim\": 32, \"intermediate_size\": 96, \"block_size\": 6, "
                    "\"max_position_embeddings\": 1024, \"dflash_config\": {\"mask_token_id\": 190, "
                    "\"target_layer_ids\": [0, 2]}}",
                    "model.safetensors", all.t, all.n, path);
}

void rig_assistant(char path[RIG_PATH]) {
    enum { H = 64, TARGET = 128, MLP = 96, HEADS = 4 };
    static struct tensors all;
    all.n = 0;
    add(&all, -1, "model.embed_tokens.weight", 1024, H), add(&all, -1, "model.norm.weight", H, 0);
    add(&all, -1, "pre_projection.weight", H, 2 * TARGET), add(&all, -1, "post_projection.weight", TARGET, H);
    for (int l = 0; l < 2; l++) {
        int64_t head = l == 0 ? 64 : 128;
        add(&all, l, "model.layers.%d.input_layernorm.weight", H, 0);
        add(&all, l, "model.layers.%d.post_attention_layernorm.weight", H, 0);
        add(&all, l, "model.layers.%d.pre_feedforward_layernorm.weight", H, 0);
        add(&all, l, "model.layers.%d.post_feedforward_layernorm.weight", H, 0);
        add(&all, l, "model.layers.%d.layer_scalar", 1, 0);
        add(&all, l, "model.layers.%d.self_attn.q_norm.weight", head, 0);
        add(&all, l, "model.layers.%d.self_attn.q_proj.weight", HEADS * head, H);
        add(&all, l, "model.layers.%d.self_attn.o_proj.weight", H, HEADS * head);
        add(&all, l, "model.layers.%d.mlp.gate_proj.weight", MLP, H);
        add(&all, l, "model.layers.%d.mlp.up_proj.weight", MLP, H);
        add(&all, l, "model.layers.%d.mlp.down_proj.weight", H, MLP);
    }
    rig_write_draft("{\"architectures\": [\"Gemma4AssistantForCausalLM\"], \"model_type\": \"gemma4_assistant\", "
                    "\"backbone_hidden_size\": 128, \"tie_word_embeddings\": true, \"text_config\": {\"model_type\": "
                    "\"gemma4_text\", \"hidden_size\": 64, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                    "\"num_key_value_heads\": 2, \"head_dim\": 64, \"global_head_dim\": 128, "
                    "\"num_global_key_value_heads\": 1, \"attention_k_eq_v\": true, \"intermediate_size\": 96, "
                    "\"vocab_size\": 1024, \"hidden_size_per_layer_input\": 0, \"vocab_size_per_layer_input\": 0, "
                    "\"num_kv_shared_layers\": 2, \"sliding_window\": 48, \"max_position_embeddings\": 4096, "
                    "\"layer_types\": [\"sliding_attention\", \"full_attention\"], \"tie_word_embeddings\": true}}",
                    "model.safetensors", all.t, all.n, path);
}

// ---- Qwen3.5's predictor ----------------------------------------------------------------------------------------

static char *whole_file(const char *folder, const char *name, size_t *n) {
    char path[RIG_PATH + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    BUG_IF(!f || fseek(f, 0, SEEK_END) != 0);
    *n = (size_t)ftell(f);
    rewind(f);
    char *text = xcalloc(*n + 1, 1);
    BUG_IF(fread(text, 1, *n, f) != *n);
    fclose(f);
    return text;
}

void rig_replace(const char *path, const char *file_name, const char *text, const char *with) {
    size_t n, n_text = strlen(text);
    char *all = whole_file(path, file_name, &n), *at = all;
    while (at + n_text <= all + n && memcmp(at, text, n_text) != 0)
        at++;
    BUG_IF(at + n_text > all + n || strlen(with) != n_text);
    memcpy(at, with, n_text);
    write_file(path, file_name, all, n, "", 0);
    free(all);
}

void rig_write_beside(const char *target, const struct rig_tensor *tensors, size_t n, char path[RIG_PATH]) {
    size_t n_config, n_weights;
    char *config = whole_file(target, "config.json", &n_config);
    char *weights = whole_file(target, "model.safetensors", &n_weights);
    rig_write_draft(config, "model-00002-of-00002.safetensors", tensors, n, path);
    write_file(path, "model-00001-of-00002.safetensors", weights, n_weights, "", 0);
    free(config);
    free(weights);
}

void rig_qwen3_5_mtp(const char *target, char path[RIG_PATH]) {
    enum { H = 128, Q = 4 * 64, KV = 2 * 64, MTP_FFN = 256 };
    struct rig_tensor t[] = {
        {"mtp.fc.weight", 2, {H, 2 * H}},
        {"mtp.pre_fc_norm_embedding.weight", 1, {H}},
        {"mtp.pre_fc_norm_hidden.weight", 1, {H}},
        {"mtp.norm.weight", 1, {H}},
        {"mtp.layers.0.input_layernorm.weight", 1, {H}},
        {"mtp.layers.0.post_attention_layernorm.weight", 1, {H}},
        {"mtp.layers.0.self_attn.q_norm.weight", 1, {64}},
        {"mtp.layers.0.self_attn.k_norm.weight", 1, {64}},
        {"mtp.layers.0.self_attn.q_proj.weight", 2, {2 * Q, H}},
        {"mtp.layers.0.self_attn.k_proj.weight", 2, {KV, H}},
        {"mtp.layers.0.self_attn.v_proj.weight", 2, {KV, H}},
        {"mtp.layers.0.self_attn.o_proj.weight", 2, {H, Q}},
        {"mtp.layers.0.mlp.gate_proj.weight", 2, {MTP_FFN, H}},
        {"mtp.layers.0.mlp.up_proj.weight", 2, {MTP_FFN, H}},
        {"mtp.layers.0.mlp.down_proj.weight", 2, {H, MTP_FFN}},
    };
    for (size_t i = 0; i < ARRAY_LEN(t); i++)
        t[i].seed = 100 + i;
    rig_write_beside(target, t, ARRAY_LEN(t), path);
}

// ---- EAGLE-3 ----------------------------------------------------------------------------------------------------

enum { HEADS = 2, HEAD = 32, FFN = 64, OWN_VOCAB = 300 };

static void eagle3_config(enum rig_layout layout, int hidden, int vocab, char *out, size_t size) {
    char layer[400];
    snprintf(layer, sizeof layer,
             "\"model_type\": \"llama\", \"hidden_size\": %d, \"num_attention_heads\": %d, \"num_key_value_heads\": 1, "
             "\"head_dim\": %d, \"intermediate_size\": %d, \"num_hidden_layers\": 1, \"vocab_size\": %d, "
             "\"rms_norm_eps\": 1e-6, \"max_position_embeddings\": 4096, \"hidden_act\": \"silu\"",
             hidden, HEADS, HEAD, FFN, vocab);
    if (layout == RIG_SPECULATORS)
        snprintf(out, size,
                 "{\"speculators_model_type\": \"eagle3\", \"model_type\": \"speculators\", \"architectures\": "
                 "[\"Eagle3DraftModel\"], \"norm_before_residual\": false, \"draft_vocab_size\": %d, "
                 "\"eagle_aux_hidden_state_layer_ids\": [1, 2, 3], \"transformer_layer_config\": {%s}}",
                 vocab, layer);
    else
        snprintf(out, size,
                 "{%s, \"architectures\": [\"%s\"], \"draft_vocab_size\": %d, \"eagle_config\": "
                 "{\"eagle_aux_hidden_state_layer_ids\": [0, 1, 2]}}",
                 layer, layout == RIG_LAYERS ? "Eagle3LlamaForCausalLM" : "LlamaForCausalLMEagle3",
                 layout >= RIG_OWN_VOCAB ? OWN_VOCAB : vocab);
}

void rig_eagle3(enum rig_layout layout, int hidden, int vocab, char path[RIG_PATH]) {
    static int64_t offsets[OWN_VOCAB];
    static unsigned char is_ours[1 << 18];
    static char names[16][64];
    const int64_t H = hidden, V = layout >= RIG_OWN_VOCAB ? OWN_VOCAB : vocab, Q = HEADS * HEAD;
    const char *at = layout == RIG_LAYERS || layout == RIG_SPECULATORS ? "layers.0" : "midlayer";
    struct rig_tensor t[] = {
        {"%s.hidden_norm.weight", 1, {H}},
        {"%s.input_layernorm.weight", 1, {H}},
        {"%s.post_attention_layernorm.weight", 1, {H}},
        {"%s.self_attn.q_proj.weight", 2, {Q, 2 * H}},
        {"%s.self_attn.k_proj.weight", 2, {HEAD, 2 * H}},
        {"%s.self_attn.v_proj.weight", 2, {HEAD, 2 * H}},
        {"%s.self_attn.o_proj.weight", 2, {H, Q}},
        {"%s.mlp.gate_proj.weight", 2, {FFN, H}},
        {"%s.mlp.up_proj.weight", 2, {FFN, H}},
        {"%s.mlp.down_proj.weight", 2, {H, FFN}},
        {"fc.weight", 2, {H, 3 * H}},
        {"norm.weight", 1, {H}},
        {"lm_head.weight", 2, {V, H}},
        {"d2t", 1, {V}, offsets, 0, "I64"},
        {"t2d", 1, {vocab}, is_ours, 0, "BOOL"},
        {"embed_tokens.weight", 2, {vocab, H}},
    };
    char config[1024];
    BUG_IF(vocab > (int)sizeof is_ours);
    for (int i = 0; i < OWN_VOCAB; i++) // every third token
        offsets[i] = 2 * i;
    for (size_t i = 0; i < ARRAY_LEN(t); i++) {
        t[i].seed = i + 1;
        if (strncmp(t[i].name, "%s", 2) != 0)
            continue;
        snprintf(names[i], sizeof names[i], "%s%s", at, t[i].name + 2);
        t[i].name = names[i];
    }
    eagle3_config(layout, hidden, vocab, config, sizeof config);
    size_t n_less = layout == RIG_OWN_EMBED ? 0 : layout == RIG_OWN_VOCAB ? 1 : 3;
    rig_write_draft(config, "model.safetensors", t, ARRAY_LEN(t) - n_less, path);
}
