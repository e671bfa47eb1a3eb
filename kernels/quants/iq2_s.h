// iq2_s: 256 elements in 82 bytes: 16 sub-blocks of 16, x = d * (scale + 1/2) / 4 * row * sign. The
// high two bits of row i are at bit 2 (i % 4) of qh[i / 4].
#pragma once

#include "grid_iq2.h"

struct block_iq2_s {
  enum { TYPE = 22, QK = 256 };
  gf_u16 d;  // float16 scale of the scales
  gf_u8 qs[32];
  gf_u8 signs[32];
  gf_u8 qh[8];
  gf_u8 scales[8];  // two to a byte
};
static_assert(sizeof(block_iq2_s) == 82, "iq2_s block");

GF_HD gf_u32 gf_row_iq2_s(const block_iq2_s* b, int c) {
  return b->qs[c] | (gf_u32)(b->qh[c / 4] >> (c % 4 * 2) & 3) << 8;
}

GF_HD float gf_grid8(const block_iq2_s* b, int c, gf_i8* v) {
  gf_grid_row<8>(gf_grid_iq2_s[gf_row_iq2_s(b, c)], GF_IQ2_VALUES, b->signs[c], v);
  return gf_quarter_scale(b->d, b->scales, c / 2);
}

GF_HD void dequantize_block(const block_iq2_s* b, float* y) { gf_dequantize_grid(b, y); }
