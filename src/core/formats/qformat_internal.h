/* qformat_internal.h - what the files of block formats share: fields of a block, and the formats of qformat_iq.c. */
#pragma once

#include "core/weight.h"

static inline float f16_at(const uint8_t *p) { return f16_to_f32((uint16_t)(p[0] | p[1] << 8)); }

static inline uint32_t u32_at(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void iq1_s_to_f32(const uint8_t *b, float *out);
void iq1_m_to_f32(const uint8_t *b, float *out);
void iq2_xxs_to_f32(const uint8_t *b, float *out);
void iq2_xs_to_f32(const uint8_t *b, float *out);
void iq2_s_to_f32(const uint8_t *b, float *out);
void iq3_xxs_to_f32(const uint8_t *b, float *out);
void iq3_s_to_f32(const uint8_t *b, float *out);
