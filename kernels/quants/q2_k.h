// q2_K: 256 elements in 84 bytes: 16 sub-blocks of 16, x = d * scale * q - dmin * min, q in 0..3.
// scales[s] holds scale s in its low half and min s in its high half. In each half of 128 elements,
// byte l of 32 holds elements l, l + 32, l + 64, l + 96, two bits each.
#pragma once

#include "common.h"

struct block_q2_K {
  enum { TYPE = 10, QK = 256 };
  gf_u8 scales[16];
  gf_u8 qs[64];
  gf_u16 d;     // float16 scale of the scales
  gf_u16 dmin;  // float16 scale of the mins
};
static_assert(sizeof(block_q2_K) == 84, "q2_K block");

GF_HD void dequantize_block(const block_q2_K* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  const float dmin = gf_f16_to_f32(b->dmin);
  for (int s = 0; s < 16; ++s) {
    const float scale = d * (float)(b->scales[s] & 15);
    const float min = dmin * (float)(b->scales[s] >> 4);
    const gf_u8* q = b->qs + s / 8 * 32 + s % 2 * 16;
    const int shift = s / 2 % 4 * 2;
    for (int j = 0; j < 16; ++j) y[16 * s + j] = scale * (float)((q[j] >> shift) & 3) - min;
  }
}
