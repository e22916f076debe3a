/* lower_sample.c - see lower.h: SAMPLE, as core/sample.h defines it, of rows that are taken as they are: temperature,
 * min_p, top_k, top_p and the draw. Rows that are changed first (penalties, masks ...) are drawn on the host from their
 * logits (draw.c).
 *
 * The arithmetic is that of core/sample_weight.h, operation by operation. Probabilities are integers of 64 bits, so
 * their sums are the same in any order. A product that a sum follows goes through an exclusive or with a 0 that the
 * compiler cannot know, as does what a constant is added to twice: no compiler may then make one rounding of two.
 * Where the reference walks bins, a row is sorted here, largest first and of equals the lower id. */
#include "backend/xla/lower/lower.h"

#include "core/sample_weight.h"

/* x, of which a compiler knows nothing any more. */
static struct tensor hidden(struct lower *c, struct tensor x) {
    struct hlo *h = &c->h;
    struct tensor bits = hlo_bits(h, x, TYPE_S32);
    return hlo_bits(h, hlo_binary(h, "xor", bits, lower_ints(c, c->at.zero, SCALAR)), TYPE_F32);
}

static struct tensor mul(struct lower *c, struct tensor a, struct tensor b) {
    return hidden(c, hlo_binary(&c->h, "multiply", a, b));
}

static struct tensor add(struct lower *c, struct tensor a, struct tensor b) { return hlo_binary(&c->h, "add", a, b); }

/* sample_mantissa: exp(e) as a mantissa times 2^k. */
static struct tensor mantissa_of(struct lower *c, struct tensor e, struct tensor *k) {
    struct hlo *h = &c->h;
    struct tensor rounder = hlo_float(h, 12582912.0f);
    struct tensor t = hidden(c, add(c, mul(c, e, hlo_float(h, 1.44269504f)), rounder));
    struct tensor n = add(c, t, hlo_float(h, -12582912.0f));
    struct tensor r = add(c, e, mul(c, n, hlo_float(h, -0.693359375f)));
    r = add(c, r, mul(c, n, hlo_float(h, 2.12194440e-4f)));
    static const float coefficients[] = {4.18980985e-2f, 1.66676376e-1f, 4.99991483e-1f, 9.99999707e-1f, 1.0f};
    struct tensor p = hlo_float(h, 8.29028216e-3f);
    for (size_t i = 0; i < ARRAY_LEN(coefficients); i++)
        p = add(c, mul(c, p, r), hlo_float(h, coefficients[i]));
    *k = hlo_binary(h, "subtract", hlo_bits(h, t, TYPE_S32), hlo_bits(h, rounder, TYPE_S32));
    return p;
}

/* sample_scaled: mantissa * 2^k * 2^44 as an integer. */
static struct tensor scaled(struct lower *c, struct tensor mantissa, struct tensor k) {
    struct hlo *h = &c->h;
    struct tensor bits = hlo_bits(h, mantissa, TYPE_S32);
    struct tensor whole = hlo_binary(h, "or", hlo_binary(h, "and", bits, hlo_int(h, 0x7fffff)), hlo_int(h, 0x800000));
    struct tensor exponent = hlo_binary(h, "shift_right_logical", bits, hlo_int(h, 23));
    struct tensor shift = hlo_binary(h, "subtract", hlo_int(h, 127), hlo_binary(h, "add", k, exponent));
    struct tensor wide =
        hlo_binary(h, "shift_left", hlo_convert(h, whole, TYPE_U64), hlo_u64(h, SAMPLE_WEIGHT_BITS - 23));
    return hlo_binary(h, "shift_right_logical", wide, hlo_convert(h, shift, TYPE_U64));
}

/* sample_key: unsigned integers that order as the floats do. */
static struct tensor keys_of(struct lower *c, struct tensor x) {
    struct hlo *h = &c->h;
    struct tensor zero = hlo_float(h, 0), is_zero = hlo_compare(h, "EQ", x, zero); // -0 and 0 are one
    struct tensor bits = hlo_bits(h, hlo_select(h, is_zero, hlo_spread(h, zero, x.shape, NULL), x), TYPE_S32);
    struct tensor negative = hlo_compare(h, "LT", bits, hlo_int(h, 0));
    struct tensor turned = hlo_unary(h, "not", bits), marked = hlo_binary(h, "or", bits, hlo_int(h, INT32_MIN));
    return hlo_bits(h, hlo_select(h, negative, turned, marked), TYPE_U32);
}

