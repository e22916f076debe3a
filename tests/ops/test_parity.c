/* test_parity.c - a model's program walked op by op on two backends: the CPU's plain functions, and the backend under
 * test (its fast kernels when that is the CPU). What a fused or a fast kernel gets wrong shows at its own op and layer,
 * not somewhere in the logits.
 *
 * For each op the program is cut behind it and its result taken as logits: a prompt, then few tokens and single ones,
 * so that rows of both paths are seen. The CPU then computes that op alone from what the backend under test made of the
 * op's inputs, so an error is the op's own and no layer before has a part in it. ATTENTION comes with what fills its
 * cache, MOE_FFN with its MOE_ROUTE, GATED_ACT with its LINEAR, since those are one node by some paths and two by
 * others.
 *
 * The CPU reads what the device reads: rows of products rounded to 16 bits, or to e4m3 in each of the ways that a path
 * may (the nearest counts), keys and values rounded as the cache keeps them. `most` is the largest difference of a row,
 * relative to the row's largest value or, if that is more, to what the largest of a row is in the mean; `rms` and the
 * bounds are as op_judge.h has them. What eight bits themselves cost is held by a cosine, against what nothing was
 * rounded in.
 *
 *     GYRE_PARITY_MODEL=FOLDER    this model alone, with a line for every op
 *     GYRE_TEST_BACKEND, GYRE_TEST_DTYPE, GYRE_TEST_QUANTIZATION, GYRE_TEST_KV_DTYPE    what is tested */
#include "op_judge.h"
#include "parity_alone.h"

#include "model/model.h"

#include <math.h>

enum { MAX_HEAD_DIM = 512 };

// ---- attention --------------------------------------------------------------------------------------------------

/* Columns of every row, head by head, as the cache under test keeps them. */
static void keep_heads(const char *kv_dtype, float *table, int width, int col, int n_heads, int dim) {
    double head[MAX_HEAD_DIM];
    for (int t = 0; t < PARITY_TOKENS; t++)
        for (int h = 0; h < n_heads; h++) {
            float *x = table + (size_t)t * (size_t)width + col + h * dim;
            for (int i = 0; i < dim; i++)
                head[i] = (double)x[i];
            rig_round_cached(parity_dtype(), kv_dtype, head, dim);
            for (int i = 0; i < dim; i++)
                x[i] = (float)head[i];
        }
}

/* The QKV_PREP whose keys and values an ATTENTION reads. */
static const struct op *filler_of(const struct program *p, int op) {
    for (int i = op - 1; i >= 0; i--)
        if (cache_filled(&p->ops[i]) == cache_read(&p->ops[op]))
            return &p->ops[i];
    return NULL;
}

/* Keys of a QKV_PREP's rows, which its cache holds and nobody sees: normed and turned as if they were queries. */
static struct row_set keys_of(const struct seen *seen, const struct op *prep) {
    struct qkv_args a = prep->args.qkv_prep;
    const struct row_set *x = &seen->rows[prep->in[0].id];
    int width = a.n_kv_heads * a.head_dim;
    float *table = calloc((size_t)PARITY_TOKENS * (size_t)width, sizeof *table);
    for (int t = 0; t < PARITY_TOKENS; t++)
        memcpy(table + (size_t)t * (size_t)width,
               x->at + (size_t)t * (size_t)x->width + prep->in[0].col + a.n_heads * a.head_dim,
               (size_t)width * sizeof *table);
    a.n_heads = a.n_kv_heads;
    a.k_absent = true;
    struct few few;
    few_begin(&few, seen->p, table, width);
    struct row_set made = few_end(&few, op_qkv_prep(&few.p, few.rows, prep->weights[1], NULL, a));
    free(table);
    return made;
}

static void copy_values(const struct seen *seen, const struct op *prep, float *table, int width, int col) {
    const struct qkv_args *a = &prep->args.qkv_prep;
    const struct row_set *x = &seen->rows[prep->in[0].id];
    int first = prep->in[0].col + (a->n_heads + (a->v_from_k ? 0 : a->n_kv_heads)) * a->head_dim, dim = a->v_head_dim;
    double from[MAX_HEAD_DIM], to[MAX_HEAD_DIM];
    for (int t = 0; t < PARITY_TOKENS; t++)
        for (int h = 0; h < a->n_kv_heads; h++) {
            for (int i = 0; i < dim; i++)
                to[i] = from[i] = (double)x->at[(size_t)t * (size_t)x->width + (size_t)(first + h * dim + i)];
            if (a->v_norm)
                rig_rms_norm(from, NULL, dim, (double)a->eps, false, to);
            for (int i = 0; i < dim; i++)
                table[(size_t)t * (size_t)width + (size_t)(col + h * dim + i)] = (float)to[i];
        }
}

