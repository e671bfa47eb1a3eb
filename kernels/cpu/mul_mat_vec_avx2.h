// AVX2: sixteen rows in two registers of eight; products of bytes are added up in 16 bits for as
// long as the weight type's range allows, then widened.
#pragma once

#include <immintrin.h>

#include "cpu/mul_mat_util.h"

namespace gf {

constexpr int kVecRows = 16;         // rows in a VecW or VecF
constexpr int kMaxTile = 4;          // columns an unpacked block of weights is used for
constexpr bool kSignedDot = true;    // q8_0 as |w| * (a with the sign of w)
constexpr bool kSignedFree = false;  // small signed weights cost nothing more
constexpr int kFloatRows = 2, kFloatCols = 2, kLastCols = 2;
constexpr bool kPairs = false;  // of columns, whose bytes lie interleaved
// Of columns that stay in the L1 cache beside the rows that stream through it.
constexpr int64_t kStayingBytes = 12 << 10;
constexpr int kFewColumns = 128;  // up to here converting rows beforehand does not pay

struct VecW {  // 16 rows x 4 unsigned bytes
  __m256i v[2];
};
struct VecF {  // 16 floats
  __m256 v[2];
};

GF_INLINE __m256i load_256(const void* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
GF_INLINE VecW load_w(const uint8_t* p) { return {{load_256(p), load_256(p + 32)}}; }
GF_INLINE VecW and_w(VecW a, uint32_t m) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(m));
  return {{_mm256_and_si256(a.v[0], mask), _mm256_and_si256(a.v[1], mask)}};
}
GF_INLINE VecW xor_w(VecW a, uint32_t m) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(m));
  return {{_mm256_xor_si256(a.v[0], mask), _mm256_xor_si256(a.v[1], mask)}};
}
GF_INLINE VecW or_w(VecW a, VecW b) {
  return {{_mm256_or_si256(a.v[0], b.v[0]), _mm256_or_si256(a.v[1], b.v[1])}};
}
// Shift of the 32-bit lanes: right when n > 0, left when n < 0.
template <int n>
GF_INLINE VecW shr_w(VecW a) {
  if constexpr (n > 0) return {{_mm256_srli_epi32(a.v[0], n), _mm256_srli_epi32(a.v[1], n)}};
  if constexpr (n < 0) return {{_mm256_slli_epi32(a.v[0], -n), _mm256_slli_epi32(a.v[1], -n)}};
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
  const __m256i t =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table)));
  return {{_mm256_shuffle_epi8(t, codes.v[0]), _mm256_shuffle_epi8(t, codes.v[1])}};
}

GF_INLINE VecF zero_f() { return {{_mm256_setzero_ps(), _mm256_setzero_ps()}}; }
GF_INLINE VecF splat_f(float x) { return {{_mm256_set1_ps(x), _mm256_set1_ps(x)}}; }
GF_INLINE VecF mul_f(VecF a, VecF b) {
  return {{_mm256_mul_ps(a.v[0], b.v[0]), _mm256_mul_ps(a.v[1], b.v[1])}};
}
GF_INLINE VecF fma_f(VecF a, VecF b, VecF c) {
  return {{_mm256_fmadd_ps(a.v[0], b.v[0], c.v[0]), _mm256_fmadd_ps(a.v[1], b.v[1], c.v[1])}};
}
GF_INLINE VecF load_f(const float* p) { return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}}; }
GF_INLINE void store_f(float* p, VecF a) {
  _mm256_storeu_ps(p, a.v[0]);
  _mm256_storeu_ps(p + 8, a.v[1]);
}
GF_INLINE __m128i load_128(const void* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
GF_INLINE VecF f16_rows(const uint8_t* p) {
  return {{_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 16))}};
}
GF_INLINE __m128i load_64(const void* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
GF_INLINE VecF u8_rows(const uint8_t* p) {
  return {{_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_64(p))),
           _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load_64(p + 8)))}};
}
GF_INLINE VecF i8_rows(const uint8_t* p) {
  return {{_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_64(p))),
           _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_64(p + 8)))}};
}

// Keeps the compiler from loading all broadcasts of a block first, which would not fit in
// registers.
GF_INLINE void keep_loads_here() {
#if defined(__GNUC__)
  __asm__ volatile("" ::: "memory");
#endif
}

// How many sums of two products of a weight of `bits` bits and an activation fit in 16 bits.
constexpr int products_in_16_bits(int bits) {
  return bits >= 8 ? 1 : 32767 / (((1 << bits) - 1) * 127 * 2);
}

