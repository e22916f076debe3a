/* explain.c - EXPLAIN: a program as text, one line an op. */
#include "core/program.h"

#include <stdlib.h>

static void print_val(const struct program *p, val v, struct buf *out) {
    if (!val_given(v)) {
        buf_printf(out, "-");
        return;
    }
    const struct value *value = &p->values[v.id];
    buf_printf(out, "v%d", v.id);
    if (v.col != 0 || v.width != value->width)
        buf_printf(out, "[%d:%d]", v.col, v.col + v.width);
}

static void print_more_of_route(const struct route_args *a, struct buf *out) {
    if (a->n_groups > 1)
        buf_printf(out, " groups=%d/%d", a->top_groups, a->n_groups);
    if (a->n_shared)
        buf_printf(out, " shared=%d", a->n_shared);
}

static void print_args(const struct program *p, const struct op *op, struct buf *out) {
    static const char *const acts[] = {"silu", "gelu_tanh", "gelu", "sigmoid", "swiglu_clamped"};
    static const char *const routes[] = {"softmax", "softmax_topk", "sigmoid", "softmax_group"};
    const union op_args *a = &op->args;
    switch (op->code) {
    case OP_EMBED:
        if (a->embed.scale != 1)
            buf_printf(out, " scale=%g", a->embed.scale);
        if (a->embed.first)
            buf_printf(out, " first=%d", a->embed.first);
        break;
    case OP_ADD_NORM:
    case OP_NORM:
        buf_printf(out, " eps=%g%s", a->norm.eps, a->norm.plus_one ? " plus_one" : "");
        if (op->code == OP_NORM && a->norm.group != op->in[0].width)
            buf_printf(out, " group=%d", a->norm.group);
        if (op->code == OP_NORM && a->norm.scale != 1)
            buf_printf(out, " scale=%g", a->norm.scale);
        break;
    case OP_QKV_PREP:
        buf_printf(out, " heads=%d/%d dim=%d", a->qkv_prep.n_heads, a->qkv_prep.n_kv_heads, a->qkv_prep.head_dim);
        if (a->qkv_prep.rope >= 0)
            buf_printf(out, " rope=%d", p->ropes[a->qkv_prep.rope]->dim);
        if (a->qkv_prep.rotary_dim)
            buf_printf(out, " rotary_dim=%d", a->qkv_prep.rotary_dim);
        buf_printf(out, "%s%s%s", a->qkv_prep.v_norm ? " v_norm" : "", a->qkv_prep.v_from_k ? " v_from_k" : "",
                   a->qkv_prep.k_absent ? " q_only" : "");
        break;
    case OP_ATTENTION:
        buf_printf(out, " heads=%d/%d dim=%d scale=%.6g", a->attention.n_heads, a->attention.n_kv_heads,
                   a->attention.head_dim, a->attention.scale);
        if (a->attention.window)
            buf_printf(out, " window=%d", a->attention.window);
        if (a->attention.chunk)
            buf_printf(out, " chunk=%d", a->attention.chunk);
        if (a->attention.softcap > 0)
            buf_printf(out, " softcap=%g", a->attention.softcap);
        buf_printf(out, "%s", a->attention.paired_values ? " paired_values" : "");
        break;
    case OP_MLA_PREP:
    case OP_MLA_ATTENTION:
        buf_printf(out, " heads=%d rank=%d nope=%d rope=%d v=%d", a->mla.n_heads, a->mla.rank, a->mla.nope_dim,
                   a->mla.rope_dim, a->mla.v_dim);
        if (op->code == OP_MLA_ATTENTION)
            buf_printf(out, " scale=%.6g", a->mla.scale);
        break;
    case OP_GATED_ACT: buf_printf(out, " %s", acts[a->gated_act.act]); break;
    case OP_DIFF_HEADS:
        buf_printf(out, " heads=%d lambda_init=%.4g", a->diff_heads.n_heads, a->diff_heads.lambda_init);
        break;
    case OP_MOE_ROUTE:
        buf_printf(out, " %s experts=%d top=%d", routes[a->moe_route.how], a->moe_route.n_experts, a->moe_route.top_k);
        print_more_of_route(&a->moe_route, out);
        break;
    case OP_MOE_FFN:
        buf_printf(out, " %s experts=%d top=%d ffn=%d", acts[a->moe_ffn.act.act], a->moe_ffn.n_experts,
                   a->moe_ffn.top_k, a->moe_ffn.ffn_size);
        if (a->moe_ffn.first_expert)
            buf_printf(out, " first=%d", a->moe_ffn.first_expert);
        break;
    case OP_SHORT_CONV: buf_printf(out, " kernel=%d", a->short_conv.kernel); break;
    case OP_DELTA_RULE:
        buf_printf(out, " heads=%d/%d dim=%dx%d", a->delta_rule.n_value_heads, a->delta_rule.n_key_heads,
                   a->delta_rule.key_dim, a->delta_rule.value_dim);
        break;
    case OP_SOFTCAP: buf_printf(out, " cap=%g", a->softcap.cap); break;
    case OP_LORA: buf_printf(out, " adapters=%d rank=%d", a->lora.n_adapters, a->lora.rank); break;
    case OP_ALL_GATHER: buf_printf(out, " first=%d", a->all_gather.first); break;
    case OP_STATES:
    case OP_CONCAT:
    case OP_ALL_REDUCE:
    case OP_LINEAR:
    case OP_GATED_ADD:
    case OP_TAKE_ROWS:
    case OP_SAMPLE:
    case N_OPCODES: break;
    }
}

