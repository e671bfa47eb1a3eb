// iq3_xxs: 256 elements in 98 bytes: 8 sub-blocks of 32, x = d * (scale + 1/2) / 2 * row * sign,
// rows of four. tail[s]: four times seven signs of sub-block s, its scale at bit 28.
#pragma once

#include "grid_iq3.h"

struct block_iq3_xxs {
  enum { TYPE = 18, QK = 256 };
  gf_u16 d;  // float16 scale of the scales
  gf_u8 qs[64];
  gf_u16 tail[16];
};
static_assert(sizeof(block_iq3_xxs) == 98, "iq3_xxs block");

GF_HD gf_u32 gf_tail_iq3_xxs(const block_iq3_xxs* b, int s) {
  return (gf_u32)b->tail[2 * s] | (gf_u32)b->tail[2 * s + 1] << 16;
}
GF_HD float gf_scale_iq3_xxs(const block_iq3_xxs* b, gf_u32 tail) {
  return gf_f16_to_f32(b->d) * (0.5f + (float)(tail >> 28)) * 0.5f;
}

GF_HD float gf_grid8(const block_iq3_xxs* b, int c, gf_i8* v) {
  const gf_u32 tail = gf_tail_iq3_xxs(b, c / 4);
  const gf_u32 signs = gf_even_signs(tail >> (7 * (c % 4)) & 127);
  gf_grid_row<4>(gf_grid_iq3_xxs[b->qs[2 * c]], GF_IQ3_XXS_VALUES, signs, v);
  gf_grid_row<4>(gf_grid_iq3_xxs[b->qs[2 * c + 1]], GF_IQ3_XXS_VALUES, signs >> 4, v + 4);
  return gf_scale_iq3_xxs(b, tail);
}

GF_HD void dequantize_block(const block_iq3_xxs* b, float* y) { gf_dequantize_grid(b, y); }