// Dot products of one block of 32 with T columns: for each column c, emit(c, v0, v1) gets the sums
// of the first and second 16 elements, or of all 32 in v0 when L::kHalves is 1. A type with a bias
// starts its sums at init.
template <class L, int T, class Emit>
GF_INLINE void dot_columns(const VecW (&w)[8], const int8_t* a, const int32_t* init, Emit emit) {
  constexpr int n = 8 / L::kHalves;  // registers of weights a sum
  constexpr int run = products_in_16_bits(L::kBits) < n ? products_in_16_bits(L::kBits) : n;
  const __m256i ones = _mm256_set1_epi16(1);
  VecF sums[T][2];
  static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
    __m256i s[T][2], s16[T][2];
    static_for<n>([&](auto i) GF_LAMBDA_INLINE {
      keep_loads_here();
      static_for<T>([&](auto c) GF_LAMBDA_INLINE {
        const __m256i x = _mm256_set1_epi32(load_i32(a + 32 * c + 4 * (h * n + i)));
        static_for<2>([&](auto rows) GF_LAMBDA_INLINE {
          const __m256i wi = w[h * n + i].v[rows];
          __m256i p;
          if constexpr (L::kSigned) {
            p = _mm256_maddubs_epi16(_mm256_abs_epi8(wi), _mm256_sign_epi8(x, wi));
          } else {
            p = _mm256_maddubs_epi16(wi, x);
          }
          s16[c][rows] = i % run == 0 ? p : _mm256_add_epi16(s16[c][rows], p);
          if (i % run == run - 1 || i == n - 1) {
            p = _mm256_madd_epi16(s16[c][rows], ones);
            if (i >= run) {
              p = _mm256_add_epi32(s[c][rows], p);
            } else if (L::kBias) {
              p = _mm256_add_epi32(_mm256_set1_epi32(init[h * T + c]), p);
            }
            s[c][rows] = p;
          }
        });
      });
    });
    static_for<T>([&](auto c) GF_LAMBDA_INLINE {
      sums[c][h] = {{_mm256_cvtepi32_ps(s[c][0]), _mm256_cvtepi32_ps(s[c][1])}};
    });
  });
  static_for<T>([&](auto c) GF_LAMBDA_INLINE { emit(c, sums[c][0], sums[c][L::kHalves - 1]); });
}

GF_INLINE uint32_t max_of(__m256i v) {
  __m128i m = _mm_max_epu32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1))));
}
GF_INLINE int32_t sum_of(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

// q = round(x / d) of 32 floats to nearest even; sums of q over the two halves. Returns d.
GF_INLINE float quantize_32(const float* x, int8_t* q, int32_t sums[2]) {
  const __m256i magnitude = _mm256_set1_epi32(static_cast<int>(kMagnitude));
  __m256 v[4];
  __m256i m = _mm256_setzero_si256();
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    m = _mm256_max_epu32(m, _mm256_and_si256(magnitude, _mm256_castps_si256(v[i])));
  }
  const uint32_t greatest = max_of(m);
  if (greatest >= kInfinity) return not_finite(q, sums);
  const float amax = float_of(greatest);
  const __m256 id = _mm256_set1_ps(inverse_step(amax));
  __m256i r[4];
  for (int i = 0; i < 4; ++i) r[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], id));
  sums[0] = sum_of(_mm256_add_epi32(r[0], r[1]));
  sums[1] = sum_of(_mm256_add_epi32(r[2], r[3]));
  // Packing works within 128-bit halves: put the dwords back in order.
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(r[0], r[1]), _mm256_packs_epi32(r[2], r[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), _mm256_permutevar8x32_epi32(bytes, order));
  return step(amax);
}

// -- 16 consecutive elements of a row of plain floats, and the sums over them

using VecL = VecF;

// The first n < 16 elements, zeros after them.
template <class Row>
GF_INLINE VecF load_padded(const typename Row::Elem* p, int64_t n) {
  typename Row::Elem padded[16] = {};
  for (int64_t i = 0; i < n; ++i) padded[i] = p[i];
  return Row::load(padded);
}

struct RowF32 {
  using Elem = float;
  using Vec = VecF;
  using Column = RowF32;
  static constexpr int kStep = 16;
  static GF_INLINE VecF load(const float* p) {
    return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
  }
  static GF_INLINE VecF load_first(const float* p, int64_t n) { return load_padded<RowF32>(p, n); }
};
struct RowF16 {
  using Elem = uint16_t;
  using Vec = VecF;
  using Column = RowF32;
  static constexpr int kStep = 16;
  static GF_INLINE VecF load(const uint16_t* p) {
    return f16_rows(reinterpret_cast<const uint8_t*>(p));
  }
  static GF_INLINE VecF load_first(const uint16_t* p, int64_t n) {
    return load_padded<RowF16>(p, n);
  }
};
struct RowBF16 {
  using Elem = uint16_t;
  using Vec = VecF;
  using Column = RowF32;
  static constexpr int kStep = 16;
  static GF_INLINE __m256 widen(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load_128(p)), 16));
  }
  static GF_INLINE VecF load(const uint16_t* p) { return {{widen(p), widen(p + 8)}}; }
  static GF_INLINE VecF load_first(const uint16_t* p, int64_t n) {
    return load_padded<RowBF16>(p, n);
  }
};
GF_INLINE VecF mul_add(VecF w, VecF x, VecF acc) { return fma_f(w, x, acc); }

GF_INLINE float sum_f(VecF a) {
  const __m256 h = _mm256_add_ps(a.v[0], a.v[1]);
  const __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  const __m128 d = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}

// out[r] = the sum of the lanes of rows[r], 16 rows.
GF_INLINE void sum_lanes(const VecF* rows, float* out) {
  for (int r = 0; r < 16; ++r) out[r] = sum_f(rows[r]);
}

}  // namespace gf
