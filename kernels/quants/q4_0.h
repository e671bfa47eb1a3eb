// q4_0: 32 elements in 18 bytes, x = d * (q - 8). Element j sits in the low half of byte j, element
// j + 16 in the high half.
#pragma once

#include "common.h"

struct block_q4_0 {
  enum { TYPE = 2, QK = 32 };
  gf_u16 d;  // float16 scale
  gf_u8 qs[16];
};
static_assert(sizeof(block_q4_0) == 18, "q4_0 block");

GF_HD void dequantize_block(const block_q4_0* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * (float)((b->qs[j] & 15) - 8);
    y[j + 16] = d * (float)((b->qs[j] >> 4) - 8);
  }
}

GF_HD void quantize_block(const float* x, block_q4_0* b) {
  float largest = x[0];  // the element of largest magnitude, sign kept: it becomes -8 exactly
  for (int j = 0; j < 32; ++j) {
    if (gf_abs(x[j]) > gf_abs(largest)) largest = x[j];
  }
  const float d = gf_div(largest, -8.0f);
  const float inverse = gf_inverse(d);
  b->d = gf_f32_to_f16(d);
  for (int j = 0; j < 16; ++j) {
    const int lo = (int)gf_add(gf_mul(x[j], inverse), 8.5f);
    const int hi = (int)gf_add(gf_mul(x[j + 16], inverse), 8.5f);
    // What is not finite may become any number, and negative ones must not be shifted.
    b->qs[j] = (gf_u8)((lo < 15 ? lo : 15) | (gf_u32)(hi < 15 ? hi : 15) << 4);
  }
}
