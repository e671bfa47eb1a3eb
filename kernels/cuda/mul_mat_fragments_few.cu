// 2 to 16 columns times rows of quantized weights that lie as fragments (fragments.cuh), with the
// bits of mul_mat_columns.cu. The columns lie rounded in device memory (columns_round.cu).
//
// As in mul_mat_fragments.cu a part of a tile's rows has a warp; the tensor cores' product has
// eight columns anyway. All columns of the parts that a block has are in its shared memory. Where
// those of all parts are too many, blocks of a cluster have some each, and one of them adds a
// tile's.
#include "cuda/cluster.cuh"
#include "cuda/tile_fragments.cuh"

#if __CUDA_ARCH__ >= 900

constexpr int kPiece = 16384;  // bytes that are copied at once

template <int KIND, class W, int UNITS, int COLUMNS, int BLOCKS>
struct FewFragments : TileFragments<KIND, W, UNITS, COLUMNS, BLOCKS> {
  typedef TileFragments<KIND, W, UNITS, COLUMNS, BLOCKS> Base;
  using Base::a;
  using Base::count;
  using Base::here;
  using Base::lane;
  using Base::o;
  using Base::part;
  using Base::slot;
  static constexpr int PAIRS = Base::PAIRS, EIGHTS = Base::EIGHTS;
  static constexpr int SUMS = 2 * PAIRS * COLUMNS;  // of a part of a tile

  // Where a sum belongs.
  struct Item {
    int slot, pair, column;  // pair: of a tile
    BesideOne beside;
  };

  const int parts;
  u64* const columns_here;  // a barrier, where one column leaves squares
  char* const x;

  __device__ __forceinline__ FewFragments(const FragmentArgs& args, char* shared)
      : Base(args.o, shared),
        parts(o.parts.divisor),
        columns_here(reinterpret_cast<u64*>(shared + o.squares_at)),
        x(shared + o.x_at) {}

  // Of this block's parts of k.
  __device__ __forceinline__ void bring_columns() const {
    const int first = this->first_unit(here * this->rank());
    const int end = this->first_unit(here * (this->rank() + 1));
    const int bytes = (end - first) * Base::Unit::BLOCKS * Base::STEP;
    const char* const from = a.x + (i64)first * Base::Unit::BLOCKS * Base::STEP;
    expect_bytes(columns_here, bytes);
#pragma unroll 1
    for (int at = 0; at < bytes; at += kPiece) {
      copy_bulk(x + at, from + at, min(kPiece, bytes - at), columns_here);
    }
  }

  // The rows of a pair within a tile.
  __device__ __forceinline__ int2 rows_in_tile(int matrix, int pair) const {
    return this->in_order(matrix) ? int2{2 * pair, 2 * pair + 1} : int2{pair, pair + PAIRS};
  }
  // Where the sums of a slot's tile are added: which block, and where in its shared memory.
  static __device__ __forceinline__ int owner_of(int slot) { return slot % BLOCKS; }
  __device__ __forceinline__ float* sums_of(int slot) const {
    return reinterpret_cast<float*>(this->shared + o.sums_at) + slot / BLOCKS * parts * SUMS;
  }

  __device__ __forceinline__ BesideOne beside(const Tile& t, int pair, int column) const {
    return beside_one(KIND, a, t.matrix, t.pair + pair, column);
  }
  __device__ __forceinline__ void finish(const Tile& t, int pair, int column, float2 y,
                                         const BesideOne& b) const {
    finish_one(KIND, a, t.matrix, t.pair + pair, column, y.x, y.y, b);
  }

