/* int4_rows.h - rows of core/kv_int4.h as floats; a part of kernels_body.h.
 *
 * d (c - 8) is computed as d c - 8 d, which is the same number: codes and scales have 12 bits together. */

/* Loads reach up to a vector behind what is meant, which caches have room for. */
static void int4_keys(struct kv_int4_row from, int64_t dim, int64_t n, float *panel) {
    for (int64_t i = 0; i < dim; i += KV_INT4_GROUP, from.scales += from.scale_stride) {
        int64_t m = MIN(KV_INT4_GROUP, dim - i), half = (m + 1) / 2;
        for (int64_t j = 0; j < n; j += LANES) {
            vf scale = vf_load_bf16(from.scales + j), zero = vf_mul(scale, vf_set(-8)), low, high;
            float *out = panel + i * PANEL_ROWS + j;
            for (int64_t k = 0; k < half; k++) {
                vf_load_nibbles(from.codes + k * from.code_stride + j, &low, &high);
                vf_store(out + k * PANEL_ROWS, vf_fma(low, scale, zero));
                if (k + half < m)
                    vf_store(out + (k + half) * PANEL_ROWS, vf_fma(high, scale, zero));
            }
        }
        from.codes += half * from.code_stride;
    }
}

static ALWAYS_INLINE void int4_group(const uint8_t *codes, uint16_t stored, int64_t m, float *out) {
    int64_t half = (m + 1) / 2;
    vf scale = vf_set(bf16_to_f32(stored)), zero = vf_mul(scale, vf_set(-8)), low, high;
    for (int64_t k = 0; k < half; k += LANES) {
        vf_load_nibbles(codes + k, &low, &high);
        vf_put(out + k, vf_fma(low, scale, zero), half - k);
        vf_put(out + half + k, vf_fma(high, scale, zero), m - half - k);
    }
}

static void int4_values(struct kv_int4_row from, int64_t dim, int64_t n, float *rows) {
    for (; n > 0; n--) {
        int64_t i = 0;
        for (; i + KV_INT4_GROUP <= dim; i += KV_INT4_GROUP, from.codes += KV_INT4_GROUP / 2, rows += KV_INT4_GROUP)
            int4_group(from.codes, *from.scales++, KV_INT4_GROUP, rows);
        if (i < dim)
            int4_group(from.codes, *from.scales++, dim - i, rows);
        from.codes += (dim - i + 1) / 2;
        rows += dim - i;
    }
}
