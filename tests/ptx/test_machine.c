/* test_machine.c - the machine by itself: small kernels in PTX whose results are known, and faults that it must name.
 */
#include "ending.h"
#include "module.h"

#include <stdio.h>
#include <stdlib.h>

#define HEAD ".version 9.0\n.target sm_90a\n.address_size 64\n"
#define ENTRY HEAD ".visible .entry k(.param .u64 k_param_0, .param .u32 k_param_1)\n{\n"

enum { N = 1024 };

/* The kernel k(out, number) by `threads` threads of each of `blocks` blocks in clusters of `cluster`. out: N words of
 * 0xff bytes before. */
static uint32_t *out;
static int n_at_once;
static void run(const char *text, uint32_t blocks, uint32_t cluster, uint32_t threads, uint32_t number) {
    struct module *m = module_parse("test", text, strlen(text));
    const struct function *f = module_function(m, "k");
    unsigned char params[16] = {0};
    assert_non_null(f);
    out = aligned_alloc(256, N * sizeof *out);
    memset(out, 0xff, N * sizeof *out);
    memory_add(out, N * sizeof *out);
    memcpy(params + f->params[0].at, &out, 8);
    memcpy(params + f->params[1].at, &number, 4);
    machine_launch(&(struct launch_of){.f = f,
                                       .params = params,
                                       .grid = {blocks, 1, 1},
                                       .threads = {threads, 1, 1},
                                       .cluster = {cluster, 1, 1},
                                       .at_once = n_at_once});
    memory_remove(out);
}

/* What it says before it ends. */
static void fault(const char *text, uint32_t blocks, uint32_t cluster, uint32_t threads, uint32_t number,
                  const char *part) {
    ENDS(run(text, blocks, cluster, threads, number), part);
}

#define REGISTERS ".reg .pred %p<9>;\n.reg .b32 %r<20>;\n.reg .b64 %rd<9>;\n.reg .f32 %f<9>;\n"
/* %r0: thread, %r1: its place in the grid, %rd2: where its word of out is */
#define PLACE                                                                                              \
    "ld.param.u64 %rd0, [k_param_0];\ncvta.to.global.u64 %rd0, %rd0;\nmov.u32 %r0, %tid.x;\nmov.u32 %r2, " \
    "%ctaid.x;\nmov.u32 %r3, "                                                                             \
    "%ntid.x;\n"                                                                                           \
    "mad.lo.s32 %r1, %r2, %r3, %r0;\nmul.wide.u32 %rd1, %r1, 4;\nadd.s64 %rd2, %rd0, %rd1;\n"

static void lanes_that_part_meet_again(void **state) {
    (void)state;
    run(ENTRY REGISTERS PLACE "setp.lt.u32 %p1, %r0, 7;\n@%p1 bra $few;\nadd.s32 %r4, %r0, 100;\nbra.uni $both;\n"
                              "$few:\nmov.u32 %r4, 1;\n$both:\n"
                              "shfl.sync.bfly.b32 %r5|%p2, %r4, 1, 31, -1;\nst.global.u32 [%rd2], %r5;\nret;\n}\n",
        1, 1, 32, 0);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t other = i ^ 1;
        assert_int_equal(out[i], other < 7 ? 1 : other + 100);
    }
}

static void lanes_loop_as_often_as_each_wants(void **state) {
    (void)state;
    run(ENTRY REGISTERS PLACE
        "mov.u32 %r4, 0;\nmov.u32 %r5, %r0;\n"
        "$loop:\nadd.s32 %r4, %r4, %r5;\nadd.s32 %r5, %r5, -1;\nsetp.gt.s32 %p1, %r5, 0;\n@%p1 bra $loop;\n"
        "bar.warp.sync -1;\nst.global.u32 [%rd2], %r4;\nret;\n}\n",
        1, 1, 64, 0);
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(out[i], i * (i + 1) / 2);
}

