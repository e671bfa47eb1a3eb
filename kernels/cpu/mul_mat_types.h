// The packed kernels by weight type.
#pragma once

#include "cpu/mul_mat_packed.h"

namespace gf {

struct PackedType {
  int type;
  int block_bytes;   // of one row
  int blocks_of_32;  // in one block
  SumUse sums;
  PackedKernel tile[5];  // widths 1, 2, 4, 8, 16
};

constexpr int log2_width(int width) { return width <= 1 ? 0 : 1 + log2_width(width / 2); }

template <class L, int T>
constexpr PackedKernel packed_kernel() {
  if constexpr (T <= kMaxTile) return &packed_tile<L, T>;
  return nullptr;
}

template <class L>
constexpr PackedType packed_type() {
  return {L::kType,
          L::kBlockBytes,
          L::kSubBlocks,
          {L::kBias, L::kHalves, L::kMins},
          {packed_kernel<L, 1>(), packed_kernel<L, 2>(), packed_kernel<L, 4>(),
           packed_kernel<L, 8>(), packed_kernel<L, 16>()}};
}

// The kernels of a type; null when it has none. Defined beside the instantiations, which are split
// over two files to compile side by side.
const PackedType* packed_legacy_type(int type);
const PackedType* packed_k_type(int type);

inline const PackedType* find_packed_type(int type) {
  const PackedType* t = packed_legacy_type(type);
  return t ? t : packed_k_type(type);
}

}  // namespace gf
