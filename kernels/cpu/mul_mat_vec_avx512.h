// AVX-512 with VNNI: one register holds 4 bytes of each of 16 rows, one vpdpbusd advances 16 dot
// products by 4 elements, with the activation's 4 bytes broadcast straight from memory.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the don't-care operand inside its own intrinsics for a variable read too early.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include "cpu/mul_mat_util.h"
#include "cpu/simd.h"

namespace gf {

constexpr int kVecRows = 16;        // rows in a VecW or VecF
constexpr int kMaxTile = 16;        // columns a weight register is used for before it is dropped
constexpr bool kSignedDot = false;  // weights must be unsigned: q8_0 is shifted by 128
// Register tile of the float kernels, and the most columns the last one of a row may have.
constexpr bool kSignedFree = false;  // small signed weights cost nothing more
constexpr int kFloatRows = 4, kFloatCols = 4, kLastCols = 6;
constexpr bool kPairs = false;  // of columns, whose bytes lie interleaved
// Of columns that stay in the L1 cache beside the rows that stream through it.
constexpr int64_t kStayingBytes = 12 << 10;
constexpr int kFewColumns = 128;  // up to here converting rows beforehand does not pay

struct VecW {  // 16 rows x 4 unsigned bytes
  __m512i v;
};
struct VecF {  // 16 floats
  __m512 v;
};

GF_INLINE VecW load_w(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
GF_INLINE VecW and_w(VecW a, uint32_t m) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(m)))};
}
GF_INLINE VecW xor_w(VecW a, uint32_t m) {
  return {_mm512_xor_si512(a.v, _mm512_set1_epi32(static_cast<int>(m)))};
}
GF_INLINE VecW or_w(VecW a, VecW b) { return {_mm512_or_si512(a.v, b.v)}; }
// Shift of the 32-bit lanes: right when n > 0, left when n < 0.
template <int n>
GF_INLINE VecW shr_w(VecW a) {
  if constexpr (n > 0) return {_mm512_srli_epi32(a.v, n)};
  if constexpr (n < 0) return {_mm512_slli_epi32(a.v, -n)};
  return a;
}

// `bits` bits of each byte from bit `from` on, moved to bit `to`; the others zero.
template <int bits, int from, int to = 0>
GF_INLINE VecW field(VecW a) {
  return and_w(shr_w<from - to>(a), bytes4(((1 << bits) - 1) << to));
}
// The same put into w, whose bits from `to` up are zero.
template <int bits, int from, int to>
GF_INLINE VecW add_field(VecW w, VecW a) {
  return or_w(w, field<bits, from, to>(a));
}

// Each byte of codes, below 16, replaced by that entry of the table.
GF_INLINE VecW look_up(const uint8_t (&table)[16], VecW codes) {
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
  return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), codes.v)};
}

GF_INLINE VecF zero_f() { return {_mm512_setzero_ps()}; }
GF_INLINE VecF splat_f(float x) { return {_mm512_set1_ps(x)}; }
GF_INLINE VecF mul_f(VecF a, VecF b) { return {_mm512_mul_ps(a.v, b.v)}; }
GF_INLINE VecF fma_f(VecF a, VecF b, VecF c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
GF_INLINE VecF fnma_f(VecF a, VecF b, VecF c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
GF_INLINE VecF load_f(const float* p) { return {_mm512_loadu_ps(p)}; }
GF_INLINE void store_f(float* p, VecF a) { _mm512_storeu_ps(p, a.v); }
GF_INLINE VecF f16_rows(const uint8_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
GF_INLINE VecF u8_rows(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
GF_INLINE VecF i8_rows(const uint8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

// Dot products of one block of 32 with T columns: for each column c, emit(c, v0, v1) gets the sums
// of the first and second 16 elements, or of all 32 in v0 when L::kHalves is 1. A type with a bias
// starts its sums at init.
template <class L, int T, class Emit>
GF_INLINE void dot_columns(const VecW (&w)[8], const int8_t* a, const int32_t* init, Emit emit) {
  static_for<T>([&](auto c) GF_LAMBDA_INLINE {
    const int8_t* ac = a + 32 * c;
    VecF sums[2];
    static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
      constexpr int n = 8 / L::kHalves;
      __m512i s = L::kBias ? _mm512_set1_epi32(init[h * T + c]) : _mm512_setzero_si512();
      static_for<n>([&](auto i) GF_LAMBDA_INLINE {
        s = _mm512_dpbusd_epi32(s, w[h * n + i].v,
                                _mm512_set1_epi32(load_i32(ac + 4 * (h * n + i))));
      });
      sums[h].v = _mm512_cvtepi32_ps(s);
    });
    emit(c, sums[0], sums[L::kHalves - 1]);
  });
}

// q = round(x / d) of 32 floats to nearest even; sums of q over the two halves.
GF_INLINE float quantize_32(const float* x, int8_t* q, int32_t sums[2]) {
  const __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
  const __m512i b0 = _mm512_castps_si512(_mm512_abs_ps(x0));
  const __m512i b1 = _mm512_castps_si512(_mm512_abs_ps(x1));
  const uint32_t greatest = _mm512_reduce_max_epu32(_mm512_max_epu32(b0, b1));
  if (greatest >= kInfinity) return not_finite(q, sums);
  const float amax = float_of(greatest);
  const __m512 id = _mm512_set1_ps(inverse_step(amax));
  const __m512i q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, id));
  const __m512i q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, id));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(q0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16), _mm512_cvtsepi32_epi8(q1));
  sums[0] = _mm512_reduce_add_epi32(q0);
  sums[1] = _mm512_reduce_add_epi32(q1);
  return step(amax);
}

// -- 16 consecutive elements of a row of plain floats, and the sums over them

using VecL = VecF;

GF_INLINE __mmask16 first_n(int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }

struct RowF32 {
  using Elem = float;
  using Vec = VecF;
  using Column = RowF32;
  static constexpr int kStep = 16;
  static GF_INLINE VecF load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static GF_INLINE VecF load_first(const float* p, int64_t n) {
    return {_mm512_maskz_loadu_ps(first_n(n), p)};
  }
};
GF_INLINE VecF mul_add(VecF w, VecF x, VecF acc) { return fma_f(w, x, acc); }

struct RowF16 {
  using Elem = uint16_t;
  using Vec = VecF;
  using Column = RowF32;
  static constexpr int kStep = 16;
  static GF_INLINE VecF load(const uint16_t* p) {
    return f16_rows(reinterpret_cast<const uint8_t*>(p));
  }
  static GF_INLINE VecF load_first(const uint16_t* p, int64_t n) {
    return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_n(n), p))};
  }
};

struct RowBF16 {
  using Elem = uint16_t;
  using Vec = VecF;
  using Column = RowF32;
  static constexpr int kStep = 16;
  static GF_INLINE VecF widen(__m256i h) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
  }
  static GF_INLINE VecF load(const uint16_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static GF_INLINE VecF load_first(const uint16_t* p, int64_t n) {
    return widen(_mm256_maskz_loadu_epi16(first_n(n), p));
  }
};

// out[r] = the sum of the lanes of rows[r], 16 rows.
GF_INLINE void sum_lanes(const VecF* rows, float* out) {
  vf r[16];
  for (int i = 0; i < 16; ++i) r[i].v = rows[i].v;
  vf_store(out, vf_sum_each(r));
}

}  // namespace gf
