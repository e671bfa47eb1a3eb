// Plain C++ over arrays of sixteen, which compilers vectorise; on x86-64 the products go through
// SSE2, whose only small multiply takes 16 bits.
#pragma once

#include "cpu/mul_mat_util.h"
#include "quants/common.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace gf {

constexpr int kMaxTile = 2;         // columns an unpacked block of weights is used for
constexpr bool kSignedDot = false;  // q8_0 is shifted by 128 to be unsigned
constexpr int kFloatRows = 1, kFloatCols = 2;

struct VecW {  // 16 rows x 4 unsigned bytes
  uint32_t v[16];
};
struct VecF {  // 16 floats
  float v[16];
};

template <class V, class F>
GF_INLINE V each_lane(F f) {
  V r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}

GF_INLINE VecW load_w(const uint8_t* p) {
  VecW r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
GF_INLINE VecW and_w(VecW a, uint32_t m) {
  return each_lane<VecW>([&](int i) { return a.v[i] & m; });
}
GF_INLINE VecW xor_w(VecW a, uint32_t m) {
  return each_lane<VecW>([&](int i) { return a.v[i] ^ m; });
}
GF_INLINE VecW or_w(VecW a, VecW b) {
  return each_lane<VecW>([&](int i) { return a.v[i] | b.v[i]; });
}
// Shift of the 32-bit lanes: right when n > 0, left when n < 0.
template <int n>
GF_INLINE VecW shr_w(VecW a) {
  if constexpr (n > 0) return each_lane<VecW>([&](int i) { return a.v[i] >> n; });
  if constexpr (n < 0) return each_lane<VecW>([&](int i) { return a.v[i] << -n; });
  return a;
}

GF_INLINE VecF splat_f(float x) {
  return each_lane<VecF>([&](int) { return x; });
}
GF_INLINE VecF zero_f() { return splat_f(0.0f); }
GF_INLINE VecF mul_f(VecF a, VecF b) {
  return each_lane<VecF>([&](int i) { return a.v[i] * b.v[i]; });
}
GF_INLINE VecF fma_f(VecF a, VecF b, VecF c) {
  return each_lane<VecF>([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
GF_INLINE void store_f(float* p, VecF a) { std::memcpy(p, a.v, sizeof a.v); }
GF_INLINE VecF f16x16(const uint8_t* p) {
  uint16_t h[16];
  std::memcpy(h, p, sizeof h);
  return each_lane<VecF>([&](int i) { return gf_f16_to_f32(h[i]); });
}
GF_INLINE VecF u8x16(const uint8_t* p) {
  return each_lane<VecF>([&](int i) { return static_cast<float>(p[i]); });
}
GF_INLINE VecF i8x16(const uint8_t* p) {
  return each_lane<VecF>([&](int i) { return static_cast<float>(static_cast<int8_t>(p[i])); });
}

// s[r] += the products of row r's four bytes and a[0..3].
GF_INLINE void add_products(int32_t (&s)[16], const VecW& w, const int8_t* a) {
#if defined(__SSE2__)
  // Bytes 0 and 2, and 1 and 3, as pairs of 16 bits.
  const __m128i low = _mm_set1_epi16(255);
  const __m128i even = _mm_set1_epi32((a[0] & 0xFFFF) | a[2] * 65536);
  const __m128i odd = _mm_set1_epi32((a[1] & 0xFFFF) | a[3] * 65536);
  for (int i = 0; i < 16; i += 4) {
    auto* to = reinterpret_cast<__m128i*>(s + i);
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w.v + i));
    const __m128i p = _mm_madd_epi16(_mm_and_si128(x, low), even);
    const __m128i q = _mm_madd_epi16(_mm_srli_epi16(x, 8), odd);
    _mm_storeu_si128(to, _mm_add_epi32(_mm_loadu_si128(to), _mm_add_epi32(p, q)));
  }
#else
  for (int i = 0; i < 16; ++i) {
    const uint32_t x = w.v[i];
    s[i] += static_cast<int32_t>(x & 255) * a[0] + static_cast<int32_t>(x >> 8 & 255) * a[1] +
            static_cast<int32_t>(x >> 16 & 255) * a[2] + static_cast<int32_t>(x >> 24) * a[3];
  }
#endif
}

// Dot products of one block of 32 with T columns: for each column c, emit(c, v0, v1) gets the sums
// of the first and second 16 elements, or of all 32 in v0 when L::kHalves is 1. A type with a bias
// starts its sums at init.
template <class L, int T, class Emit>
GF_INLINE void dot_columns(const VecW (&w)[8], const int8_t* a, const int32_t* init, Emit emit) {
  static_for<T>([&](auto c) GF_LAMBDA_INLINE {
    VecF sums[2];
    for (int h = 0; h < L::kHalves; ++h) {
      int32_t s[16];
      for (int i = 0; i < 16; ++i) s[i] = L::kBias ? init[h * T + c] : 0;
      constexpr int n = 8 / L::kHalves;
      for (int i = h * n; i < (h + 1) * n; ++i) add_products(s, w[i], a + 32 * c + 4 * i);
      sums[h] = each_lane<VecF>([&](int i) { return static_cast<float>(s[i]); });
    }
    emit(c, sums[0], sums[L::kHalves - 1]);
  });
}

// q = round(x / d) of 32 floats to nearest even; sums of q over the two halves. Returns d.
GF_INLINE float quantize_32(const float* x, int8_t* q, int32_t sums[2]) {
  float amax = 0.0f;
  for (int i = 0; i < 32; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
  const float id = inverse_step(amax);
  sums[0] = sums[1] = 0;
  for (int i = 0; i < 32; ++i) {
    q[i] = static_cast<int8_t>(std::lrintf(x[i] * id));
    sums[i / 16] += q[i];
  }
  return step(amax);
}

// -- 16 consecutive elements of a row of plain floats
// ----------------------------------------------

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
    return each_lane<VecF>([&](int i) { return p[i]; });
  }
  static GF_INLINE VecF load_first(const float* p, int64_t n) { return load_padded<RowF32>(p, n); }
};
struct RowF16 {
  using Elem = uint16_t;
  using Vec = VecF;
  using Column = RowF32;
  static constexpr int kStep = 16;
  static GF_INLINE VecF load(const uint16_t* p) {
    return each_lane<VecF>([&](int i) { return gf_f16_to_f32(p[i]); });
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
  static GF_INLINE VecF load(const uint16_t* p) {
    return each_lane<VecF>([&](int i) { return gf_bf16_to_f32(p[i]); });
  }
  static GF_INLINE VecF load_first(const uint16_t* p, int64_t n) {
    return load_padded<RowBF16>(p, n);
  }
};
GF_INLINE VecF mul_add(VecF w, VecF x, VecF acc) { return fma_f(w, x, acc); }

GF_INLINE float sum_f(VecF a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  }
  return a.v[0];
}

// Only where products of bf16 are native are columns rounded to it.
inline void f32_row_to_bf16(const float*, int64_t, uint16_t*) {}

// out[r] = the sum of the lanes of rows[r], 16 rows.
GF_INLINE void sum_lanes(const VecF* rows, float* out) {
  for (int r = 0; r < 16; ++r) out[r] = sum_f(rows[r]);
}

}  // namespace gf
