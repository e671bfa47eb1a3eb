// A block of mul_mat_integers.cu: its work, its shared memory, and the warps that bring weights and
// columns.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/columns.cuh"
#include "cuda/columns_weights.cuh"
#include "cuda/integers_weights.cuh"
#include "cuda/wgmma.cuh"

// Mirrored by `launches` in mul_mat_integers.py.
struct IntegersArgs {
  ColumnsArgs c;         // x: as integer_columns leaves it
  const float* numbers;  // of the columns
  ByteMasks bytes;
  int groups;  // of N columns
};

constexpr int kBlocks = 4, kQuarters = 4;  // of a cluster, and of k
constexpr int kConsumers = 256, kBringers = 96, kThreads = kConsumers + kBringers + 32;
constexpr int kConsumerWarps = kConsumers / 32;
constexpr int kRows = 128, kPairs = kRows / 2;
constexpr int kChunkTiles = kChunkK / kTileK;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class W>
constexpr int kNumbers = 1 + kSumsOf<W>;  // of a block of a column that the weights need

__device__ __forceinline__ int block_rank() { return (int)blockIdx.x % kBlocks; }

struct AllMasks {
  Masks nibbles;
  ByteMasks bytes;
};

// What lies in shared memory. Of both rings each stage has a barrier that tells that it is full and
// one that tells that it is free; and so has each warp's place for sums.
struct Memory {
  char *x, *w;     // stages of columns and of weights
  float4* sums;    // what this block adds: see Joiner and Adder
  float* numbers;  // of the columns' stages
  u64 *x_full, *x_free, *w_full, *w_free, *sums_full, *sums_free;
  AllMasks* masks;    // twice
  const char** rows;  // [2][kRows] where they start: of every sixteen, r and r + 8 are a pair
};

// The work of a block: so many columns of so many rows, the groups of columns of a tile of rows
// after each other. APART: a quarter of it, the other blocks of the cluster have the others; else
// they have other tiles and the same columns.
struct Unit {
  int tile, group;
  bool own;  // or another block has it too, and finishes it: the last tiles may be no four
};
template <bool APART, class F>
__device__ __forceinline__ void for_each_unit(const IntegersArgs& a, F work) {
  constexpr int TILES = APART ? 1 : kBlocks;  // of a cluster
  const int units = (a.c.tiles + TILES - 1) / TILES * a.groups;
  const int mine = APART ? 0 : block_rank();
  for (int u = blockIdx.x / kBlocks; u < units; u += gridDim.x / kBlocks) {
    const int tile = u / a.groups * TILES + mine;
    work(Unit{min(tile, a.c.tiles - 1), u % a.groups, tile < a.c.tiles});
  }
}

// Chunks of a quarter of k.
struct Range {
  int begin, end;
};
__device__ __forceinline__ Range quarter_of(int k, int quarter) {
  const int chunks = k / kChunkK, each = (chunks + kQuarters - 1) / kQuarters;
  const int begin = min(chunks, quarter * each);
  return {begin, min(chunks, begin + each)};
}
// Those that this block multiplies.
template <bool APART>
__device__ __forceinline__ Range chunks_of(int k) {
  return APART ? quarter_of(k, block_rank()) : Range{0, k / kChunkK};
}

// -- bringing -------------------------------------------------------------------------------------

template <class W, bool APART>
__device__ __forceinline__ void bring_weights(const IntegersArgs& args, const Memory& m,
                                              int thread) {
  using L = Weights<W>;
  constexpr int STAGE = kRows * L::STRIDE;
  const ColumnsArgs& a = args.c;
  const Range q = chunks_of<APART>(a.k);
  Place at;
  int table = 0;
  for_each_unit<APART>(args, [&](Unit u) {
    const char** const rows = m.rows + table * kRows;
    const Tile tile = tile_of<kPairs>(a, u.tile);
    for (int r = thread; r < kRows; r += kBringers) {
      rows[r] = row_start(a, tile.matrix, tile.pair + r / 16 * 8 + r % 8, r / 8 % 2);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kBringers) : "memory");
    table ^= 1;
    for (int chunk = q.begin; chunk < q.end; ++chunk) {
      barrier_wait(m.w_free + at.stage, at.parity ^ 1);
      const u32 to = shared_address(m.w + at.stage * STAGE);
#pragma unroll 4
      for (int i = thread; i < kRows * L::PIECES; i += kBringers) {
        const int r = i / L::PIECES, piece = i % L::PIECES;
        const char* const start = rows[r] + chunk * L::BYTES;
        const char* const from = start - L::offset(start) + 16 * piece;
        if (L::ALIGNED || from < start + L::BYTES) copy16_async(to + L::place(r, piece), from);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                       shared_address(m.w_full + at.stage))
                   : "memory");
      at.next(a.w_stages);
    }
  });
}

// Also to the other blocks of the cluster, into the same place and for the same barrier there.
template <bool ALL>
__device__ __forceinline__ void bulk_copy(u32 to, const char* from, u32 n, u64* bar) {
  if constexpr (ALL) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::"
        "bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(n), "r"(shared_address(bar)), "h"((unsigned short)((1 << kBlocks) - 1))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::"
        "bytes [%0], [%1], %2, "
        "[%3];" ::"r"(to),
        "l"(from), "r"(n), "r"(shared_address(bar))
        : "memory");
  }
}

// Columns that blocks have in common are brought by each of them, a fourth to all.
template <class W, int N, bool APART>
__device__ __forceinline__ void bring_columns(const IntegersArgs& args, const Memory& m) {
  constexpr u32 STAGE = N * kTileK * 2, ALL = 2 * N * sizeof(float) * kColumnNumbers;
  constexpr u32 NUMBERS = 2 * N * sizeof(float) * kNumbers<W>;
  constexpr u32 SHARES = APART ? 1 : kBlocks, X_SHARE = STAGE / SHARES, SHARE = NUMBERS / SHARES;
  static_assert(SHARE % 16 == 0, "as bulk copies want it");
  const ColumnsArgs& a = args.c;
  const Range q = chunks_of<APART>(a.k);
  const u32 share = APART ? 0 : block_rank();
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  for_each_unit<APART>(args, [&](Unit u) {
    const i64 first = (i64)u.group * (a.k / kTileK);
    const char* const x = a.x + first * STAGE + share * X_SHARE;
    const char* const numbers =
        reinterpret_cast<const char*>(args.numbers) + first * ALL + share * SHARE;
    for (int tile = q.begin * kChunkTiles; tile < q.end * kChunkTiles; ++tile) {
      cluster_barrier_wait(m.x_free + at.stage, at.parity ^ 1);
      u64* const bar = m.x_full + at.stage;
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
                   "r"(STAGE + NUMBERS)
                   : "memory");
      bulk_copy<!APART>(shared_address(m.x) + at.stage * STAGE + share * X_SHARE,
                        x + (i64)tile * STAGE, X_SHARE, bar);
      bulk_copy<!APART>(shared_address(m.numbers) + at.stage * NUMBERS + share * SHARE,
                        numbers + (i64)tile * ALL, SHARE, bar);
      at.next(a.x_stages);
    }
  });
  if (APART) return;
  for (int s = 0; s < a.x_stages; ++s) {  // until no other block tells this one anything
    cluster_barrier_wait(m.x_free + at.stage, at.parity ^ 1);
    at.next(a.x_stages);
  }
}

#endif
