// Dot products of q4_0 rows on AVX-512: four blocks in one register.
#pragma once

#include "cpu/sparse_dot.h"

#if defined(__AVX512VNNI__)
namespace gf {

struct DotQ4_0 {
  template <int R, int C>
  static GF_INLINE void tile(const char* const* rows, const RowsAhead& ahead, const void* const* x,
                             int64_t k, float* out) {
    const int64_t n_blocks = k / 32;
    ActColumn xc[C];
    __m512 acc[R][C];
    for (int c = 0; c < C; ++c) xc[c] = ActColumn(x[c], SparseActs(k));
    for (auto& row : acc) {
      for (__m512& a : row) a = _mm512_setzero_ps();
    }
    int64_t quad = 0;
    for (; 4 * quad + 4 <= n_blocks; ++quad) {
      ahead.bring(quad * kQuad, (quad + 1) * kQuad);
      static_for<R>(
          [&](auto r) GF_LAMBDA_INLINE { add_quad<C>(rows[r] + quad * kQuad, quad, xc, acc[r]); });
    }
    if (4 * quad < n_blocks) {
      for (int r = 0; r < R; ++r) {
        char rest[kQuad] = {};
        std::memcpy(rest, rows[r] + quad * kQuad, (n_blocks - 4 * quad) * sizeof(block_q4_0));
        add_quad<C>(rest, quad, xc, acc[r]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int c = 0; c < C; ++c) out[r * C + c] = vf_sum(vf{acc[r][c]});
    }
  }

 private:
  static constexpr int64_t kQuad = 4 * sizeof(block_q4_0);  // bytes of four blocks

  template <int C>
  static GF_INLINE void add_quad(const char* blocks, int64_t quad, const ActColumn* x,
                                 __m512* acc) {
    constexpr int kBytes = sizeof(block_q4_0);
    __m512i q = _mm512_castsi128_si512(load_bytes16(blocks + 2));
    q = _mm512_inserti32x4(q, load_bytes16(blocks + kBytes + 2), 1);
    q = _mm512_inserti32x4(q, load_bytes16(blocks + 2 * kBytes + 2), 2);
    q = _mm512_inserti32x4(q, load_bytes16(blocks + 3 * kBytes + 2), 3);
    const __m512i low4 = _mm512_set1_epi8(15);
    const __m512i low = _mm512_and_si512(q, low4);
    const __m512i high = _mm512_and_si512(_mm512_srli_epi16(q, 4), low4);
    // The scales are 16-bit words 0, 9, 18 and 27; each goes to the four lanes of its block.
    const __m512i words = _mm512_setr_epi32(0, 0, 0x90009, 0x90009, 0x120012, 0x120012, 0x1B001B,
                                            0x1B001B, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i scales = _mm512_permutexvar_epi16(words, _mm512_loadu_si512(blocks));
    const __m512 d = _mm512_cvtph_ps(_mm512_castsi512_si256(scales));
    const __m512i lanes = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (int c = 0; c < C; ++c) {
      const __m512 steps = _mm512_castps128_ps512(_mm_loadu_ps(x[c].d + 4 * quad));
      __m512i s = _mm512_loadu_si512(x[c].start + 64 * quad);
      s = _mm512_dpbusd_epi32(s, low, _mm512_loadu_si512(x[c].q + 128 * quad));
      s = _mm512_dpbusd_epi32(s, high, _mm512_loadu_si512(x[c].q + 128 * quad + 64));
      const __m512 scale = _mm512_mul_ps(d, _mm512_permutexvar_ps(lanes, steps));
      acc[c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(s), scale, acc[c]);
    }
  }
};

}  // namespace gf
#endif
