// Rows and columns as bf16, 32 products an instruction, summed by pairs into 16 lanes of f32: of
// libraries whose instruction set has such products.
#pragma once

#include "cpu/mul_mat_vec.h"

#if defined(__AVX512BF16__)
#define GF_BF16_DOT 1

namespace gf {

struct VecB {  // 32 bf16
  __m512bh v;
};
GF_INLINE VecF mul_add(VecB w, VecB x, VecF acc) { return {_mm512_dpbf16_ps(acc.v, w.v, x.v)}; }
GF_INLINE __mmask32 first_n_of_32(int64_t n) { return static_cast<__mmask32>((1ull << n) - 1); }
GF_INLINE VecB as_bf16(__m512i x) { return {reinterpret_cast<__m512bh>(x)}; }

struct RowDotBF16 {
  using Elem = uint16_t;
  using Vec = VecB;
  using Column = RowDotBF16;
  static constexpr int kStep = 32;
  static GF_INLINE VecB load(const uint16_t* p) { return as_bf16(_mm512_loadu_si512(p)); }
  static GF_INLINE VecB load_first(const uint16_t* p, int64_t n) {
    return as_bf16(_mm512_maskz_loadu_epi16(first_n_of_32(n), p));
  }
};

// x as bf16, zeros up to a multiple of 32.
inline void f32_row_to_bf16(const float* x, int64_t k, uint16_t* out) {
  for (int64_t i = 0; i < k; i += 32) {
    const int64_t left = k - i < 32 ? k - i : 32;
    const __m512 lo = left >= 16 ? _mm512_loadu_ps(x + i) : RowF32::load_first(x + i, left).v;
    const __m512 hi = left >= 32  ? _mm512_loadu_ps(x + i + 16)
                      : left > 16 ? RowF32::load_first(x + i + 16, left - 16).v
                                  : _mm512_setzero_ps();
    _mm512_storeu_si512(out + i, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(hi, lo)));
  }
}

}  // namespace gf
#endif
