// tq1_0: 256 elements in 54 bytes, x = d * (q - 1), q in 0..2. A byte holds five digits of base
// three as a fraction of 256, rounded up: digit n is what times three carries out of the byte times
// 3^n. Byte l of the first 32 holds elements l + 32 n, of the next 16 elements 160 + l + 16 n, of
// the last 4 (with four digits) elements 240 + l + 4 n.
#pragma once

#include "tq2_0.h"

struct block_tq1_0 {
  enum { TYPE = 34, QK = 256 };
  gf_u8 qs[52];
  gf_u16 d;  // float16, the largest magnitude
};
static_assert(sizeof(block_tq1_0) == 54, "tq1_0 block");

// Where an element is: a byte and which of its digits.
struct gf_tq1_place {
  int byte, digit;
};
GF_HD gf_tq1_place gf_place_tq1_0(int i) {
  gf_tq1_place p;
  const int start = i < 160 ? 0 : i < 240 ? 160 : 240, n = i < 160 ? 32 : i < 240 ? 16 : 4;
  p.byte = (i < 160 ? 0 : i < 240 ? 32 : 48) + (i - start) % n;
  p.digit = (i - start) / n;
  return p;
}
GF_HD gf_u32 gf_power_of_3(int n) {
  return n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
}

GF_HD void dequantize_block(const block_tq1_0* b, float* y) {
  const float d = gf_f16_to_f32(b->d);
  for (int i = 0; i < 256; ++i) {
    const gf_tq1_place p = gf_place_tq1_0(i);
    const gf_u32 rest = b->qs[p.byte] * gf_power_of_3(p.digit) & 255;
    y[i] = d * (float)((int)(rest * 3 >> 8) - 1);
  }
}

GF_HD void gf_quantize_tq1_0(const float* x, block_tq1_0* b) {
  const float d = gf_largest_of_256(x), inverse = gf_inverse(d);
  gf_u16 number[52];
  b->d = gf_f32_to_f16(d);
  for (int i = 0; i < 52; ++i) number[i] = 0;
  for (int i = 0; i < 256; ++i) {
    const gf_tq1_place p = gf_place_tq1_0(i);
    const int digit = gf_ternary(gf_mul(x[i], inverse));
    number[p.byte] = (gf_u16)(number[p.byte] + digit * (int)gf_power_of_3(4 - p.digit));
  }
  for (int i = 0; i < 52; ++i) b->qs[i] = (gf_u8)((number[i] * 256 + 242) / 243);
}
