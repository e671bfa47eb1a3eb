// Activations of quantized mul_mat: float columns in steps of 127 levels a block of 32.
//
// Columns are grouped into tiles, and a tile is stored block by block, so that the inner kernel
// reads one stream. One block of a tile of T columns, 44 * T bytes:
//   float d[T]        steps
//   4 bytes [2][T]    what the weight type needs of the sums of q over both halves (see SumUse)
//   int8 q[T][32]            two columns' bytes interleaved by 8 where kernels take them so
#pragma once

#include "cpu/mul_mat_load.h"

namespace gf {

constexpr int kActBlockBytes = 44;  // bytes a column a block of 32

// How a weight type takes columns. What the sums serve for: int32 -bias * sum, where the integer
// dot product starts so that weights need not be shifted to signed; or float d * sum, what a type's
// minimum is multiplied by.
struct SumUse {
  int bias;
  int halves;  // 1: one sum of 32; 2: two of 16
  bool mins;
  bool pairs;  // the bytes of columns 2i and 2i + 1 are interleaved
  bool operator==(const SumUse& o) const {
    return bias == o.bias && halves == o.halves && mins == o.mins && pairs == o.pairs;
  }
};

struct Tile {
  int64_t first;  // column
  int width;      // columns
};

// Tiles of up to so many columns may have any width, larger ones only the greatest.
constexpr int kAnyWidth = kMaxTile < 8 ? kMaxTile : 8;

// How columns are cut: as many of the largest tiles as there are, then what is left. A decode step
// of several sequences has any number of columns, and none is computed in vain.
class Tiling {
 public:
  explicit Tiling(int64_t columns) : columns_(columns), full_(columns / kMaxTile) {}
  int64_t count() const {
    return full_ + (columns_ - full_ * kMaxTile + kAnyWidth - 1) / kAnyWidth;
  }
  Tile operator[](int64_t i) const {
    if (i < full_) return {i * kMaxTile, kMaxTile};
    const int64_t first = full_ * kMaxTile + (i - full_) * kAnyWidth;
    const int64_t left = columns_ - first;
    return {first, left < kAnyWidth ? static_cast<int>(left) : kAnyWidth};
  }
  // The tile a column is in.
  Tile of(int64_t column) const {
    const bool full = column < full_ * kMaxTile;
    return (*this)[full ? column / kMaxTile : full_ + (column - full_ * kMaxTile) / kAnyWidth];
  }
  // Tile i and those that follow it before `end`, while they are full and no more than `most`.
  Tile joined(int64_t i, int64_t end, int most) const {
    Tile t = (*this)[i];
    const int64_t full = (end < full_ ? end : full_) - i;
    if (full > 1) t.width *= full < most ? static_cast<int>(full) : most;
    return t;
  }
  // The tiles a joined one is made of.
  static int64_t count(const Tile& t) { return t.width < kMaxTile ? 1 : t.width / kMaxTile; }

 private:
  int64_t columns_, full_;
};

// Two columns' 32 bytes each, interleaved by 8: the 8 x 2 matrices that some machines multiply.
inline void pair_columns(int8_t* q) {
  int8_t both[64];
  for (int i = 0; i < 8; ++i) std::memcpy(both + i % 4 * 16 + i / 4 * 8, q + 8 * i, 8);
  std::memcpy(q, both, sizeof both);
}

// Quantizes block ib of one tile; column(c) is the address of column c.
template <class Column>
inline void quantize_tile_block(const Tile& tile, const Column& column, int64_t ib, SumUse use,
                                uint8_t* out) {
  const int width = tile.width;
  auto* d = reinterpret_cast<float*>(out);
  uint8_t* aux = out + 4 * width;
  auto* q = reinterpret_cast<int8_t*>(out + 12 * width);
  for (int c = 0; c < width; ++c) {
    int32_t sums[2];
    d[c] = quantize_32(column(tile.first + c) + ib * 32, q + 32 * c, sums);
    if (use.halves == 1) sums[0] += sums[1];
    for (int h = 0; h < 2; ++h) {
      const int32_t start = -use.bias * sums[h];
      const float scaled = d[c] * static_cast<float>(sums[h]);
      std::memcpy(aux + 4 * (h * width + c), use.mins ? static_cast<const void*>(&scaled) : &start,
                  4);
    }
    if (use.pairs && c % 2 == 1) pair_columns(q + 32 * (c - 1));
  }
}

}  // namespace gf
