// q5_1: 32 elements in 24 bytes, x = d * q + m with q in 0..31. Bits as in q5_0.
#pragma once

#include "common.h"

struct block_q5_1 {
  enum { TYPE = 7, QK = 32 };
  gf_u16 d;  // float16 scale
  gf_u16 m;  // float16 minimum
  gf_u8 qh[4];
  gf_u8 qs[16];
};
static_assert(sizeof(block_q5_1) == 24, "q5_1 block");

GF_HD void dequantize_block(const block_q5_1* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  const float m = gf_f16_to_f32(b->m);
  const gf_u32 qh = gf_load_u32(b->qh);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * (float)(int)((b->qs[j] & 15) | (((qh >> j) & 1) << 4)) + m;
    y[j + 16] = d * (float)(int)((b->qs[j] >> 4) | (((qh >> (j + 16)) & 1) << 4)) + m;
  }
}

GF_HD void quantize_block(const float* x, block_q5_1* b) {
  float least = x[0], most = x[0];
  for (int j = 1; j < 32; ++j) {
    least = x[j] < least ? x[j] : least;
    most = x[j] > most ? x[j] : most;
  }
  const float d = gf_div(gf_add(most, -least), 31.0f);
  const float inverse = gf_inverse(d);
  b->d = gf_f32_to_f16(d);
  b->m = gf_f32_to_f16(least);
  gf_u32 qh = 0;
  for (int j = 0; j < 16; ++j) {
    int lo = (int)gf_add(gf_mul(gf_add(x[j], -least), inverse), 0.5f);
    int hi = (int)gf_add(gf_mul(gf_add(x[j + 16], -least), inverse), 0.5f);
    lo = lo < 31 ? lo : 31;
    hi = hi < 31 ? hi : 31;
    b->qs[j] = (gf_u8)((lo & 15) | ((hi & 15) << 4));
    qh |= (gf_u32)((lo >> 4) & 1) << j | (gf_u32)((hi >> 4) & 1) << (j + 16);
  }
  gf_store_u32(b->qh, qh);
}
