// Eight neighbouring elements of a quantized block as eight bytes, a scale and an offset:
// x = scale * byte + offset. What the tensor core kernel, the dequantizer and axpy_sparse start
// from; the blocks lie at addresses that are multiples of two.
#pragma once

#include "cuda/dequant.cuh"

struct Eight {
  u32 lo, hi;  // elements 0..3 and 4..7, below 128 unless `is_wide` says so of the type
  float scale, offset;
};

__device__ __forceinline__ u32 word_at2(const gf_u8* p) {
  const gf_u16* const h = reinterpret_cast<const gf_u16*>(p);
  return h[0] | (u32)h[1] << 16;
}
// Of blocks whose size is a multiple of four.
__device__ __forceinline__ u32 word_at4(const gf_u8* p) { return *reinterpret_cast<const u32*>(p); }
__device__ __forceinline__ u32 nibbles(u32 w, int shift) { return (w >> shift) & 0x0F0F0F0Fu; }
__device__ __forceinline__ u32 pairs(u32 w, int shift) { return (w >> shift) & 0x03030303u; }
__device__ __forceinline__ u32 bits(u32 w, int shift) { return (w >> shift) & 0x01010101u; }
// Bit i of b as byte i, for four bits.
__device__ __forceinline__ u32 spread(u32 b) { return ((b & 15) * 0x00204081u) & 0x01010101u; }

__device__ __forceinline__ Eight eight(const block_q4_0* b, int c) {
  const gf_u8* const q = b->qs + c % 2 * 8;
  const float d = gf_f16_to_f32(b->d);
  const int shift = c / 2 * 4;
  return {nibbles(word_at2(q), shift), nibbles(word_at2(q + 4), shift), d, -8.0f * d};
}
__device__ __forceinline__ Eight eight(const block_q4_1* b, int c) {
  const gf_u8* const q = b->qs + c % 2 * 8;
  const int shift = c / 2 * 4;
  return {nibbles(word_at2(q), shift), nibbles(word_at2(q + 4), shift), gf_f16_to_f32(b->d),
          gf_f16_to_f32(b->m)};
}
__device__ __forceinline__ Eight eight(const block_q5_0* b, int c) {
  const gf_u8* const q = b->qs + c % 2 * 8;
  const float d = gf_f16_to_f32(b->d);
  const int shift = c / 2 * 4, high = b->qh[c];
  return {nibbles(word_at2(q), shift) | spread(high) << 4,
          nibbles(word_at2(q + 4), shift) | spread(high >> 4) << 4, d, -16.0f * d};
}
__device__ __forceinline__ Eight eight(const block_q5_1* b, int c) {
  const gf_u8* const q = b->qs + c % 2 * 8;
  const int shift = c / 2 * 4, high = b->qh[c];
  return {nibbles(word_at2(q), shift) | spread(high) << 4,
          nibbles(word_at2(q + 4), shift) | spread(high >> 4) << 4, gf_f16_to_f32(b->d),
          gf_f16_to_f32(b->m)};
}
__device__ __forceinline__ Eight eight(const block_q8_0* b, int c) {
  const gf_u8* const q = reinterpret_cast<const gf_u8*>(b->qs) + 8 * c;
  const float d = gf_f16_to_f32(b->d);
  return {word_at2(q) ^ 0x80808080u, word_at2(q + 4) ^ 0x80808080u, d, -128.0f * d};
}
__device__ __forceinline__ Eight eight(const block_q2_K* b, int c) {
  const int s = c / 2, shift = s / 2 % 4 * 2;  // sub-blocks of 16
  const gf_u8* const q = b->qs + s / 8 * 32 + s % 2 * 16 + c % 2 * 8;
  return {pairs(word_at2(q), shift), pairs(word_at2(q + 4), shift),
          gf_f16_to_f32(b->d) * (float)(b->scales[s] & 15),
          -gf_f16_to_f32(b->dmin) * (float)(b->scales[s] >> 4)};
}
__device__ __forceinline__ Eight eight(const block_q3_K* b, int c) {
  const int s = c / 2, shift = s / 2 % 4 * 2;  // sub-blocks of 16
  const float scale = gf_f16_to_f32(b->d) * (float)gf_scale_q3_K(b->scales, s);
  const gf_u8* const q = b->qs + s / 8 * 32 + s % 2 * 16 + c % 2 * 8;
  const gf_u8* const h = b->hmask + s % 2 * 16 + c % 2 * 8;
  return {pairs(word_at2(q), shift) | bits(word_at2(h), s / 2) << 2,
          pairs(word_at2(q + 4), shift) | bits(word_at2(h + 4), s / 2) << 2, scale, -4.0f * scale};
}
__device__ __forceinline__ Eight eight(const block_q4_K* b, int c) {
  const int s = c / 4, shift = s % 2 * 4;  // sub-blocks of 32
  const gf_u8* const q = b->qs + s / 2 * 32 + c % 4 * 8;
  return {nibbles(word_at4(q), shift), nibbles(word_at4(q + 4), shift),
          gf_f16_to_f32(b->d) * (float)gf_scale_k4(b->scales, s),
          -gf_f16_to_f32(b->dmin) * (float)gf_min_k4(b->scales, s)};
}
__device__ __forceinline__ Eight eight(const block_q5_K* b, int c) {
  const int s = c / 4, shift = s % 2 * 4;  // sub-blocks of 32
  const gf_u8* const q = b->qs + s / 2 * 32 + c % 4 * 8;
  const gf_u8* const h = b->qh + c % 4 * 8;
  return {nibbles(word_at4(q), shift) | bits(word_at4(h), s) << 4,
          nibbles(word_at4(q + 4), shift) | bits(word_at4(h + 4), s) << 4,
          gf_f16_to_f32(b->d) * (float)gf_scale_k4(b->scales, s),
          -gf_f16_to_f32(b->dmin) * (float)gf_min_k4(b->scales, s)};
}
__device__ __forceinline__ Eight eight(const block_q6_K* b, int c) {
  const int s = c / 2, low = s / 4 % 2 * 4, high = s / 2 % 4 * 2;  // sub-blocks of 16
  const float scale = gf_f16_to_f32(b->d) * (float)b->scales[s];
  const gf_u8* const l = b->ql + s / 8 * 64 + s % 4 * 16 + c % 2 * 8;
  const gf_u8* const h = b->qh + s / 8 * 32 + s % 2 * 16 + c % 2 * 8;
  return {nibbles(word_at2(l), low) | pairs(word_at2(h), high) << 4,
          nibbles(word_at2(l + 4), low) | pairs(word_at2(h + 4), high) << 4, scale, -32.0f * scale};
}

