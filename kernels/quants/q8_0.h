// q8_0: 32 elements in 34 bytes, x = d * q with q in -127..127.
#pragma once

#include "common.h"

struct block_q8_0 {
  enum { TYPE = 8, QK = 32 };
  gf_u16 d;  // float16 scale
  gf_i8 qs[32];
};
static_assert(sizeof(block_q8_0) == 34, "q8_0 block");

GF_HD void dequantize_block(const block_q8_0* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  for (int j = 0; j < 32; ++j) y[j] = d * (float)b->qs[j];
}

GF_HD void quantize_block(const float* x, block_q8_0* b) {
  float largest = 0.0f;
  for (int j = 0; j < 32; ++j) {
    const float a = gf_abs(x[j]);
    largest = a > largest ? a : largest;
  }
  const float d = gf_div(largest, 127.0f);
  const float inverse = gf_inverse(d);
  b->d = gf_f32_to_f16(d);
  for (int j = 0; j < 32; ++j) {
    // Round half away from zero, as C's roundf; |v| <= 127 so truncation is exact.
    const float v = gf_mul(x[j], inverse);
    const float a = gf_abs(v);
    const int whole = (int)a;
    const int q = whole + (a - (float)whole >= 0.5f);
    b->qs[j] = (gf_i8)(v < 0.0f ? -q : q);
  }
}
