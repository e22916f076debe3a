/* kv.cuh - where the keys and values of a KV cache lie, and what their elements mean. Everything that touches a KV
 * cache goes through here: qkv_prep writes, the attention kernels read; the rest of the engine copies whole blocks.
 *
 * A block holds, for block_size slots,
 *
 *     keys    [head][panel][slot][panel bytes]     rows of k_dim elements cut into panels of 128 bytes (64 or 32 where
 *             a row is
 *     values  [head][panel][slot][panel bytes]     no multiple of 128; the whole row where it is no multiple of 32
 *             either)
 *     scales  key [head][slot], value [head][slot] float32; of e4m3 and int8 alone: a value is its element times the
 *             row's scale
 *
 * Shared keys (core/ops.def, rotary_dim) have of a key its k_dim channels that turn, those of either half of a head one
 * after the other. Its other channels are its value's, whose row begins with the same k_dim channels: the second half
 * of them changes places with as many that do not turn (kv_moved), so that a key is its own row and what follows k_dim
 * channels in its value's. Both have one scale, [head][slot].
 *
 * In a panel the 16-byte pieces of a row are permuted by the slot (swizzled): piece c of a 128-byte panel lies at
 * c ^ (slot mod 8). A run of slots of a head's panel is thus one piece of memory, which a bulk copy brings to shared
 * memory as it is, and there eight rows of a column lie in different banks: what ldmatrix reads at once. It is also the
 * 128-byte swizzle that wgmma knows. */
#pragma once

#include "backend/cuda/ptx/device.cuh"
#include "backend/cuda/value.h"

#include <cuda_fp8.h>

#define KV_FUNCTION __host__ __device__ __forceinline__

KV_FUNCTION int kv_element_bytes(element e) {
    return e == ELEMENT_F32 ? 4 : e == ELEMENT_E4M3 || e == ELEMENT_I8 ? 1 : 2;
}
KV_FUNCTION bool kv_has_scales(element e) { return e == ELEMENT_E4M3 || e == ELEMENT_I8; }
KV_FUNCTION int kv_panel_bytes(int row_bytes) {
    return row_bytes % 128 == 0 ? 128 : row_bytes % 64 == 0 ? 64 : row_bytes % 32 == 0 ? 32 : row_bytes;
}

/* Where byte `at` of a slot's row lies in its panel. */
KV_FUNCTION int kv_swizzled(int panel_bytes, int slot, int at) {
    int turn = panel_bytes == 128  ? slot & 7
               : panel_bytes == 64 ? (slot >> 1) & 3
               : panel_bytes == 32 ? (slot >> 2) & 1
                                   : 0;
    return at ^ (turn << 4);
}

/* Byte `at` of a row of one side of a block (keys or values). */
KV_FUNCTION int64_t kv_row_byte(int row_bytes, int n_slots, int head, int slot, int at) {
    int panel = kv_panel_bytes(row_bytes), n_panels = row_bytes / panel;
    return ((int64_t)(head * n_panels + at / panel) * n_slots + slot) * panel + kv_swizzled(panel, slot, at % panel);
}

/* Where channel i of shared keys and their values stands; and which channel stands at i. */
KV_FUNCTION int kv_moved(int i, int head_dim, int turned) {
    int half = head_dim / 2, n = turned / 2;
    return i >= n && i < turned ? i - n + half : i >= half && i < half + n ? i - half + n : i;
}

/* Of the fast kernels' shared keys: 128 channels of 512, in blocks of 64. */
constexpr int SHARED_KV_DIM = 128;
KV_FUNCTION constexpr int kv_moved_512(int i) { return i / 64 == 1 ? i + 192 : i / 64 == 4 ? i - 192 : i; }

struct kv_shape {
    int n_heads, k_dim, v_dim, n_slots;
    element e;
    bool shared_kv;

    KV_FUNCTION int64_t values() const {
        return (int64_t)n_heads * n_slots * k_dim * kv_element_bytes(e);
    } // first byte
    KV_FUNCTION int64_t scales() const { return (int64_t)n_heads * n_slots * (k_dim + v_dim) * kv_element_bytes(e); }
    KV_FUNCTION int64_t key(int head, int slot, int i) const {
        int at = shared_kv ? kv_moved(i, v_dim, k_dim) : i;
        if (shared_kv && at >= k_dim)
            return value(head, slot, i);
        return kv_row_byte(k_dim * kv_element_bytes(e), n_slots, head, slot, at * kv_element_bytes(e));
    }
    KV_FUNCTION int64_t value(int head, int slot, int i) const {
        int at = shared_kv ? kv_moved(i, v_dim, k_dim) : i;
        return values() + kv_row_byte(v_dim * kv_element_bytes(e), n_slots, head, slot, at * kv_element_bytes(e));
    }
    KV_FUNCTION int64_t scale(bool of_value, int head, int slot) const {
        return scales() + ((int64_t)((of_value && !shared_kv ? n_heads : 0) + head) * n_slots + slot) * 4;
    }
};

__device__ inline float kv_load(const char *at, element e) {
    switch (e) {
    case ELEMENT_F32: return *reinterpret_cast<const float *>(at);
    case ELEMENT_F16: return __half2float(*reinterpret_cast<const __half *>(at));
    case ELEMENT_BF16: return __bfloat162float(*reinterpret_cast<const __nv_bfloat16 *>(at));
    case ELEMENT_E4M3: return static_cast<float>(*reinterpret_cast<const __nv_fp8_e4m3 *>(at));
    default: return static_cast<float>(*reinterpret_cast<const signed char *>(at));
    }
}

/* x is already divided by the row's scale. */
__device__ inline void kv_store(char *at, element e, float x) {
    switch (e) {
    case ELEMENT_F32: *reinterpret_cast<float *>(at) = x; break;
    case ELEMENT_F16: *reinterpret_cast<__half *>(at) = to_half(x); break;
    case ELEMENT_BF16: *reinterpret_cast<__nv_bfloat16 *>(at) = __float2bfloat16_rn(x); break;
    case ELEMENT_E4M3: *reinterpret_cast<__nv_fp8_e4m3 *>(at) = __nv_fp8_e4m3(x); break;
    default: *reinterpret_cast<signed char *>(at) = (signed char)__float2int_rn(fminf(fmaxf(x, -127.0f), 127.0f));
    }
}

/* The scale of a row whose largest size is `most`; 1 for a row of zeros. */
__device__ inline float kv_scale(element e, float most) {
    return most > 0.0f ? most / (e == ELEMENT_E4M3 ? 448.0f : 127.0f) : 1.0f;
}

/* What the elements of a row are multiplied by. */
__device__ inline float kv_scale_at(const kv_shape &s, const char *block, bool of_value, int head, int slot) {
    return kv_has_scales(s.e) ? *reinterpret_cast<const float *>(block + s.scale(of_value, head, slot)) : 1.0f;
}

/* The first byte of the block that holds a position of a sequence. */
__device__ inline char *kv_block(const device_plan &p, const dcache &c, int n_slots, int seq, int position) {
    return static_cast<char *>(c.at) + block_start(p, c, n_slots, seq, position) * kv_element_bytes(c.element);
}
