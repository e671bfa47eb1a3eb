// tq2_0: 256 elements in 66 bytes, x = d * (q - 1), q in 0..2, two bits each that lie as those of
// q2_K.
#pragma once

#include "common.h"

struct block_tq2_0 {
  enum { TYPE = 35, QK = 256 };
  gf_u8 qs[64];
  gf_u16 d;  // float16, the largest magnitude
};
static_assert(sizeof(block_tq2_0) == 66, "tq2_0 block");

GF_HD void dequantize_block(const block_tq2_0* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  for (int i = 0; i < 256; ++i) {
    y[i] = d * (float)((b->qs[i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3) - 1);
  }
}

GF_HD float gf_largest_of_256(const float* x) {
  float most = 0.0f;
  for (int i = 0; i < 256; ++i) most = gf_abs(x[i]) > most ? gf_abs(x[i]) : most;
  return most;
}

// 0, 1 or 2: the sign of what rounds to a magnitude of one, halves included.
GF_HD int gf_ternary(float v) { return v >= 0.5f ? 2 : v <= -0.5f ? 0 : 1; }

GF_HD void gf_quantize_tq2_0(const float* x, block_tq2_0* b) {
  const float d = gf_largest_of_256(x), inverse = gf_inverse(d);
  b->d = gf_f32_to_f16(d);
  for (int i = 0; i < 64; ++i) {
    int q = 0;
    for (int n = 0; n < 4; ++n) {
      q |= gf_ternary(gf_mul(x[i / 32 * 128 + 32 * n + i % 32], inverse)) << (2 * n);
    }
    b->qs[i] = (gf_u8)q;
  }
}
