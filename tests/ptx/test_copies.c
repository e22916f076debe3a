/* test_copies.c - barriers in shared memory and asynchronous copies of the machine: what lands where, when, and faults
 * that it must name. */
#include "ending.h"
#include "module.h"
#include "tensor_map.h"

#include <stdio.h>
#include <stdlib.h>

/* %r0: thread, %r1: rank in the cluster, %rd0: out, %rd1: in, %rd2: the map, %r2: 2 KB of shared memory, %r3: barrier
 * of `arrivals`, which all blocks have begun. %rd3: where the thread's word of out is; a block has 512 words. */
#define KERNEL(arrivals, body)                                                                                  \
    ".version 9.0\n.target sm_90a\n.address_size 64\n"                                                          \
    ".visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1, .param .align 64 .b8 k_param_2[128])\n{\n" \
    ".reg .pred %p<9>;\n.reg .b16 %rs<4>;\n.reg .b32 %r<40>;\n.reg .b64 %rd<12>;\n.reg .f32 %f<9>;\n"           \
    ".shared .align 1024 .b8 data[2048];\n.shared .align 8 .b8 barrier[8];\n"                                   \
    "ld.param.u64 %rd0, [k_param_0];\nld.param.u64 %rd1, [k_param_1];\nmov.b64 %rd2, k_param_2;\n"              \
    "mov.u32 %r0, %tid.x;\nmov.u32 %r1, %cluster_ctarank;\nmov.u32 %r2, data;\nmov.u32 %r3, barrier;\n"         \
    "setp.eq.u32 %p0, %r0, 0;\nmov.u32 %r4, " #arrivals ";\n@%p0 mbarrier.init.shared::cta.b64 [%r3], %r4;\n"   \
    "shl.b32 %r5, %r1, 9;\nadd.s32 %r5, %r5, %r0;\nmul.wide.u32 %rd3, %r5, 4;\nadd.s64 %rd3, %rd3, %rd0;\n"     \
    "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" body                                     \
    "\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nret;\n}\n"
#define WAIT(label) "$" label ":\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], 0;\n@!%p1 bra $" label ";\n"
/* 512 words of shared memory to out, by 32 threads. */
#define SHOW                                                                                                           \
    "mov.u32 %r20, 0;\nshl.b32 %r21, %r0, 2;\nadd.s32 %r21, %r21, %r2;\nmov.b64 %rd8, %rd3;\n"                         \
    "$show:\nld.shared.u32 %r22, [%r21];\nst.global.u32 [%rd8], %r22;\nadd.s32 %r21, %r21, 128;\nadd.s64 %rd8, %rd8, " \
    "128;\nadd.s32 %r20, "                                                                                             \
    "%r20, 1;\n"                                                                                                       \
    "setp.lt.u32 %p2, %r20, 16;\n@%p2 bra $show;\n"

enum { N = 4096 };
static uint32_t *out, *in;

static void run(const char *text, uint32_t cluster, const struct tensor_map *map) {
    struct module *m = module_parse("test", text, strlen(text));
    const struct function *f = module_function(m, "k");
    unsigned char *params = aligned_alloc(64, 256);
    out = aligned_alloc(256, N * sizeof *out), in = aligned_alloc(256, N * sizeof *in);
    memset(out, 0xee, N * sizeof *out);
    for (uint32_t i = 0; i < N; i++)
        in[i] = i;
    memory_add(out, N * sizeof *out), memory_add(in, N * sizeof *in);
    memcpy(params + f->params[0].at, &out, 8);
    memcpy(params + f->params[1].at, &in, 8);
    if (map) {
        struct tensor_map mine = *map;
        mine.address = (uintptr_t)in;
        memcpy(params + f->params[2].at, &mine, sizeof mine);
    }
    machine_launch(&(struct launch_of){
        .f = f, .params = params, .grid = {cluster, 1, 1}, .threads = {32, 1, 1}, .cluster = {cluster, 1, 1}});
    memory_remove(out), memory_remove(in);
    free(params);
}

