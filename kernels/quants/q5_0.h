// q5_0: 32 elements in 22 bytes, x = d * (q - 16). Low nibbles as in q4_0; the fifth bit of element
// j is bit j of the little-endian word qh.
#pragma once

#include "common.h"

struct block_q5_0 {
  enum { TYPE = 6, QK = 32 };
  gf_u16 d;  // float16 scale
  gf_u8 qh[4];
  gf_u8 qs[16];
};
static_assert(sizeof(block_q5_0) == 22, "q5_0 block");

GF_HD void dequantize_block(const block_q5_0* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  const gf_u32 qh = gf_load_u32(b->qh);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * (float)((int)((b->qs[j] & 15) | (((qh >> j) & 1) << 4)) - 16);
    y[j + 16] = d * (float)((int)((b->qs[j] >> 4) | (((qh >> (j + 16)) & 1) << 4)) - 16);
  }
}

GF_HD void quantize_block(const float* x, block_q5_0* b) {
  float largest = x[0];  // the element of largest magnitude, sign kept: it becomes -16 exactly
  for (int j = 0; j < 32; ++j) {
    if (gf_abs(x[j]) > gf_abs(largest)) largest = x[j];
  }
  const float d = gf_div(largest, -16.0f);
  const float inverse = gf_inverse(d);
  b->d = gf_f32_to_f16(d);
  gf_u32 qh = 0;
  for (int j = 0; j < 16; ++j) {
    int lo = (int)gf_add(gf_mul(x[j], inverse), 16.5f);
    int hi = (int)gf_add(gf_mul(x[j + 16], inverse), 16.5f);
    lo = lo < 31 ? lo : 31;
    hi = hi < 31 ? hi : 31;
    b->qs[j] = (gf_u8)((lo & 15) | ((hi & 15) << 4));
    qh |= (gf_u32)((lo >> 4) & 1) << j | (gf_u32)((hi >> 4) & 1) << (j + 16);
  }
  gf_store_u32(b->qh, qh);
}
