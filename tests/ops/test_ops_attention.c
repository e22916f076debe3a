/* test_ops_attention.c - QKV_PREP and ATTENTION against softmax attention written out in double precision; how the
 * tests are run is said in test_ops.c. */
#include "attention_int4_cases.h"
#include "op_judge.h"
#include "op_oracle.h"
#include "op_weights.h"

#include <math.h>

static void rotate(const struct attention_case *a, const float *freq, int position, double *x) {
    for (int i = 0; i < a->rope_dim / 2; i++) {
        int one = a->pairing == ROPE_HALF ? i : 2 * i, two = a->pairing == ROPE_HALF ? i + a->rope_dim / 2 : 2 * i + 1;
        double angle = (double)((float)position * freq[i]), p = x[one], q = x[two];
        x[one] = p * cos(angle) - q * sin(angle);
        x[two] = q * cos(angle) + p * sin(angle);
    }
}

/* A case's queries, keys and values of every row, by part (0, 1, 2). */
struct attention_oracle {
    const struct attention_case *a;
    struct rig *rig;
    const float *freq;
    double *q_norm, *k_norm, *sinks;
    double *heads[3];                // [n_rows][n_heads or n_kv_heads][head_dim or v_head_dim]
    bool rounds;                     // what a device keeps in fewer bits
    const char *query_dtype, *dtype; // in which it reads queries; in which a cache of 16 bits keeps keys and values
};

static int part_dim(const struct attention_case *a, int part) { return part == 2 ? a->v_head_dim : a->head_dim; }

static double *projected(const struct attention_oracle *o, int part, int h, int seq, int t) {
    int n = part == 0 ? o->a->n_heads : o->a->n_kv_heads;
    return o->heads[part] + ((int64_t)rig_row(o->rig, seq, t) * n + h) * part_dim(o->a, part);
}

/* The rule of ops.def, said once more. */
static bool turns(const struct attention_case *a, int i) { return i % (a->head_dim / 2) < a->rotary_dim / 2; }

/* The power of two above the weights of what turns, which makes keys as large as values, and comes into the queries. */
static double unit_of(const struct attention_oracle *o) {
    double most = 0;
    int exponent;
    for (int i = 0; i < o->a->head_dim; i++)
        if (turns(o->a, i))
            most = fmax(most, fabs(o->k_norm[i] + (o->a->plus_one ? 1 : 0)));
    frexp(most, &exponent);
    return ldexp(1, exponent);
}

/* A query or key of shared keys as a device has them: the norm's weight of what does not turn is the query's, and a key
 * has there what its value has. Both are rounded as one row. */
static void shorten(const struct attention_oracle *o, const double *row, int part, int h, double *x) {
    const struct attention_case *a = o->a;
    int dim = a->head_dim, n = 0;
    double unit = unit_of(o);
    if (part == 0) {
        for (int i = 0; i < dim; i++)
            x[i] *= turns(a, i) ? unit : o->k_norm[i] + (a->plus_one ? 1 : 0);
        return;
    }
    double *kept = rig_doubles(o->rig, a->rotary_dim + dim), *v = kept + a->rotary_dim;
    rig_rms_norm(row + (a->n_heads + h) * dim, NULL, dim, (double)1e-6f, false, v);
    for (int i = 0; i < dim; i++)
        if (turns(a, i))
            kept[n++] = x[i] / unit;
    rig_round_cached(o->dtype, a->kv_dtype, kept, a->rotary_dim + dim);
    n = 0;
    for (int i = 0; i < dim; i++)
        x[i] = part == 1 && turns(a, i) ? kept[n++] : v[i];
}

/* The same of a cache of int4, which has the weight in the key and rounds key and value each for itself. Returns
 * whether what is stored for the part (1, 2) is sure; x has the key as it was, or the value. */
