// Pairs (row, id) sorted by expert, in tiles that are multiplied together: what expert_rows.cu
// makes and expert_columns.cu reads.
#pragma once

#include "cuda/common.cuh"

constexpr int kMostColumns = 64;  // of a tile

// Some pairs of one expert: where they begin in the list of pairs, and where their columns lie, by
// columns from the first. expert: -1 of unknown ones, which have no columns.
struct ExpertTile {
  i32 expert, begin, count, slot;
};

// Where a pair's column lies: the first of its tile, the tile's width and the place in it. width: 0
// where there is none.
struct ExpertSlot {
  i32 first, width, column, unused;
};

// Columns that so many pairs are multiplied as.
__device__ __forceinline__ int width_of(int count) {
  return count > 32 ? 64 : count > 16 ? 32 : 16;
}
