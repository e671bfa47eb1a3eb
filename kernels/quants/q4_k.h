// q4_K: 256 elements in 144 bytes: 8 sub-blocks of 32, x = d * scale * q - dmin * min, q in 0..15.
// Each 32 bytes of qs hold two sub-blocks: the even one in the low halves, the odd one in the high.
#pragma once

#include "scales_k4.h"

struct block_q4_K {
  enum { TYPE = 12, QK = 256 };
  gf_u16 d;     // float16 scale of the scales
  gf_u16 dmin;  // float16 scale of the mins
  gf_u8 scales[12];
  gf_u8 qs[128];
};
static_assert(sizeof(block_q4_K) == 144, "q4_K block");

GF_HD void dequantize_block(const block_q4_K* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  const float dmin = gf_f16_to_f32(b->dmin);
  for (int s = 0; s < 8; ++s) {
    const float scale = d * (float)gf_scale_k4(b->scales, s);
    const float min = dmin * (float)gf_min_k4(b->scales, s);
    const gf_u8* q = b->qs + s / 2 * 32;
    const int shift = s % 2 * 4;
    for (int j = 0; j < 32; ++j) y[32 * s + j] = scale * (float)((q[j] >> shift) & 15) - min;
  }
}