static void lanes_without_a_turn_keep_what_they_have(void **state) {
    (void)state;
    run(ENTRY REGISTERS PLACE "mov.u32 %r4, 5;\nand.b32 %r5, %r0, 1;\nsetp.eq.s32 %p1, %r5, 1;\n@%p1 mov.u32 %r4, "
                              "6;\n@!%p1 add.s32 %r4, %r4, %r0;\n"
                              "st.global.u32 [%rd2], %r4;\nret;\n}\n",
        1, 1, 32, 0);
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(out[i], i % 2 ? 6 : 5 + i);
}

static void threads_of_a_block_read_what_others_wrote(void **state) {
    (void)state;
    run(ENTRY REGISTERS ".shared .align 4 .b8 words[1024];\n" PLACE
                        "mov.u32 %r4, words;\nmad.lo.s32 %r5, %r0, 4, %r4;\nst.shared.u32 [%r5], %r1;\nbar.sync 0;\n"
                        "xor.b32 %r6, %r0, 127;\nmad.lo.s32 %r5, %r6, 4, %r4;\nld.shared.u32 %r7, "
                        "[%r5];\nst.global.u32 [%rd2], %r7;\nret;\n}\n",
        3, 1, 128, 0);
    for (uint32_t i = 0; i < 3 * 128; i++)
        assert_int_equal(out[i], i / 128 * 128 + (i % 128 ^ 127));
}

static void blocks_of_a_cluster_read_each_other(void **state) {
    (void)state;
    run(ENTRY REGISTERS
        ".shared .align 4 .b8 word[4];\n" PLACE
        "mov.u32 %r4, %cluster_ctarank;\nmov.u32 %r5, word;\nadd.s32 %r6, %r1, 50;\nst.shared.u32 [%r5], %r6;\n"
        "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        "xor.b32 %r7, %r4, 3;\nmapa.shared::cluster.u32 %r8, %r5, %r7;\nld.shared::cluster.u32 %r9, "
        "[%r8];\nst.global.u32 [%rd2], %r9;\n"
        "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\nret;\n}\n",
        8, 4, 1, 0);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(out[i], (i ^ 3) + 50);
}

/* Each block but the last looks at the word of the one behind it until that is written. */
#define CHAIN                                                                                          \
    ENTRY REGISTERS PLACE                                                                              \
        "mov.u32 %r5, %nctaid.x;\nadd.s32 %r6, %r2, 1;\nmov.u32 %r4, 0;\nsetp.eq.u32 %p1, %r6, %r5;\n" \
        "@%p1 bra $write;\n$look:\nld.volatile.global.u32 %r4, [%rd2+4];\nsetp.eq.u32 %p2, %r4, -1;\n" \
        "@%p2 bra $look;\n$write:\nadd.s32 %r4, %r4, 1;\nst.global.u32 [%rd2], %r4;\nret;\n}\n"

static void blocks_wait_for_what_later_ones_write(void **state) {
    (void)state;
    run(CHAIN, 40, 1, 1, 0);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(out[i], 40 - i);
    run(CHAIN, 40, 4, 1, 0);
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(out[i], 40 - i);
}

static void a_function_that_is_called_is_read_into_its_caller(void **state) {
    (void)state;
    run(HEAD ".func (.param .b32 func_retval0) larger(.param .b32 larger_param_0, .param .b32 larger_param_1)\n{\n.reg "
             ".b32 %r<4>;\n.reg "
             ".pred %p<2>;\n"
             "ld.param.u32 %r1, [larger_param_0];\nld.param.u32 %r2, [larger_param_1];\nst.param.b32 [func_retval0+0], "
             "%r1;\n"
             "setp.gt.u32 %p1, %r1, %r2;\n@%p1 ret;\nst.param.b32 [func_retval0+0], %r2;\nret;\n}\n"
             ".visible .entry k(.param .u64 k_param_0, .param .u32 k_param_1)\n{\n" REGISTERS PLACE
             "ld.param.u32 %r4, [k_param_1];\n{\n.param .b32 param0;\nst.param.b32 [param0+0], %r0;\n.param .b32 "
             "param1;\nst.param.b32 "
             "[param1+0], %r4;\n"
             ".param .b32 retval0;\ncall.uni (retval0), larger, (param0, param1);\nld.param.b32 %r5, "
             "[retval0+0];\n}\nst.global.u32 "
             "[%rd2], %r5;\nret;\n}\n",
        1, 1, 32, 20);
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(out[i], i > 20 ? i : 20);
}