static bool keep_int4(const struct attention_oracle *o, const double *row, int part, int h, double *x) {
    const struct attention_case *a = o->a;
    int dim = part_dim(a, part), n = 0;
    if (part == 2 || a->rotary_dim == 0)
        return rig_round_int4(x, dim);
    double *kept = rig_doubles(o->rig, a->rotary_dim + dim), *v = kept + a->rotary_dim;
    rig_rms_norm(row + (a->n_heads + h) * dim, NULL, dim, (double)1e-6f, false, v);
    bool sure = rig_round_int4(v, dim);
    for (int i = 0; i < dim; i++)
        if (turns(a, i))
            kept[n++] = x[i];
    sure &= rig_round_int4(kept, n);
    n = 0;
    for (int i = 0; i < dim; i++)
        x[i] = turns(a, i) ? kept[n++] : v[i] * (o->k_norm[i] + (a->plus_one ? 1 : 0));
    return sure;
}

static int first_column(const struct attention_case *a, int part) {
    return part == 0 ? 0 : (a->n_heads + (part == 2 && !a->v_from_k ? a->n_kv_heads : 0)) * a->head_dim;
}

/* Head h of a part of the row at position t. */
static void project(const struct attention_oracle *o, const double *row, int part, int h, int t, double *x) {
    const struct attention_case *a = o->a;
    int dim = part_dim(a, part);
    memcpy(x, row + first_column(a, part) + h * dim, (size_t)dim * sizeof *x);
    if (part < 2 && a->q_norm)
        rig_rms_norm(x, part == 0 ? o->q_norm : o->k_norm, dim, (double)1e-6f, a->plus_one, x);
    if (part == 2 && a->v_norm)
        rig_rms_norm(x, NULL, dim, (double)1e-6f, false, x);
    if (part < 2)
        rotate(a, o->freq, t, x);
    if (rig_is_int4(a->kv_dtype)) {
        if (part > 0 && o->rounds)
            keep_int4(o, row, part, h, x);
    } else if (a->rotary_dim > 0 && o->rounds && rig_backend() != &backend_cpu && !on_device_is_plain())
        shorten(o, row, part, h, x);
    else if (part > 0 && o->rounds)
        rig_round_cached(o->dtype, a->kv_dtype, x, dim);
    if (part == 0 && o->rounds)
        rig_round(o->query_dtype, x, dim);
}

static void project_all(struct attention_oracle *o) {
    int n_heads[3] = {o->a->n_heads, o->a->n_kv_heads, o->a->n_kv_heads};
    for (int part = 0; part < 3; part++) {
        o->heads[part] = rig_doubles(o->rig, (int64_t)o->rig->n_rows * n_heads[part] * part_dim(o->a, part));
        RIG_EACH_ROW(o->rig, s, t) {
            const double *row = rig_wide_input(o->rig, 0, s, t);
            for (int h = 0; h < n_heads[part]; h++)
                project(o, row, part, h, t, projected(o, part, h, s, t));
        }
    }
}

/* Whether an element lies in the middle between two bfloat16, as far as float32 tells behind a norm and a rotation. Of
 * what is below a sixteenth of the largest a unit is too little to matter. */
static bool has_middle(const double *x, int n) {
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, fabs(x[i]));
    for (int i = 0; i < n; i++) {
        double ends[2] = {x[i] - 16 * EPS * most, x[i] + 16 * EPS * most};
        rig_round("bfloat16", ends, 2);
        if (ends[0] != ends[1] && fabs(x[i]) > most / 16)
            return true;
    }
    return false;
}

/* Whether the head that a part (keys and values of one head: both) is made of has such an element. x: room for it. */
static bool head_has_middle(const struct attention_oracle *o, const double *row, int part, int h, int t, double *x) {
    bool found = false;
    for (int is = part; is < (part == 1 && o->a->v_from_k ? 3 : part + 1) && !found; is++) {
        project(o, row, is, h, t, x);
        found = rig_is_int4(o->a->kv_dtype) ? !keep_int4(o, row, is, h, x) : has_middle(x, part_dim(o->a, is));
    }
    return found;
}

