/* tensor_map.h - what the machine keeps in the 128 bytes of a CUtensorMap: cudart_driver.c writes it
 * (cuTensorMapEncodeTiled), copies.c reads it. */
#pragma once

#include <stdint.h>

#define TENSOR_MAP_MAGIC 0x70616d20u // a parameter that was overwritten, or never encoded, has another

enum { TENSOR_MAP_MOST_RANK = 5 };
/* As CUtensorMapSwizzle counts; others are refused when a map is made. */
enum tensor_map_swizzle { SWIZZLE_NONE, SWIZZLE_32B, SWIZZLE_64B, SWIZZLE_128B };

/* Dimensions are innermost first. Elements outside of the size read as zero, or NaN if fills_nan, and are not written.
 * Not interleaved. */
struct tensor_map {
    uint32_t magic;
    uint8_t rank, element_bytes, swizzle, fills_nan;
    uint64_t address;                      // a multiple of 16
    uint64_t stride[TENSOR_MAP_MOST_RANK]; // bytes from one to the next of a dimension: of 0 element_bytes, of others
                                           // multiples of 16
    uint32_t size_less_1[TENSOR_MAP_MOST_RANK];   // elements; sizes are up to 2^32
    uint16_t box[TENSOR_MAP_MOST_RANK];           // elements, 1 to 256
    uint8_t element_stride[TENSOR_MAP_MOST_RANK]; // 1 to 8; of dimension 0 always 1
    uint8_t rest[37];
};
_Static_assert(sizeof(struct tensor_map) == 128, "as a CUtensorMap");

static inline uint64_t tensor_map_size(const struct tensor_map *m, int dimension) {
    return (uint64_t)m->size_less_1[dimension] + 1;
}
