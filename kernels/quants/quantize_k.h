// Quantizers of the K-quants: search a scale (and minimum) for each sub-block, quantize those to
// their own few bits, then round the elements against what the decoder will see.
// CUDA compiles this with -fmad=false, so that it gives the bytes of the CPU.
#pragma once

#include "q2_k.h"
#include "q3_k.h"
#include "q4_k.h"
#include "q5_k.h"
#include "q6_k.h"
#include "search.h"

// A super-block of W sub-blocks of N elements, element by element: [j][s] as search.h wants it.
template <int N, int W>
GF_HD void gf_load_lanes(const float* x, float* lanes) {
  GF_ROLLED
  for (int j = 0; j < N; ++j) {
    GF_ROLLED
    for (int s = 0; s < W; ++s) lanes[j * W + s] = x[s * N + j];
  }
}

// Scales or mins, none negative, to codes 0..top of a common float16 unit, which is returned.
template <int W>
GF_HD gf_u16 gf_quantize_unsigned(const float (&v)[W], float top, gf_u8 (&code)[W]) {
  float largest = 0.0f;
  GF_ROLLED
  for (int s = 0; s < W; ++s) largest = v[s] > largest ? v[s] : largest;
  const float inverse = largest > GF_TINY_RANGE ? top / largest : 0.0f;
  GF_ROLLED
  for (int s = 0; s < W; ++s) code[s] = (gf_u8)gf_round_within(inverse * v[s], 0.0f, top);
  return gf_f32_to_f16(largest / top);
}

// Signed scales to codes -top..top-1 of a common float16 unit, which is returned; the scale of
// largest magnitude becomes -top exactly.
template <int W>
GF_HD gf_u16 gf_quantize_signed(const float (&v)[W], float top, gf_i8 (&code)[W]) {
  float largest = 0.0f;
  GF_ROLLED
  for (int s = 0; s < W; ++s) largest = gf_abs(v[s]) > gf_abs(largest) ? v[s] : largest;
  const bool zero = gf_abs(largest) < GF_TINY_GROUP;
  const float inverse = zero ? 0.0f : -top / largest;
  GF_ROLLED
  for (int s = 0; s < W; ++s) code[s] = (gf_i8)gf_round_within(inverse * v[s], -top, top - 1.0f);
  return gf_f32_to_f16(zero ? 0.0f : 1.0f / inverse);
}

// code[j] = round((x[j] + min) / scale) in lo..hi, less lo; a zero scale decodes any code alike.
GF_HD void gf_quantize_elements(const float* x, int n, float scale, float min, float lo, float hi,
                                gf_u8* code) {
  if (scale == 0.0f) scale = gf_float_of(0x7F800000u);
  GF_ROLLED
  for (int j = 0; j < n; ++j) {
    code[j] = (gf_u8)(int)(gf_round_within((x[j] + min) / scale, lo, hi) - lo);
  }
}

// Two-bit fields as q2_K, q3_K and q6_K keep them: byte l of each 32 holds elements l, l + 32, ...
GF_HD void gf_pack_two_bits(const gf_u8* code, gf_u8* out) {
  for (int half = 0; half < 2; ++half, code += 128, out += 32) {
    GF_ROLLED
    for (int l = 0; l < 32; ++l) {
      out[l] = (gf_u8)((code[l] & 3) | (code[l + 32] & 3) << 2 | (code[l + 64] & 3) << 4 |
                       (code[l + 96] & 3) << 6);
    }
  }
}

// What q4_K and q5_K share: scales, mins and the unpacked codes 0..top of a super-block.
template <class Block>
GF_HD void gf_quantize_k4(const float* x, gf_affine_search search, Block* b, gf_u8* code) {
  float lanes[256], w[256], rms[8], scale[8], min[8];
  gf_load_lanes<32, 8>(x, lanes);
  gf_root_mean_square<32, 8>(lanes, rms);
  GF_ROLLED
  for (int i = 0; i < 256; ++i) w[i] = rms[i % 8] + gf_abs(lanes[i]);
  gf_search_affine<32, 8>(lanes, w, search, scale, min);
  gf_u8 scale_code[8], min_code[8];
  b->d = gf_quantize_unsigned(scale, 63.0f, scale_code);
  b->dmin = gf_quantize_unsigned(min, 63.0f, min_code);
  gf_pack_k4(scale_code, min_code, b->scales);
  const float d = gf_f16_to_f32(b->d), dmin = gf_f16_to_f32(b->dmin);
  GF_ROLLED
  for (int s = 0; s < 8; ++s) {
    gf_quantize_elements(x + 32 * s, 32, d * (float)scale_code[s], dmin * (float)min_code[s], 0.0f,
                         search.top, code + 32 * s);
  }
}

// Low nibbles as q4_K and q5_K keep them: sub-blocks 2i and 2i + 1 share 32 bytes.
GF_HD void gf_pack_nibbles(const gf_u8* code, gf_u8* out) {
  for (int pair = 0; pair < 4; ++pair, code += 64, out += 32) {
    GF_ROLLED
    for (int l = 0; l < 32; ++l) out[l] = (gf_u8)((code[l] & 15) | (code[l + 32] & 15) << 4);
  }
}