/* What lies in the middle is right as either, a unit apart, and that in one key is more than all that ATTENTION itself
 * may be off by: 1.332031314 for a middle of 1.33203125 was 2.007e-3 of a row that saw eleven keys, and one drawn case
 * in a hundred had as much. So such heads are drawn anew, and the bound is of ATTENTION alone. A unit of float16 is an
 * eighth of that. One of int4 is much more. */
static void leave_the_middle(struct attention_oracle o) {
    const struct attention_case *a = o.a;
    bool int4 = rig_is_int4(a->kv_dtype);
    if (!int4 && (rig_backend() == &backend_cpu || a->kv_dtype || strcmp(o.dtype, "bfloat16") != 0))
        return;
    int first = !int4 && strcmp(o.query_dtype, "bfloat16") == 0 ? 0 : 1, width = o.rig->width;
    double *x = rig_doubles(o.rig, MAX(a->head_dim, a->v_head_dim)), *row = rig_doubles(o.rig, width);
    o.rounds = !int4; // of shared keys, which are other numbers, before they are rounded
    o.query_dtype = o.dtype = "float32";
    RIG_EACH_ROW(o.rig, s, t) {
        const float *in = rig_input(o.rig, 0, s, t);
        for (int part = first; part < 3; part++)
            for (int h = 0; h < (part == 0 ? a->n_heads : a->n_kv_heads); h++)
                for (;;) {
                    for (int i = 0; i < width; i++)
                        row[i] = (double)in[i];
                    if (!head_has_middle(&o, row, part, h, t, x))
                        break;
                    rig_draw_again(o.rig, s, t, first_column(a, part) + h * part_dim(a, part), part_dim(a, part));
                }
    }
}

static float scale_of(const struct attention_case *a) { return a->scale > 0 ? a->scale : 0.3f; }

/* Softmax over all keys with minus infinity where the rule hides them, in two passes. */
static void attend(const struct attention_oracle *o, int seq, int t, int h, double *out) {
    const struct attention_case *a = o->a;
    int group = a->n_heads / a->n_kv_heads, half = a->n_heads / 2;
    int n_keys = a->reach == REACH_ALL ? o->rig->o.lens[seq] : t + 1;
    double *q = projected(o, 0, h, seq, t), *s = rig_doubles(o->rig, n_keys + 1), max = -INFINITY, sum = 0;
    for (int j = 0; j < n_keys; j++) {
        double *k = projected(o, 1, h / group, seq, j);
        for (int i = 0; i < a->head_dim; i++)
            s[j] += q[i] * k[i];
        s[j] *= (double)scale_of(a);
        if (a->softcap > 0)
            s[j] = (double)a->softcap * tanh(s[j] / (double)a->softcap);
        bool visible = (a->reach != REACH_BEFORE || j < t) && (a->window == 0 || j > t - a->window) &&
                       (a->chunk == 0 || j / a->chunk == t / a->chunk);
        if (!visible)
            s[j] = -INFINITY;
    }
    s[n_keys] = a->sinks ? o->sinks[h] : -INFINITY;
    for (int j = 0; j <= n_keys; j++)
        max = fmax(max, s[j]);
    for (int j = 0; j <= n_keys; j++)
        sum += s[j] = exp(s[j] - max);
    for (int part = 0; part < (a->paired ? 2 : 1); part++) {
        int value_head = !a->paired ? h / group : (h % half + part * half) / group;
        for (int j = 0; j < n_keys; j++) {
            double *v = projected(o, 2, value_head, seq, j);
            for (int i = 0; i < a->v_head_dim; i++)
                out[part * a->v_head_dim + i] += s[j] / sum * v[i];
        }
    }
}

static double *attend_all(struct attention_oracle *o, bool rounds) {
    double *want = rig_rows(o->rig);
    o->rounds = rounds;
    project_all(o);
    RIG_EACH_ROW(o->rig, s, t)
    for (int h = 0; h < o->a->n_heads; h++)
        attend(o, s, t, h, rig_at(o->rig, want, s, t) + h * (o->rig->out.width / o->a->n_heads));
    return want;
}

