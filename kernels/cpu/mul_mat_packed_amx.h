// The inner kernel of quantized mul_mat for full tiles of columns, by the matrix unit (AMX).
//
// One instruction multiplies 16 columns of 32 signed bytes with 16 rows of 32 and leaves 256 exact
// sums, which are scaled and added as packed_tile does: the same bits. What is left for the vector
// unit is that scaling. Rows are unpacked a stretch at a time for several tiles of columns.
#pragma once

#include <algorithm>

#include "cpu/matrix_unit.h"
#include "cpu/mul_mat_acts.h"
#include "cpu/mul_mat_load.h"

namespace gf {

static_assert(kMaxTile == 16 && kVecRows == 16 && !kSignedDot, "a tile register is full");

constexpr int kTilesTogether = 8, kGroupsTogether = 2;
constexpr int kStretchBlocks = 16;  // of 32 elements

// Rows of a group, unpacked: bytes as the matrix unit wants them, scales and minimums.
template <class L>
struct Stretch {
  alignas(64) int8_t q[kStretchBlocks][16 * 32];
  VecF s[kStretchBlocks][L::kHalves], m[kStretchBlocks][L::kHalves];

  void unpack(const uint8_t* w, int n) {
    for (int i = 0; i < n; w += kRows * L::kBlockBytes) {
      const L block(w);
      const auto rows = block.rows(0);
      for (int sub = 0; sub < L::kSubBlocks; ++sub, ++i) {
        VecW v[8];
        L::weights(w, sub, 0, v);
        static_for<8>([&](auto j) GF_LAMBDA_INLINE {
          const __m512i x =
              L::kBias ? _mm512_sub_epi8(v[j].v, _mm512_set1_epi8(char(L::kBias))) : v[j].v;
          _mm512_store_si512(q[i] + 64 * j, x);
        });
        rows.scales(sub, s[i], m[i]);
      }
    }
    // The intrinsics that load tiles do not say that they read memory.
    __asm__ volatile("" ::: "memory");
  }
};

// Sums that begin with the bits of 1.5 * 2^23 instead of zero end, as long as what is added stays
// below 2^22, as the bits of the float 1.5 * 2^23 + n. So a scale of at most 22 bits, whose product
// with 1.5 * 2^23 is exact, multiplies a sum in one operation, rounded once as after a conversion:
// the vector unit, which shares its ports with the matrix unit, has one operation less. So for
// the first of two halves; the second is added to it as an integer made a float. A float16 has 11
// bits, its product with a small integer 19; MXFP4's powers of two may be too large. A scale that
// is infinite makes NaN of every sum.
constexpr float kShifted = 12582912.0f;  // 1.5 * 2^23
constexpr int32_t kShiftedBits = 0x4b400000;
alignas(64) inline constexpr int32_t kShiftedRow[16] = {
    kShiftedBits, kShiftedBits, kShiftedBits, kShiftedBits, kShiftedBits, kShiftedBits,
    kShiftedBits, kShiftedBits, kShiftedBits, kShiftedBits, kShiftedBits, kShiftedBits,
    kShiftedBits, kShiftedBits, kShiftedBits, kShiftedBits};
template <class L>
constexpr bool kShiftedSums = L::kType != GF_MXFP4;

// One block of columns a times one of rows: sums[half][column][row].
template <class L>
GF_INLINE void multiply_block(const int8_t* q, const uint8_t* a, int32_t* sums) {
  const uint8_t* columns = a + 12 * kMaxTile;
  if constexpr (kShiftedSums<L>) {
    _tile_loadd(0, kShiftedRow, 0);
  } else {
    _tile_zero(0);
  }
  if constexpr (L::kHalves == 1) {
    _tile_loadd(2, columns, 32);
    _tile_loadd(3, q, 64);
    _tile_dpbssd(0, 2, 3);
  } else {
    _tile_zero(1);
    _tile_loadd(4, columns, 32);
    _tile_loadd(5, q, 64);
    _tile_loadd(6, columns + 16, 32);
    _tile_loadd(7, q + 256, 64);
    _tile_dpbssd(0, 4, 5);
    _tile_dpbssd(1, 6, 7);
    _tile_stored(1, sums + 256, 64);
  }
  _tile_stored(0, sums, 64);
}

template <class L>
GF_INLINE void add_block(const VecF* s, const VecF* m, const uint8_t* a, const int32_t* sums,
                         VecF (&acc)[kMaxTile]) {
  const auto* d = reinterpret_cast<const float*>(a);
  const VecF shift = mul_f(s[0], splat_f(-kShifted));
  static_for<kMaxTile>([&](auto c) GF_LAMBDA_INLINE {
    const __m512i sum = _mm512_load_si512(sums + 16 * c);
    VecF v;
    if constexpr (kShiftedSums<L>) {
      v = fma_f({_mm512_castsi512_ps(sum)}, s[0], shift);
    } else {
      v = mul_f({_mm512_cvtepi32_ps(sum)}, s[0]);
    }
    if constexpr (L::kHalves == 2) {
      const __m512i second = _mm512_load_si512(sums + 256 + 16 * c);
      v = fma_f({_mm512_cvtepi32_ps(second)}, s[1], v);
    }
    acc[c] = fma_f(v, splat_f(d[c]), acc[c]);
    if constexpr (L::kMins) {
      static_for<L::kHalves>([&](auto h) GF_LAMBDA_INLINE {
        acc[c] = fma_f(m[h], splat_f(d[(1 + h) * kMaxTile + c]), acc[c]);
      });
    }
  });
}

// out [groups][n_tiles * 16][16]: groups of packed rows times the n_tiles <= kTilesTogether tiles
// at a. A stretch of the tiles stays in the L1 cache for all groups, one of a group for all tiles.
template <class L>
void packed_tiles(const PackedGroups& w, const uint8_t* a, int64_t n_blocks, int n_tiles,
                  float* out) {
  constexpr int kBlockActs = kMaxTile * kActBlockBytes;
  constexpr int kAtOnce = kStretchBlocks / L::kSubBlocks;
  static_assert(kAtOnce * L::kSubBlocks == kStretchBlocks, "a stretch has whole blocks");
  MatrixUnit::bytes();
  Stretch<L> rows;
  alignas(64) int32_t sums[2][L::kHalves * 256];
  if (n_blocks == 0) std::fill_n(out, w.n * n_tiles * kMaxTile * kRows, 0.0f);
  const int64_t tile_acts = n_blocks * L::kSubBlocks * kBlockActs;
  for (int64_t ib = 0; ib < n_blocks; ib += kAtOnce) {
    const int64_t left = n_blocks - ib;
    const int n = (left < kAtOnce ? static_cast<int>(left) : kAtOnce) * L::kSubBlocks;
    float* to = out;
    for (int g = 0; g < w.n; ++g) {
      rows.unpack(w.at + g * w.bytes + ib * kRows * L::kBlockBytes, n);
      for (int t = 0; t < n_tiles; ++t, to += kMaxTile * kRows) {
        const uint8_t* at = a + t * tile_acts + ib * L::kSubBlocks * kBlockActs;
        VecF acc[kMaxTile];
        static_for<kMaxTile>(
            [&](auto c) GF_LAMBDA_INLINE { acc[c] = ib == 0 ? zero_f() : load_f(to + kRows * c); });
        // The matrix unit is a block ahead of the vector unit.
        multiply_block<L>(rows.q[0], at, sums[0]);
        for (int i = 0; i < n; ++i, at += kBlockActs) {
          if (i + 1 < n) multiply_block<L>(rows.q[i + 1], at + kBlockActs, sums[(i + 1) % 2]);
          add_block<L>(rows.s[i], rows.m[i], at, sums[i % 2], acc);
        }
        static_for<kMaxTile>([&](auto c) GF_LAMBDA_INLINE { store_f(to + kRows * c, acc[c]); });
      }
    }
  }
}

}  // namespace gf
