// What the types share whose codes name rows of a grid: eight elements are a row (or two of four),
// signs, and a scale. Each has `gf_grid8(b, c, v)`: elements 8 c to 8 c + 7 are scale * v, with the
// scale returned.
#pragma once

#include "common.h"

// Eight signs from seven: the eighth makes the negative ones even.
GF_HD gf_u32 gf_even_signs(gf_u32 seven) {
  gf_u32 x = seven ^ seven >> 4;
  x ^= x >> 2;
  x ^= x >> 1;
  return seven | (x & 1) << 7;
}

// Element i is entry (codes >> 4 i & 15) of the bytes of `values`, negative where bit i of `signs`
// is set.
template <int N>
GF_HD void gf_grid_row(gf_u32 codes, unsigned long long values, gf_u32 signs, gf_i8* v) {
  for (int i = 0; i < N; ++i) {
    const int value = (gf_i8)(values >> (8 * (codes >> (4 * i) & 15)));
    v[i] = (gf_i8)(signs >> i & 1 ? -value : value);
  }
}

template <class B>
GF_HD void gf_dequantize_grid(const B* b, float* y) {
  for (int c = 0; c < B::QK / 8; ++c) {
    gf_i8 v[8];
    const float scale = gf_grid8(b, c, v);
    for (int i = 0; i < 8; ++i) y[8 * c + i] = scale * (float)v[i];
  }
}
