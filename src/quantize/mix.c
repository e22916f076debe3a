/* mix.c - see mix.h. */
#include "quantize/mix.h"

#include "base/status.h"

#include <stdlib.h>

enum layers {
    ALL,
    MOST_FELT,   // the first and last eighth, and each third between
    FIRST_TWO,   //
    FIRST_8TH,   //
    FIRST_16TH,  //
    SHARED_BY_4, // where four query heads or more share keys
};

struct mix {
    const char *name;
    uint32_t file_type;
    enum qformat_id format;
    enum dtype dtype; // of QFORMAT_PLAIN
    enum qformat_id head;
};

static const struct mix mixes[] = {
    {"f32", 0, QFORMAT_PLAIN, DT_F32},
    {"f16", 1, QFORMAT_PLAIN, DT_F16},
    {"bf16", 32, QFORMAT_PLAIN, DT_BF16},
    {"q4_0", 2, QFORMAT_Q4_0, .head = QFORMAT_Q6_K},
    {"q4_1", 3, QFORMAT_Q4_1, .head = QFORMAT_Q6_K},
    {"q5_0", 8, QFORMAT_Q5_0, .head = QFORMAT_Q6_K},
    {"q5_1", 9, QFORMAT_Q5_1, .head = QFORMAT_Q6_K},
    {"q8_0", 7, QFORMAT_Q8_0, .head = QFORMAT_Q8_0},
    {"q2_k", 10, QFORMAT_Q2_K, .head = QFORMAT_Q6_K},
    {"q3_k_m", 12, QFORMAT_Q3_K, .head = QFORMAT_Q6_K},
    {"q4_k_m", 15, QFORMAT_Q4_K, .head = QFORMAT_Q6_K},
    {"q5_k_m", 17, QFORMAT_Q5_K, .head = QFORMAT_Q6_K},
    {"q6_k", 18, QFORMAT_Q6_K, .head = QFORMAT_Q6_K},
    {"iq4_nl", 25, QFORMAT_IQ4_NL, .head = QFORMAT_Q6_K},
    {"mxfp4", 38, QFORMAT_MXFP4_HALVES, .head = QFORMAT_Q8_0},
};

/* Tensors of a layer that have another type than the mix; the first row that fits counts. */
static const struct rule {
    const char *mix, *leaf;
    enum layers layers;
    enum qformat_id format;
} rules[] = {
    {"q2_k", "attn_v", SHARED_BY_4, QFORMAT_Q4_K},   {"q2_k", "attn_v", ALL, QFORMAT_Q3_K},
    {"q2_k", "ffn_down", ALL, QFORMAT_Q3_K},         {"q2_k", "ffn_down_exps", ALL, QFORMAT_Q3_K},
    {"q2_k", "attn_output", ALL, QFORMAT_Q3_K},      {"q3_k_m", "attn_v", FIRST_TWO, QFORMAT_Q5_K},
    {"q3_k_m", "attn_v", ALL, QFORMAT_Q4_K},         {"q3_k_m", "ffn_down", FIRST_16TH, QFORMAT_Q5_K},
    {"q3_k_m", "ffn_down", ALL, QFORMAT_Q4_K},       {"q3_k_m", "ffn_down_exps", FIRST_16TH, QFORMAT_Q5_K},
    {"q3_k_m", "ffn_down_exps", ALL, QFORMAT_Q4_K},  {"q3_k_m", "attn_output", ALL, QFORMAT_Q4_K},
    {"q3_k_m", "attn_qkv", ALL, QFORMAT_Q4_K},       {"q4_k_m", "attn_v", MOST_FELT, QFORMAT_Q6_K},
    {"q4_k_m", "ffn_down", MOST_FELT, QFORMAT_Q6_K}, {"q4_k_m", "ffn_down_exps", MOST_FELT, QFORMAT_Q6_K},
    {"q4_k_m", "attn_qkv", ALL, QFORMAT_Q5_K},       {"q5_k_m", "attn_v", MOST_FELT, QFORMAT_Q6_K},
    {"q5_k_m", "ffn_down", MOST_FELT, QFORMAT_Q6_K}, {"q5_k_m", "ffn_down_exps", MOST_FELT, QFORMAT_Q6_K},
    {"q5_k_m", "attn_qkv", ALL, QFORMAT_Q6_K},       {"iq4_nl", "attn_v", SHARED_BY_4, QFORMAT_Q5_K},
    {"iq4_nl", "ffn_down", FIRST_8TH, QFORMAT_Q5_K},
};