GF_HD void gf_quantize_q2_K(const float* x, block_q2_K* b) {
  float lanes[256], w[256], scale[16], min[16];
  gf_load_lanes<16, 16>(x, lanes);
  GF_ROLLED
  for (int i = 0; i < 256; ++i) w[i] = gf_abs(lanes[i]);
  gf_search_affine<16, 16>(lanes, w, {3.0f, -0.5f, 0.1f, 16, true}, scale, min);
  gf_u8 scale_code[16], min_code[16], code[256];
  b->d = gf_quantize_unsigned(scale, 15.0f, scale_code);
  b->dmin = gf_quantize_unsigned(min, 15.0f, min_code);
  const float d = gf_f16_to_f32(b->d), dmin = gf_f16_to_f32(b->dmin);
  GF_ROLLED
  for (int s = 0; s < 16; ++s) {
    b->scales[s] = (gf_u8)(scale_code[s] | min_code[s] << 4);
    gf_quantize_elements(x + 16 * s, 16, d * (float)scale_code[s], dmin * (float)min_code[s], 0.0f,
                         3.0f, code + 16 * s);
  }
  gf_pack_two_bits(code, b->qs);
}

GF_HD void gf_quantize_q3_K(const float* x, block_q3_K* b) {
  float lanes[256], w[256], scale[16];
  gf_load_lanes<16, 16>(x, lanes);
  GF_ROLLED
  for (int i = 0; i < 256; ++i) w[i] = lanes[i] * lanes[i];
  gf_search_coordinate<16, 16>(lanes, w, 4.0f, scale);
  gf_i8 scale_code[16];
  gf_u8 code[256];
  b->d = gf_quantize_signed(scale, 32.0f, scale_code);
  for (int i = 0; i < 12; ++i) b->scales[i] = 0;
  GF_ROLLED
  for (int s = 0; s < 16; ++s) {
    const int six = scale_code[s] + 32;
    b->scales[s % 8] |= (gf_u8)((six & 15) << (s / 8 * 4));
    b->scales[8 + s % 4] |= (gf_u8)((six >> 4) << (s / 4 * 2));
  }
  const float d = gf_f16_to_f32(b->d);
  GF_ROLLED
  for (int s = 0; s < 16; ++s) {
    gf_quantize_elements(x + 16 * s, 16, d * (float)scale_code[s], 0.0f, -4.0f, 3.0f,
                         code + 16 * s);
  }
  gf_pack_two_bits(code, b->qs);
  GF_ROLLED
  for (int i = 0; i < 32; ++i) {
    int high = 0;
    GF_ROLLED
    for (int bit = 0; bit < 8; ++bit) high |= (code[32 * bit + i] >> 2) << bit;
    b->hmask[i] = (gf_u8)high;
  }
}

GF_HD void gf_quantize_q4_K(const float* x, block_q4_K* b) {
  gf_u8 code[256];
  gf_quantize_k4(x, {15.0f, -1.0f, 0.1f, 21, false}, b, code);
  gf_pack_nibbles(code, b->qs);
}

GF_HD void gf_quantize_q5_K(const float* x, block_q5_K* b) {
  gf_u8 code[256];
  gf_quantize_k4(x, {31.0f, -0.5f, 0.1f, 16, false}, b, code);
  gf_pack_nibbles(code, b->qs);
  GF_ROLLED
  for (int j = 0; j < 32; ++j) {
    int high = 0;
    GF_ROLLED
    for (int s = 0; s < 8; ++s) high |= (code[32 * s + j] >> 4) << s;
    b->qh[j] = (gf_u8)high;
  }
}

GF_HD void gf_quantize_q6_K(const float* x, block_q6_K* b) {
  float lanes[256], w[256], scale[16];
  gf_load_lanes<16, 16>(x, lanes);
  GF_ROLLED
  for (int i = 0; i < 256; ++i) w[i] = lanes[i] * lanes[i];
  gf_search_symmetric<16, 16>(lanes, w, 32.0f, scale);
  gf_u8 code[256];
  b->d = gf_quantize_signed(scale, 128.0f, b->scales);
  const float d = gf_f16_to_f32(b->d);
  GF_ROLLED
  for (int s = 0; s < 16; ++s) {
    gf_quantize_elements(x + 16 * s, 16, d * (float)b->scales[s], 0.0f, -32.0f, 31.0f,
                         code + 16 * s);
  }
  for (int half = 0; half < 2; ++half) {
    const gf_u8* c = code + 128 * half;
    gf_u8* ql = b->ql + 64 * half;
    GF_ROLLED
    for (int l = 0; l < 64; ++l) ql[l] = (gf_u8)((c[l] & 15) | (c[l + 64] & 15) << 4);
  }
  GF_ROLLED
  for (int i = 0; i < 256; ++i) code[i] >>= 4;
  gf_pack_two_bits(code, b->qh);
}