// Signed bytes, made positive by adding the largest magnitude.
template <class W>
__device__ __forceinline__ Eight eight(const W* b, int c) {
  constexpr u32 MOST = SignedKind<W>::MOST, LESS = (128 - MOST) * 0x01010101u;
  const Signed8 s = signed8(b, c);
  return {(s.lo ^ 0x80808080u) - LESS, (s.hi ^ 0x80808080u) - LESS, s.scale,
          -(float)MOST * s.scale};
}

template <class W>
constexpr bool is_wide() {
  if constexpr (SignedKind<W>::SIGNED) return SignedKind<W>::MOST >= 64;
  return is_same<W, block_q8_0>::value;
}

// Byte I of w, below 128, plus 128: a float of the bits 0x43, the byte and zeros.
template <int I>
__device__ __forceinline__ float plus128(u32 w) {
  return gf_float_of(__byte_perm(w, 0x43u, 0x4055 | I << 8));
}
// Byte I of w: a float of the bits 0x4B0000 and the byte is 2^23 more.
template <int I>
__device__ __forceinline__ float byte_as_float(u32 w) {
  return gf_float_of(__byte_perm(w, 0x4Bu, 0x4550 | I)) - 8388608.0f;
}

// The elements as pairs of T, each rounded once. WIDE: bytes may be 128 and more.
template <class T, bool WIDE>
__device__ __forceinline__ uint4 rounded(const Eight& e) {
  if (WIDE) {
    const auto two = [&e](float a, float b) {
      return Float<T>::pair(fmaf(e.scale, a, e.offset), fmaf(e.scale, b, e.offset));
    };
    return {two(byte_as_float<0>(e.lo), byte_as_float<1>(e.lo)),
            two(byte_as_float<2>(e.lo), byte_as_float<3>(e.lo)),
            two(byte_as_float<0>(e.hi), byte_as_float<1>(e.hi)),
            two(byte_as_float<2>(e.hi), byte_as_float<3>(e.hi))};
  }
  // 24 bits hold a scale of 11 times 128; rounding the sum costs 2^-17 of a step at most.
  const float offset = fmaf(-128.0f, e.scale, e.offset);
  const auto two = [&e, offset](float a, float b) {
    return Float<T>::pair(fmaf(e.scale, a, offset), fmaf(e.scale, b, offset));
  };
  return {two(plus128<0>(e.lo), plus128<1>(e.lo)), two(plus128<2>(e.lo), plus128<3>(e.lo)),
          two(plus128<0>(e.hi), plus128<1>(e.hi)), two(plus128<2>(e.hi), plus128<3>(e.hi))};
}
