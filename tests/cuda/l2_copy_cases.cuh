/* l2_copy_cases.cuh - near copies (l2_copy.h) for tests of products: places must be right for any flips and any sides
 * of multiprocessors, so both are drawn; what no row has is NaN. */
#pragma once

#include "backend/cuda/device/l2_copy.h"
#include "backend/cuda/value.h"
#include "products.cuh"

/* As many as have been asked for at most; in place of a weight of which a copy is read. */
static void *nan_bytes(size_t n) {
    static void *at;
    static size_t n_there;
    if (n_there < n) {
        MUST(cudaFree(at));
        MUST(cudaMalloc(&at, n));
        MUST(cudaMemset(at, 0x7f, n));
        n_there = n;
    }
    return at;
}

/* Of w as it is now, until the next one. False: there is no copy of that shape, or it is larger than tests have room
 * for. */
static bool l2_copy_of(cudaStream_t stream, dweight w, l2_copy_shape shape, uint64_t seed, dl2_copy *out) {
    enum { MOST_PAGES = 192 };
    static char *room;
    if (!room) {
        MUST(cudaMalloc(&room, (size_t)(MOST_PAGES + 1) * SIDES_PAGE));
        room += -(uintptr_t)room % SIDES_PAGE;
    }
    if (!l2_copy_lay_out(w, shape, out) || l2_copy_pages(out) > MOST_PAGES)
        return false;
    out->at = room;
    out->hash = (uint32_t)hash(seed++);
    for (uint32_t &bits : out->flips)
        bits = (uint32_t)hash(seed++);
    for (uint32_t &bits : out->sm_sides)
        bits = (uint32_t)hash(seed++);
    MUST(cudaMemsetAsync(room, 0x7f, (size_t)l2_copy_pages(out) * SIDES_PAGE, stream));
    launch_l2_copy(stream, out, w);
    MUST(cudaGetLastError());
    return true;
}
