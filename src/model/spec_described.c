/* spec_described.c - readers of models that are described but not run: the first GPT-2 and Qwen, and draft heads. */
#include "model/spec_read.h"

// Positions have a table of their own, max_position_embeddings long.
enum status read_gpt2(struct spec_reader *r) {
    struct model_spec *s = r->spec;
    const json_t *inner = json_object_get(r->text, "intermediate_size");
    if (!inner || json_is_null(inner))
        TRY(read_dim(r, "intermediate_size", MIN(4 * s->hidden_size, SPEC_MAX_DIM), &s->ffn_size));
    layers_init(r);
    s->qkv_bias = s->o_bias = s->mlp_bias = true;
    for (int l = 0; l < s->n_layers; l++)
        s->layers[l].rope = -1;
    return OK;
}

// intermediate_size counts the two halves of the gated FFN.
enum status read_qwen(struct spec_reader *r) {
    r->spec->ffn_size = MAX(r->spec->ffn_size / 2, 1);
    layers_init(r);
    r->spec->qkv_bias = true;
    return one_half_rope(r);
}

/* EAGLE-3: one Llama layer that reads the embedding beside what it makes of three hidden states of the larger model. */
enum status read_eagle3(struct spec_reader *r) {
    struct draft_spec *d = &r->spec->draft;
    if (r->spec->n_layers != 1)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"num_hidden_layers\" of an EAGLE-3 head is %d, it must be 1",
                    r->path, r->spec->n_layers);
    d->n_taps = 3;
    TRY(read_dim(r, "target_hidden_size", r->spec->hidden_size, &d->tap_size));
    TRY(read_dim(r, "draft_vocab_size", r->spec->vocab_size, &d->vocab));
    d->own_vocab = d->vocab != r->spec->vocab_size;
    return read_llama(r);
}

/* DFlash: Qwen3 layers over a block of masked tokens; the larger model's embedding and head are used. */
enum status read_dflash(struct spec_reader *r) {
    struct draft_spec *d = &r->spec->draft;
    json_t *settings, *taps;
    TRY(jv_object_or_null(r->text, r->path, "dflash_config", &settings, r->err));
    TRY(jv_array_or_null(settings, r->path, "target_layer_ids", &taps, r->err));
    if (json_array_size(taps) < 1 || json_array_size(taps) > SPEC_MAX_LAYERS)
        return fail(r->err, ERR_FORMAT, "%s: \"target_layer_ids\" must list 1 to %d layers", r->path, SPEC_MAX_LAYERS);
    d->n_taps = (int)json_array_size(taps);
    d->tap_size = r->spec->hidden_size;
    d->vocab = r->spec->vocab_size;
    return read_qwen3(r);
}