/* What rows that are no whole number of blocks of 256 are stored as. */
static const enum qformat_id smaller[N_QFORMATS] = {
    [QFORMAT_Q2_K] = QFORMAT_Q4_0, [QFORMAT_Q3_K] = QFORMAT_Q4_0, [QFORMAT_Q4_K] = QFORMAT_Q5_0,
    [QFORMAT_Q5_K] = QFORMAT_Q5_1, [QFORMAT_Q6_K] = QFORMAT_Q8_0,
};

const struct mix *mix_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(mixes); i++)
        if (strcmp(mixes[i].name, name) == 0)
            return &mixes[i];
    return NULL;
}

const char *mix_name(const struct mix *m) { return m->name; }
uint32_t mix_file_type(const struct mix *m) { return m->file_type; }

static bool ends(const char *s, const char *with) {
    size_t n = strlen(s), k = strlen(with);
    return n >= k && strcmp(s + n - k, with) == 0;
}

/* What computing needs exactly, or is too small to matter. */
static bool stays_whole(const char *name, int n_dims) {
    static const char *const leaves[] = {"_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight",
                                         "per_layer_model_proj.weight", "ssm_conv1d.weight"};
    for (size_t i = 0; i < ARRAY_LEN(leaves); i++)
        if (ends(name, leaves[i]))
            return true;
    return n_dims < 2 || !ends(name, ".weight");
}

static bool fits(enum layers layers, int layer, const struct mix_model *m) {
    switch (layers) {
    case ALL: return true;
    case MOST_FELT:
        return layer < m->n_layers / 8 || layer >= 7 * m->n_layers / 8 || (layer - m->n_layers / 8) % 3 == 2;
    case FIRST_TWO: return layer < 2;
    case FIRST_8TH: return layer < m->n_layers / 8;
    case FIRST_16TH: return layer < m->n_layers / 16;
    case SHARED_BY_4: return m->queries_per_kv >= 4;
    }
    return false;
}

static enum qformat_id in_layer(const struct mix *m, const struct mix_model *model, int layer, const char *leaf,
                                size_t n_leaf) {
    bool is_stack = n_leaf > 5 && strncmp(leaf + n_leaf - 5, "_exps", 5) == 0;
    if (m->format == QFORMAT_MXFP4_HALVES) // of experts alone, where there are any
        return model->n_experts == 0 || is_stack ? m->format : QFORMAT_Q8_0;
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        if (strcmp(rules[i].mix, m->name) == 0 && strlen(rules[i].leaf) == n_leaf &&
            strncmp(rules[i].leaf, leaf, n_leaf) == 0 && fits(rules[i].layers, layer, model))
            return rules[i].format;
    return m->format;
}

static struct storage that_fits(enum qformat_id id, int64_t cols) {
    if (cols % qformat_of_blocks(id)->block_cols && smaller[id])
        id = smaller[id];
    if (cols % qformat_of_blocks(id)->block_cols)
        return (struct storage){DT_F16, QFORMAT_PLAIN};
    return (struct storage){DT_U8, id};
}

struct storage mix_storage(const struct mix *m, const struct mix_model *model, const char *name, int n_dims,
                           int64_t cols) {
    if (stays_whole(name, n_dims))
        return (struct storage){DT_F32, QFORMAT_PLAIN};
    if (m->format == QFORMAT_PLAIN)
        return (struct storage){m->dtype, QFORMAT_PLAIN};
    bool is_table = strcmp(name, "token_embd.weight") == 0;
    if (strcmp(name, "output.weight") == 0 || (is_table && model->tied))
        return that_fits(m->head, cols);
    if (strncmp(name, "blk.", 4) != 0)
        return that_fits(m->format == QFORMAT_MXFP4_HALVES ? QFORMAT_Q8_0 : m->format, cols);
    char *leaf;
    long layer = strtol(name + 4, &leaf, 10);
    leaf += *leaf == '.';
    return that_fits(in_layer(m, model, (int)layer, leaf, strcspn(leaf, ".")), cols);
}