static void expect_same_bits(const struct rig *rig, const double *got, const double *want, const char *name) {
    if (memcmp(got, want, (size_t)rig->n_rows * (size_t)rig->out.width * sizeof *got) != 0)
        fail_msg("%s: another schedule gives other bits", name);
}

/* Against what is stored, and a cache of 8 bits against what was to be stored too. */
static void judge_attention(struct attention_oracle *o, bool by_sizes) {
    const struct attention_case *a = o->a;
    struct rig *rig = o->rig;
    // A score's error, sqrt(head_dim) roundings of values up to some 40, goes into the exponent.
    struct rig_bounds close = rig_bounds_of_16(rig, 40 * sqrt(a->head_dim) * EPS);
    bool int4 = rig_is_int4(a->kv_dtype);
    struct rig_bounds coarse = {.most = a->bound, .cosine = int4 ? RIG_INT4_COSINE : RIG_F8_COSINE};
    if (int4 && rig_backend() != &backend_cpu)
        close = (struct rig_bounds){.most = fmax(close.most, RIG_INT4_READ_BOUND), .rms = RIG_INT4_READ_RMS};
    const double *kept = attend_all(o, true), *meant = a->bound > 0 ? attend_all(o, false) : NULL, *first = NULL;
    if (meant && !int4) {
        close.most = fmax(close.most, RIG_CACHE_READ_BOUND);
        close.rms = RIG_CACHE_READ_RMS;
        // A row of 16 bits over its largest may have many elements in the middle between two of e4m3 (of bfloat16
        // whenever the largest is a power of two, of float16 where it is 7 * 73 / 256), and normed they are a little
        // beside it, on either side.
        if (a->v_norm && strcmp(rig->o.kernels, "float32") != 0)
            close.rms *= 2;
    }
    for (enum rig_schedule s = by_sizes ? SCHEDULE_SIZES : 0; s < (by_sizes ? SCHEDULE_SIZES + 1 : N_SCHEDULES); s++) {
        if (rig_is_brief() && !by_sizes && s != SCHEDULE_WHOLE && s != SCHEDULE_CHUNK_1)
            continue;
        if (a->reach == REACH_ALL && s != SCHEDULE_WHOLE && s != SCHEDULE_ONE_BY_ONE)
            continue; // later rows of the step are seen, and those of later steps are not
        const double *got = rig_run(rig, s);
        rig_judge(rig, got, kept, close, s, a->name);
        if (meant)
            rig_judge(rig, got, meant, coarse, s, a->name);
        first = first ? first : got;
        if (int4 && rig_backend() == &backend_cpu && !rig_is_brief() && a->reach != REACH_ALL)
            expect_same_bits(rig, got, first, a->name);
    }
}

