// What the kernels have in common that multiply one column by the tensor cores:
// mul_mat_one_float.cu and mul_mat_fragments.cu. Which tiles of sixteen rows and which part of k a
// warp has, and what becomes of the sums: the residual, SwiGLU, rotation and KV write.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/float_column.cuh"
#include "cuda/rope.cuh"

constexpr int kThreads = 32 * kColumnWarps;
constexpr int kTurnsBarrier = 15;  // the column's is 1; from 2 on they are of tiles

// Mirrored by `_arguments` in tile_column.py.
struct TileColumnArgs {
  ColumnsArgs c;      // w_stages: of each warp
  const float* x;     // what the column is made of
  const float* norm;  // weights of the norm, or null
  Turns turns;
  float eps;
  int tiles;          // that a block has at once
  int share, longer;  // tiles of a block in all; the first so many blocks have one more
  FastDiv parts;      // of k
  int turns_at, squares_at, sums_at, x_at, ring_at;  // bytes in shared memory
};

#if __CUDA_ARCH__ >= 900

// ORDERED: whether tiles of pairs that are neighbours have sixteen rows in order. BLOCKS: that
// share the parts of a tile, as neighbours.
template <int KIND, bool ORDERED, int BLOCKS = 1>
struct TileColumn {
  static constexpr int PAIRS = 8;  // of a tile

  const TileColumnArgs& o;
  const ColumnsArgs& a;
  char* const shared;
  const int warp, lane;
  const int here;        // parts of a tile that the block has
  const int slot, part;  // of the tiles that are there at once, of k
  const int first;       // tile of the block
  const int count;       // tiles for this warp to go through, from `slot` on
  u64* const bars;
  // Of heads: what the first of this thread's turns by, and whether all are there.
  double angle = 0.0;
  int pos = 0;
  bool turns_here = true;
  // What warps leave for the one with a tile's first part, and for the tile behind: what was left
  // is read until they meet again.
  float *left, *left_next;

  __device__ __forceinline__ TileColumn(const TileColumnArgs& o, char* shared)
      : o(o),
        a(o.c),
        shared(shared),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        here((int)o.parts.divisor / BLOCKS),
        slot(BLOCKS == 1 ? o.parts.div(warp) : warp / here),
        part(warp - slot * here + (BLOCKS == 1 ? 0 : here * rank())),
        first(o.share * block() + min(block(), o.longer)),
        count(slot < o.tiles ? o.share + (block() < o.longer) : 0),
        bars(reinterpret_cast<u64*>(shared) + warp * a.w_stages),
        left(reinterpret_cast<float*>(shared + o.sums_at)),
        left_next(left + kColumnWarps * 2 * PAIRS) {}

  static __device__ __forceinline__ int block() { return (int)blockIdx.x / BLOCKS; }
  static __device__ __forceinline__ int rank() { return (int)blockIdx.x % BLOCKS; }

  // -- rows --

  __device__ __forceinline__ Tile tile_at(int tile) const {
    return KIND == QKV ? tile_of<PAIRS>(a, first + tile) : Tile{0, (first + tile) * PAIRS};
  }
  // Whether a tile of a matrix has rows in order: those whose pairs are neighbours.
  __device__ __forceinline__ bool in_order(int matrix) const {
    return ORDERED && (KIND == PLAIN || (KIND == QKV && (a.first + matrix >= 2 || !a.neox)));
  }
  // The pair of a tile whose sums this lane finishes.
  __device__ __forceinline__ int pair_of(const Tile& t) const {
    const int r = lane / 4;
    return t.pair + (in_order(t.matrix) ? r % 2 * 4 + r / 2 : r);
  }
  // Where this lane's eight of a tile's rows begin, if eights lie together: lanes 0 to 7 have the
  // first.
  __device__ __forceinline__ const char* eight_of(int tile) const {
    const Tile t = tile_at(tile);
    const bool second = lane >= PAIRS, next = second && in_order(t.matrix);
    const char* const from = row_start(KIND, a, t.matrix, t.pair, second && !next);
    return next ? from + PAIRS * a.w_row : from;
  }

