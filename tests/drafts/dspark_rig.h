/* dspark_rig.h - checkpoints of random blocks: DFlash's and DSpark's, in the words of those who publish them. */
#pragma once

#include "draft_rig.h"
#include "op_rig.h"

#include <stdbool.h>
#include <stdio.h>

enum {
    H = 128,
    HEADS = 4,
    KV_HEADS = 2,
    HEAD = 32,
    MLP = 96,
    LAYERS = 2,
    BLOCK = 6,
    VOCAB = 1024,
    RANK = 16,
    MASK = 190
};
enum { OWN_VOCAB = 300 }; // every third token

struct kind {
    const char *config;
    bool has_markov, is_gated, has_own_ends, has_own_vocab; // the last: a head of its own, too
    bool is_tied;                                           // an embedding of its own, which is its head
    int64_t hostile;                                        // with has_own_vocab: the last of d2t; 0: as it should be
};

#define SIZES                                                                                            \
    "\"vocab_size\": 1024, \"hidden_size\": 128, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, " \
    "\"num_key_value_heads\": 2, \"head_dim\": 32, \"intermediate_size\": 96, \"max_position_embeddings\": 1024"
#define DEEPSPEC                                                                                                     \
    "{\"architectures\": [\"Qwen3DSparkModel\"], \"model_type\": \"qwen3\", " SIZES ", \"block_size\": 6, "          \
    "\"mask_token_id\": 190, \"target_layer_ids\": [0, 2], \"enable_confidence_head\": true, \"num_anchors\": 512, " \
    "\"confidence_head_with_markov\": true, "

static const struct kind anchored = {"{\"architectures\": [\"DFlashDraftModel\"], \"model_type\": \"qwen3\", " SIZES
                                     ", \"block_size\": 6, \"dflash_config\": {\"mask_token_id\": 190, "
                                     "\"sample_from_anchor\": true, \"target_layer_ids\": [0, 2]}}",
                                     false, false, false},
                         vanilla = {DEEPSPEC "\"markov_rank\": 16, \"markov_head_type\": \"vanilla\"}", true, false,
                                    true},
                         gated = {DEEPSPEC "\"markov_rank\": 16, \"markov_head_type\": \"gated\"}", true, true, true},
                         speculators = {"{\"speculators_model_type\": \"dspark\", \"model_type\": \"speculators\", "
                                        "\"architectures\": [\"DSparkDraftModel\"], \"draft_vocab_size\": 1024, "
                                        "\"block_size\": 6, \"markov_rank\": 16, \"mask_token_id\": 190, "
                                        "\"aux_hidden_state_layer_ids\": [1, 3], \"transformer_layer_config\": "
                                        "{\"model_type\": \"qwen3\", " SIZES "}}",
                                        true, false, false};

/* clang-format off */
#define OF_SPECULATORS(kind, class)                                                                                   \
    "{\"speculators_model_type\": \"" kind "\", \"model_type\": \"speculators\", \"architectures\": "                 \
    "[\"" class "\"], \"draft_vocab_size\": 300, \"block_size\": 6, \"markov_rank\": 16, \"mask_token_id\": 190, "    \
    "\"aux_hidden_state_layer_ids\": [1, 3], \"sample_from_anchor\": true, "                                          \
    "\"transformer_layer_config\": {\"model_type\": \"qwen3\", " SIZES "}}"
/* clang-format on */
static const struct kind few_tokens = {OF_SPECULATORS("dspark", "DSparkDraftModel"), true, false, false, true},
                         few_tokens_of_dflash = {OF_SPECULATORS("dflash", "DFlashSpeculator"), false, false, false,
                                                 true},
                         tied = {"{\"architectures\": [\"DFlashDraftModel\"], \"tie_word_embeddings\": true, " SIZES
                                 ", \"block_size\": 6, \"mask_token_id\": 190, \"target_layer_ids\": [0, 2], "
                                 "\"sample_from_anchor\": true, \"model_type\": \"qwen3\"}",
                                 .is_tied = true};