/* Sums of x [R, V] up to and with each, by doubling. */
static struct tensor running_sums(struct lower *c, struct tensor x) {
    struct hlo *h = &c->h;
    int64_t rows = x.shape.dims[0], n = x.shape.dims[1];
    for (int64_t shift = 1; shift < n; shift *= 2) {
        struct tensor parts[2] = {hlo_full(h, x.type, SHAPE(rows, shift), 0), hlo_slice(h, x, 1, 0, n - shift)};
        x = add(c, x, hlo_concat(h, 1, parts, 2));
    }
    return x;
}

static struct tensor sum_of(struct lower *c, struct tensor x) { return hlo_reduce(&c->h, "add", x, 1); }

/* x [R, V], zero where `keep` is not. */
static struct tensor kept(struct lower *c, struct tensor x, struct tensor keep) {
    return hlo_select(&c->h, keep, x, hlo_full(&c->h, x.type, SCALAR, 0));
}

/* Weights [R, V] of the candidates, in the order of ids; 0: none. */
static struct tensor weights_of(struct lower *c, struct tensor x, struct tensor max) {
    struct hlo *h = &c->h;
    struct shape row = SHAPE(c->s.n_rows);
    struct tensor temperature = hlo_rows(h, lower_floats(c, c->at.temperature, row), x.shape),
                  least = hlo_rows(h, lower_floats(c, c->at.least, row), x.shape), top = hlo_rows(h, max, x.shape), k;
    struct tensor below = hlo_binary(h, "divide", hlo_binary(h, "subtract", x, top), temperature);
    struct tensor too_little = hlo_float(h, SAMPLE_LEAST_EXPONENT - 1);
    struct tensor e = hlo_select(h, hlo_compare(h, "GT", below, too_little), below, too_little);
    e = hlo_select(h, hlo_compare(h, "EQ", x, top), hlo_float(h, 0), e);
    struct tensor mantissa = mantissa_of(c, e, &k);
    return kept(c, scaled(c, mantissa, k), hlo_compare(h, "GE", e, least));
}

/* sample_reach: the mass that top_p asks for, less one [R]. */
static struct tensor reach(struct lower *c, struct tensor total) {
    struct hlo *h = &c->h;
    struct tensor top_p = hlo_convert(h, lower_floats(c, c->at.top_p, SHAPE(c->s.n_rows)), TYPE_F64);
    struct tensor need = hlo_unary(h, "ceil", hlo_binary(h, "multiply", top_p, hlo_convert(h, total, TYPE_F64)));
    struct tensor n = hlo_convert(h, hlo_binary(h, "maximum", need, hlo_full(h, TYPE_F64, SCALAR, 1)), TYPE_U64);
    return hlo_binary(h, "subtract", hlo_binary(h, "minimum", n, total), hlo_u64(h, 1));
}

/* sample_point: floor(bits * total / 2^53) [R], by halves of 32 bits; bits < 2^53, total < 2^63. */
static struct tensor point(struct lower *c, struct tensor total) {
    struct hlo *h = &c->h;
    int64_t n = c->s.n_rows;
    struct tensor bits = hlo_bits(h, c->bits, TYPE_U32);
    struct tensor low = hlo_convert(h, hlo_reshape(h, hlo_slice(h, bits, 0, 0, 1), SHAPE(n)), TYPE_U64),
                  high = hlo_convert(h, hlo_reshape(h, hlo_slice(h, bits, 0, 1, 1), SHAPE(n)), TYPE_U64);
    struct tensor half = hlo_u64(h, 32), mask = hlo_u64(h, UINT32_MAX);
    struct tensor t_low = hlo_binary(h, "and", total, mask), t_high = hlo_binary(h, "shift_right_logical", total, half);
    struct tensor low_low = hlo_binary(h, "multiply", low, t_low), low_high = hlo_binary(h, "multiply", low, t_high),
                  high_low = hlo_binary(h, "multiply", high, t_low),
                  high_high = hlo_binary(h, "multiply", high, t_high);
    // middle: all that counts 2^32, at most 2^32 - 1 + 2^32 - 1 + (2^21 - 1)(2^32 - 1), which fits
    struct tensor middle =
        add(c, hlo_binary(h, "shift_right_logical", low_low, half), hlo_binary(h, "and", low_high, mask));
    middle = add(c, middle, high_low);
    struct tensor top = add(c, high_high, hlo_binary(h, "shift_right_logical", low_high, half));
    top = add(c, top, hlo_binary(h, "shift_right_logical", middle, half)); // the product >> 64
    struct tensor rest = hlo_binary(h, "shift_right_logical", hlo_binary(h, "and", middle, mask), hlo_u64(h, 53 - 32));
    return add(c, hlo_binary(h, "shift_left", top, hlo_u64(h, 64 - 53)), rest);
}