  // -- what heads are turned by, found by the last warps, as they may have no rows --

  __device__ __forceinline__ bool are_turned() const { return KIND == QKV && a.first < 2; }
  __device__ __forceinline__ float2* turns() const {
    return reinterpret_cast<float2*>(shared + o.turns_at);
  }
  static __device__ __forceinline__ int first_turn() { return kThreads - 1 - (int)threadIdx.x; }
  __device__ __forceinline__ bool has_turn() const {
    return are_turned() && first_turn() < a.head_dim / 2;
  }
  __device__ __forceinline__ void leave_turns() {
    if (!are_turned()) return;
    turns_here = false;
    for (int i = first_turn(); i < a.head_dim / 2; i += kThreads) {
      if (i >= kThreads) angle = o.turns.angle(i);
      turn(o.turns.rope, pos * angle, &turns()[i].y, &turns()[i].x);
    }
    if (slot >= count) {
      asm volatile("bar.arrive %0, %1;" ::"n"(kTurnsBarrier), "n"(kThreads) : "memory");
    }
  }
  __device__ __forceinline__ void wait_for_turns() {
    if (turns_here) return;
    asm volatile("bar.sync %0, %1;" ::"n"(kTurnsBarrier), "n"(kThreads) : "memory");
    turns_here = true;
  }

  // The column, after the kernels before this one; returns what sums are multiplied by.
  template <class COLUMN>
  __device__ __forceinline__ float make(COLUMN& column) {
    if (has_turn()) angle = o.turns.angle(first_turn());
    wait_for_previous();
    if (has_turn()) pos = __ldcg(o.turns.pos);
    return column.make(o.eps);
  }

  // -- sums --

  __device__ __forceinline__ bool ends() const { return part == 0 && lane % 4 == 0; }
  __device__ __forceinline__ BesideOne beside(int tile, float scale) const {
    const Tile t = tile_at(tile);
    const int pair = pair_of(t);
    BesideOne b = {};
    if (pair < a.pairs[t.matrix]) b = beside_single(KIND, a, t.matrix, pair);
    b.scale = scale;
    return b;
  }

  // A pair's sums of all parts, for the warp with the first one.
  __device__ __forceinline__ float2 add_parts(float2 y) {
    float* const mine = left + warp * 16 + lane / 4;
    if (lane % 4 == 0) {
      mine[0] = y.x;
      mine[8] = y.y;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(2 + slot), "r"(32 * o.parts.divisor) : "memory");
    for (int i = 1; part == 0 && i < (int)o.parts.divisor; ++i) {
      y.x += mine[16 * i];
      y.y += mine[16 * i + 8];
    }
    float* const before = left;
    left = left_next;
    left_next = before;
    return y;
  }

  // Of rows in order lane r has the sums of the r-th and of the eighth after it: those of pairs.
  __device__ __forceinline__ float2 in_pairs(float2 y) const {
    const bool odd = lane / 4 % 2;
    const float other = __shfl_xor_sync(kAllLanes, odd ? y.x : y.y, 4);
    return odd ? float2{other, y.y} : float2{y.x, other};
  }

  // y: of this warp's part of a tile.
  __device__ __forceinline__ void finish(int tile, float2 y, BesideOne& b, bool rough) {
    if (o.parts.divisor > 1) y = add_parts(y);
    wait_for_turns();
    const Tile t = tile_at(tile);
    if (in_order(t.matrix)) y = in_pairs(y);
    if (!ends()) return;
    const int pair = pair_of(t);
    if (are_turned()) b.turn = turns()[pair % (a.head_dim / 2)];
    finish_one(KIND, a, t.matrix, pair, 0, y.x, y.y, b, rough);
  }
};
#endif
