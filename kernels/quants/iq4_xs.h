// iq4_xs: 256 elements in 136 bytes: 8 sub-blocks of 32, x = d * (scale - 32) * value[q]. The low
// four bits of scale s are a half of scales_l[s / 2], the high two are at bit 2 s of scales_h;
// codes of each sub-block lie as those of q4_0.
#pragma once

#include "codebook.h"

struct block_iq4_xs {
  enum { TYPE = 23, QK = 256 };
  gf_u16 d;  // float16 scale of the scales
  gf_u16 scales_h;
  gf_u8 scales_l[4];
  gf_u8 qs[128];
};
static_assert(sizeof(block_iq4_xs) == 136, "iq4_xs block");

// Scale of sub-block s, in -32..31.
GF_HD int gf_scale_iq4_xs(const block_iq4_xs* b, int s) {
  return ((b->scales_l[s / 2] >> (s % 2 * 4) & 15) | (b->scales_h >> (2 * s) & 3) << 4) - 32;
}

GF_HD void dequantize_block(const block_iq4_xs* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  for (int s = 0; s < 8; ++s, y += 32) {
    const float scale = d * (float)gf_scale_iq4_xs(b, s);
    for (int j = 0; j < 16; ++j) {
      y[j] = scale * (float)gf_iq4_values[b->qs[16 * s + j] & 15];
      y[j + 16] = scale * (float)gf_iq4_values[b->qs[16 * s + j] >> 4];
    }
  }
}

GF_HD void gf_quantize_iq4_xs(const float* x, block_iq4_xs* b) {
  float scales[8], most = 0.0f;
  GF_ROLLED
  for (int s = 0; s < 8; ++s) {
    scales[s] = gf_search_iq4(x + 32 * s);
    if (gf_abs(scales[s]) > gf_abs(most)) most = scales[s];
  }
  const float d = -most / 32.0f, inverse = gf_inverse(d);
  b->d = gf_f32_to_f16(d);
  b->scales_h = 0;
  for (int i = 0; i < 4; ++i) b->scales_l[i] = 0;
  GF_ROLLED
  for (int s = 0; s < 8; ++s) {
    const int code = (int)gf_round_within(inverse * scales[s], -32.0f, 31.0f);
    b->scales_l[s / 2] = (gf_u8)(b->scales_l[s / 2] | ((code + 32) & 15) << (s % 2 * 4));
    b->scales_h = (gf_u16)(b->scales_h | (code + 32) >> 4 << (2 * s));
    gf_pack_iq4(x + 32 * s, gf_inverse(d * (float)code), b->qs + 16 * s);
  }
}
