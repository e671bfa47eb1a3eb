// The inner kernel of quantized mul_mat: 16 interleaved rows times a tile of T columns.
//
// One code for every T, one float order: for each 32 elements an exact int32 dot product, scaled by
// the rows' and the column's steps and added to the sum. So a column's result does not depend on
// the columns computed beside it.
#pragma once

#include "cpu/mul_mat_acts.h"
#include "cpu/mul_mat_load.h"
#if defined(GF_NEON)
#include "cpu/mul_mat_packed_neon.h"
#endif
#if defined(__AMX_INT8__)
#include "cpu/mul_mat_packed_amx.h"
#endif

namespace gf {

// w: the group's packed blocks; a: the tile's activations; out: [T][16].
using PackedKernel = void (*)(const uint8_t* w, const uint8_t* a, int64_t n_blocks, float* out);
// n_tiles full tiles, one after the other at a; out: [groups][n_tiles * kMaxTile][16].
using PackedTilesKernel = void (*)(const PackedGroups& w, const uint8_t* a, int64_t n_blocks,
                                   int n_tiles, float* out);

#if !defined(GF_NEON)
template <class L, int T>
void packed_tile(const uint8_t* w, const uint8_t* a, int64_t n_blocks, float* out) {
  VecF acc[T];
  static_for<T>([&](auto c) GF_LAMBDA_INLINE { acc[c] = zero_f(); });
  for (int64_t ib = 0; ib < n_blocks; ++ib, w += kRows * L::kBlockBytes) {
    const L block(w);
    const auto rows = block.rows(0);
    for (int sub = 0; sub < L::kSubBlocks; ++sub, a += T * kActBlockBytes) {
      VecW q[8];
      L::weights(w, sub, 0, q);
      VecF s[L::kHalves], m[L::kHalves];
      rows.scales(sub, s, m);
      const auto* d = reinterpret_cast<const float*>(a);
      const auto* sums = a + 4 * T;
      dot_columns<L, T>(q, reinterpret_cast<const int8_t*>(a + 12 * T),
                        reinterpret_cast<const int32_t*>(sums),
                        [&](auto c, VecF v0, VecF v1) GF_LAMBDA_INLINE {
                          VecF v = mul_f(v0, s[0]);
                          if constexpr (L::kHalves == 2) v = fma_f(v1, s[1], v);
                          acc[c] = fma_f(v, splat_f(d[c]), acc[c]);
                          if constexpr (L::kMins) {
                            const auto* ds = reinterpret_cast<const float*>(sums);
                            static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
                              acc[c] = fma_f(m[h], splat_f(ds[h * T + c]), acc[c]);
                            });
                          }
                        });
    }
  }
  static_for<T>([&](auto c) GF_LAMBDA_INLINE { store_f(out + kRows * c, acc[c]); });
}
#endif

#if !defined(__AMX_INT8__)
constexpr int kTilesTogether = 1, kGroupsTogether = 1;

struct MatrixUnit {
  MatrixUnit() {}  // there is none
};

template <class L>
void packed_tiles(const PackedGroups& w, const uint8_t* a, int64_t n_blocks, int, float* out) {
  packed_tile<L, kMaxTile>(w.at, a, n_blocks, out);
}
#endif

}  // namespace gf
