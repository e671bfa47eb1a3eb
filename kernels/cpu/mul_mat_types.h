// The packed kernels by weight type.
#pragma once

#include <initializer_list>

#include "cpu/mul_mat_packed.h"

namespace gf {

struct PackedType {
  int type;
  int block_bytes;   // of one row
  int blocks_of_32;  // in one block
  SumUse sums;
  PackedKernel tile[kAnyWidth];  // widths 1 .. kAnyWidth
  PackedTilesKernel full;        // up to kTilesTogether tiles of kMaxTile

  int64_t group_bytes(int64_t n_blocks) const { return kRows * n_blocks * block_bytes; }

  // out [groups][columns][16]: the groups' blocks times the columns at a, a tile or a joined one;
  // one group, unless the tile is full.
  void multiply(const uint8_t* w, int n_groups, const uint8_t* a, int64_t n_blocks, const Tile& t,
                float* out) const {
    if (t.width < kMaxTile) return tile[t.width - 1](w, a, n_blocks, out);
    full({w, group_bytes(n_blocks), n_groups}, a, n_blocks, t.width / kMaxTile, out);
  }
};

template <class L, int... i>
constexpr PackedType packed_type(std::integer_sequence<int, i...>) {
  return {L::kType,
          L::kBlockBytes,
          L::kSubBlocks,
          {L::kBias, L::kHalves, L::kMins, kPairs},
          {&packed_tile<L, i + 1>...},
          &packed_tiles<L>};
}

template <class L>
constexpr PackedType packed_type() {
  return packed_type<L>(std::make_integer_sequence<int, kAnyWidth>());
}

// The kernels of a type; null when it has none. Defined beside the instantiations, which are split
// over files to compile side by side.
const PackedType* packed_legacy_type(int type);
const PackedType* packed_k_type(int type);
const PackedType* packed_table_type(int type);

inline const PackedType* find_packed_type(int type) {
  for (const auto find : {packed_legacy_type, packed_k_type, packed_table_type}) {
    if (const PackedType* t = find(type)) return t;
  }
  return nullptr;
}

}  // namespace gf
