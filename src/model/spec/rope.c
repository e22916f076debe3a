/* rope.c - see rope.h. */
#include "model/spec/rope.h"

#include "base/buf.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* One rope while it is built. */
struct builder {
    const struct rope_request *q;
    struct arena *arena;
    struct rope *rope;
    struct error *err;
    double theta, partial;
    int dim; // channels rotated
    int half;
    struct buf note;
};

/* ---- parameters ---- */

static enum status positive(const struct builder *b, const char *key, double *out) {
    TRY(jv_real(b->q->parameters, b->q->where, key, out, b->err));
    if (!(*out > 0 && *out <= 1e9))
        return fail(b->err, ERR_FORMAT, "%s: \"%s\" of the rope parameters is %g, it must be above 0 and at most 1e9",
                    b->q->where, key, *out);
    return OK;
}

static enum status positive_or(const struct builder *b, const char *key, double fallback, double *out) {
    if (json_is_number(json_object_get(b->q->parameters, key)))
        return positive(b, key, out);
    return jv_real_or(b->q->parameters, b->q->where, key, fallback, out, b->err);
}

static enum status original_context(const struct builder *b, int64_t *out) {
    TRY(jv_int_or(b->q->parameters, b->q->where, "original_max_position_embeddings", 1, INT32_MAX, b->q->max_positions,
                  out, b->err));
    if (b->q->original_context > 0)
        *out = b->q->original_context;
    return OK;
}

// "factor", or max_position_embeddings / the original context where it is absent or null.
static enum status factor_or_ratio(const struct builder *b, int64_t original, double *out) {
    return positive_or(b, "factor", (double)b->q->max_positions / (double)original, out);
}

/* ---- frequencies, in float32 as torch computes them ---- */

static float *new_frequencies(const struct builder *b) {
    return arena_calloc(b->arena, (size_t)b->half, sizeof(float));
}

static float power(const struct builder *b, int i, int denominator) {
    return powf((float)b->theta, (float)(2 * i) / (float)denominator);
}

static float *plain_frequencies(const struct builder *b) {
    float *f = new_frequencies(b);
    for (int i = 0; i < b->half; i++)
        f[i] = 1.0f / power(b, i, b->dim);
    return f;
}

static enum status build_default(struct builder *b) {
    b->rope->inv_freq = plain_frequencies(b);
    return OK;
}

static enum status build_linear(struct builder *b) {
    double factor;
    TRY(positive(b, "factor", &factor));
    float *f = plain_frequencies(b);
    for (int i = 0; i < b->half; i++)
        f[i] /= (float)factor;
    b->rope->inv_freq = f;
    buf_printf(&b->note, ", factor %g", factor);
    return OK;
}

static enum status build_dynamic(struct builder *b) {
    double factor;
    TRY(positive(b, "factor", &factor));
    if (b->dim <= 2)
        return fail(b->err, ERR_FORMAT, "%s: dynamic rope needs more than %d rotated channels", b->q->where, b->dim);
    b->rope->inv_freq = plain_frequencies(b);
    b->rope->by_length = ROPE_DYNAMIC;
    b->rope->original_context = b->q->max_positions;
    b->rope->theta = b->theta;
    b->rope->scaling = factor;
    buf_printf(&b->note, ", factor %g", factor);
    return OK;
}

static enum status build_llama3(struct builder *b) {
    double factor, low, high;
    int64_t original;
    TRY(positive(b, "factor", &factor));
    TRY(positive(b, "low_freq_factor", &low));
    TRY(positive(b, "high_freq_factor", &high));
    TRY(original_context(b, &original));
    if (low >= high)
        return fail(b->err, ERR_FORMAT, "%s: \"low_freq_factor\" must be below \"high_freq_factor\"", b->q->where);
    float *f = plain_frequencies(b);
    float longest = (float)((double)original / low), shortest = (float)((double)original / high);
    for (int i = 0; i < b->half; i++) {
        float wavelength = (float)(2 * pi) / f[i];
        if (wavelength > longest) {
            f[i] /= (float)factor;
        } else if (wavelength >= shortest) {
            float smooth = ((float)original / wavelength - (float)low) / (float)(high - low);
            f[i] = (1 - smooth) * f[i] / (float)factor + smooth * f[i];
        }
    }
    b->rope->inv_freq = f;
    buf_printf(&b->note, ", factor %g, original context %lld", factor, (long long)original);
    return OK;
}

static double yarn_mscale(double scale, double mscale) { return scale <= 1 ? 1 : 0.1 * mscale * log(scale) + 1; }

static enum status yarn_attention_factor(const struct builder *b, double factor, double *out) {
    double mscale, mscale_all_dim;
    TRY(positive_or(b, "attention_factor", 0, out));
    TRY(jv_real_or(b->q->parameters, b->q->where, "mscale", 0, &mscale, b->err));
    TRY(jv_real_or(b->q->parameters, b->q->where, "mscale_all_dim", 0, &mscale_all_dim, b->err));
    if (*out == 0)
        *out = mscale != 0 && mscale_all_dim != 0 ? yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim)
                                                  : yarn_mscale(factor, 1);
    if (!isfinite(*out) || *out <= 0)
        return fail(b->err, ERR_FORMAT, "%s: \"mscale\" and \"mscale_all_dim\" give no usable attention factor",
                    b->q->where);
    return OK;
}