/* lens NULL: of rig_sizes */
static void attention_case(const struct attention_case *a, const int *lens, const char *kernels) {
    bool takes = rig_backend() == &backend_cpu || rig_is_int4(a->kv_dtype) ||
                 (a->head_dim == 512 && a->rotary_dim == 128); // as backends have it (core/pass/pass.h)
    if (!rig_takes_case() || (a->rotary_dim > 0 && !takes))
        return;
    int kv = a->n_kv_heads * (a->head_dim + (a->v_from_k ? 0 : a->v_head_dim));
    struct rig_options options = {.n_seqs = 3,
                                  .spread = 2,
                                  .widths = {a->n_heads * a->head_dim + kv},
                                  .block_size = a->block_size,
                                  .kernels = kernels,
                                  .kv_dtype = a->kv_dtype};
    for (int i = 0; lens && i < options.n_seqs; i++)
        options.lens[i] = lens[i];
    struct rig *rig = rig_new(lens ? options : rig_sizes(options));
    float freq[256];
    for (int i = 0; i < a->rope_dim / 2; i++)
        freq[i] = a->rotary_dim > 0 && i >= a->rotary_dim / 2 ? 0 : (float)rig_uniform(rig, 0.01, 1);
    struct rope rope = {.pairing = a->pairing, .dim = a->rope_dim, .inv_freq = freq, .factor = 1};
    struct attention_oracle o = {.a = a, .rig = rig, .freq = freq, .dtype = kernels};
    const struct weight *q_norm = a->q_norm ? rig_vector(rig, a->head_dim, -1, 1, &o.q_norm) : NULL;
    const struct weight *k_norm =
        a->q_norm ? rig_vector(rig, a->head_dim, -1, a->rotary_dim > 0 ? 3 : 1, &o.k_norm) : NULL;
    const struct weight *sinks = a->sinks ? rig_vector(rig, a->n_heads, -2, 2, &o.sinks) : NULL;
    int cache = program_cache_kv(rig->p, a->n_kv_heads, a->head_dim, a->v_head_dim, a->window);
    struct qkv_args prep = {.cache = cache,
                            .rope = a->rope_dim ? program_rope(rig->p, &rope) : -1,
                            .n_heads = a->n_heads,
                            .n_kv_heads = a->n_kv_heads,
                            .head_dim = a->head_dim,
                            .v_head_dim = a->v_head_dim,
                            .eps = 1e-6f,
                            .plus_one = a->plus_one,
                            .v_norm = a->v_norm,
                            .v_from_k = a->v_from_k};
    struct attention_args args = {.cache = prep.cache,
                                  .n_heads = a->n_heads,
                                  .n_kv_heads = a->n_kv_heads,
                                  .head_dim = a->head_dim,
                                  .v_head_dim = a->v_head_dim,
                                  .scale = scale_of(a),
                                  .softcap = a->softcap,
                                  .window = a->window,
                                  .chunk = a->chunk,
                                  .paired_values = a->paired,
                                  .reach = a->reach};
    o.query_dtype = rig_query_dtype(kernels, a->kv_dtype, &args, rig->o.block_size);
    leave_the_middle(o);
    rig_result(rig, op_attention(rig->p, op_qkv_prep(rig->p, rig->in[0], q_norm, k_norm, prep), sinks, args));
    judge_attention(&o, !lens);
    rig_free(rig);
}

static void attention_is_a_softmax_over_what_is_visible(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(attention_cases); i++) {
            attention_case(&attention_cases[i], (int[]){21, 1, 6}, *kernels);
            attention_case(&attention_cases[i], (int[]){3, 40, 17}, *kernels);
        }
}

/* Against its definition, said once more, to the arithmetic of float32 or, of queries and weights, of half precision:
 * every kernel set stores and reads the same. */
static void a_cache_of_int4_is_off_by_its_rounding_alone(void **state) {
    (void)state;
    if (strcmp(rig_backend()->name, "xla") == 0)
        skip(); // which refuses it
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(int4_cases); i++) {
            attention_case(&int4_cases[i], (int[]){21, 1, 6}, *kernels);
            attention_case(&int4_cases[i], (int[]){3, 70, 17}, *kernels);
        }
}

/* Of drafts. The keys before alone have a sink, as the first row sees none. */
static void attention_may_see_the_keys_before_alone_or_all(void **state) {
    (void)state;
    static const struct attention_case cases[] = {
        {.name = "before", FAST(4, 2, 64), .block_size = 16, .sinks = true, .reach = REACH_BEFORE},
        {.name = "before, window", FAST(4, 1, 64), .block_size = 16, .sinks = true, .window = 7, .reach = REACH_BEFORE},
        {.name = "all", FAST(4, 2, 128), .block_size = 16, .reach = REACH_ALL},
    };
    bool has_reach = strcmp(rig_backend()->name, "xla") != 0; // which refuses those of such drafts
    for (const char *const *kernels = rig_kernels(); *kernels && has_reach; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(cases); i++)
            attention_case(&cases[i], (int[]){21, 1, 40}, *kernels);
}