/* ATTENTION of the queries that the backend under test made, over keys and values rounded as its cache rounds them. */
static struct row_set attention_alone(const struct seen *seen, int op) {
    const struct program *p = seen->p;
    const struct op *prep = filler_of(p, op);
    struct attention_args a = p->ops[op].args.attention;
    const struct row_set *q = &seen->rows[p->ops[op].in[0].id];
    struct row_set keys = keys_of(seen, prep);
    struct load_options o = parity_tested(p).load;
    int n_q = a.n_heads * a.head_dim, n_k = a.n_kv_heads * a.head_dim, n_v = a.n_kv_heads * a.v_head_dim,
        width = n_q + n_k + n_v;
    float *table = calloc((size_t)PARITY_TOKENS * (size_t)width, sizeof *table);
    const char *in = rig_query_dtype(parity_dtype(), o.kv_dtype, &a, PARITY_BLOCK);
    for (int t = 0; t < PARITY_TOKENS; t++) {
        for (int i = 0; i < n_q; i++) {
            double x = (double)q->at[(size_t)t * (size_t)q->width + (size_t)(p->ops[op].in[0].col + i)];
            rig_round(in, &x, 1);
            table[(size_t)t * (size_t)width + (size_t)i] = (float)x;
        }
        memcpy(table + (size_t)t * (size_t)width + n_q, keys.at + (size_t)t * (size_t)n_k, (size_t)n_k * sizeof *table);
    }
    copy_values(seen, prep, table, width, n_q + n_k);
    keep_heads(o.kv_dtype, table, width, n_q, a.n_kv_heads, a.head_dim);
    keep_heads(o.kv_dtype, table, width, n_q + n_k, a.n_kv_heads, a.v_head_dim);
    struct qkv_args plain = {.cache = a.cache,
                             .rope = -1,
                             .n_heads = a.n_heads,
                             .n_kv_heads = a.n_kv_heads,
                             .head_dim = a.head_dim,
                             .v_head_dim = a.v_head_dim};
    struct few few;
    few_begin(&few, p, table, width);
    val made = op_attention(&few.p, op_qkv_prep(&few.p, few.rows, NULL, NULL, plain), p->ops[op].weights[0], a);
    struct row_set out = few_end(&few, made);
    free(keys.at);
    free(table);
    return out;
}

// ---- walking ----------------------------------------------------------------------------------------------------

struct walk {
    const char *folder;
    const struct model *m;
    int32_t tokens[PARITY_TOKENS];
    struct seen seen; // by the backend under test
    double worst[N_OPCODES], worst_rms[N_OPCODES];
    bool tells_all;
    int n_bad;
};

/* The op's LINEAR, if it is one or is computed with one. */
static const struct op *linear_of(const struct program *p, int op) {
    return p->ops[op].code == OP_LINEAR ? &p->ops[op]
           : linear_of_pair(p, op) >= 0 ? &p->ops[linear_of_pair(p, op)]
                                        : NULL;
}

/* How far an op may be off what is made of its inputs as they are read; of 8 bits, by cosine, off what is made of them
 * as they are. */
static struct closeness bounds_of(const struct program *p, int i) {
    const struct op *linear = linear_of(p, i);
    struct closeness exact = {.most = 1e-5, .rms = 1e-5};
    // Elements that were made by another program may have been rounded the other way.
    struct closeness other_way = {.most = RIG_F16_BOUND, .rms = RIG_F16_RMS};
    // Keys and values are the oracle's own, out of the same rows: one of them that is rounded the other way moves a row
    // of scores of trained heads by twice the bound of 16 bits (gemma4: one unit of one element of a key by up
    // to 2.1e-3).
    struct closeness other_key = {.most = 3e-3, .rms = 6e-4};
    if (parity_is_exact())
        return exact;
    if (strcmp(parity_dtype(), "bfloat16") == 0)
        other_key = other_way = (struct closeness){.most = 5e-3, .rms = 2e-3};
    if (linear && parity_by_e4m3(linear->weights[0]))
        return (struct closeness){.most = RIG_F8_CHAIN_BOUND, .rms = RIG_F8_CHAIN_RMS, .cosine = RIG_F8_COSINE};
    switch (p->ops[i].code) {
    case OP_ATTENTION:
        if (parity_tested(p).load.kv_dtype)
            return (struct closeness){.most = RIG_CACHE_READ_BOUND, .rms = RIG_CACHE_READ_RMS, .cosine = RIG_F8_COSINE};
        return other_key;
    case OP_MLA_PREP:
    case OP_MLA_ATTENTION: // its cache holds latents in 16 bits, which scores and values of all heads are made of
        return (struct closeness){.most = 6 * other_way.most, .rms = 6 * other_way.rms};
    case OP_LINEAR:
    case OP_GATED_ACT:
    case OP_MOE_FFN: return other_way;
    case OP_GATED_ADD: { // of experts and a shared one, which a device may compute as one of them (pass_shared_expert)
        const struct op *experts = &p->ops[p->values[p->ops[i].in[0].id].first_use];
        if (experts->code != OP_MOE_FFN)
            return exact;
        return parity_by_e4m3(experts->weights[0]) // whose rows of x are not rounded to e4m3, as the oracle's are
                   ? (struct closeness){.most = RIG_F8_BOUND, .rms = 2 * RIG_F8_CHAIN_RMS, .cosine = RIG_F8_COSINE}
                   : other_way;
    }
    case OP_NORM: // a gated one ends a DeltaNet layer, whose chunks are products of pairs of bfloat16: 2^-17 a number
        return val_given(p->ops[i].in[1]) ? (struct closeness){.most = 8 * 0x1p-16, .rms = 2 * 0x1p-16} : exact;
    default: return exact;
    }
}