// The channel pair that turns n_rotations times within the original context.
static double yarn_pair(const struct builder *b, double n_rotations, int64_t original) {
    return b->dim * log((double)original / (n_rotations * 2 * pi)) / (2 * log(b->theta));
}

/* The range of pairs over which interpolation is blended in. */
static enum status yarn_range(const struct builder *b, int64_t original, double *low, double *high) {
    double fast, slow;
    bool truncate;
    TRY(positive_or(b, "beta_fast", 32, &fast));
    TRY(positive_or(b, "beta_slow", 1, &slow));
    TRY(jv_bool_or(b->q->parameters, b->q->where, "truncate", true, &truncate, b->err));
    if (b->theta <= 1)
        return fail(b->err, ERR_FORMAT, "%s: yarn needs a \"rope_theta\" above 1", b->q->where);
    *low = yarn_pair(b, fast, original);
    *high = yarn_pair(b, slow, original);
    if (truncate) {
        *low = floor(*low);
        *high = ceil(*high);
    }
    *low = MAX(*low, 0);
    *high = MIN(*high, b->dim - 1);
    if (*low == *high)
        *high += 0.001;
    return OK;
}

static enum status build_yarn(struct builder *b) {
    double factor, attention_factor, low = 0, high = 0;
    int64_t original;
    TRY(original_context(b, &original));
    TRY(factor_or_ratio(b, original, &factor));
    TRY(yarn_attention_factor(b, factor, &attention_factor));
    TRY(yarn_range(b, original, &low, &high));
    float *f = new_frequencies(b);
    for (int i = 0; i < b->half; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float keep = 1 - MIN(MAX(ramp, 0.0f), 1.0f);
        float base = power(b, i, b->dim);
        f[i] = 1.0f / ((float)factor * base) * (1 - keep) + 1.0f / base * keep;
    }
    b->rope->inv_freq = f;
    b->rope->factor = (float)attention_factor;
    buf_printf(&b->note, ", factor %g, original context %lld", factor, (long long)original);
    return OK;
}

static enum status longrope_frequencies(const struct builder *b, const char *key, const float **out) {
    json_t *list;
    TRY(jv_array_or_null(b->q->parameters, b->q->where, key, &list, b->err));
    if (json_array_size(list) != (size_t)b->half)
        return fail(b->err, ERR_FORMAT, "%s: \"%s\" of the rope parameters has %zu numbers, it must have %d",
                    b->q->where, key, json_array_size(list), b->half);
    float *f = new_frequencies(b);
    for (int i = 0; i < b->half; i++) {
        double extension = json_number_value(json_array_get(list, (size_t)i));
        if (!(extension > 0 && extension <= 1e9))
            return fail(b->err, ERR_FORMAT, "%s: \"%s\"[%d] of the rope parameters must be above 0 and at most 1e9",
                        b->q->where, key, i);
        f[i] = 1.0f / ((float)extension * power(b, i, b->dim));
    }
    *out = f;
    return OK;
}

static enum status build_longrope(struct builder *b) {
    double factor, attention_factor;
    int64_t original;
    TRY(original_context(b, &original));
    TRY(factor_or_ratio(b, original, &factor));
    TRY(positive_or(b, "attention_factor", 0, &attention_factor));
    if (attention_factor == 0)
        attention_factor = factor <= 1 || original == 1 ? 1 : sqrt(1 + log(factor) / log((double)original));
    TRY(longrope_frequencies(b, "short_factor", &b->rope->inv_freq));
    TRY(longrope_frequencies(b, "long_factor", &b->rope->inv_freq_long));
    b->rope->by_length = ROPE_LONG;
    b->rope->original_context = original;
    b->rope->factor = b->rope->factor_long = (float)attention_factor;
    buf_printf(&b->note, ", factor %g, original context %lld", factor, (long long)original);
    return OK;
}

/* Plain frequencies, each divided by a number of its own (GGUF's rope_freqs; no config.json has the type). */
static enum status build_divisors(struct builder *b) {
    const float *f;
    TRY(longrope_frequencies(b, "divisors", &f));
    b->rope->inv_freq = f;
    return OK;
}

/* Exponents are those of the whole head, and only the first share of its pairs turns: (i, i + head_dim/2). */
static enum status build_proportional(struct builder *b) {
    double factor;
    TRY(positive_or(b, "factor", 1, &factor));
    int n_turning = (int)floor(b->partial * b->q->head_dim / 2);
    float *f = new_frequencies(b);
    for (int i = 0; i < n_turning; i++)
        f[i] = 1.0f / power(b, i, b->dim) / (float)factor;
    b->rope->inv_freq = f;
    buf_printf(&b->note, ", %d of %d pairs", n_turning, b->half);
    return OK;
}

/* ---- choosing ---- */