/* A row of NaNs reaches who sees its key, so that logits tell of it (half precision ends at 65504, but what is not a
 * number must not become that), and no other sequence. Rows before it in a step may have it too, as nothing times NaN.
 */
static void not_a_number_case(const char *kernels, const char *kv_dtype) {
    enum { HEADS = 2, DIM = 64, LENGTH = 7, SPOILT = 3 };
    if (!rig_takes_case())
        return;
    struct rig *rig = rig_new((struct rig_options){.n_seqs = 2,
                                                   .lens = {LENGTH, LENGTH},
                                                   .widths = {(HEADS + 2) * DIM},
                                                   .kernels = kernels,
                                                   .kv_dtype = kv_dtype,
                                                   .block_size = 16});
    for (int i = 0; i < rig->width; i++)
        rig->table[(int64_t)rig_row(rig, 0, SPOILT) * rig->width + i] = NAN;
    struct qkv_args prep = {
        .rope = -1, .n_heads = HEADS, .n_kv_heads = 1, .head_dim = DIM, .v_head_dim = DIM, .eps = 1e-6f};
    prep.cache = program_cache_kv(rig->p, 1, DIM, DIM, 0);
    struct attention_args args = {
        .cache = prep.cache, .n_heads = HEADS, .n_kv_heads = 1, .head_dim = DIM, .v_head_dim = DIM, .scale = 0.1f};
    rig_result(rig, op_attention(rig->p, op_qkv_prep(rig->p, rig->in[0], NULL, NULL, prep), NULL, args));
    rig->tells_all = true;
    static const enum rig_schedule schedules[] = {SCHEDULE_WHOLE, SCHEDULE_CHUNK_1};
    for (size_t k = 0; k < ARRAY_LEN(schedules); k++) {
        double *got = rig_run(rig, schedules[k]);
        RIG_EACH_ROW(rig, s, t)
        for (int i = 0; i < HEADS * DIM; i++)
            if ((s == 1 || t >= SPOILT) && isnan(rig_at(rig, got, s, t)[i]) != (s == 0))
                fail_msg("%s, cache %s, schedule %d: sequence %d, row %d, %d: %g", kernels,
                         kv_dtype ? kv_dtype : "as products", (int)schedules[k], s, t, i, rig_at(rig, got, s, t)[i]);
    }
    rig_free(rig);
}

static void what_is_not_a_number_stays_so_in_who_sees_it(void **state) {
    (void)state;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++) {
        not_a_number_case(*kernels, NULL);
        if (strcmp(rig_backend()->name, "cuda") == 0) // others have no such cache
            not_a_number_case(*kernels, "fp8");
        if (strcmp(rig_backend()->name, "xla") != 0)
            not_a_number_case(*kernels, "int4");
    }
}

/* In brief a case is of one dtype and one set of lengths, which the seed picks; never of float32 over a cache of its
 * own, which the plain kernel reads. */
static void what_fast_kernels_take_is_the_same_softmax(void **state) {
    (void)state;
    static const int lens[][3] = {{200, 1, 33}, {64, 513, 130}};
    if (rig_backend() == &backend_cpu)
        skip(); // its kernels take every size alike, and its cache is float32
    for (size_t i = 0; i < ARRAY_LEN(fast_cases); i++) {
        const struct attention_case *a = &fast_cases[i];
        size_t n_lens = a->head_dim <= 128 ? 2 : 1, first = a->kv_dtype ? 0 : 1, pick = test_seed() + i;
        for (size_t k = 0; rig_kernels()[k]; k++)
            for (size_t n = 0; n < n_lens; n++)
                if (!rig_is_brief() || (k == first + pick % (3 - first) && n == pick / 3 % n_lens))
                    attention_case(a, lens[n], rig_kernels()[k]);
    }
}