/* What it says before it ends. */
static void fault(const char *text, uint32_t cluster, const struct tensor_map *map, const char *part) {
    ENDS(run(text, cluster, map), part);
}

#define BULK "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "

static void bulk_copy_is_not_there_before_its_barrier(void **state) {
    (void)state;
    run(KERNEL(1,
               "@!%p0 bra $meet;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 2048;\nmov.u32 %r6, 2048;\n" BULK
               "[%r2], [%rd1], %r6, [%r3];\n"
               "ld.shared.u32 %r7, [%r2+64];\nst.global.u32 [%rd3+8192], %r7;\n$meet:\nbar.warp.sync -1;\n" WAIT("wait")
                   SHOW),
        1, NULL);
    assert_int_equal(out[2048], ~0u);
    assert_memory_equal(out, in, 2048);
}

/* 24 rows of 160 bytes; boxes of 8 rows of 128 bytes. */
static struct tensor_map rows_of(uint8_t swizzle) {
    return (struct tensor_map){.magic = TENSOR_MAP_MAGIC,
                               .rank = 2,
                               .element_bytes = 4,
                               .swizzle = swizzle,
                               .stride = {4, 160},
                               .size_less_1 = {39, 23},
                               .box = {32, 8},
                               .element_stride = {1, 1}};
}
static uint32_t in_rows(int x, int y) { return x < 0 || y < 0 || x >= 40 || y >= 24 ? 0 : (uint32_t)(y * 40 + x); }

#define TENSOR "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
#define BOX(x, y)                                                                                          \
    KERNEL(1,                                                                                              \
           "@!%p0 bra $meet;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 1024;\nmov.u32 %r6, " #x \
           ";\nmov.u32 %r7, " #y ";\nmov.u64 %rd5, 0;\n" TENSOR                                            \
           ".L2::cache_hint [%r2], [%rd2, {%r6, %r7}], [%r3], %rd5;\n$meet:\nbar.warp.sync -1;\n" WAIT("wait") SHOW)

static void box_beyond_the_tensor_is_zero(void **state) {
    (void)state;
    static const char *const KERNELS[] = {BOX(-3, -2), BOX(20, 20), BOX(3, 30), BOX(4, 5)};
    static const int AT[][2] = {{-3, -2}, {20, 20}, {3, 30}, {4, 5}};
    struct tensor_map m = rows_of(SWIZZLE_NONE);
    for (int k = 0; k < 4; k++) {
        run(KERNELS[k], 1, &m);
        for (int i = 0; i < 256; i++)
            assert_int_equal(out[i], in_rows(AT[k][0] + i % 32, AT[k][1] + i / 32));
        assert_int_equal(out[256], ~0u);
    }
}

static void swizzle_exchanges_chunks_by_the_row(void **state) {
    (void)state;
    static const int MASKS[] = {0, 1, 3, 7}, WORDS[] = {32, 8, 16, 32};
    for (uint8_t s = SWIZZLE_32B; s <= SWIZZLE_128B; s++) {
        struct tensor_map m = rows_of(s);
        int words = WORDS[s];
        m.box[0] = (uint16_t)words, m.box[1] = (uint16_t)(256 / words);
        run(BOX(4, -1), 1, &m);
        for (int i = 0; i < 256; i++) {
            int chunk = i / 4, there = chunk ^ (chunk / 8 & MASKS[s]);
            assert_int_equal(out[there * 4 + i % 4], in_rows(4 + i % words, -1 + i / words));
        }
    }
}