static void a_barrier_for_some_warps_is_theirs(void **state) {
    (void)state;
    run(ENTRY REGISTERS ".shared .align 4 .b8 words[256];\n" PLACE
                        "mov.u32 %r4, words;\nmad.lo.s32 %r5, %r0, 4, %r4;\nsetp.ge.u32 %p1, %r0, 64;\n@%p1 bra $end;\n"
                        "st.shared.u32 [%r5], %r0;\nbar.sync 1, 64;\nxor.b32 %r6, %r0, 32;\nmad.lo.s32 %r5, %r6, 4, "
                        "%r4;\nld.shared.u32 "
                        "%r7, [%r5];\nst.global.u32 [%rd2], %r7;\n"
                        "$end:\nret;\n}\n",
        1, 1, 96, 0);
    for (uint32_t i = 0; i < 96; i++)
        assert_int_equal(out[i], i < 64 ? i ^ 32 : UINT32_MAX);
}

static void what_nobody_wrote_is_no_number(void **state) {
    (void)state;
    run(ENTRY REGISTERS ".shared .align 4 .b8 words[256];\n" PLACE
                        "mov.u32 %r4, words;\nld.shared.u32 %r5, [%r4+8];\nst.global.u32 [%rd2], %r5;\nret;\n}\n",
        1, 1, 1, 0);
    assert_int_equal(out[0], UINT32_MAX);
}

static void an_access_behind_the_end_is_named(void **state) {
    (void)state;
    fault(ENTRY REGISTERS PLACE "st.global.u32 [%rd2+4096], %r0;\nret;\n}\n", 1, 1, 1, 0, "are in no allocation");
    fault(ENTRY REGISTERS ".shared .align 4 .b8 words[256];\n" PLACE
                          "mov.u32 %r4, words;\nst.shared.u32 [%r4+256], %r0;\nret;\n}\n",
          1, 1, 1, 0, "are not in shared memory");
    fault(ENTRY REGISTERS PLACE "st.global.v2.u32 [%rd2+4], {%r0, %r0};\nret;\n}\n", 1, 1, 1, 0, "8 bytes at");
}

static void those_who_wait_for_ever_are_named(void **state) {
    (void)state;
    fault(ENTRY REGISTERS PLACE "setp.lt.u32 %p1, %r0, 32;\n@%p1 bar.sync 1, 64;\nret;\n}\n", 1, 1, 64, 0,
          "all wait for ever");
    fault(ENTRY REGISTERS PLACE
          "setp.lt.u32 %p1, %r0, 3;\n@%p1 bra $few;\nbar.warp.sync -1;\nret;\n$few:\nbar.warp.sync -1;\nret;\n}\n",
          1, 1, 32, 0, "all wait for ever");
    n_at_once = 39; // the 40th is not begun before another ends
    fault(CHAIN, 40, 1, 1, 0, "all wait for ever");
    n_at_once = 0;
}

static void what_is_not_known_ends_the_program(void **state) {
    (void)state;
    fault(ENTRY REGISTERS PLACE "frobnicate.b32 %r4, %r5;\nret;\n}\n", 1, 1, 1, 0, "'frobnicate.b32'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_that_part_meet_again),
        cmocka_unit_test(lanes_loop_as_often_as_each_wants),
        cmocka_unit_test(lanes_without_a_turn_keep_what_they_have),
        cmocka_unit_test(threads_of_a_block_read_what_others_wrote),
        cmocka_unit_test(blocks_of_a_cluster_read_each_other),
        cmocka_unit_test(blocks_wait_for_what_later_ones_write),
        cmocka_unit_test(a_function_that_is_called_is_read_into_its_caller),
        cmocka_unit_test(a_barrier_for_some_warps_is_theirs),
        cmocka_unit_test(what_nobody_wrote_is_no_number),
        cmocka_unit_test(an_access_behind_the_end_is_named),
        cmocka_unit_test(those_who_wait_for_ever_are_named),
        cmocka_unit_test(what_is_not_known_ends_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
