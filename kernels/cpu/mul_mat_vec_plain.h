// Four vectors of four, in the vector extension of GCC and Clang: any machine. On x86-64 the
// products go through SSE2, whose only small multiply takes 16 bits.
#pragma once

#include "cpu/mul_mat_util.h"
#include "cpu/simd.h"

namespace gf {

constexpr int kVecRows = 16;         // rows in a VecW or VecF
constexpr int kMaxTile = 4;          // columns an unpacked block of weights is used for
constexpr bool kSignedDot = false;   // q8_0 is shifted by 128 to be unsigned
constexpr bool kSignedFree = false;  // small signed weights cost nothing more
constexpr int kFloatRows = 1, kFloatCols = 2, kLastCols = 2;
constexpr bool kPairs = false;  // of columns, whose bytes lie interleaved
// Of columns that stay in the L1 cache beside the rows that stream through it.
constexpr int64_t kStayingBytes = 12 << 10;
constexpr int kFewColumns = 4;  // up to here converting rows beforehand does not pay

typedef uint32_t uint4 __attribute__((vector_size(16)));
typedef int32_t int4 __attribute__((vector_size(16)));

struct VecW {  // 16 rows x 4 unsigned bytes
  uint4 v[4];
};
struct VecF {  // 16 floats
  vf v[4];
};

template <class V, class F>
GF_INLINE V quarters(F f) {
  return {{f(0), f(1), f(2), f(3)}};
}

GF_INLINE VecW load_w(const uint8_t* p) {
  VecW r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
GF_INLINE VecW and_w(VecW a, uint32_t m) {
  return quarters<VecW>([&](int i) GF_LAMBDA_INLINE { return a.v[i] & m; });
}
GF_INLINE VecW xor_w(VecW a, uint32_t m) {
  return quarters<VecW>([&](int i) GF_LAMBDA_INLINE { return a.v[i] ^ m; });
}
GF_INLINE VecW or_w(VecW a, VecW b) {
  return quarters<VecW>([&](int i) GF_LAMBDA_INLINE { return a.v[i] | b.v[i]; });
}
// Shift of the 32-bit lanes: right when n > 0, left when n < 0.
template <int n>
GF_INLINE VecW shr_w(VecW a) {
  return quarters<VecW>([&](int i) GF_LAMBDA_INLINE {
    if constexpr (n < 0) return a.v[i] << -n;
    return a.v[i] >> (n < 0 ? 0 : n);
  });
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
  uint8_t bytes[64];
  std::memcpy(bytes, codes.v, sizeof bytes);
  for (uint8_t& b : bytes) b = table[b];
  return load_w(bytes);
}

GF_INLINE VecF splat_f(float x) {
  return quarters<VecF>([&](int) GF_LAMBDA_INLINE { return vf_set(x); });
}
GF_INLINE VecF zero_f() { return splat_f(0.0f); }
GF_INLINE VecF mul_f(VecF a, VecF b) {
  return quarters<VecF>([&](int i) GF_LAMBDA_INLINE { return a.v[i] * b.v[i]; });
}
GF_INLINE VecF fma_f(VecF a, VecF b, VecF c) {
  return quarters<VecF>([&](int i) GF_LAMBDA_INLINE { return vf_fma(a.v[i], b.v[i], c.v[i]); });
}
GF_INLINE VecF load_f(const float* p) {
  return quarters<VecF>([&](int i) GF_LAMBDA_INLINE { return vf_load(p + 4 * i); });
}
GF_INLINE void store_f(float* p, VecF a) { std::memcpy(p, a.v, sizeof a.v); }
GF_INLINE VecF f16_rows(const uint8_t* p) {
  uint16_t h[16];
  std::memcpy(h, p, sizeof h);
  return quarters<VecF>([&](int i) GF_LAMBDA_INLINE { return vf_load_f16(h + 4 * i); });
}
GF_INLINE VecF i8_rows(const uint8_t* p) {
  return quarters<VecF>([&](int i) GF_LAMBDA_INLINE {
    return vf_load_i8(reinterpret_cast<const int8_t*>(p) + 4 * i);
  });
}
// Scales of 6 bits at most: the sign does not come into it.
GF_INLINE VecF u8_rows(const uint8_t* p) { return i8_rows(p); }

// Adds the products of each row's four bytes and a[0..3] to its sum.
GF_INLINE void add_products(int4 (&s)[4], const VecW& w, const int8_t* a) {
#if defined(__SSE2__)
  // Bytes 0 and 2, and 1 and 3, as pairs of 16 bits.
  const __m128i bytes = _mm_set1_epi32(load_i32(a));
  const __m128i even = _mm_srai_epi16(_mm_slli_epi16(bytes, 8), 8);
  const __m128i odd = _mm_srai_epi16(bytes, 8);
  static_for<4>([&](auto i) GF_LAMBDA_INLINE {
    const __m128i x = reinterpret_cast<__m128i>(w.v[i]);
    const __m128i p = _mm_madd_epi16(_mm_and_si128(x, _mm_set1_epi16(255)), even);
    const __m128i q = _mm_madd_epi16(_mm_srli_epi16(x, 8), odd);
    s[i] += reinterpret_cast<int4>(_mm_add_epi32(p, q));
  });
#else
  static_for<4>([&](auto i) GF_LAMBDA_INLINE {
    const int4 x = reinterpret_cast<int4>(w.v[i]);
    s[i] +=
        (x & 255) * a[0] + (x >> 8 & 255) * a[1] + (x >> 16 & 255) * a[2] + (x >> 24 & 255) * a[3];
  });
#endif
}

// Dot products of one block of 32 with T columns: for each column c, emit(c, v0, v1) gets the sums
// of the first and second 16 elements, or of all 32 in v0 when L::kHalves is 1. A type with a bias
// starts its sums at init.
template <class L, int T, class Emit>
GF_INLINE void dot_columns(const VecW (&w)[8], const int8_t* a, const int32_t* init, Emit emit) {
  constexpr int n = 8 / L::kHalves;
  for (int c = 0; c < T; ++c) {
    VecF sums[2];
    static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
      const int32_t start = L::kBias ? init[h * T + c] : 0;
      int4 s[4] = {int4{} + start, int4{} + start, int4{} + start, int4{} + start};
      static_for<n>([&](auto i) GF_LAMBDA_INLINE {
        add_products(s, w[h * n + i], a + 32 * c + 4 * (h * n + i));
      });
      sums[h] = quarters<VecF>(
          [&](int i) GF_LAMBDA_INLINE { return vf{__builtin_convertvector(s[i], gf_float4)}; });
    });
    emit(c, sums[0], sums[L::kHalves - 1]);
  }
}