static void multicast_lands_in_each_block_of_the_mask(void **state) {
    (void)state;
    struct tensor_map m = rows_of(SWIZZLE_NONE);
    run(KERNEL(1, "@!%p0 bra $meet;\nsetp.eq.u32 %p3, %r1, 1;\nselp.b32 %r9, 0, 1024, "
                  "%p3;\nmbarrier.arrive.expect_tx.shared::cta.b64 _, "
                  "[%r3], %r9;\nsetp.eq.u32 %p4, %r1, 3;\n"
                  "@!%p4 bra $meet;\nmov.u32 %r6, 0;\nmov.u32 %r7, 1;\nmov.u64 %rd5, 0;\nmov.u16 %rs0, 13;\n" TENSOR
                  ".multicast::cluster.L2::cache_hint [%r2], [%rd2, {%r6, %r7}], [%r3], %rs0, "
                  "%rd5;\n$meet:\nbar.warp.sync -1;\n" WAIT("wait") SHOW),
        4, &m);
    for (int b = 0; b < 4; b++)
        for (int i = 0; i < 256; i++)
            assert_int_equal(out[512 * b + i], b == 1 ? ~0u : in_rows(i % 32, 1 + i / 32));
}

#define ST_ASYNC "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
static void stores_come_to_the_other_block(void **state) {
    (void)state;
    run(KERNEL(1, "xor.b32 %r8, %r1, 1;\nmapa.shared::cluster.u32 %r9, %r2, %r8;\nmapa.shared::cluster.u32 %r10, %r3, "
                  "%r8;\nshl.b32 %r11, "
                  "%r0, 4;\nadd.s32 %r9, %r9, %r11;\n"
                  "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 512;\nadd.s32 %r12, %r5, 1000;\n" ST_ASYNC
                  ".v4.b32 [%r9], {%r5, %r12, %r1, %r0}, [%r10];\n" WAIT("wait") SHOW),
        2, NULL);
    for (uint32_t b = 0; b < 2; b++)
        for (uint32_t t = 0; t < 32; t++) {
            const uint32_t *four = out + 512 * b + 4 * t, from = 1 - b;
            assert_int_equal(four[0], 512 * from + t);
            assert_int_equal(four[1], 512 * from + t + 1000);
            assert_int_equal(four[2], from);
            assert_int_equal(four[3], t);
        }
}

#define PLACES                                                                                                      \
    "shl.b32 %r6, %r0, 4;\nadd.s32 %r7, %r2, %r6;\nmul.wide.u32 %rd4, %r6, 1;\nadd.s64 %rd4, %rd4, %rd1;\nadd.s32 " \
    "%r8, %r7, "                                                                                                    \
    "512;\nadd.s32 %r9, %r7, 1024;\nadd.s64 %rd6, %rd4, 512;\n"
static void threads_copies_land_by_batches(void **state) {
    (void)state;
    run(KERNEL(1, PLACES "cp.async.cg.shared.global [%r7], [%rd4], "
                         "16;\ncp.async.commit_group;\ncp.async.cg.shared.global [%r8], [%rd6], "
                         "16;\ncp.async.commit_group;\n"
                         "cp.async.ca.shared.global [%r9], [%rd4], 4;\ncp.async.wait_group 1;\n" SHOW),
        1, NULL);
    assert_memory_equal(out, in, 512);
    for (int i = 128; i < 256; i++)
        assert_int_equal(out[i], ~0u);
}
static void what_a_copy_does_not_read_is_zero(void **state) {
    (void)state;
    run(KERNEL(1, PLACES "and.b32 %r10, %r0, 4;\ncp.async.ca.shared.global [%r7], [%rd4], 4, %r10;\nsetp.gt.u32 %p3, "
                         "%r0, 9;\nmov.u64 %rd5, 0;\n"
                         "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%r8], [%rd6], 16, %p3, "
                         "%rd5;\ncp.async.wait_all;\n" SHOW),
        1, NULL);
    for (uint32_t t = 0; t < 32; t++) {
        assert_int_equal(out[4 * t], t & 4 ? 4 * t : 0);
        assert_int_equal(out[128 + 4 * t + 3], t > 9 ? 0 : 128 + 4 * t + 3);
    }
}

