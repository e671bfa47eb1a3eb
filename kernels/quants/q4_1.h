// q4_1: 32 elements in 20 bytes, x = d * q + m with q in 0..15. Nibbles as in q4_0.
#pragma once

#include "common.h"

struct block_q4_1 {
  enum { TYPE = 3, QK = 32 };
  gf_u16 d;  // float16 scale
  gf_u16 m;  // float16 minimum
  gf_u8 qs[16];
};
static_assert(sizeof(block_q4_1) == 20, "q4_1 block");

GF_HD void dequantize_block(const block_q4_1* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  const float m = gf_f16_to_f32(b->m);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * (float)(b->qs[j] & 15) + m;
    y[j + 16] = d * (float)(b->qs[j] >> 4) + m;
  }
}

GF_HD void quantize_block(const float* x, block_q4_1* b) {
  float least = x[0], most = x[0];
  for (int j = 1; j < 32; ++j) {
    least = x[j] < least ? x[j] : least;
    most = x[j] > most ? x[j] : most;
  }
  const float d = gf_div(gf_add(most, -least), 15.0f);
  const float inverse = gf_inverse(d);
  b->d = gf_f32_to_f16(d);
  b->m = gf_f32_to_f16(least);
  for (int j = 0; j < 16; ++j) {
    const int lo = (int)gf_add(gf_mul(gf_add(x[j], -least), inverse), 0.5f);
    const int hi = (int)gf_add(gf_mul(gf_add(x[j + 16], -least), inverse), 0.5f);
    // What is not finite may become any number, and negative ones must not be shifted.
    b->qs[j] = (gf_u8)((lo < 15 ? lo : 15) | (gf_u32)(hi < 15 ? hi : 15) << 4);
  }
}
