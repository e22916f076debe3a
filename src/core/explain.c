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

static const char *const activation_words[] = {"silu", "gelu_tanh", "gelu", "sigmoid", "swiglu_clamped"};
static const char *const routing_words[] = {"softmax", "softmax_topk", "sigmoid", "softmax_group"};
static const char *const attention_reach_words[] = {"causal", "before", "all"};

/* print_embed and its like: the fields of struct embed_args that are not 0. */
#define ARGS(args, member, fields)                                                                                     \
    static void print_##args##_fields(const struct program *p, const struct args##_args *a, struct buf *out) {         \
        (void)p;                                                                                                       \
        fields                                                                                                         \
    }                                                                                                                  \
    static void print_##args(const struct program *p, const union op_args *a, struct buf *out) {                       \
        print_##args##_fields(p, &a->member, out);                                                                     \
    }
#define ARG_INT(name)                                                                                                  \
    if (a->name)                                                                                                       \
        buf_printf(out, " " #name "=%d", a->name);
#define ARG_FLOAT(name)                                                                                                \
    if (a->name != 0)                                                                                                  \
        buf_printf(out, " " #name "=%.6g", a->name);
#define ARG_FLAG(name)                                                                                                 \
    if (a->name)                                                                                                       \
        buf_printf(out, " " #name);
#define ARG_WORD(words, name) buf_printf(out, " " #name "=%s", words##_words[a->name]);
#define ARG_CACHE(name)
#define ARG_ROPE(name)                                                                                                 \
    if (a->name >= 0)                                                                                                  \
        buf_printf(out, " " #name "=%d", p->ropes[a->name]->dim);
#define ARG_PART(args, name) print_##args##_fields(p, &a->name, out);
#define ARG_OTHER(type, name)
#include "core/ops.def"

static void print_none(const struct program *p, const union op_args *a, struct buf *out) {
    (void)p;
    (void)a;
    (void)out;
}

static void print_args(const struct program *p, const struct op *op, struct buf *out) {
    static void (*const print[N_OPCODES])(const struct program *, const union op_args *, struct buf *) = {
#define OP(code, function, n_in, n_out, n_weights, args) [OP_##code] = print_##args,
#include "core/ops.def"
    };
    print[op->code](p, &op->args, out);
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
        if (c->kind == CACHE_STATE && c->ring == 0)
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
        if (c->ring)
            buf_printf(out, ", in a ring of %d", c->ring);
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
