// The inner kernel of quantized mul_mat: 16 interleaved rows times a tile of T columns.
//
// One code for every T, one float order: for each 32 elements an exact int32 dot product, scaled by
// the rows' and the column's steps and added to the sum. So a column's result does not depend on
// the columns computed beside it.
#pragma once

#include "cpu/mul_mat_acts.h"
#include "cpu/mul_mat_load_k.h"

namespace gf {

// w: the group's packed blocks; a: the tile's activations; out: [T][16].
using PackedKernel = void (*)(const uint8_t* w, const uint8_t* a, int64_t n_blocks, float* out);

constexpr int kPrefetchAhead = 4096;  // bytes; one column reads weights at the speed of memory

template <int n>
GF_INLINE void prefetch_bytes(const uint8_t* p) {
#if defined(__GNUC__)
  static_for<(n + 63) / 64>([&](auto i) GF_LAMBDA_INLINE { __builtin_prefetch(p + 64 * i); });
#endif
}

template <class L, int T>
void packed_tile(const uint8_t* w, const uint8_t* a, int64_t n_blocks, float* out) {
  constexpr int kSubBytes = kRows * L::kBlockBytes / (L::kOuter * L::kInner);
  VecF acc[T];
  static_for<T>([&](auto c) GF_LAMBDA_INLINE { acc[c] = zero_f(); });
  for (int64_t ib = 0; ib < n_blocks; ++ib, w += kRows * L::kBlockBytes) {
    const typename L::Header header(w);
    for (int o = 0; o < L::kOuter; ++o) {
      static_for<L::kInner>([&](auto j) GF_LAMBDA_INLINE {
        if constexpr (T == 1) {
          prefetch_bytes<kSubBytes>(w + kPrefetchAhead + (o * L::kInner + j) * kSubBytes);
        }
        VecW q[8];
        L::template weights<j>(w, o, q);
        VecF s[L::kHalves], m[L::kHalves];
        L::template scales<j>(header, w, o, s, m);
        const auto* d = reinterpret_cast<const float*>(a);
        const auto* init = reinterpret_cast<const int32_t*>(a) + T;
        const auto* ds = reinterpret_cast<const float*>(a) + T;
        dot_columns<L, T>(q, reinterpret_cast<const int8_t*>(a + 12 * T), init,
                          [&](auto c, VecF v0, VecF v1) GF_LAMBDA_INLINE {
                            VecF v = mul_f(v0, s[0]);
                            if constexpr (L::kHalves == 2) v = fma_f(v1, s[1], v);
                            acc[c] = fma_f(v, splat_f(d[c]), acc[c]);
                            if constexpr (L::kMins) {
                              static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
                                acc[c] = fma_f(m[h], splat_f(ds[h * T + c]), acc[c]);
                              });
                            }
                          });
        a += T * kActBlockBytes;
      });
    }
  }
  static_for<T>([&](auto c) GF_LAMBDA_INLINE { store_f(out + kRows * c, acc[c]); });
}

}  // namespace gf
