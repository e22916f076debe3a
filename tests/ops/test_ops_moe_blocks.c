/* test_ops_moe_blocks.c - MOE_FFN over experts in blocks of GGUF, by the CPU: one expert alone has the bits of the
 * LINEARs that it stands for, so both of its products are those of blocks. */
#include "op_judge.h"
#include "op_weights.h"

static void one_expert_in_blocks_has_the_bits_of_its_linears(enum rig_format format, const char *kernels) {
    enum { WIDTH = 256, FFN = 512 };
    const struct route_args route = {ROUTE_SOFTMAX, 1, 1, 0, 0, true, 1};
    const struct act_args act = {.act = ACT_SILU};
    struct rig *rig = rig_new(
        (struct rig_options){.n_seqs = 2, .lens = {9, 1}, .widths = {WIDTH, 1}, .spread = 2, .kernels = kernels});
    const struct weight *gate_up = rig_weight(rig, format, 2 * FFN, WIDTH, NULL),
                        *down = rig_weight(rig, format, WIDTH, FFN, NULL);
    struct routed routed = op_moe_route(rig->p, rig->in[1], NULL, NULL, route);
    struct moe_args args = {.n_experts = 1, .top_k = 1, .ffn_size = FFN, .act = act};
    val expert = op_moe_ffn(rig->p, rig->in[0], routed, gate_up, down, NULL, NULL, args);
    val both = op_linear(rig->p, rig->in[0], gate_up, NULL);
    val hidden = op_gated_act(rig->p, val_cols(both, 0, FFN), val_cols(both, FFN, FFN), act);
    rig_result(rig, op_concat(rig->p, expert, op_linear(rig->p, hidden, down, NULL), NO_VAL));
    rig->tells_all = true;
    const double *got = rig_run(rig, SCHEDULE_WHOLE);
    for (int r = 0; r < rig->n_rows; r++)
        for (int i = 0; i < WIDTH; i++)
            EXPECT(got[r * 2 * WIDTH + i] == got[r * 2 * WIDTH + WIDTH + i]);
    rig_free(rig);
}

static void experts_in_blocks_are_multiplied_as_linears_are(void **state) {
    (void)state;
    if (rig_backend() != &backend_cpu)
        skip();
    for (const char *const *kernels = rig_kernels(); *kernels; kernels++)
        for (enum rig_format f = FORMAT_Q4_0; f < FORMAT_Q4_K_AND_Q6_K; f++)
            one_expert_in_blocks_has_the_bits_of_its_linears(f, *kernels);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_in_blocks_are_multiplied_as_linears_are)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
