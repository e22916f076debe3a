/* dspark.c - DSpark's addition to a block of DFlash: a guess is drawn with what its row says and with the token before.
 *
 *     e      = w1[token before]                               in the target's tokens: the newest, then the guesses
 *     gated: e = sigmoid(Wg [h, e] + bg) * e                  h: the row's state behind the block's last norm
 *     logits = head h + w2 e
 *
 * Rows of the block give guesses from the first on. Its confidence head, which says how many of them to check, is not
 * used: how many pay is measured (engine/draft/economy.h). Reference: DeepSpec's Qwen3DSparkModel, speculators'
 * DSparkDraftModel. */
#include "model/draft/draft_internal.h"

enum status dspark_read(const struct spec_reader *r, const json_t *settings) {
    struct draft_spec *d = &r->spec->draft;
    const char *kind;
    int64_t rank;
    TRY(jv_bool_or(settings, r->path, "sample_from_anchor", true, &d->from_anchor, r->err));
    TRY(jv_int_or(settings, r->path, "markov_rank", 0, SPEC_MAX_DIM, 256, &rank, r->err));
    TRY(jv_string_or(settings, r->path, "markov_head_type", "vanilla", &kind, r->err));
    d->markov_rank = (int)rank;
    d->is_gated = strcmp(kind, "gated") == 0;
    if (rank > 0 && !d->is_gated && strcmp(kind, "vanilla") != 0)
        return fail(r->err, ERR_UNSUPPORTED, "%s: \"markov_head_type\" %.100s of a DSpark draft is not supported",
                    r->path, kind);
    return OK;
}

void markov_bind(struct binder *b, struct markov *m) {
    const struct draft_spec *d = &b->spec->draft;
    struct dim V = dim_vocab(b->spec->vocab_size), R = dim_whole(d->markov_rank), D = dim_whole(b->spec->hidden_size);
    m->w1 = bind_matrix(b, V, R, "markov_head.markov_w1");
    m->w2 = bind_matrix(b, dim_vocab(d->vocab), R, "markov_head.markov_w2");
    if (!d->is_gated)
        return;
    struct part gate = part(b, R, "markov_head.gate_proj");
    m->gate.w = bind_fused(b, dim_whole(D.size + R.size), 1, &gate);
    m->gate.bias = bind_fused_bias(b, 1, &gate);
}

void markov_record(struct program *p, const struct model_spec *s, const struct markov *m,
                   const struct weight *lm_head) {
    val e = op_embed(p, m->w1, 1), h = op_states(p, s->hidden_size);
    program_section(p, "head", -1);
    if (m->gate.w)
        e = op_gated_act(p, op_linear(p, op_concat(p, h, e, NO_VAL), m->gate.w, m->gate.bias), e,
                         (struct act_args){.act = ACT_SIGMOID});
    val base = op_linear(p, op_take_rows(p, h), lm_head, NULL);
    op_sample(p, op_gated_add(p, base, op_linear(p, op_take_rows(p, e), m->w2, NULL), NO_VAL));
    p->vocab_size = s->draft.vocab;
}
