// mxfp4: 32 elements in 17 bytes, x = 2^(e - 128) * value[q] (OCP Microscaling Formats 1.0, values
// doubled). Codes lie as those of q4_0.
#pragma once

#include "codebook.h"

struct block_mxfp4 {
  enum { TYPE = 39, QK = 32 };
  gf_u8 e;
  gf_u8 qs[16];
};
static_assert(sizeof(block_mxfp4) == 17, "mxfp4 block");

// 2^(e - 128); the two least are subnormal.
GF_HD float gf_half_power(gf_u32 e) {
  return gf_float_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

GF_HD void dequantize_block(const block_mxfp4* b, float* y) {
  const float d = gf_half_power(b->e);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * (float)gf_fp4_values[b->qs[j] & 15];
    y[j + 16] = d * (float)gf_fp4_values[b->qs[j] >> 4];
  }
}

GF_HD void gf_quantize_mxfp4(const float* x, block_mxfp4* b) {
  float most = 0.0f;
  for (int j = 0; j < 32; ++j) most = gf_abs(x[j]) > most ? gf_abs(x[j]) : most;
  int e = 0;
  if (most > 0.0f) {
    const float power = (float)gf_log2((double)most);
    e = (int)power;  // rounded down
    e += 125 - ((float)e > power);
    e = e < 0 ? 0 : e > 254 ? 254 : e;
  }
  const float d = gf_half_power((gf_u32)e);
  b->e = (gf_u8)e;
  for (int j = 0; j < 16; ++j) {
    b->qs[j] = (gf_u8)(gf_nearest_fp4(x[j], d) | gf_nearest_fp4(x[j + 16], d) << 4);
  }
}
