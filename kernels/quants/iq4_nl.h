// iq4_nl: 32 elements in 18 bytes, x = d * value[q]. Codes lie as those of q4_0.
#pragma once

#include "codebook.h"

struct block_iq4_nl {
  enum { TYPE = 20, QK = 32 };
  gf_u16 d;  // float16 scale
  gf_u8 qs[16];
};
static_assert(sizeof(block_iq4_nl) == 18, "iq4_nl block");

GF_HD void dequantize_block(const block_iq4_nl* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  for (int j = 0; j < 16; ++j) {
    y[j] = d * (float)gf_iq4_values[b->qs[j] & 15];
    y[j + 16] = d * (float)gf_iq4_values[b->qs[j] >> 4];
  }
}

GF_HD void gf_quantize_iq4_nl(const float* x, block_iq4_nl* b) {
  const float d = gf_search_iq4(x);
  b->d = gf_f32_to_f16(d);
  gf_pack_iq4(x, gf_inverse(d), b->qs);
}
