// What the kernels have in common that multiply one column, or a few, by the tensor cores, sixteen
// rows at a time: mul_mat_one_float.cu, mul_mat_fragments.cu and mul_mat_fragments_few.cu. Which
// tiles of rows a block has, and what becomes of a single column's sums: the residual, SwiGLU,
// rotation and KV write.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/float_column.cuh"
#include "cuda/rope.cuh"

constexpr int kThreads = 32 * kColumnWarps;

// Mirrored by `_arguments` in tile_column.py.
struct TileColumnArgs {
  ColumnsArgs c;      // w_stages: of each warp
  const float* x;     // what a single column is made of
  const float* norm;  // weights of the norm, or null
  Turns turns;
  float eps;
  int share, longer;  // tiles of a group of blocks in all; the first so many have one more
  FastDiv parts;      // of k
  int turns_at, squares_at, sums_at, x_at, ring_at;  // bytes in shared memory
};

#if __CUDA_ARCH__ >= 900

// ORDERED: whether tiles of pairs that are neighbours have sixteen rows in order. BLOCKS: of a
// group that shares the parts of a tile, as neighbours.
template <int KIND, bool ORDERED, int BLOCKS = 1>
struct TileColumn {
  static constexpr int PAIRS = 8;  // of a tile

  const TileColumnArgs& o;
  const ColumnsArgs& a;
  char* const shared;
  const int warp, lane, parts;
  const int first, tiles;  // of the group
  int pos = 0;             // of a column of heads

  __device__ __forceinline__ TileColumn(const TileColumnArgs& o, char* shared)
      : o(o),
        a(o.c),
        shared(shared),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        parts(o.parts.divisor),
        first(o.share * group() + min(group(), o.longer)),
        tiles(o.share + (group() < o.longer)) {}

  static __device__ __forceinline__ int group() { return (int)blockIdx.x / BLOCKS; }
  static __device__ __forceinline__ int rank() { return (int)blockIdx.x % BLOCKS; }

  // -- rows --

  __device__ __forceinline__ Tile tile_at(int tile) const {
    return KIND == QKV ? tile_of<PAIRS>(a, first + tile) : Tile{0, (first + tile) * PAIRS};
  }
  // Whether a tile of a matrix has rows in order: those whose pairs are neighbours.
  __device__ __forceinline__ bool in_order(int matrix) const {
    return ORDERED && ::in_order(KIND, a, matrix);
  }
  // The pair of a tile whose sums this lane finishes.
  __device__ __forceinline__ int pair_of(const Tile& t) const {
    return t.pair + pair_of_eight(lane / 4, in_order(t.matrix));
  }
  // Where this lane's eight of a tile's rows begin, if eights lie together: lanes 0 to 7 have the
  // first.
  __device__ __forceinline__ const char* eight_of(int tile) const {
    const Tile t = tile_at(tile);
    return eight_start(KIND, a, t, lane >= PAIRS, in_order(t.matrix));
  }

  // -- what heads are turned by, found by the last warps, as they may have no rows --

  __device__ __forceinline__ bool are_turned() const { return KIND == QKV && a.first < 2; }
  __device__ __forceinline__ float2* turns() const {
    return reinterpret_cast<float2*>(shared + o.turns_at);
  }
  static __device__ __forceinline__ int first_turn() { return kThreads - 1 - (int)threadIdx.x; }
  // Angles lie where turns will: they need no registers while the column is made.
  __device__ __forceinline__ double* angles() const {
    static_assert(sizeof(double) == sizeof(float2), "an angle has a turn's place");
    return reinterpret_cast<double*>(shared + o.turns_at);
  }
  __device__ __forceinline__ void leave_angles() const {
    if (!are_turned()) return;
    for (int i = first_turn(); i < a.head_dim / 2; i += kThreads) angles()[i] = o.turns.angle(i);
  }
  __device__ __forceinline__ void leave_turns() const {
    if (!are_turned()) return;
    for (int i = first_turn(); i < a.head_dim / 2; i += kThreads) {
      float2 found;
      turn(o.turns.rope, pos * angles()[i], &found.y, &found.x);
      turns()[i] = found;
    }
  }

  // The column, after the kernels before this one; returns what sums are multiplied by. f: called
  // while its first elements are on their way.
  template <class COLUMN, class F>
  __device__ __forceinline__ float make(COLUMN& column, F f) {
    leave_angles();
    wait_for_previous();
    if (are_turned() && first_turn() < a.head_dim / 2) pos = __ldcg(o.turns.pos);
    return column.make(o.eps, f);
  }

  // -- a single column's sums --

  // pair: of a matrix.
  __device__ __forceinline__ BesideOne beside_pair(int matrix, int pair, float scale) const {
    BesideOne b = {};
    if (pair < a.pairs[matrix]) b = beside_single(KIND, a, matrix, pair);
    b.scale = scale;
    return b;
  }
  __device__ __forceinline__ void finish_pair(int matrix, int pair, float2 y, BesideOne& b,
                                              bool rough) const {
    if (are_turned()) b.turn = turns()[pair % (a.head_dim / 2)];
    finish_one(KIND, a, matrix, pair, 0, y.x, y.y, b, rough);
  }
};
#endif