static void state_of_an_arrival_waits_for_its_phase(void **state) {
    (void)state;
    run(KERNEL(32, "mbarrier.arrive.shared::cta.b64 %rd5, [%r3];\n$wait:\nmbarrier.try_wait.shared::cta.b64 %p1, "
                   "[%r3], %rd5;\n@!%p1 bra $wait;\n"
                   "mbarrier.test_wait.parity.shared::cta.b64 %p2, [%r3], 1;\nselp.b32 %r6, 1, 0, %p2;\nst.global.u32 "
                   "[%rd3], %r6;\n"),
        2, NULL);
    for (int i = 0; i < 32; i++)
        assert_int_equal(out[i] | out[512 + i], 0);
}

#define TELL_OTHER                                                                                                \
    "xor.b32 %r6, %r1, 1;\nmapa.shared::cluster.u32 %r7, %r3, %r6;\n@%p0 mbarrier.arrive.shared::cluster.b64 _, " \
    "[%r7];\n"
#define MEET_RELAXED "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\nret;\n"
static void an_arrival_comes_before_its_block_ends(void **state) {
    (void)state;
    run(KERNEL(1, TELL_OTHER WAIT("wait") MEET_RELAXED), 2, NULL); // who waited for it knows
    run(KERNEL(1, TELL_OTHER), 2, NULL);                           // a release orders it
    fault(KERNEL(1, TELL_OTHER MEET_RELAXED), 2, NULL, "ends before the arrival of line");
}

static void faults_are_named(void **state) {
    (void)state;
    struct tensor_map m = rows_of(SWIZZLE_NONE), not_allocated = m;
    not_allocated.size_less_1[1] = 200;
    fault(KERNEL(1, "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 64;\n"), 1, NULL,
          "arrive at a barrier that waits for 0 of 1, and for 128 bytes");
    fault(KERNEL(1, "mbarrier.arrive.shared::cta.b64 _, [%r2];\n"), 1, NULL, "there is no barrier");
    fault(KERNEL(1, "@%p0 " BULK "[%r2], [%rd1], 2048, [%r3];\n"), 1, NULL, "has ended before the copy of line");
    fault(KERNEL(1, "add.s32 %r6, %r2, 1008;\n@%p0 " BULK "[%r2], [%rd1], 1024, [%r3];\n@%p0 " BULK
                    "[%r6], [%rd1], 16, [%r3];\n"),
          1, NULL, "another copy goes");
    fault(KERNEL(1, "@%p0 " BULK "[%r2], [%rd1], 40, [%r3];\n"), 1, NULL, "a copy of 40 bytes");
    fault(KERNEL(1, "add.s64 %rd4, %rd1, 15360;\n@%p0 " BULK "[%r2], [%rd4], 2048, [%r3];\n"), 1, NULL,
          "in no allocation");
    fault(KERNEL(1, WAIT("wait")), 1, NULL, "wait for ever");
    fault(BOX(0, 0), 1, NULL, "there is no tensor map");
    fault(BOX(0, 98), 1, &not_allocated, "in no allocation");
    fault(KERNEL(1, "mapa.shared::cluster.u32 %r6, %r3, 1;\nsetp.eq.u32 %p3, %r1, 0;\n@%p3 "
                    "mbarrier.try_wait.parity.shared::cta.b64 %p1, "
                    "[%r6], 0;\n"),
          2, NULL, "of another block");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bulk_copy_is_not_there_before_its_barrier),
        cmocka_unit_test(box_beyond_the_tensor_is_zero),
        cmocka_unit_test(swizzle_exchanges_chunks_by_the_row),
        cmocka_unit_test(multicast_lands_in_each_block_of_the_mask),
        cmocka_unit_test(stores_come_to_the_other_block),
        cmocka_unit_test(threads_copies_land_by_batches),
        cmocka_unit_test(what_a_copy_does_not_read_is_zero),
        cmocka_unit_test(state_of_an_arrival_waits_for_its_phase),
        cmocka_unit_test(an_arrival_comes_before_its_block_ends),
        cmocka_unit_test(faults_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
