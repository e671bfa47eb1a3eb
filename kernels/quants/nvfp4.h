// nvfp4: 64 elements in 36 bytes: 4 sub-blocks of 16, x = scale / 2 * value[q], FP4 E2M1 values
// doubled. A scale is an FP8 E4M3 without a sign, of which 0x7F counts as zero. Byte j of a
// sub-block's eight holds element j in its low half and element j + 8 in its high.
#pragma once

#include "codebook.h"

struct block_nvfp4 {
  enum { TYPE = 40, QK = 64 };
  gf_u8 d[4];
  gf_u8 qs[32];
};
static_assert(sizeof(block_nvfp4) == 36, "nvfp4 block");

// Half the E4M3 number: the bits are those of a float16 times 2^8.
GF_HD float gf_half_e4m3(gf_u32 b) {
  return b == 0x7F ? 0.0f : gf_f16_to_f32((gf_u16)((b & 0x7F) << 7)) * 128.0f;
}

// E4M3 of a number that is not negative: halves round up, what is too large becomes 448.
GF_HD gf_u8 gf_to_e4m3(float x) {
  if (!(x > 0.0f)) return 0;
  x = x > 448.0f ? 448.0f : x;
  const gf_u32 bits = gf_bits_of(x);
  if (bits >> 23 <= 120) {
    const int tiny = (int)(x * 512.0f + 0.5f);
    return (gf_u8)(tiny < 7 ? tiny : 7);
  }
  const gf_u32 rounded = (bits >> 20) + (bits >> 19 & 1) - (120 << 3);
  return (gf_u8)(rounded < 0x7E ? rounded : 0x7E);
}

GF_HD void dequantize_block(const block_nvfp4* b, float* y) {
  for (int s = 0; s < 4; ++s, y += 16) {
    const float d = gf_half_e4m3(b->d[s]);
    for (int j = 0; j < 8; ++j) {
      y[j] = d * (float)gf_fp4_values[b->qs[8 * s + j] & 15];
      y[j + 8] = d * (float)gf_fp4_values[b->qs[8 * s + j] >> 4];
    }
  }
}

GF_HD void gf_quantize_nvfp4(const float* x, block_nvfp4* b) {
  for (int s = 0; s < 4; ++s, x += 16) {
    float most = 0.0f;
    for (int j = 0; j < 16; ++j) most = gf_abs(x[j]) > most ? gf_abs(x[j]) : most;
    b->d[s] = gf_to_e4m3(most / 6.0f);
    const float d = gf_half_e4m3(b->d[s]);
    for (int j = 0; j < 8; ++j) {
      b->qs[8 * s + j] = (gf_u8)(gf_nearest_fp4(x[j], d) | gf_nearest_fp4(x[j + 8], d) << 4);
    }
  }
}
