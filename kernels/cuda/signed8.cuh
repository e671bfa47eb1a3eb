// Eight neighbouring elements of a block as signed bytes and a scale, x = scale * byte: the types
// whose codes are looked up in tables of sixteen values or name rows of grids, and the ternary
// ones. A byte permutation looks up eight bytes at a time. What int8 products start from as well.
#pragma once

#include "cuda/common.cuh"
#include "quants/iq1_m.h"
#include "quants/iq1_s.h"
#include "quants/iq2_s.h"
#include "quants/iq2_xs.h"
#include "quants/iq2_xxs.h"
#include "quants/iq3_s.h"
#include "quants/iq3_xxs.h"
#include "quants/iq4_nl.h"
#include "quants/iq4_xs.h"
#include "quants/mxfp4.h"
#include "quants/nvfp4.h"
#include "quants/tq1_0.h"
#include "quants/tq2_0.h"

struct Signed8 {
  u32 lo, hi;  // elements 0..3 and 4..7
  float scale;
};

// What is true of a type's values: the largest magnitude, and whether halves of 32 have a scale
// each. Only types of this file are SIGNED.
template <class W>
struct SignedKind {
  static constexpr bool SIGNED = false, SPLIT = false;
  static constexpr int MOST = 0;
};
template <int M, bool S>
struct SignedKindOf {
  static constexpr bool SIGNED = true, SPLIT = S;
  static constexpr int MOST = M;
};
template <>
struct SignedKind<block_iq4_nl> : SignedKindOf<127, false> {};
template <>
struct SignedKind<block_iq4_xs> : SignedKindOf<127, false> {};
template <>
struct SignedKind<block_mxfp4> : SignedKindOf<12, false> {};
template <>
struct SignedKind<block_nvfp4> : SignedKindOf<12, true> {};
template <>
struct SignedKind<block_tq1_0> : SignedKindOf<1, false> {};
template <>
struct SignedKind<block_tq2_0> : SignedKindOf<1, false> {};
template <>
struct SignedKind<block_iq2_xxs> : SignedKindOf<43, false> {};
template <>
struct SignedKind<block_iq2_xs> : SignedKindOf<43, true> {};
template <>
struct SignedKind<block_iq2_s> : SignedKindOf<43, true> {};
template <>
struct SignedKind<block_iq3_xxs> : SignedKindOf<62, false> {};
template <>
struct SignedKind<block_iq3_s> : SignedKindOf<15, false> {};
template <>
struct SignedKind<block_iq1_s> : SignedKindOf<9, false> {};
template <>
struct SignedKind<block_iq1_m> : SignedKindOf<9, true> {};

// Four bytes at any address, and at an even one.
__device__ __forceinline__ u32 word_at1(const gf_u8* p) { return gf_load_u32(p); }
__device__ __forceinline__ u32 half_words_at(const gf_u8* p) {
  const gf_u16* const h = reinterpret_cast<const gf_u16*>(p);
  return h[0] | (u32)h[1] << 16;
}

// -- tables of sixteen values --------------------------------------------------------------------

struct Table16 {
  u32 v[4];  // values 0..3, 4..7, ..
};
__device__ __forceinline__ Table16 iq4_table() {
  return {{0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u}};
}
__device__ __forceinline__ Table16 fp4_table() {
  return {{0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu}};
}

// The values of eight codes of four bits: of the low halves of the bytes of w, and of the high. A
// permutation reads three bits of a code (the fourth would repeat a sign); a last one picks by it.
__device__ __forceinline__ void look_up(const Table16& t, u32 w, u32* low, u32* high) {
  const u32 three = w & 0x77777777u, pick = 0x32103210u | (w & 0x88888888u) >> 1;
  const u32 a =
      __byte_perm(__byte_perm(t.v[0], t.v[1], three), __byte_perm(t.v[2], t.v[3], three), pick);
  const u32 b = __byte_perm(__byte_perm(t.v[0], t.v[1], three >> 16),
                            __byte_perm(t.v[2], t.v[3], three >> 16), pick >> 16);
  *low = __byte_perm(a, b, 0x6420);
  *high = __byte_perm(a, b, 0x7531);
}