static const struct {
    const char *type;
    enum status (*build)(struct builder *b);
} builders[] = {
    {"default", build_default},   {"linear", build_linear},
    {"dynamic", build_dynamic},   {"llama3", build_llama3},
    {"yarn", build_yarn},         {"longrope", build_longrope},
    {"su", build_longrope},       {"proportional", build_proportional},
    {"divisors", build_divisors},
};

static enum status rope_type(const json_t *parameters, const char *where, const char **out, struct error *err) {
    TRY(jv_string_or(parameters, where, "type", "default", out, err));
    return jv_string_or(parameters, where, "rope_type", *out, out, err);
}

static enum status read_partial(struct builder *b, const char *type) {
    TRY(positive_or(b, "partial_rotary_factor", b->q->partial, &b->partial));
    if (b->partial > 1)
        return fail(b->err, ERR_FORMAT, "%s: \"partial_rotary_factor\" is %g, it must be at most 1", b->q->where,
                    b->partial);
    if (!b->q->whole_heads || b->partial == 1 || strcmp(type, "proportional") == 0)
        return OK;
    if (strcmp(type, "default") != 0)
        return fail(b->err, ERR_UNSUPPORTED,
                    "%s: \"partial_rotary_factor\" and rope type %s together are not defined for this model type",
                    b->q->where, type);
    b->partial = 1;
    return OK;
}

// Reads what all types share and sets the width.
static enum status begin(struct builder *b, const char *type) {
    const struct rope_request *q = b->q;
    TRY(jv_real_or(q->parameters, q->where, "rope_theta", q->theta, &b->theta, b->err));
    if (!(b->theta > 0 && b->theta <= 1e18))
        return fail(b->err, ERR_FORMAT, "%s: \"rope_theta\" is %g, it must be above 0 and at most 1e18", q->where,
                    b->theta);
    TRY(read_partial(b, type));
    b->dim = strcmp(type, "proportional") == 0 ? q->head_dim : (int)(q->head_dim * b->partial);
    if (b->dim < 2 || b->dim % 2)
        return fail(b->err, ERR_FORMAT,
                    "%s: rope would turn %d of the %d channels of a head, it must be an even number above 0", q->where,
                    b->dim, q->head_dim);
    b->half = b->dim / 2;
    *b->rope = (struct rope){.pairing = q->pairing, .dim = b->dim, .factor = 1, .factor_long = 1};
    buf_printf(&b->note, "%s, theta %g", type, b->theta);
    if (b->dim != q->head_dim)
        buf_printf(&b->note, ", %d of %d channels", b->dim, q->head_dim);
    return OK;
}

static enum status build(struct builder *b) {
    const char *type;
    TRY(rope_type(b->q->parameters, b->q->where, &type, b->err));
    if (b->q->yarn_is_longrope && strcmp(type, "yarn") == 0)
        type = "longrope";
    for (size_t i = 0; i < ARRAY_LEN(builders); i++) {
        if (strcmp(type, builders[i].type) != 0)
            continue;
        TRY(begin(b, type));
        TRY(builders[i].build(b));
        if (b->rope->factor != 1)
            buf_printf(&b->note, ", attention factor %.6g", (double)b->rope->factor);
        return OK;
    }
    return fail(b->err, ERR_UNSUPPORTED, "%s: \"rope_type\" %s is not known", b->q->where, type);
}

enum status rope_build(const struct rope_request *request, struct arena *arena, struct rope *out, const char **note,
                       struct error *err) {
    struct builder b = {.q = request, .arena = arena, .rope = out, .err = err};
    enum status st = build(&b);
    *note = arena_strdup(arena, buf_view(&b.note));
    buf_release(&b.note);
    return st;
}

enum status rope_context(const struct rope_request *request, int64_t *out, struct error *err) {
    struct builder b = {.q = request, .err = err};
    const char *type;
    double factor = 1;
    int64_t original = request->max_positions;
    TRY(rope_type(request->parameters, request->where, &type, err));
    if (strcmp(type, "yarn") == 0 && !request->yarn_is_longrope) {
        TRY(original_context(&b, &original));
        TRY(factor_or_ratio(&b, original, &factor));
    } else if (strcmp(type, "dynamic") == 0) {
        TRY(positive(&b, "factor", &factor));
    }
    *out = MAX(request->max_positions, (int64_t)MIN((double)original * factor, (double)INT32_MAX));
    return OK;
}

enum status rope_softmax_factor(const json_t *parameters, const char *where, double *out, struct error *err) {
    const char *type;
    double mscale_all_dim, factor;
    *out = 1;
    TRY(rope_type(parameters, where, &type, err));
    TRY(jv_real_or(parameters, where, "mscale_all_dim", 0, &mscale_all_dim, err));
    if (strcmp(type, "default") == 0 || mscale_all_dim == 0)
        return OK;
    TRY(jv_real(parameters, where, "factor", &factor, err));
    double m = yarn_mscale(factor, mscale_all_dim);
    *out = m * m;
    if (!isfinite(*out) || *out <= 0)
        return fail(err, ERR_FORMAT, "%s: \"mscale_all_dim\" gives no usable softmax scale", where);
    return OK;
}
