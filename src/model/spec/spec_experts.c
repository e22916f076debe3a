/* spec_experts.c - what families with experts read alike; see spec_read.h. */
#include "model/spec/spec_read.h"

// Experts on every layer, in place of the dense FFN.
void experts_everywhere(struct spec_reader *r) {
    for (int l = 0; l < r->spec->n_layers; l++) {
        r->spec->layers[l].moe = true;
        r->spec->layers[l].ffn_size = 0;
    }
}

/* Layers listed in mlp_only_layers, and those between the steps, keep the dense FFN. */
enum status experts_by_step(struct spec_reader *r) {
    int step;
    json_t *dense, *value;
    size_t i;
    TRY(read_dim(r, "decoder_sparse_step", 1, &step));
    TRY(jv_array_or_null(r->text, r->path, "mlp_only_layers", &dense, r->err));
    for (int l = 0; l < r->spec->n_layers; l++) {
        bool moe = (l + 1) % step == 0;
        json_array_foreach(dense, i, value) moe = moe && !(json_is_integer(value) && json_integer_value(value) == l);
        r->spec->layers[l].moe = moe;
        if (moe)
            r->spec->layers[l].ffn_size = 0;
    }
    return OK;
}

/* The key of the newest files first; older ones wrote another. */
enum status read_n_experts(struct spec_reader *r, const char *key, const char *other, int fallback) {
    bool absent = !json_object_get(r->text, key);
    return read_dim(r, absent ? other : key, fallback, &r->spec->moe.n_experts);
}

enum status read_qwen_experts(struct spec_reader *r, int n_experts, int top_k, int ffn_size, int shared) {
    struct moe_spec *m = &r->spec->moe;
    m->routing = ROUTE_SOFTMAX;
    TRY(read_n_experts(r, "num_experts", "num_local_experts", n_experts));
    TRY(read_dim(r, "num_experts_per_tok", top_k, &m->top_k));
    TRY(read_dim(r, "moe_intermediate_size", ffn_size, &m->ffn_size));
    return read_count(r, "shared_expert_intermediate_size", shared, &m->shared_ffn_size);
}