static const char *format_of(const struct weight *w) {
    const struct weight_part *part = &w->parts[0];
    return part->format->id == QFORMAT_PLAIN ? dtype_name(part->dtype) : part->format->name;
}

static void print_op(const struct program *p, int i, struct buf *out) {
    const struct op *op = &p->ops[i];
    size_t start = out->len;
    buf_printf(out, "%5d  %-13s ", i, op_name(op->code));
    for (int k = 0; k < OP_MAX_OUT && val_given(op->out[k]); k++) {
        buf_printf(out, "%sv%d[%s,%d]", k ? ", " : "", op->out[k].id,
                   p->values[op->out[k].id].rows == ROWS_TOKENS ? "T" : "R", op->out[k].width);
    }
    while (out->len - start < 44)
        buf_push(out, ' ');
    buf_str(out, STR("<- "));
    int last = OP_MAX_IN;
    while (last > 0 && !val_given(op->in[last - 1]))
        last--;
    for (int k = 0; k < last; k++) {
        if (k)
            buf_str(out, STR(", "));
        print_val(p, op->in[k], out);
    }
    for (int k = 0; k < OP_MAX_WEIGHTS; k++)
        if (op->weights[k]) {
            const struct weight *w = op->weights[k];
            buf_printf(out, "  %s[", w->name);
            buf_printf(out, "%lld", (long long)w->out);
            if (w->in != 1)
                buf_printf(out, ",%lld", (long long)w->in);
            buf_printf(out, "] %s", format_of(w));
        }
    print_args(p, op, out);
    buf_push(out, '\n');
}

static int section_end(const struct program *p, int s) {
    return s + 1 < p->n_sections ? p->sections[s + 1].first_op : p->n_ops;
}

/* Two layers are alike when they have the same ops with the same shapes, arguments and weight formats. */
static bool sections_alike(const struct program *p, int a, int b) {
    int n = section_end(p, a) - p->sections[a].first_op;
    if (p->sections[a].layer < 0 || p->sections[b].layer < 0 || section_end(p, b) - p->sections[b].first_op != n)
        return false;
    for (int i = 0; i < n; i++) {
        const struct op *x = &p->ops[p->sections[a].first_op + i], *y = &p->ops[p->sections[b].first_op + i];
        if (x->code != y->code)
            return false;
        for (int k = 0; k < OP_MAX_WEIGHTS; k++) {
            const struct weight *v = x->weights[k], *w = y->weights[k];
            if (!v != !w || (v && (v->out != w->out || v->in != w->in || strcmp(format_of(v), format_of(w)) != 0)))
                return false;
        }
        // The absent d of the first layer's first norm is the one difference that repeats in every family.
        if (val_given(x->in[0]) != val_given(y->in[0]) || val_given(x->in[1]) != val_given(y->in[1]))
            return false;
        struct buf s = {0}, t = {0};
        print_args(p, x, &s);
        print_args(p, y, &t);
        bool same = str_eq(buf_view(&s), buf_view(&t));
        buf_release(&s);
        buf_release(&t);
        if (!same)
            return false;
    }
    return true;
}

static void print_caches(const struct program *p, struct buf *out) {
    for (int g = 0; g < p->n_groups; g++) {
        const struct cache_group *c = &p->groups[g];
        buf_printf(out, "; cache %d: %d layer%s, ", g, c->n_layers, c->n_layers == 1 ? "" : "s");
        if (c->kind == CACHE_STATE)
            buf_printf(out, "recurrent state of %lld floats a sequence and layer", (long long)c->state_floats);
        else if (c->kind == CACHE_LATENT)
            buf_printf(out, "latent of %d values a token and layer", c->k_dim);
        else
            buf_printf(out, "k %d x %d and v %d x %d values a token and layer", c->n_heads, c->k_dim, c->n_heads,
                       c->v_dim);
        if (c->shared_kv)
            buf_printf(out, ", the rest of k in v");
        if (c->window)
            buf_printf(out, ", the last %d tokens", c->window);
        buf_push(out, '\n');
    }
}

void program_explain(const struct program *p, struct buf *out) {
    buf_printf(out, "; %s: %d ops, %d values\n", p->name, p->n_ops, p->n_values);
    if (p->n_ranks > 1)
        buf_printf(out, "; what rank %d of %d computes\n", p->rank, p->n_ranks);
    print_caches(p, out);
    for (int s = 0; s < p->n_sections; s++) {
        int last = s;
        while (last + 1 < p->n_sections && sections_alike(p, s, last + 1))
            last++;
        const struct section *section = &p->sections[s];
        if (section->layer < 0)
            buf_printf(out, "%s:\n", section->name);
        else if (last == s)
            buf_printf(out, "layer %d:\n", section->layer);
        else
            buf_printf(out, "layers %d to %d, of which %d:\n", section->layer, p->sections[last].layer, section->layer);
        for (int i = section->first_op; i < section_end(p, s); i++)
            print_op(p, i, out);
        s = last;
    }
}