// Eight elements whose codes are the low (shift 0) or high (shift 4) halves of two words.
__device__ __forceinline__ Signed8 looked_up(const Table16& t, u32 w0, u32 w1, int shift,
                                             float scale) {
  Signed8 s;
  s.scale = scale;
  look_up(t, (w0 >> shift & 0x0F0F0F0Fu) | (w1 >> shift & 0x0F0F0F0Fu) << 4, &s.lo, &s.hi);
  return s;
}

__device__ __forceinline__ Signed8 signed8(const block_iq4_nl* b, int c) {
  const gf_u8* const q = b->qs + c % 2 * 8;
  return looked_up(iq4_table(), half_words_at(q), half_words_at(q + 4), c / 2 * 4,
                   gf_f16_to_f32(b->d));
}
__device__ __forceinline__ Signed8 signed8(const block_iq4_xs* b, int c) {
  const gf_u8* const q = b->qs + c / 4 * 16 + c % 2 * 8;
  return looked_up(iq4_table(), half_words_at(q), half_words_at(q + 4), c % 4 / 2 * 4,
                   gf_f16_to_f32(b->d) * (float)gf_scale_iq4_xs(b, c / 4));
}
__device__ __forceinline__ Signed8 signed8(const block_mxfp4* b, int c) {
  const gf_u8* const q = b->qs + c % 2 * 8;
  return looked_up(fp4_table(), word_at1(q), word_at1(q + 4), c / 2 * 4, gf_half_power(b->e));
}
__device__ __forceinline__ Signed8 signed8(const block_nvfp4* b, int c) {
  const gf_u8* const q = b->qs + c / 2 * 8;
  return looked_up(fp4_table(), half_words_at(q), half_words_at(q + 4), c % 2 * 4,
                   gf_half_e4m3(b->d[c / 2]));
}

// -- ternary types -------------------------------------------------------------------------------

// Bytes below 3, less one: 0x80 keeps bytes from borrowing.
__device__ __forceinline__ u32 less_one(u32 w) {
  return ((w | 0x80808080u) - 0x01010101u) ^ 0x80808080u;
}

__device__ __forceinline__ Signed8 signed8(const block_tq2_0* b, int c) {
  const gf_u8* const q = b->qs + c / 16 * 32 + c % 4 * 8;
  const int shift = c / 4 % 4 * 2;
  return {less_one(half_words_at(q) >> shift & 0x03030303u),
          less_one(half_words_at(q + 4) >> shift & 0x03030303u), gf_f16_to_f32(b->d)};
}

// Digit `power` = 3^n of four bytes: even and odd bytes go by 16 bits.
__device__ __forceinline__ u32 digits(u32 w, u32 power) {
  const u32 even = (w & 0x00FF00FFu) * power & 0x00FF00FFu;
  const u32 odd = (w >> 8 & 0x00FF00FFu) * power & 0x00FF00FFu;
  return less_one((even * 3 >> 8 & 0x00030003u) | (odd * 3 & 0x03000300u));
}
__device__ __forceinline__ Signed8 signed8(const block_tq1_0* b, int c) {
  const float d = gf_f16_to_f32(b->d);
  if (c < 30) {
    const int n = c < 20 ? c / 4 : (c - 20) / 2;
    const gf_u8* const q = b->qs + (c < 20 ? c % 4 * 8 : 32 + c % 2 * 8);
    const u32 power = gf_power_of_3(n);
    return {digits(half_words_at(q), power), digits(half_words_at(q + 4), power), d};
  }
  const u32 w = half_words_at(b->qs + 48);
  const int n = (c - 30) * 2;
  return {digits(w, gf_power_of_3(n)), digits(w, gf_power_of_3(n + 1)), d};
}

