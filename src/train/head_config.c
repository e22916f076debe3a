/* head_config.c - shapes of heads: see head_files.h. */
#include "train/head_parts.h"

#include <math.h>
#include <string.h>

static const struct rope *last_rope(const struct model_spec *s) {
    return s->n_ropes ? &s->ropes[s->n_ropes - 1] : NULL;
}

double theta_of(const struct model_spec *s) {
    const struct rope *r = last_rope(s);
    bool fits = r && r->pairing == ROPE_HALF && r->by_length == ROPE_FIXED && r->dim <= s->head_dim && r->dim > 2;
    if (!fits || r->factor != 1 || !(r->inv_freq[1] > 0))
        return 0;
    double theta = pow((double)r->inv_freq[1], -r->dim / 2.0);
    for (int i = 0; i < r->dim / 2; i++)
        if (fabs((double)r->inv_freq[i] * pow(theta, 2.0 * i / r->dim) - 1) > 1e-4)
            return 0;
    return nearbyint(theta) > 0 && fabs(theta / nearbyint(theta) - 1) < 1e-5 ? nearbyint(theta) : theta;
}

/* Those of any model; of one with so few layers that they coincide, the first, the middle and the last. */
static void choose_layers(int n_layers, int out[TEACHER_TAPS]) {
    draft_default_taps(n_layers, out);
    if (out[0] < out[1] && out[1] < out[2])
        return;
    out[0] = 0, out[1] = (n_layers - 1) / 2, out[2] = n_layers - 1;
}

static struct head_config eagle3_config(const struct model_spec *s, int64_t vocab) {
    struct head_config c = {.shape = {.kind = HEAD_EAGLE3,
                                      .hidden = s->hidden_size,
                                      .taps = (int64_t)TEACHER_TAPS * s->hidden_size,
                                      .n_heads = s->n_heads,
                                      .n_kv_heads = s->n_kv_heads,
                                      .head_dim = s->head_dim,
                                      .ffn = s->hidden_size,
                                      .vocab = vocab,
                                      .eps = s->norm_eps}};
    struct head_shape *h = &c.shape;
    if (last_rope(s) && last_rope(s)->dim == s->head_dim)
        h->rope_theta = theta_of(s);
    if (h->n_kv_heads < 1 || h->head_dim < 2 || h->head_dim % 2 ||
        h->n_heads % MAX(h->n_kv_heads, 1)) { // latent, or none
        h->head_dim = 64;
        h->n_heads = h->n_kv_heads = (int)MAX(h->hidden / 64, 1);
    }
    h->rope_dim = h->head_dim;
    h->rope_theta = h->rope_theta > 0 ? h->rope_theta : 10000;
    choose_layers(s->n_layers, c.layers);
    return c;
}

int layer_of_predictor(const struct model_spec *s) {
    int l = s->n_layers - 1;
    while (l >= 0 && s->layers[l].mixer == MIX_DELTA)
        l--;
    return l;
}

static enum status mtp_config(const struct model_spec *s, struct head_config *out, struct error *err) {
    if (strcmp(s->model_type, "qwen3_5_text") != 0 || s->gguf)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: is %s%s; predictors are trained for folders of qwen3_5_text, the dense Qwen3.5, alone",
                    s->path, s->gguf ? "a GGUF file of " : "", s->model_type);
    if (s->qkv_bias || s->o_bias || s->activation != ACT_SILU || theta_of(s) == 0 || layer_of_predictor(s) < 0)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: predictors are trained without biases, with SiLU and a plain rotation, and like a layer "
                    "with attention",
                    s->path);
    *out = (struct head_config){.shape = {.kind = HEAD_MTP,
                                          .hidden = s->hidden_size,
                                          .taps = s->hidden_size,
                                          .n_heads = s->n_heads,
                                          .n_kv_heads = s->n_kv_heads,
                                          .head_dim = s->head_dim,
                                          .rope_dim = last_rope(s)->dim,
                                          .ffn = s->ffn_size,
                                          .vocab = s->vocab_size,
                                          .eps = s->norm_eps,
                                          .rope_theta = theta_of(s)}};
    return OK;
}

enum status head_config_for(enum head_kind kind, const struct model *target, int64_t vocab, struct head_config *out,
                            struct error *err) {
    if (kind == HEAD_MTP)
        return mtp_config(target->spec, out, err);
    *out = eagle3_config(target->spec, vocab);
    return OK;
}
