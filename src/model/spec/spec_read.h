/* spec_read.h - how spec.c and the families' readers work together. Internal to the room.
 *
 *     spec.c         opens the file, reads the keys of all families, checks the result
 *     FAMILY.c       the types of a family, and a reader each
 *     spec_layers.c, spec_experts.c, spec_gemma.c   what readers share
 *     spec_read.c    one key of a type
 *
 * A reader fills the spec from one config.json whose keys may be absent: an absent key means the default of the type's
 * configuration class in transformers (compared with 5.23), because save_pretrained leaves out what equals it. */
#pragma once

#include "model/spec/spec.h"

struct spec_reader;

/* What config.json calls "model_type": the defaults of its class, and what it reads beyond the common keys. */
struct model_type {
    const char *name;       // as in spec->model_type
    const char *class_name; // architectures are CLASS itself, CLASSForCausalLM and the like
    int vocab, hidden, ffn, layers, heads, kv_heads, head_dim; // kv_heads 0: heads; head_dim 0: hidden / heads
    int64_t max_positions;
    double norm_eps, theta, partial;         // theta and partial: of rope; partial 0: the class turns whole heads
    const char *activation_key, *activation; // where hidden_act stands, and its default
    bool tied;
    int32_t bos, eos, pad; // -1: none
    enum status (*read)(struct spec_reader *r);
    const char *const (*renames)[2]; // {its own key, ours}, ended by NULLs; NULL: it uses ours
};

struct spec_reader {
    struct model_spec *spec;
    const struct model_type *type;
    const json_t *root, *text; // text: root, or its text_config
    const char *path;          // of config.json
    int64_t max_positions;     // max_position_embeddings
    struct error *err;
};

enum { SPEC_MAX_DIM = 1 << 24, SPEC_MAX_LAYERS = 1000 };

/* NULL when no family has this model_type. A wrapper's type stands for its text model's, and an architecture
 * that makes another model of the type (a draft head; may be NULL) for a row of its own. */
const struct model_type *model_type_find(const char *name, const char *architecture);

/* The config of a draft by speculators as one object, *out owned by the caller; NULL: root is none. */
enum status speculators_flat(const json_t *root, const char *path, json_t **out, struct error *err);

/* ---- keys of the text model; absent or null: fallback, unless said otherwise ---- */
enum status read_dim(const struct spec_reader *r, const char *key, int fallback, int *out);   // 1 .. 2^24
enum status read_count(const struct spec_reader *r, const char *key, int fallback, int *out); // 0 .. 2^24
enum status read_flag(const struct spec_reader *r, const char *key, bool fallback, bool *out);
enum status read_real(const struct spec_reader *r, const char *key, double fallback, double *out);
/* Absent: fallback; null: 0, as of a feature that is switched off. Otherwise as read_count. */
enum status read_optional(const struct spec_reader *r, const char *key, int fallback, int *out);

/* ---- layers ---- */
/* Gives every layer the spec's common head counts and FFN size, mixer MIX_FULL and rope 0. */
void layers_init(struct spec_reader *r);
/* Sets mixers from "layer_types"; false in *given when the key is absent. A type not in `allowed` (NULL-ended) is
 * refused. */
enum status layers_from_types(struct spec_reader *r, const char *const *allowed, bool *given);
/* Every (i + 1) % period == 0 is full; the others get `mixer`. */
void layers_by_period(struct spec_reader *r, int period, enum mixer mixer);
/* Refuses sliding layers without a window. */
enum status check_window(const struct spec_reader *r);

/* ---- rope ---- */
/* Appends the rope for one layer type ("full_attention"; NULL: there is one for all) and returns its index. `old`
 * stands in where the config has none: for a layer type no "rope_parameters", for all neither that nor "rope_scaling".
 */
enum status add_rope(struct spec_reader *r, const char *layer_type, const json_t *old, double theta, int head_dim,
                     enum rope_pairing pairing, int *index);
/* "rope_scaling" where it says anything, else "rope_parameters", as transformers chooses between them; may be NULL. */
const json_t *rope_parameters(const struct spec_reader *r);

/* ---- keys that several families have ---- */
enum status one_rope(struct spec_reader *r, enum rope_pairing pairing,
                     int head_dim);               // for all layers, in either layout
enum status one_half_rope(struct spec_reader *r); // ROPE_HALF over head_dim
void all_layers(struct spec_reader *r, enum mixer mixer);
enum status window_on_all(struct spec_reader *r, int fallback); // where sliding_window is given, every layer slides
enum status window_if_used(struct spec_reader *r);              // sliding_window counts only with use_sliding_window
enum status biases(struct spec_reader *r, bool fallback);       // attention_bias, of q, k, v and o
enum status refuse_flag(const struct spec_reader *r, const char *key);

extern const char *const full_or_sliding[]; // for layers_from_types

/* ---- readers and parts of readers that several files use ---- */
enum status read_llama(struct spec_reader *r);
enum status read_qwen3(struct spec_reader *r);
enum status read_gemma4(struct spec_reader *r);
enum status read_qwen_layers(struct spec_reader *r);  // layers from max_window_layers on slide; one rope
enum status read_gemma_common(struct spec_reader *r); // layers, embedding_scale, biases
enum status read_gemma_scale(struct spec_reader *r);  // query_pre_attn_scalar
enum status read_cap(struct spec_reader *r, const char *key, double fallback, double *out); // a soft-cap; null: none
void ropes_by_mixer(struct spec_reader *r, int sliding, int full);                          // indices of ropes

void experts_everywhere(struct spec_reader *r);
enum status experts_by_step(struct spec_reader *r);
enum status read_n_experts(struct spec_reader *r, const char *key, const char *other, int fallback);
enum status read_qwen_experts(struct spec_reader *r, int n_experts, int top_k, int ffn_size, int shared);
