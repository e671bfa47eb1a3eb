// iq2_xs: 256 elements in 74 bytes: 16 sub-blocks of 16, x = d * (scale + 1/2) / 4 * row * sign. A
// word of qs holds a row in nine bits and seven signs.
#pragma once

#include "grid_iq2.h"

struct block_iq2_xs {
  enum { TYPE = 17, QK = 256 };
  gf_u16 d;  // float16 scale of the scales
  gf_u16 qs[32];
  gf_u8 scales[8];  // two to a byte
};
static_assert(sizeof(block_iq2_xs) == 74, "iq2_xs block");

GF_HD float gf_grid8(const block_iq2_xs* b, int c, gf_i8* v) {
  const gf_u32 q = b->qs[c];
  gf_grid_row<8>(gf_grid_iq2_xs[q & 511], GF_IQ2_VALUES, gf_even_signs(q >> 9), v);
  return gf_quarter_scale(b->d, b->scales, c / 2);
}

GF_HD void dequantize_block(const block_iq2_xs* b, float* y) { gf_dequantize_grid(b, y); }
