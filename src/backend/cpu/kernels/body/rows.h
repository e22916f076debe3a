/* rows.h - part of kernels_body.h: what is done to rows of floats, and the functions that activate. */

static float dot(const float *a, const float *b, int64_t n) {
    vf sum[2] = {vf_set(0), vf_set(0)};
    for (int64_t i = 0; i < n; i += 2 * LANES) {
        sum[0] = vf_fma(vf_some(a + i, n - i), vf_some(b + i, n - i), sum[0]);
        if (n - i > LANES)
            sum[1] = vf_fma(vf_some(a + i + LANES, n - i - LANES), vf_some(b + i + LANES, n - i - LANES), sum[1]);
    }
    return vf_sum(vf_add(sum[0], sum[1]));
}

static void add_scaled(float *y, float factor, const float *x, int64_t n) {
    vf f = vf_set(factor);
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_fma(f, vf_some(x + i, n - i), vf_some(y + i, n - i)), n - i);
}

static void multiply_add(float *y, const float *a, const float *b, int64_t n) {
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_fma(vf_some(a + i, n - i), vf_some(b + i, n - i), vf_some(y + i, n - i)), n - i);
}

static void blend(float *y, float keep, float factor, const float *x, int64_t n) {
    vf k = vf_set(keep), f = vf_set(factor);
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_fma(f, vf_some(x + i, n - i), vf_mul(k, vf_some(y + i, n - i))), n - i);
}

static void scale(float *y, float factor, int64_t n) {
    vf f = vf_set(factor);
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_mul(f, vf_some(y + i, n - i)), n - i);
}

static void add(const float *a, const float *b, float factor, int64_t n, float *y) {
    vf f = vf_set(factor);
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_mul(f, b ? vf_add(vf_some(a + i, n - i), vf_some(b + i, n - i)) : vf_some(a + i, n - i)),
               n - i);
}

static void weigh(const float *x, float factor, const float *w, bool plus_one, int64_t n, float *y) {
    vf f = vf_set(factor), more = vf_set(plus_one ? 1 : 0);
    for (int64_t i = 0; i < n; i += LANES) {
        vf v = vf_mul(vf_some(x + i, n - i), f);
        vf_put(y + i, w ? vf_mul(v, vf_add(vf_some(w + i, n - i), more)) : v, n - i);
    }
}

static void rotate_halves(const float *cos_sin, int64_t half, float *x) {
    for (int64_t i = 0; i < half; i += LANES) {
        vf cosine = vf_some(cos_sin + i, half - i), sine = vf_some(cos_sin + half + i, half - i);
        vf a = vf_some(x + i, half - i), b = vf_some(x + half + i, half - i);
        vf_put(x + i, vf_sub(vf_mul(a, cosine), vf_mul(b, sine)), half - i);
        vf_put(x + half + i, vf_fma(b, cosine, vf_mul(a, sine)), half - i);
    }
}

static float largest(const float *x, int64_t n) {
    vf most = vf_set(-INFINITY);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        most = vf_max(vf_load(x + i), most);
    float max = vf_largest(most);
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

/* e^x: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial of degree 7 for e^r (coefficients of Cephes' expf,
 * error about one unit in the last place). 0 below -87.3, where e^x is no normal float; e^88 above 88. */
static ALWAYS_INLINE vf vf_exp(vf x) {
    const vf low = vf_set(-87.33654f);
    vf y = vf_min(vf_set(88.0f), vf_max(low, x));
    vf n = vf_round(vf_mul(y, vf_set(1.44269504088896341f)));
    vf r = vf_fma(n, vf_set(-0.693359375f), y);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_add(vf_fma(vf_mul(r, r), p, r), vf_set(1));
    return vf_zero_where_less(vf_ldexp(p, n), x, low);
}

static ALWAYS_INLINE vf vf_sigmoid(vf x) { return vf_div(vf_set(1), vf_add(vf_set(1), vf_exp(vf_sub(vf_set(0), x)))); }

static float exp_sum(float *x, float max, int64_t n) {
    vf sum = vf_set(0), m = vf_set(max);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf p = vf_exp(vf_sub(vf_load(x + i), m));
        vf_store(x + i, p);
        sum = vf_add(sum, p);
    }
    float total = vf_sum(sum);
    if (i < n) {
        vf_store_n(x + i, vf_exp(vf_sub(vf_load_n(x + i, n - i), m)), n - i);
        for (; i < n; i++)
            total += x[i];
    }
    return total;
}

/* tanh(u) = 2 sigmoid(2u) - 1 */
static void softcap(float *x, float cap, int64_t n) {
    vf two_cap = vf_set(2 * cap), two_over_cap = vf_set(2 / cap);
    for (int64_t i = 0; i < n; i += LANES) {
        vf s = vf_sigmoid(vf_mul(vf_some(x + i, n - i), two_over_cap));
        vf_put(x + i, vf_fma(two_cap, s, vf_set(-cap)), n - i);
    }
}

/* gelu_tanh(g) = g/2 (1 + tanh z) = g sigmoid(2z), z = sqrt(2/pi) (g + 0.044715 g^3) */
static ALWAYS_INLINE vf vf_activate(const enum activation act, vf g, vf u, float limit) {
    switch (act) {
    case ACT_SILU: return vf_mul(vf_mul(g, vf_sigmoid(g)), u);
    case ACT_SIGMOID: return vf_mul(vf_sigmoid(g), u);
    case ACT_GELU_TANH: {
        vf z = vf_mul(vf_mul(g, vf_set(2 * 0.7978845608028654f)), vf_fma(vf_mul(g, g), vf_set(0.044715f), vf_set(1)));
        return vf_mul(vf_mul(g, vf_sigmoid(z)), u);
    }
    case ACT_SWIGLU_CLAMPED: {
        vf gate = vf_min(vf_set(limit), g), up = vf_max(vf_set(-limit), vf_min(vf_set(limit), u));
        return vf_mul(vf_mul(vf_add(up, vf_set(1)), gate), vf_sigmoid(vf_mul(gate, vf_set(1.702f))));
    }
    case ACT_GELU: break;
    }
    bug(__FILE__, __LINE__, "an activation without a vector form");
}

static ALWAYS_INLINE void activate_row(const enum activation act, float limit, const float *gate, const float *up,
                                       int64_t n, float *y) {
    for (int64_t i = 0; i < n; i += LANES)
        vf_put(y + i, vf_activate(act, vf_some(gate + i, n - i), vf_some(up + i, n - i), limit), n - i);
}

static void activate_rows(struct act_args act, const float *gate, const float *up, int64_t n, float *y) {
    switch (act.act) {
    case ACT_SILU: activate_row(ACT_SILU, 0, gate, up, n, y); break;
    case ACT_SIGMOID: activate_row(ACT_SIGMOID, 0, gate, up, n, y); break;
    case ACT_GELU_TANH: activate_row(ACT_GELU_TANH, 0, gate, up, n, y); break;
    case ACT_SWIGLU_CLAMPED: activate_row(ACT_SWIGLU_CLAMPED, act.limit, gate, up, n, y); break;
    case ACT_GELU: BUG_IF(act.act == ACT_GELU);
    }
}
