// iq1_m: 256 elements in 56 bytes: 16 sub-blocks of 16, x = d * (1 + 2 * scale) * (row + delta),
// delta 1/8 or -1/8 a row. A half of a byte of qh: three high bits of a row, and a bit that is set
// where its delta is negative. scales: four words of four times three bits, with four bits of d at
// the top. Values are taken times eight, so that they are whole.
#pragma once

#include "grid_iq1.h"

struct block_iq1_m {
  enum { TYPE = 29, QK = 256 };
  gf_u8 qs[32];
  gf_u8 qh[16];
  gf_u16 scales[4];
};
static_assert(sizeof(block_iq1_m) == 56, "iq1_m block");

GF_HD gf_u32 gf_row_iq1_m(const block_iq1_m* b, int c) {
  return b->qs[c] | (gf_u32)(b->qh[c / 2] >> (c % 2 * 4) & 7) << 8;
}
GF_HD float gf_scale_iq1_m(const block_iq1_m* b, int s) {
  const gf_u16* const w = b->scales;
  const gf_u32 d = w[0] >> 12 | (w[1] >> 12) << 4 | (w[2] >> 12) << 8 | (w[3] >> 12) << 12;
  return gf_f16_to_f32((gf_u16)d) * (float)(2 * (w[s / 4] >> (s % 4 * 3) & 7) + 1) * 0.125f;
}

GF_HD float gf_grid8(const block_iq1_m* b, int c, gf_i8* v) {
  const gf_u32 values = b->qh[c / 2] >> (c % 2 * 4 + 3) & 1 ? GF_IQ1_BELOW : GF_IQ1_ABOVE;
  gf_grid_row<8>(gf_grid_iq1[gf_row_iq1_m(b, c)], values, 0, v);
  return gf_scale_iq1_m(b, c / 2);
}

GF_HD void dequantize_block(const block_iq1_m* b, float* y) { gf_dequantize_grid(b, y); }