/* The token that a draw gives, [R]. */
static struct tensor draw(struct lower *c, struct tensor x, struct tensor max) {
    struct hlo *h = &c->h;
    struct shape row = SHAPE(c->s.n_rows);
    struct tensor keys = keys_of(c, x), ids = hlo_iota(h, TYPE_S32, x.shape, 1), order = ids;
    struct tensor weights = weights_of(c, x, max);
    hlo_sort_descending(h, &keys, &order); // ids by their logits
    struct tensor at =
        hlo_binary(h, "add", order,
                   hlo_binary(h, "multiply", hlo_iota(h, TYPE_S32, x.shape, 0), hlo_int(h, (int32_t)x.shape.dims[1])));
    struct tensor w = hlo_take(h, hlo_reshape(h, weights, SHAPE(shape_count(x.shape))), at);
    struct tensor is = hlo_compare(h, "GT", w, hlo_u64(h, 0));
    struct tensor before = running_sums(c, hlo_convert(h, is, TYPE_S32)); // candidates up to and with each
    struct tensor top_k = hlo_rows(h, lower_ints(c, c->at.top_k, row), x.shape);
    w = kept(c, w, hlo_compare(h, "LE", before, top_k));
    struct tensor sums = running_sums(c, w), total = sum_of(c, w);
    struct tensor bound = hlo_rows(h, reach(c, total), x.shape);
    w = kept(c, w, hlo_compare(h, "LE", hlo_binary(h, "subtract", sums, w), bound));
    total = sum_of(c, w);
    struct tensor wanted = hlo_rows(h, point(c, total), x.shape);
    struct tensor passed = hlo_compare(h, "LE", running_sums(c, w), wanted);
    struct tensor place = sum_of(c, hlo_convert(h, passed, TYPE_S32)); // of the first whose sum exceeds it
    struct tensor here = hlo_compare(h, "EQ", ids, hlo_rows(h, place, x.shape));
    return sum_of(c, hlo_select(h, here, order, hlo_int(h, 0)));
}

/* The largest and the first place of it, and whether one is not below infinity. */
enum { LARGEST, PLACE, IS_BAD, FOUND };

static void join_found(struct hlo *h, const struct tensor *a, const struct tensor *b, struct tensor *out) {
    struct tensor more = hlo_compare(h, "GT", b[LARGEST], a[LARGEST]),
                  same = hlo_compare(h, "EQ", b[LARGEST], a[LARGEST]);
    struct tensor sooner = hlo_compare(h, "LT", b[PLACE], a[PLACE]);
    struct tensor is_b = hlo_binary(h, "or", more, hlo_binary(h, "and", same, sooner));
    for (int i = LARGEST; i <= PLACE; i++)
        out[i] = hlo_select(h, is_b, b[i], a[i]);
    out[IS_BAD] = hlo_binary(h, "or", a[IS_BAD], b[IS_BAD]);
}

/* Of logits [R, V], [R] each, in one pass over them. */
static void find(struct lower *c, struct tensor x, struct tensor found[FOUND]) {
    struct hlo *h = &c->h;
    struct tensor is_below = hlo_compare(h, "LT", x, hlo_float(h, __builtin_inff()));
    struct tensor all[FOUND] = {x, hlo_iota(h, TYPE_S32, x.shape, 1), hlo_unary(h, "not", is_below)};
    struct tensor start[FOUND] = {hlo_float(h, -__builtin_inff()), hlo_int(h, (int32_t)x.shape.dims[1] - 1),
                                  hlo_full(h, TYPE_PRED, SCALAR, 0)};
    hlo_reduce_together(h, all, start, FOUND, 1, join_found, found);
    struct tensor is_least = hlo_unary(h, "not", hlo_compare(h, "GT", found[LARGEST], start[LARGEST]));
    found[IS_BAD] = hlo_binary(h, "or", found[IS_BAD], is_least);
}

void xla_sample(struct lower *c) {
    struct hlo *h = &c->h;
    struct tensor x = lower_in(c, 0), found[FOUND];
    struct shape column = SHAPE(1, c->s.n_rows);
    find(c, x, found);
    struct tensor token = found[PLACE];
    if (c->s.draws) {
        struct tensor is_drawn =
            hlo_compare(h, "GT", lower_floats(c, c->at.temperature, SHAPE(c->s.n_rows)), hlo_float(h, 0));
        token = hlo_select(h, is_drawn, draw(c, x, found[LARGEST]), found[PLACE]);
    }
    struct tensor columns[DRAWN_INTS] = {
        [DRAWN_TOKEN] = hlo_reshape(h, token, column),
        [DRAWN_ARGMAX] = hlo_reshape(h, found[PLACE], column),
        [DRAWN_NOT_FINITE] = hlo_reshape(h, hlo_convert(h, found[IS_BAD], TYPE_S32), column),
    };
    c->drawn = hlo_concat(h, 0, columns, DRAWN_INTS);
    c->logits = x;
    c->has_drawn = true;
}
