// A block of mul_mat_integers.cu: what it is given, its shared memory, and its share of the work.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/columns.cuh"
#include "cuda/columns_weights.cuh"
#include "cuda/integers_weights.cuh"

// Mirrored by `launches` in mul_mat_integers.py.
struct IntegersArgs {
  ColumnsArgs c;         // x: as integer_columns leaves it
  const float* numbers;  // of the columns
  ByteMasks bytes;
  int groups;  // of N columns
  int blocks;  // that share the work, if columns are not brought to several together
};

constexpr int kQuarters = 4;  // of k
constexpr int kCluster = 2;   // blocks that have columns in common
constexpr int kConsumers = 256, kBringers = 96, kThreads = kConsumers + kBringers + 32;
constexpr int kConsumerWarps = kConsumers / 32;
constexpr int kRows = 128, kPairs = kRows / 2;
constexpr int kChunkTiles = kChunkK / kTileK;

template <class W>
constexpr int kNumbers = 1 + kSumsOf<W>;  // of a block of a column that the weights need

struct AllMasks {
  Masks nibbles;
  ByteMasks bytes;
};

// What lies in shared memory. Each stage of both rings has a barrier that tells that it is full and
// one that tells that it is free.
struct Memory {
  char *x, *w;     // stages of columns and of weights
  float4* sums;    // [N / 8][256 threads] of the quarters before
  float* numbers;  // of the columns' stages
  u64 *x_full, *x_free, *w_full, *w_free;
  AllMasks* masks;    // twice
  const char** rows;  // [2][kRows] where they start: of every sixteen, r and r + 8 are a pair
};

// Some quarters of so many columns of a tile of rows. own: or another block has it too, and
// finishes it.
struct Unit {
  int tile, group, begin, end;
  bool own;
};

// The work of all blocks in a row: the quarters of a group of columns, the groups of a tile, the
// tiles. Each block has so many after each other, and of those at both its ends perhaps not all
// quarters of a tile.
struct Shares {
  int all, blocks;

  __device__ __forceinline__ int begin(int block) const { return (int)((i64)all * block / blocks); }
};
__device__ __forceinline__ Shares shares_of(const IntegersArgs& a) {
  return {a.c.tiles * a.groups * kQuarters, a.blocks};
}

// A block's units. TOGETHER: neighbouring blocks have neighbouring tiles, all quarters of them.
template <bool TOGETHER, class F>
__device__ __forceinline__ void for_each_unit(const IntegersArgs& a, F work) {
  if (TOGETHER) {
    const int units = (a.c.tiles + kCluster - 1) / kCluster * a.groups;
    for (int u = blockIdx.x / kCluster; u < units; u += gridDim.x / kCluster) {
      const int tile = u / a.groups * kCluster + blockIdx.x % kCluster;
      work(Unit{min(tile, a.c.tiles - 1), u % a.groups, 0, kQuarters, tile < a.c.tiles});
    }
    return;
  }
  const Shares shares = shares_of(a);
  const int end = shares.begin(blockIdx.x + 1);
  for (int at = shares.begin(blockIdx.x); at < end;) {
    const int which = at / kQuarters, first = at % kQuarters;
    const int n = min(kQuarters - first, end - at);
    work(Unit{which / a.groups, which % a.groups, first, first + n, true});
    at += n;
  }
}

// The chunks of quarters [begin, end).
struct Range {
  int begin, end;
};
__device__ __forceinline__ Range chunks_of(int k, int begin, int end) {
  const int chunks = k / kChunkK, each = (chunks + kQuarters - 1) / kQuarters;
  return {min(chunks, begin * each), min(chunks, end * each)};
}

// Where a thread is among those that multiply.
struct Consumer {
  int warp, lane, g, t, row;  // row: the upper of its two rows in the tile
};
