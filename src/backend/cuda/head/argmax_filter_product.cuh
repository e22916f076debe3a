/* argmax_filter_product.cuh - of argmax_filter.cu: the product of bytes, and which of its sums stand for rows that may
 * win.
 *
 * The ring and who shares x are those of lm_head.cu (lm_head_ring.cuh); a stage has 128 elements of each row. W comes
 * in units of 64 rows, near the multiprocessor that reads them (argmax_filter_units.cuh). A block does one for each of
 * its warpgroups at a time, a tile. What differs besides is the end of a tile:
 *
 *     A sum is of interest if row.step * (sum + spread) + row.size * slack >= best, best[token] being the best lower
 *     bound known so far, that is if sum >= best / row.step - slack * row.size / row.step - spread. While the tensor
 *     core has the tile, a warp writes down for each token the least of these of its 16 rows, an integer, and by how
 *     much those of a row are larger whatever the token: so a sum costs an addition and a maximum, one instruction.
 *     Where a maximum says that some pass, the lane writes its sums down, and during the next tile's products its warp
 *     looks at them one by one: then their own lower bound may raise `best`, and they go on the block's list. So the
 *     tensor core waits for little at the end of a tile. What is seldom run there is short, as it comes from far away.
 *     (One compare and one way on the list for each register took 3,000 clocks a tile with a hit, as most are.)
 *
 * Of a token with a mask no row that it may not be raises `best`, or is listed: both are told from words of the mask,
 * a bit a row, where sums are looked at one by one. So that few that are not are looked at, a warp's thresholds let
 * nothing pass of tokens that may be none of its rows, and of rows that no token may be.
 *
 * Where two warpgroups fill the tensor core, the second begins a piece later, so that one multiplies while the other
 * compares.
 *
 * `best` starts with what the blocks' first tiles have, over all rows of them, and is handed on from block to block
 * through memory (`bests`), between tiles, without anybody's waiting for a block in particular. How early it comes
 * depends on timing, and with it how long lists are, but the rows with upper bounds that reach the final `best` are on
 * them always. */
#pragma once

#include "backend/cuda/head/argmax_filter_notes.cuh"

