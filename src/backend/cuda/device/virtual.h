/* virtual.h - a range of addresses on the device of which pieces have memory behind them and others do not yet (CUDA's
 * virtual memory functions, asked of the driver: nothing is linked with it).
 *
 *     at [ piece 0 | piece 1 | ... | piece n_mapped - 1 | addresses only ........ ) at + n_bytes
 *
 * Addresses never change, so what was compiled or captured with them stays good while memory comes and goes. */
#pragma once

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

enum { VIRTUAL_GRAIN = 2 << 20 }; // a piece is a multiple of this

struct virtual_range {
    uint64_t at; // 0: there is none
    size_t n_bytes, piece_bytes;
    int n_mapped, n_pieces;
    uint64_t *piece; // [n_pieces], handles of those that are mapped
};

/* Addresses for n_bytes, rounded up to whole pieces, and no memory. ERR_UNSUPPORTED if the driver lacks the functions.
 */
enum status virtual_reserve(int device, size_t n_bytes, size_t piece_bytes, struct virtual_range *out,
                            struct error *err);

/* Pieces 0 .. n-1 have memory then, and no others. ERR_MEMORY if the device has none left, with those mapped that were;
 * ERR_DEVICE for anything else. What is taken away must be read by nothing that is in flight. */
enum status virtual_map(struct virtual_range *r, int device, int n, struct error *err);

/* How many bytes of the allocation that holds `at` are there from it on; 0: the driver does not say. */
size_t virtual_bytes_behind(const void *at);

void virtual_release(struct virtual_range *r); // also of one that was never reserved
