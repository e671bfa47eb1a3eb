// iq1_s: 256 elements in 50 bytes: 8 sub-blocks of 32, x = d * (1 + 2 * scale) * (row + delta),
// delta 1/8 or -1/8. qh[s]: three times four high bits of the sub-block's rows, the scale, and a
// bit that is set where delta is negative. Values are taken times eight, so that they are whole.
#pragma once

#include "grid_iq1.h"

struct block_iq1_s {
  enum { TYPE = 19, QK = 256 };
  gf_u16 d;  // float16 scale of the scales
  gf_u8 qs[32];
  gf_u16 qh[8];
};
static_assert(sizeof(block_iq1_s) == 50, "iq1_s block");

GF_HD gf_u32 gf_row_iq1_s(const block_iq1_s* b, int c) {
  return b->qs[c] | (gf_u32)(b->qh[c / 4] >> (c % 4 * 3) & 7) << 8;
}
GF_HD float gf_scale_iq1_s(const block_iq1_s* b, int s) {
  return gf_f16_to_f32(b->d) * (float)(2 * (b->qh[s] >> 12 & 7) + 1) * 0.125f;
}

GF_HD float gf_grid8(const block_iq1_s* b, int c, gf_i8* v) {
  const gf_u32 values = b->qh[c / 4] >> 15 ? GF_IQ1_BELOW : GF_IQ1_ABOVE;
  gf_grid_row<8>(gf_grid_iq1[gf_row_iq1_s(b, c)], values, 0, v);
  return gf_scale_iq1_s(b, c / 4);
}

GF_HD void dequantize_block(const block_iq1_s* b, float* y) { gf_dequantize_grid(b, y); }
