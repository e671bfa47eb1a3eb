// iq2_xxs: 256 elements in 66 bytes: 8 sub-blocks of 32, x = d * (scale + 1/2) / 4 * row * sign. A
// sub-block has four bytes, the rows, and a word: four times seven signs, the scale at bit 28.
#pragma once

#include "grid_iq2.h"

struct block_iq2_xxs {
  enum { TYPE = 16, QK = 256 };
  gf_u16 d;  // float16 scale of the scales
  gf_u16 qs[32];
};
static_assert(sizeof(block_iq2_xxs) == 66, "iq2_xxs block");

GF_HD gf_u32 gf_tail_iq2_xxs(const block_iq2_xxs* b, int s) {
  return (gf_u32)b->qs[4 * s + 2] | (gf_u32)b->qs[4 * s + 3] << 16;
}
GF_HD float gf_scale_iq2_xxs(const block_iq2_xxs* b, gf_u32 tail) {
  return gf_f16_to_f32(b->d) * (0.5f + (float)(tail >> 28)) * 0.25f;
}
GF_HD gf_u32 gf_row_iq2_xxs(const block_iq2_xxs* b, int c) {
  return b->qs[c / 4 * 4 + c % 4 / 2] >> (c % 2 * 8) & 255;
}

GF_HD float gf_grid8(const block_iq2_xxs* b, int c, gf_i8* v) {
  const gf_u32 tail = gf_tail_iq2_xxs(b, c / 4), signs = tail >> (7 * (c % 4)) & 127;
  gf_grid_row<8>(gf_grid_iq2_xxs[gf_row_iq2_xxs(b, c)], GF_IQ2_VALUES, gf_even_signs(signs), v);
  return gf_scale_iq2_xxs(b, tail);
}

GF_HD void dequantize_block(const block_iq2_xxs* b, float* y) { gf_dequantize_grid(b, y); }
