/* spec.h - what config.json says, after names are unified and defaults applied.
 *
 * One vocabulary for every family: a field that a family does not have is zero (or 1 for factors). What varies
 * by layer stands in layers[]; the record functions read only this, never JSON. Sizes are checked here once:
 * every dimension is at least 1 and at most 2^24, heads divide, products that the program forms fit an int32
 * width, so that nothing downstream needs to be afraid of a number. */
#pragma once

#include "base/arena.h"
#include "base/json/json.h"
#include "base/status.h"
#include "core/dtype.h"
#include "core/ops.h"
#include "core/program.h"
#include "core/rope.h"
#include "model/weights/quant.h"

enum mixer {
    MIX_FULL,    // softmax attention over everything before
    MIX_SLIDING, // the last `sliding_window` tokens
    MIX_CHUNKED, // within chunks of `attention_chunk` tokens (Llama 4)
    MIX_LATENT,  // MLA
    MIX_DELTA,   // gated DeltaNet
};

struct layer_spec {
    enum mixer mixer;
    int n_kv_heads, head_dim; // of this layer (Gemma 4 differs by type)
    int rope;                 // index into ropes; -1: none
    bool moe;                 // experts in place of (Gemma 4: beside) the dense FFN
    bool v_from_k;            // Gemma 4 global layers
    int ffn_size;             // of the dense FFN, 0 where there is none
    int kv_source; // the layer whose cache this one reads; its own index unless KV is shared (Gemma 4 E-models)
};

struct moe_spec {
    int n_experts, top_k, ffn_size; // ffn_size: of one expert
    int shared_ffn_size;            // 0: no shared expert
    bool renormalise;
    float scale;              // routed_scaling_factor; 1 elsewhere
    int n_groups, top_groups; // 0: no groups
    enum routing routing;
};

struct mla_spec {
    int q_rank; // 0: q is projected in one go (V2-Lite)
    int kv_rank, nope_dim, rope_dim, v_dim;
};

struct delta_spec {
    int n_key_heads, n_value_heads, key_dim, value_dim, conv_kernel;
};

struct gguf_arch;

enum { DEFAULT_TAPS = -1 };
struct draft_spec {       // a draft head that reads the hidden states of a larger model
    int n_taps;           // layers of that model whose states it is given; 0: no draft head
    int tap_size, vocab;  // their width; tokens that the head can propose
    bool own_vocab;       // fewer than the model's: tables between the two are stored
    int layers[MAX_TAPS]; // that are tapped; the first DEFAULT_TAPS: those that EAGLE-3 takes of any model
    // EAGLE-3: whether the layer adds to the normed state; norms on all taps or each, before fc; the next row's state
    bool norm_before_residual, norm_before_fc, fc_norm, norm_output;
    int block; // DFlash: rows of a pass, all but the first of them masks
    int32_t mask;
    bool from_anchor; // its first row gives a guess, too
    int markov_rank;  // DSpark: of what the token before adds to a guess's logits; 0: nothing
    bool is_gated;    // likewise: behind a gate
};

enum { MAX_EOS = 1024, MAX_ROPES = 4 };

struct generation_defaults { // generation_config.json; negative or 0: not given
    double temperature, top_p, min_p, repetition_penalty;
    int64_t top_k;
    bool do_sample;
};

struct model_spec {
    struct arena arena;
    const char *path;         // config.json, for messages
    const char *model_type;   // of the text model, one name a family: "qwen3", "gemma3" for gemma3_text
    const char *architecture; // as declared: "Qwen3ForCausalLM"
    bool multimodal;          // tensors stand under model.language_model.; the towers are not read
    enum dtype dtype;         // as declared

    int hidden_size, n_layers, vocab_size;
    int n_heads, n_kv_heads, head_dim;
    int ffn_size;
    int64_t max_positions; // max_position_embeddings, or what yarn and dynamic rope make of it
    int sliding_window, attention_chunk;
    double norm_eps;
    enum activation activation;
    bool tied_embeddings;
    bool qkv_bias, o_bias, mlp_bias;
    double attention_scale;                  // on q.k; head_dim^-0.5 unless the config says otherwise
    double attention_softcap, final_softcap; // 0: none
    double embedding_scale; // 1: none; sqrt(hidden_size) for Gemma, rounded to the activations' dtype where used
    double swiglu_limit;    // GPT-OSS; 0: none

    struct layer_spec *layers; // [n_layers]
    struct rope *ropes;        // [n_ropes]
    const char **rope_notes;   // [n_ropes]: "yarn, theta 10000, factor 40, original context 4096"
    struct rope_said {         // [n_ropes], as config.json has it
        double theta;
        const char *parameters; // JSON of the object with rope_type and the rest; NULL: there is none
    } * rope_said;
    int n_ropes;

    struct moe_spec moe;
    struct mla_spec mla;
    struct delta_spec delta;
    struct draft_spec draft;
    int per_layer_input_size, per_layer_vocab_size; // Gemma 4 E-models; 0: none
    int first_dense_layers;                         // DeepSeek
    int n_mtp_layers;                               // next-token predictors that follow the model in the checkpoint

    int32_t bos, pad;     // -1: none
    int32_t eos[MAX_EOS]; // of config.json and generation_config.json together
    int n_eos;
    struct generation_defaults generation;
    struct quant_spec *quant; // NULL: plain weights

    const struct gguf_arch *gguf; // of a GGUF file (model/gguf/gguf_model.h); NULL: of a config.json
    bool norms_hold_one;          // norm weights that others store less one are stored whole
};

/* Reads folder/config.json (or the file itself) with generation_config.json beside it.
 * Of a GGUF file, or a folder with one, its metadata are read instead.
 * ERR_FORMAT names the file and the key; ERR_UNSUPPORTED names a model_type or a feature that no family here
 * computes exactly (never guessed). *out is owned by the caller. */
enum status model_spec_open(const char *folder_or_config, struct model_spec **out, struct error *err);
void model_spec_free(struct model_spec *spec);

/* GGUF files hold value heads in turns over the key heads, where others hold those of a key head side by side; so each
 * is given a key head of its own. How many key heads are computed with. */
bool spec_tiles_keys(const struct model_spec *spec);
int spec_key_heads(const struct model_spec *spec);

/* The same from a config.json that is already parsed, without the files beside it; path is for messages. */
enum status model_spec_read(const json_t *config, const char *path, struct model_spec **out, struct error *err);