// q = round(x / d) of 32 floats to nearest even; sums of q over the two halves. Returns d.
GF_INLINE float quantize_32(const float* x, int8_t* q, int32_t sums[2]) {
  uint32_t greatest = 0;
  for (int i = 0; i < 32; ++i) {
    uint32_t bits;
    std::memcpy(&bits, x + i, 4);
    bits &= kMagnitude;
    greatest = bits > greatest ? bits : greatest;
  }
  if (greatest >= kInfinity) return not_finite(q, sums);
  const float amax = float_of(greatest);
  const vf id = vf_set(inverse_step(amax));
  for (int h = 0; h < 2; ++h) {
    vf sum = vf_zero();
    for (int i = 16 * h; i < 16 * h + 16; i += VL) {
      const vf r = vf_round(vf_load(x + i) * id);
      for (int j = 0; j < VL; ++j) q[i + j] = static_cast<int8_t>(r.v[j]);
      sum = sum + r;
    }
    sums[h] = static_cast<int32_t>(vf_sum(sum));
  }
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
    return quarters<VecF>([&](int i) GF_LAMBDA_INLINE { return vf_load(p + 4 * i); });
  }
  static GF_INLINE VecF load_first(const float* p, int64_t n) { return load_padded<RowF32>(p, n); }
};
struct RowF16 {
  using Elem = uint16_t;
  using Vec = VecF;
  using Column = RowF32;
  static constexpr int kStep = 16;
  static GF_INLINE VecF load(const uint16_t* p) {
    return quarters<VecF>([&](int i) GF_LAMBDA_INLINE { return vf_load_f16(p + 4 * i); });
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
    return quarters<VecF>([&](int i) GF_LAMBDA_INLINE { return vf_load_bf16(p + 4 * i); });
  }
  static GF_INLINE VecF load_first(const uint16_t* p, int64_t n) {
    return load_padded<RowBF16>(p, n);
  }
};
GF_INLINE VecF mul_add(VecF w, VecF x, VecF acc) { return fma_f(w, x, acc); }

// out[r] = the sum of the lanes of rows[r], 16 rows.
GF_INLINE void sum_lanes(const VecF* rows, float* out) {
  for (int r = 0; r < 16; r += 4) {
    vf s[4];
    for (int i = 0; i < 4; ++i) {
      const VecF& a = rows[r + i];
      s[i] = (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
    }
    vf_store(out + r, vf_sum_each(s));
  }
}

}  // namespace gf