// -- grids ---------------------------------------------------------------------------------------

// Bytes that are not zero, negative where one of four bits is set.
__device__ __forceinline__ u32 with_signs(u32 w, u32 signs) {
  const u32 one = ((signs & 15) * 0x00204081u) & 0x01010101u;
  return (w ^ one * 255u) + one;
}
// A row of eight of a grid of up to four values.
__device__ __forceinline__ Signed8 row_of_8(u32 codes, u32 values, u32 signs, float scale) {
  return {with_signs(__byte_perm(values, 0, codes), signs),
          with_signs(__byte_perm(values, 0, codes >> 16), signs >> 4), scale};
}
// Two rows of four of a grid of eight values.
__device__ __forceinline__ Signed8 rows_of_4(u32 lo, u32 hi, unsigned long long values, u32 signs,
                                             float scale) {
  const u32 a = (u32)values, b = (u32)(values >> 32);
  return {with_signs(__byte_perm(a, b, lo), signs), with_signs(__byte_perm(a, b, hi), signs >> 4),
          scale};
}

__device__ __forceinline__ Signed8 signed8(const block_iq2_xxs* b, int c) {
  const u32 tail = gf_tail_iq2_xxs(b, c / 4);
  return row_of_8(gf_grid_iq2_xxs[gf_row_iq2_xxs(b, c)], GF_IQ2_VALUES,
                  gf_even_signs(tail >> (7 * (c % 4)) & 127), gf_scale_iq2_xxs(b, tail));
}
__device__ __forceinline__ Signed8 signed8(const block_iq2_xs* b, int c) {
  const u32 q = b->qs[c];
  return row_of_8(gf_grid_iq2_xs[q & 511], GF_IQ2_VALUES, gf_even_signs(q >> 9),
                  gf_quarter_scale(b->d, b->scales, c / 2));
}
__device__ __forceinline__ Signed8 signed8(const block_iq2_s* b, int c) {
  return row_of_8(gf_grid_iq2_s[gf_row_iq2_s(b, c)], GF_IQ2_VALUES, b->signs[c],
                  gf_quarter_scale(b->d, b->scales, c / 2));
}
__device__ __forceinline__ Signed8 signed8(const block_iq3_xxs* b, int c) {
  const u32 tail = gf_tail_iq3_xxs(b, c / 4);
  return rows_of_4(gf_grid_iq3_xxs[b->qs[2 * c]], gf_grid_iq3_xxs[b->qs[2 * c + 1]],
                   GF_IQ3_XXS_VALUES, gf_even_signs(tail >> (7 * (c % 4)) & 127),
                   gf_scale_iq3_xxs(b, tail));
}
__device__ __forceinline__ Signed8 signed8(const block_iq3_s* b, int c) {
  return rows_of_4(gf_grid_iq3_s[gf_row_iq3_s(b, 2 * c)], gf_grid_iq3_s[gf_row_iq3_s(b, 2 * c + 1)],
                   GF_IQ3_S_VALUES, b->signs[c], gf_scale_iq3_s(b, c / 4));
}
__device__ __forceinline__ Signed8 signed8(const block_iq1_s* b, int c) {
  const u32 values = b->qh[c / 4] >> 15 ? GF_IQ1_BELOW : GF_IQ1_ABOVE;
  return row_of_8(gf_grid_iq1[gf_row_iq1_s(b, c)], values, 0, gf_scale_iq1_s(b, c / 4));
}
__device__ __forceinline__ Signed8 signed8(const block_iq1_m* b, int c) {
  const u32 values = b->qh[c / 2] >> (c % 2 * 4 + 3) & 1 ? GF_IQ1_BELOW : GF_IQ1_ABOVE;
  return row_of_8(gf_grid_iq1[gf_row_iq1_m(b, c)], values, 0, gf_scale_iq1_m(b, c / 2));
}