namespace screen {

template <int N, class W> __device__ void watch_tokens(const product_args &a, const share &s, W &w, int n_consumers) {
    bool has_mask = false;
    for (int t = threadIdx.x; t < N; t += n_consumers) {
        bool there = s.first_token + t < a.n_tokens;
        token k = there ? a.tokens[s.first_token + t] : token{1, 0, 0};
        w.best[t] = there && k.step > 0 ? -INFINITY : INFINITY; // of a token without a step nothing is looked at
        w.spread[t] = k.spread, w.slack[t] = k.slack, w.step[t] = k.step;
        w.mask[t] = there && k.step > 0 ? a.asked[s.first_token + t].mask : -1;
        has_mask |= w.mask[t] >= 0;
    }
    bool some_have = threads_count(1, n_consumers, has_mask) > 0;
    if (threadIdx.x == 0) {
        w.n_listed = 0;
        w.has_masks = some_have;
        w.lists = a.places->lists;
    }
    threads_sync(1, n_consumers); // all tokens are there
}

/* Of the list what still may win. What the last tile has raised is told too: who chooses makes logits of all that reach
 * the best he knows. */
template <int N, class W>
__device__ void tell_candidates(const product_args &a, const share &s, W &w, int n_consumers, float coming) {
    int t = threadIdx.x;
    threads_sync(1, n_consumers); // all have listed theirs, and raised what is best
    exchange<N>(a, s, w, coming);
    threads_sync(1, n_consumers); // what others have is there
    for (int i = t; i < min(w.n_listed, (int)LISTED); i += n_consumers)
        if (w.list[i].upper >= w.best[w.list[i].token()])
            push(a, s.first_token + w.list[i].token(), w.list[i].row(), w.list[i].upper);
}

/* Numbers of barriers are constants, else all sixteen are the block's. */
__device__ __forceinline__ void warpgroup_sync() {
    int group = threadIdx.x / WARPGROUP;
    if (group == 0)
        threads_sync(3, WARPGROUP);
    else if (group == 1)
        threads_sync(4, WARPGROUP);
    else
        threads_sync(5, WARPGROUP);
}

/* Stages of a tile of which the warpgroup has no rows. The first n_told of them are filled again: of the others nobody
 * waits for the slot, and the block might end before it is told. */
__device__ __forceinline__ void let_pass(const product_args &a, const shared_places &m, uint32_t empty_there,
                                         ring_place &at, int n_told) {
    for (int piece = 0; piece < a.n_pieces; piece++) {
        barrier_wait(m.full + 8 * at.slot, at.parity);
        warpgroup_sync(); // all warps have seen it
        if (empty_there && piece < n_told)
            barrier_arrive_at_rank(empty_there + 8 * at.slot);
        at.step();
    }
}

/* Registers that the copying warpgroup leaves go to the others' sums (setmaxnreg). */
template <int N, int GROUPS>
__global__ void __launch_bounds__((GROUPS + 1) * WARPGROUP, 1)
    filter_product(const __grid_constant__ unit_maps w_maps, const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ product_args a) {
    constexpr int CONSUMERS = GROUPS * WARPGROUP, WARPS = CONSUMERS / 32;
    extern __shared__ unsigned char unaligned[];
    __shared__ uint64_t full[MAX_STAGES], empty[MAX_STAGES];
    __shared__ __align__(16) watch<N, WARPS> watched;
    __shared__ int claimed;
    __shared__ bool begun;
    int warp = (int)of_warp(threadIdx.x / 32), rank = a.sharers > 1 ? cluster_rank() : 0, role = warp - WARPS;
    int n_shares = gridDim.x / a.token_tiles, token_tile = blockIdx.x / n_shares;
    shared_places m = places_of(a, unaligned, full, empty);
    if (threadIdx.x == CONSUMERS) {
        claimed = claim_share(a.w, a.claims + token_tile, n_shares);
        begun =
            *reinterpret_cast<const volatile int32_t *>(a.is_wanted) != 0; // of this step or the one before: a guess
        bulk_map_prefetch(w_maps.of_half);
        bulk_map_prefetch(w_maps.of_half + 1);
        bulk_map_prefetch(&x_map);
        prepare_ring(a, m, GROUPS);
    }
    __syncthreads(); // the barriers are ready, and the share is known
    share s = share_of_units<N, GROUPS>(a, rank, token_tile, claimed, n_shares);
    units_filler<N, GROUPS, product_args> ring(a, m, s);
    bool copies = role >= 0 && role <= GROUPS && threadIdx.x % 32 == 0, copies_tokens = copies && role == GROUPS;
    if (copies && !copies_tokens && begun)
        ring.copy_units(&w_maps, role, 0, ring.n_early);
    if (a.sharers > 1)
        cluster_sync(); // the barriers of both blocks
    let_next_start();
    wait_for_previous();
    if (!*a.is_wanted) { // by any block
        if (copies_tokens && begun)
            ring.leave();
        return;
    }
    if (warp >= WARPS) {
        if (GROUPS == 3)
            registers_fewer<32>();
        else
            registers_fewer<40>();
        if (copies_tokens)
            ring.copy_tokens(&x_map);
        else if (copies)
            ring.copy_units(&w_maps, role, begun ? ring.n_early : 0, ring.n);
        __syncwarp();
    } else {
        if (GROUPS == 3)
            registers_more<160>();
        else
            registers_more<232>();
        watch_tokens<N>(a, s, watched, CONSUMERS);
        ring_place at = {0, a.n_stages, 0};
        uint32_t empty_there = 0; // a product of the tensor core ends for all four warps of a group: the first one
                                  // tells each block that copies
        if (warp % 4 == 0 && (int)threadIdx.x % 32 < a.sharers)
            empty_there = address_at_rank(m.empty, threadIdx.x % 32);
        int sums[N / 2], n_noted = 0;
        float coming = -INFINITY;
        int last = 0, tile = s.first * M_ROWS;
        for (int pass = 0; pass < s.n_passes; pass++, tile += GROUPS * M_ROWS) {
            if (warp / 4 + pass * GROUPS >= s.n) {
                let_pass(a, m, empty_there, at, (s.n_passes - pass) * a.n_pieces - a.n_stages);
                if (pass == 0)
                    meet_others<N>(a, s, watched, CONSUMERS, coming);
                continue;
            }
            bool begins = GROUPS == 2 && a.by_turns && pass == 0 && s.n > 1, is_first = warp < WARPS / 2;
            if (begins && !is_first)
                threads_sync(2, CONSUMERS); // the first warpgroup is a piece ahead
            lane_rows r(a, s, tile);
            int beyond[2];
            if (pass == 0 && watched.has_masks)
                ask_words<N>(a, watched, tile + warp * 16);
            multiply<int8_product<N>, N>(a, m, empty_there, at, sums, [&](int piece) {
                if (begins && is_first && piece == 1)
                    threads_arrive(2, 2 * WARPGROUP);
                if (pass > 0 && piece == a.looks_at / 2) {
                    look_closer<N>(a, s, watched, last, n_noted);
                    n_noted = 0;
                    exchange<N>(a, s, watched, coming);
                    if (watched.has_masks)
                        ask_words<N>(a, watched, tile + warp * 16);
                }
                if (pass > 0 && piece == a.looks_at) {
                    exchange<N>(a, s, watched, coming);
                    set_reach<N>(a, watched, r, beyond);
                }
            });
            if (pass == 0) {
                if (watched.has_masks) {
                    await_words();
                    begin_bests<N, true>(watched, r, sums);
                } else {
                    begin_bests<N, false>(watched, r, sums);
                }
                meet_others<N>(a, s, watched, CONSUMERS, coming);
                set_reach<N>(a, watched, r, beyond);
            }
            note_candidates<N>(a, s, watched, tile, beyond, sums, n_noted);
            last = tile;
        }
        look_closer<N>(a, s, watched, last, n_noted);
        if (s.n_passes > 0)
            tell_candidates<N>(a, s, watched, CONSUMERS, coming);
        __syncwarp();
    }
    if (a.sharers > 1)
        cluster_sync(); // others tell this block that they are done, to the end
}

} // namespace screen