  // Of one part: each lane has its sums.
  __device__ __forceinline__ void finish_sums(int tile, float (&sums)[EIGHTS][4]) const {
    const Tile t = this->tile_at(tile);
    const int r = lane / 4, pair = this->in_order(t.matrix) ? r % 2 * 4 + r / 2 : r;
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; ++i) {
      const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
      float2 y = {sums[i / 2][i % 2], sums[i / 2][2 + i % 2]};
      if (this->in_order(t.matrix)) y = this->in_pairs(y);
      if (column < a.m) finish(t, pair, column, y, beside(t, pair, column));
    }
  }

  // To the block that adds them.
  __device__ __forceinline__ void leave_sums(float (&sums)[EIGHTS][4]) const {
    float* const mine = sums_of(slot) + part * SUMS;
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; ++i) {
      const int row = lane / 4 + i % 2 * PAIRS, column = i / 2 * 8 + lane % 4 * 2;
      if (column >= COLUMNS) continue;
      float* const to = mine + row * COLUMNS + column;
      const float2 two = {sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]};
      if (BLOCKS == 1) {
        *reinterpret_cast<float2*>(to) = two;
      } else {
        put_at(address_at(shared_address(to), owner_of(slot)), two);
      }
    }
  }

  __device__ __forceinline__ void add_parts(int slot, const Tile& t, int item) const {
    const int pair = item / COLUMNS, column = item % COLUMNS;
    if (column >= a.m || t.pair + pair >= a.pairs[t.matrix]) return;
    const BesideOne b = beside(t, pair, column);
    const int2 rows = rows_in_tile(t.matrix, pair);
    const float* const from = sums_of(slot) + column;
    float2 y = {0.0f, 0.0f};
#pragma unroll 4
    for (int p = 0; p < parts; ++p) {
      y.x += from[p * SUMS + rows.x * COLUMNS];
      y.y += from[p * SUMS + rows.y * COLUMNS];
    }
    finish(t, pair, column, y, b);
  }

  __device__ __forceinline__ void run(int early) {
    barriers_make(this->bars, a.w_stages, lane);
    if (threadIdx.x == 0) barrier_init(columns_here);
    barriers_ready();
    this->request_some(0, early);
    launch_dependents();
    wait_for_previous();
    if (threadIdx.x == 0) bring_columns();
    this->request_some(early, a.w_stages);
    if (BLOCKS > 1) {
      cluster_sync();  // and all are there whose memory is written to
    } else {
      __syncthreads();
    }
    barrier_wait(columns_here, 0);
    const int skipped = this->begin - this->first_unit(here * this->rank());
    const char* const place = this->place_in(x) + skipped * Base::Unit::BLOCKS * Base::STEP;

    if (BLOCKS > 1) {  // a block has all its tiles at once
      float sums[EIGHTS][4] = {};
      if (slot < count) {
        this->multiply_part(place, sums);
        leave_sums(sums);
      }
      cluster_sync();
      const int tiles = min(o.tiles, o.share + (this->block() < o.longer));
      const int mine = (tiles - this->rank() + BLOCKS - 1) / BLOCKS;
      for (int i = threadIdx.x; i < mine * PAIRS * COLUMNS; i += kThreads) {
        const int s = i / (PAIRS * COLUMNS) * BLOCKS + this->rank();
        add_parts(s, this->tile_at(s), i % (PAIRS * COLUMNS));
      }
      return;
    }
#pragma unroll 1
    for (int tile = slot; tile < count; tile += o.tiles) {
      float sums[EIGHTS][4] = {};
      this->multiply_part(place, sums);
      if (parts == 1) {
        finish_sums(tile, sums);
        continue;
      }
      if (tile != slot) meet();  // what was left has been read
      leave_sums(sums);
      meet();
      for (int i = part * 32 + lane; i < PAIRS * COLUMNS; i += 32 * parts) {
        add_parts(slot, this->tile_at(tile), i);
      }
    }
  }
  // The warps of a tile.
  __device__ __forceinline__ void meet() const {
    asm volatile("bar.sync %0, %1;" ::"r"(2 + slot), "r"(32 * parts) : "memory");
  }
};
#endif

template <int KIND, class W, int UNITS, int COLUMNS, int BLOCKS>
__global__ void __launch_bounds__(kThreads, 1) GF_CLUSTER(BLOCKS)
    mul_mat_fragments_few(const __grid_constant__ FragmentArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  FewFragments<KIND, W, UNITS, COLUMNS, BLOCKS>(args, shared).run(args.early);
#endif
}