/* Of int4: heads to a KV head from one to more than a product's columns, tiles seen in part, a sequence in parts. */
static void fast_kernels_read_four_bits_as_they_are_stored(void **state) {
    (void)state;
    static const int lens[][3] = {{200, 1, 33}, {64, 129, 70}};
    static const struct attention_case cut = {.name = "int4, 64, parts", FAST_INT4(2, 1, 64, 0.1f)};
    if (strcmp(rig_backend()->name, "cuda") != 0)
        skip();
    for (size_t i = 0; i < ARRAY_LEN(fast_int4_cases); i++)
        for (size_t k = 0; rig_kernels()[k]; k++)
            for (size_t n = 0; n < ARRAY_LEN(lens); n++)
                if (!rig_is_brief() || (test_seed() + i) % 6 == k * 2 + n)
                    attention_case(&fast_int4_cases[i], lens[n], rig_kernels()[k]);
    attention_case(&cut, (int[]){1000, 1, 2}, rig_kernels()[1]);
}

/* Of few keys each, so that a step of 512 sequences can be judged. */
static void attention_is_right_in_steps_of_every_number_of_sequences(void **state) {
    (void)state;
    static const struct attention_case cases[] = {
        {.name = "64, every number", FAST(7, 1, 64), .block_size = 16},
        {.name = "128, every number", FAST(8, 2, 128), .block_size = 16, .window = 40},
        {.name = "256, every number", FAST(2, 1, 256), .block_size = 16},
        {.name = "128 in fp8, every number",
         FAST(14, 2, 128),
         .block_size = 16,
         .kv_dtype = "fp8",
         .bound = RIG_FP8_CACHE_BOUND},
        {.name = "128 turned whole in fp8, every number", WHOLE(7, 1, 128, 0.06f), .block_size = 16},
        {.name = "128 in fp8, blocks of 64, sinks, every number",
         FAST(21, 3, 128),
         .block_size = 64,
         .sinks = true,
         .kv_dtype = "fp8",
         .bound = RIG_FP8_CACHE_BOUND},
        {.name = "128 turned whole in fp8, normed, blocks of 128, window, every number",
         WHOLE(12, 3, 128, 0.02f),
         .block_size = 128,
         .q_norm = true,
         .window = 50},
        {.name = "256 in fp8, every number",
         FAST(4, 2, 256),
         .block_size = 16,
         .kv_dtype = "fp8",
         .bound = RIG_FP8_CACHE_BOUND},
        {.name = "512 in fp8, every number",
         FAST(4, 1, 512),
         .block_size = 16,
         .kv_dtype = "fp8",
         .bound = RIG_FP8_CACHE_BOUND},
        {.name = "512, shared keys in fp8, every number",
         SHARED_KEYS(4, 1, 512, 128),
         .block_size = 16,
         .scale = 0.03f,
         .kv_dtype = "fp8",
         .bound = RIG_FP8_CACHE_BOUND},
        {.name = "128 in int4, every number", INT4(14, 2, 128), .rope_dim = 128, .block_size = 64, .scale = 0.06f},
        {.name = "64 in int8, every number",
         FAST(4, 2, 64),
         .block_size = 16,
         .kv_dtype = "int8",
         .bound = RIG_INT8_CACHE_BOUND},
    };
    bool cpu = rig_backend() == &backend_cpu;
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < (cpu ? 1 : ARRAY_LEN(cases)); i++)
            if (!rig_is_brief())
                attention_case(&cases[i], NULL, *kernels);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_a_softmax_over_what_is_visible),
        cmocka_unit_test(a_cache_of_int4_is_off_by_its_rounding_alone),
        cmocka_unit_test(attention_may_see_the_keys_before_alone_or_all),
        cmocka_unit_test(what_fast_kernels_take_is_the_same_softmax),
        cmocka_unit_test(fast_kernels_read_four_bits_as_they_are_stored),
        cmocka_unit_test(what_is_not_a_number_stays_so_in_who_sees_it),
        cmocka_unit_test(attention_is_right_in_steps_of_every_number_of_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
