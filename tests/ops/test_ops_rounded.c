/* test_ops_rounded.c - where the CPU rounds activations to 8 bits, every product of an op does so, and is as near to
 * that of the reference as numerics.md says. What a product of codes itself computes: test_fp4_products.c. */
#include "op_rig.h"
#include "op_weights.h"

#include <math.h>

enum { WIDTH = 96, FFN = 64, EXPERTS = 3 };

typedef val record(struct rig *rig);

static val linear(struct rig *rig) {
    return op_linear(rig->p, rig->in[0], rig_weight(rig, FORMAT_NVFP4, 40, WIDTH, NULL), NULL);
}

static val experts(struct rig *rig, enum rig_format of_gates, enum rig_format of_downs) {
    struct route_args routing = {ROUTE_SOFTMAX, EXPERTS, 2, 0, 0, true, 1};
    struct moe_args args = {.n_experts = EXPERTS, .top_k = 2, .ffn_size = FFN, .act = {ACT_SILU, 0}};
    struct routed routed = op_moe_route(rig->p, rig->in[1], NULL, NULL, routing);
    const struct weight *gate_up = rig_weight(rig, of_gates, EXPERTS * 2 * FFN, WIDTH, NULL);
    const struct weight *down = rig_weight(rig, of_downs, EXPERTS * WIDTH, FFN, NULL);
    return op_moe_ffn(rig->p, rig->in[0], routed, gate_up, down, NULL, NULL, args);
}
static val gates_of_experts(struct rig *rig) { return experts(rig, FORMAT_MXFP4, FORMAT_BF16); }
static val downs_of_experts(struct rig *rig) { return experts(rig, FORMAT_BF16, FORMAT_MXFP4); }

/* How far the results are off the reference's, as a part of their size, in root mean square. */
static double off(record *of, const char *kernels, bool rounds) {
    struct rig *rig = rig_new((struct rig_options){
        .n_seqs = 2, .lens = {19, 3}, .widths = {WIDTH, EXPERTS}, .kernels = kernels, .rounds = rounds});
    rig_result(rig, of(rig));
    rig->tells_all = true;
    struct rig_options as_reference = rig->o;
    as_reference.like = rig;
    as_reference.rounds = false;
    struct rig *plain = rig_new(as_reference);
    rig_result(plain, of(plain));
    plain->tells_all = true;
    const double *got = rig_run(rig, SCHEDULE_WHOLE), *want = rig_run(plain, SCHEDULE_WHOLE);
    double error = 0, size = 0;
    for (int64_t i = 0; i < (int64_t)rig->n_rows * rig->out.width; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    rig_free(plain);
    rig_free(rig);
    return sqrt(error / size);
}

static void every_product_of_codes_rounds_its_activations_where_that_is_wanted(void **state) {
    (void)state;
    static record *const records[] = {linear, gates_of_experts, downs_of_experts};
    if (rig_backend() != &backend_cpu)
        skip();
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (size_t i = 0; i < ARRAY_LEN(records); i++) {
            bool has_products = strcmp(*kernels, "amx") == 0 || strncmp(*kernels, "avx", 3) == 0;
            double rounded = off(records[i], *kernels, true), exact = off(records[i], *kernels, false);
            if (!(exact < 1e-5 && (has_products ? rounded > 1e-4 && rounded < 0.02 : rounded < 1e-5)))
                fail_msg("%s, case %zu: off by %.2g, and by %.2g where activations are rounded", *kernels, i, exact,
                         rounded);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_product_of_codes_rounds_its_activations_where_that_is_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
