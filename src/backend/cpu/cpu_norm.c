/* cpu_norm.c - ADD_NORM, NORM: root mean square norms. */
#include "backend/cpu/cpu.h"

void cpu_add_norm(const struct call *c) {
    const struct norm_args *a = &c->op->args.norm;
    const float *weight = call_floats(c, 0);
    float r_scale = call_floats(c, 1) ? call_floats(c, 1)[0] : 1.0f;
    struct mat x = c->in[0], d = c->in[1], r = c->out[0], y = c->out[1];
    int64_t begin, end;
    call_share(c, x.rows, 1, &begin, &end);
    for (int64_t t = begin; t < end; t++) {
        float *sum = mat_row(r, t);
        for (int64_t i = 0; i < x.width; i++)
            sum[i] = (mat_row(x, t)[i] + (d.at ? mat_row(d, t)[i] : 0.0f)) * r_scale;
        rms_norm_row(sum, weight, x.width, a->eps, a->plus_one, mat_row(y, t));
    }
}

void cpu_norm(const struct call *c) {
    const struct norm_args *a = &c->op->args.norm;
    const float *weight = call_floats(c, 0);
    struct mat x = c->in[0], gate = c->in[1], y = c->out[0];
    int64_t n_groups = x.width / a->group, begin, end;
    call_share(c, x.rows * n_groups, 1, &begin, &end);
    for (int64_t g = begin; g < end; g++) {
        int64_t t = g / n_groups, col = g % n_groups * a->group;
        float *out = mat_row(y, t) + col;
        rms_norm_row(mat_row(x, t) + col, weight, a->group, a->eps, a->plus_one, out);
        for (int64_t i = 0; i < a->group; i++)
            out[i] *= a->scale * (gate.at ? silu_f32(mat_row(gate, t)[col + i]) : 1.0f);
    }
}