static void tell(const struct walk *w, int i, int k, const struct closeness *c, double cosine, struct closeness may) {
    const struct op *op = &w->m->program->ops[i];
    const struct section *s = &w->m->program->sections[op->section];
    char where[40];
    snprintf(where, sizeof where, s->layer >= 0 ? "%s %d" : "%s", s->name, s->layer);
    print_message(
        "%s: op %3d, %-10s %-13s result %d: off by %.2e in row %d (%.1e may be), rms %.2e (%.1e), cosine %.6f (%.6f)\n",
        w->folder, i, where, op_name(op->code), k, c->most, c->worst_row, may.most, c->rms, may.rms, cosine,
        may.cosine);
}

/* Of several ways to read a row the one that is nearest to what was got: a step's path is that of its size. */
static void take_nearer(struct row_set *want, const struct row_set *got, struct row_set other) {
    int n = got->width;
    for (int t = 0; t < PARITY_TOKENS; t++) {
        double far = 0, other_far = 0;
        for (int i = t * n; i < (t + 1) * n; i++) {
            far += pow((double)want->at[i] - (double)got->at[i], 2);
            other_far += pow((double)other.at[i] - (double)got->at[i], 2);
        }
        if (other_far < far)
            memcpy(want->at + t * n, other.at + t * n, (size_t)n * sizeof *want->at);
    }
    free(other.at);
}

/* By e4m3: every way to read, and of what a gated product hands on, which may never have been written, every way to
 * make it. */
static void take_nearest_reading(const struct walk *w, int i, int k, const struct row_set *got, struct row_set *want) {
    const struct program *p = w->m->program;
    const struct op *op = &p->ops[i];
    bool rounds = linear_of(p, i)->weights[0]->parts[0].dtype != DT_F8_E4M3;
    int maker = op->code == OP_LINEAR ? p->values[op->in[0].id].first_use : -1;
    bool of_gated = maker >= 0 && linear_of_pair(p, maker) >= 0 && op->in[0].width == p->values[op->in[0].id].width;
    int n_readings = of_gated ? N_GATED_READINGS : N_READINGS;
    for (int how = 0; how < n_readings; how++)
        take_nearer(want, got, op_alone(&w->seen, i, k, (enum rig_reading)how, rounds));
    if (!of_gated)
        return;
    bool maker_rounds = p->ops[linear_of_pair(p, maker)].weights[0]->parts[0].dtype != DT_F8_E4M3;
    for (int how = 0; how < N_ROW_READINGS; how++) {
        struct row_set x = op_alone(&w->seen, maker, 0, (enum rig_reading)how, maker_rounds);
        for (int second = 0; second < n_readings; second++)
            take_nearer(want, got, linear_alone(&w->seen, op, &x, (enum rig_reading)second, rounds));
        free(x.at);
    }
}

static struct row_set wanted(const struct walk *w, int i, int k, const struct row_set *got) {
    const struct op *op = &w->m->program->ops[i], *linear = linear_of(w->m->program, i);
    if (op->code == OP_ATTENTION && !parity_is_exact())
        return attention_alone(&w->seen, i);
    struct row_set want = op_alone(&w->seen, i, k, READING_16, false);
    if (linear && parity_by_e4m3(linear->weights[0]))
        take_nearest_reading(w, i, k, got, &want);
    return want;
}

/* Whether eight bits are read, so that a cosine with what is made of unrounded numbers says something. */
static bool is_of_8_bits(const struct program *p, int i) {
    const struct op *linear = linear_of(p, i);
    return p->ops[i].code == OP_ATTENTION ? parity_tested(p).load.kv_dtype && !parity_is_exact()
                                          : p->ops[i].code == OP_LINEAR && parity_by_e4m3(linear->weights[0]);
}

