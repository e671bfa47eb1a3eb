// q6_K: 256 elements in 210 bytes: 16 sub-blocks of 16, x = d * scale * (q - 32), q in 0..63.
// In each half of 128 elements, 64 bytes of ql hold the low four bits (elements 0..63 in the low
// halves, 64..127 in the high) and 32 bytes of qh the high two (elements l, l + 32, l + 64, l +
// 96).
#pragma once

#include "common.h"

struct block_q6_K {
  enum { TYPE = 14, QK = 256 };
  gf_u8 ql[128];
  gf_u8 qh[64];
  gf_i8 scales[16];
  gf_u16 d;  // float16 scale of the scales
};
static_assert(sizeof(block_q6_K) == 210, "q6_K block");

GF_HD void dequantize_block(const block_q6_K* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  for (int s = 0; s < 16; ++s) {
    const float scale = d * (float)b->scales[s];
    const gf_u8* ql = b->ql + s / 8 * 64 + s % 4 * 16;
    const gf_u8* qh = b->qh + s / 8 * 32 + s % 2 * 16;
    const int low_shift = s / 4 % 2 * 4;
    const int high_shift = s / 2 % 4 * 2;
    for (int j = 0; j < 16; ++j) {
      const int low = (ql[j] >> low_shift) & 15;
      const int high = (qh[j] >> high_shift) & 3;
      y[16 * s + j] = scale * (float)((low | (high << 4)) - 32);
    }
  }
}
