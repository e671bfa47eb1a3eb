// iq3_s: 256 elements in 110 bytes: 8 sub-blocks of 32, x = d * (1 + 2 * scale) * row * sign, rows
// of four. The ninth bit of row i is bit i % 8 of qh[i / 8].
#pragma once

#include "grid_iq3.h"

struct block_iq3_s {
  enum { TYPE = 21, QK = 256 };
  gf_u16 d;  // float16 scale of the scales
  gf_u8 qs[64];
  gf_u8 qh[8];
  gf_u8 signs[32];
  gf_u8 scales[4];  // two to a byte
};
static_assert(sizeof(block_iq3_s) == 110, "iq3_s block");

GF_HD float gf_scale_iq3_s(const block_iq3_s* b, int s) {
  return gf_f16_to_f32(b->d) * (float)(1 + 2 * (b->scales[s / 2] >> (s % 2 * 4) & 15));
}
// Row i, of four elements.
GF_HD gf_u32 gf_row_iq3_s(const block_iq3_s* b, int i) {
  return b->qs[i] | (gf_u32)(b->qh[i / 8] >> (i % 8) & 1) << 8;
}

GF_HD float gf_grid8(const block_iq3_s* b, int c, gf_i8* v) {
  const gf_u32 signs = b->signs[c];
  gf_grid_row<4>(gf_grid_iq3_s[gf_row_iq3_s(b, 2 * c)], GF_IQ3_S_VALUES, signs, v);
  gf_grid_row<4>(gf_grid_iq3_s[gf_row_iq3_s(b, 2 * c + 1)], GF_IQ3_S_VALUES, signs >> 4, v + 4);
  return gf_scale_iq3_s(b, c / 4);
}

GF_HD void dequantize_block(const block_iq3_s* b, float* y) { gf_dequantize_grid(b, y); }