static void walk_result(struct walk *w, int i, int k) {
    const struct program *p = w->m->program;
    const struct op *op = &p->ops[i];
    struct how options = parity_tested(p), plain = parity_reference();
    struct program cut = program_cut(p, i, k);
    struct row_set *got = &w->seen.rows[op->out[k].id], want;
    double cosine = 1, left = 1; // with what is made of unrounded numbers: of what was got, and of the oracle
    *got = program_rows(rig_backend(), &options, &cut, w->tokens);
    if (op->code == OP_EMBED)
        want = program_rows(&backend_cpu, &plain, &cut, w->tokens);
    else if (op->code == OP_TAKE_ROWS)
        want = program_rows(rig_backend(), &options, &cut, w->tokens);
    else
        want = wanted(w, i, k, got);
    if (is_of_8_bits(p, i)) {
        struct row_set meant = op_alone(&w->seen, i, k, READING_AS_IT_IS, false);
        cosine = rows_compare(got, &meant).cosine;
        left = rows_compare(&want, &meant).cosine;
        free(meant.at);
    }
    struct closeness c = rows_compare(got, &want), may = bounds_of(p, i);
    may.cosine = may.cosine > 0 ? RIG_F8_LEFT(left) : 0;
    bool bad = !(c.most <= may.most) || !(c.rms <= may.rms) || !(cosine >= may.cosine);
    if (w->tells_all || bad)
        tell(w, i, k, &c, cosine, may);
    w->n_bad += bad;
    w->worst[op->code] = fmax(w->worst[op->code], c.most);
    w->worst_rms[op->code] = fmax(w->worst_rms[op->code], c.rms);
    free(want.at);
    free(cut.ops);
    free(cut.values);
}

static void tell_worst(const struct walk *w) {
    char line[900];
    int n = 0;
    for (int code = 0; code < N_OPCODES; code++)
        if (w->worst[code] > 0)
            n += snprintf(line + n, sizeof line - (size_t)n, "  %s %.1e %.1e", op_name((enum opcode)code),
                          w->worst[code], w->worst_rms[code]);
    print_message("%s: off at most by%s\n", w->folder, n ? line : " nothing");
}

/* The number of results that are farther off than they may be, after a line about each. */
static int walk_model(const char *folder, bool tells_all) {
    struct model *m;
    struct error err;
    EXPECT_OK(model_open(folder, &(struct model_options){0}, &m, &err), err);
    struct walk w = {.folder = folder, .m = m, .tells_all = tells_all};
    w.seen = (struct seen){m->program, calloc((size_t)m->program->n_values, sizeof *w.seen.rows)};
    for (int t = 0; t < PARITY_TOKENS; t++)
        w.tokens[t] = (int32_t)((test_seed() >> 8) * 31 + (uint64_t)t * 7919 + (uint64_t)(t * t)) % m->spec->vocab_size;
    for (int t = 0; t < PARITY_TOKENS; t++)
        w.tokens[t] = w.tokens[t] < 0 ? -w.tokens[t] : w.tokens[t];
    for (int i = 0; i < m->program->n_ops; i++)
        for (int k = 0; k < OP_MAX_OUT; k++) {
            val v = m->program->ops[i].out[k];
            if (val_given(v) && m->program->values[v.id].dtype == DT_F32)
                walk_result(&w, i, k);
        }
    tell_worst(&w);
    for (int v = 0; v < m->program->n_values; v++)
        free(w.seen.rows[v].at);
    free(w.seen.rows);
    model_free(m);
    return w.n_bad;
}

/* One of every family, or the models that this process is to take. */
static void every_op_of_every_model_is_the_references(void **state) {
    static const char *const all[] = {"gemma4",      "gemma3",  "gemma2",      "llama",     "mistral",
                                      "qwen2",       "qwen3",   "gpt_oss",     "diffllama", "qwen3_5",
                                      "deepseek_v3", "mixtral", "qwen3_5_moe", "qwen3_moe"};
    const char *one = getenv("GYRE_PARITY_MODEL");
    int n_bad = 0;
    (void)state;
    if (one)
        n_bad = walk_model(one, true);
    for (size_t i = 0; !one && i < ARRAY_LEN(all); i++) {
        char folder[64];
        if (!rig_takes_case())
            continue;
        snprintf(folder, sizeof folder, "tests/models/%s", all[i]);
        n_bad += walk_model(folder, false);
    }
    EXPECT_EQ(n_bad, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_op_of_every_model_is_the_references)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