// ---- checkpoints ------------------------------------------------------------------------------------------------

struct list {
    struct rig_tensor t[48];
    char names[48][64];
    size_t n;
};

static void put(struct list *all, int layer, const char *name, int64_t rows, int64_t cols) {
    char *full = all->names[all->n];
    int n = layer < 0 ? 0 : snprintf(full, sizeof all->names[0], "layers.%d.", layer);
    snprintf(full + n, sizeof all->names[0] - (size_t)n, "%s", name);
    all->t[all->n] = (struct rig_tensor){full, cols ? 2 : 1, {rows, cols}, NULL, 2000 + all->n, NULL};
    EXPECT(++all->n < ARRAY_LEN(all->t));
}

static void put_vocabulary(struct list *all, int64_t hostile) {
    static int64_t offsets[OWN_VOCAB];
    static unsigned char is_ours[VOCAB];
    put(all, -1, "lm_head.weight", OWN_VOCAB, H);
    put(all, -1, "d2t", OWN_VOCAB, 0), put(all, -1, "t2d", VOCAB, 0);
    for (int i = 0; i < OWN_VOCAB; i++)
        offsets[i] = 2 * i, is_ours[3 * i] = 1;
    offsets[OWN_VOCAB - 1] = hostile ? hostile : offsets[OWN_VOCAB - 1];
    all->t[all->n - 2].data = offsets, all->t[all->n - 2].dtype = "I64";
    all->t[all->n - 1].data = is_ours, all->t[all->n - 1].dtype = "BOOL";
}

static void write_draft(const struct kind *kind, char path[RIG_PATH]) {
    static struct list all;
    all.n = 0;
    put(&all, -1, "fc.weight", H, 2 * H), put(&all, -1, "hidden_norm.weight", H, 0), put(&all, -1, "norm.weight", H, 0);
    for (int l = 0; l < LAYERS; l++) {
        put(&all, l, "input_layernorm.weight", H, 0), put(&all, l, "post_attention_layernorm.weight", H, 0);
        put(&all, l, "self_attn.q_norm.weight", HEAD, 0), put(&all, l, "self_attn.k_norm.weight", HEAD, 0);
        put(&all, l, "self_attn.q_proj.weight", HEADS * HEAD, H);
        put(&all, l, "self_attn.k_proj.weight", KV_HEADS * HEAD, H);
        put(&all, l, "self_attn.v_proj.weight", KV_HEADS * HEAD, H);
        put(&all, l, "self_attn.o_proj.weight", H, HEADS * HEAD);
        put(&all, l, "mlp.gate_proj.weight", MLP, H), put(&all, l, "mlp.up_proj.weight", MLP, H);
        put(&all, l, "mlp.down_proj.weight", H, MLP);
    }
    if (kind->has_own_ends)
        put(&all, -1, "embed_tokens.weight", VOCAB, H), put(&all, -1, "lm_head.weight", VOCAB, H);
    if (kind->is_tied)
        put(&all, -1, "embed_tokens.weight", VOCAB, H);
    if (kind->has_own_vocab)
        put_vocabulary(&all, kind->hostile);
    if (kind->has_markov) {
        put(&all, -1, "markov_head.markov_w1.weight", VOCAB, RANK);
        put(&all, -1, "markov_head.markov_w2.weight", kind->has_own_vocab ? OWN_VOCAB : VOCAB, RANK);
        put(&all, -1, "confidence_head.proj.weight", 1, H + RANK), put(&all, -1, "confidence_head.proj.bias", 1, 0);
    }
    if (kind->is_gated)
        put(&all, -1, "markov_head.gate_proj.weight", RANK, H + RANK),
            put(&all, -1, "markov_head.gate_proj.bias", RANK, 0);
    rig_write_draft(kind->config, "model.safetensors", all.t, all.n, path);
}
