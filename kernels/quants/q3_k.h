// q3_K: 256 elements in 110 bytes: 16 sub-blocks of 16, x = d * (scale - 32) * (q - 4), q in 0..7.
// The low two bits of q lie as in q2_K; bit i / 32 of hmask[i % 32] is the third bit of element i.
// Scales have six bits: low four in scales[s % 8] (low half for s < 8, high half after), high two
// in scales[8 + s % 4] at bit 2 * (s / 4).
#pragma once

#include "common.h"

struct block_q3_K {
  enum { TYPE = 11, QK = 256 };
  gf_u8 hmask[32];
  gf_u8 qs[64];
  gf_u8 scales[12];
  gf_u16 d;  // float16 scale of the scales
};
static_assert(sizeof(block_q3_K) == 110, "q3_K block");

// Scale of sub-block s, in -32..31.
GF_HD int gf_scale_q3_K(const gf_u8* scales, int s) {
  const int low = (scales[s % 8] >> (s / 8 * 4)) & 15;
  const int high = (scales[8 + s % 4] >> (s / 4 * 2)) & 3;
  return (low | (high << 4)) - 32;
}

GF_HD void dequantize_block(const block_q3_K* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  for (int s = 0; s < 16; ++s) {
    const float scale = d * (float)gf_scale_q3_K(b->scales, s);
    const gf_u8* q = b->qs + s / 8 * 32 + s % 2 * 16;
    const gf_u8* h = b->hmask + s % 2 * 16;
    const int shift = s / 2 % 4 * 2;
    for (int j = 0; j < 16; ++j) {
      const int low = (q[j] >> shift) & 3;
      const int high = (h[j] >> (s / 2)) & 1;
      y[16 * s + j] = scale * (float)((low | (high << 2)) - 4);
    }
  }
}
