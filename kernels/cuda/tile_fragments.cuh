// What mul_mat_fragments.cu and mul_mat_fragments_few.cu have in common: the ring of a warp's part
// of tiles of quantized weights that lie as fragments, and the products of what is there with
// columns.
#pragma once

#include "cuda/fragments.cuh"
#include "cuda/mma.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tile_column.cuh"

// Mirrored by `launches` in mul_mat_fragments.py.
struct FragmentArgs {
  TileColumnArgs o;
  int early;  // stages that are asked for before the columns
};

#if __CUDA_ARCH__ >= 900

// UNITS: of a stage's rows. COLUMNS: that lie together, each 16 bytes of a lane for 32 elements;
// lanes of others multiply one of these. BLOCKS: as TileColumn has it.
template <int KIND, class W, int UNITS, int COLUMNS = 1, int BLOCKS = 1>
struct TileFragments : TileColumn<KIND, true, BLOCKS> {
  typedef TileColumn<KIND, true, BLOCKS> Base;
  typedef FragmentUnit<W> Unit;
  using Base::a;
  using Base::bars;
  using Base::count;
  using Base::lane;
  using Base::o;
  using Base::part;
  static constexpr int EIGHT = UNITS * Unit::BYTES, STAGE = 2 * EIGHT;
  static constexpr int EIGHTS = (COLUMNS + 7) / 8;  // of columns
  static constexpr int STEP = COLUMNS * 64;         // bytes of 32 elements of the columns

  const u64 policy;
  const int begin, units;  // of the part
  char* const ring;
  int stage = 0;
  u32 parity = 0;
  // What is asked for next: of which tile, from which unit of the part on. from: where the part
  // begins in this lane's eight rows.
  int ask_tile, ask_unit = 0;
  const char* from = nullptr;

  __device__ __forceinline__ int first_unit(int part) const {
    return a.k / kUnit * part / (int)o.parts.divisor;
  }
  __device__ __forceinline__ TileFragments(const TileColumnArgs& o, char* shared)
      : Base(o, shared),
        policy(read_once()),
        begin(first_unit(part)),
        units(first_unit(part + 1) - begin),
        ring(shared + o.ring_at + this->warp * a.w_stages * STAGE),
        ask_tile(this->slot) {}

  __device__ __forceinline__ void request(int stage) {
    if (ask_unit == 0) from = this->eight_of(ask_tile) + begin * (i64)Unit::BYTES;
    const u32 bytes = min(UNITS, units - ask_unit) * Unit::BYTES;
    const u32 bar = shared_address(bars + stage), to = shared_address(ring + stage * STAGE);
    if (elected()) expect_bytes(bar, 2 * bytes);
    __syncwarp();
    if (lane % kEight == 0 && lane < 2 * kEight) {
      copy_bulk(to + lane / kEight * EIGHT, from + ask_unit * Unit::BYTES, bytes, bar, policy);
    }
    ask_unit += UNITS;
    if (ask_unit >= units) {
      ask_unit = 0;
      ask_tile += o.tiles;
    }
  }
  // Of the stages from one to another, what there is to ask for.
  __device__ __forceinline__ void request_some(int from, int to) {
#pragma unroll 1
    for (int s = from; s < min(to, a.w_stages) && ask_tile < count; ++s) request(s);
  }

  // This lane's place in the columns that begin at x.
  static __device__ __forceinline__ const char* place_in(const char* x) {
    const int lane = threadIdx.x % 32;
    return x + (lane / 4 % min(COLUMNS, 8) * 4 + lane % 4) * 16;
  }

  // A unit of each eight; x: this lane's place in the columns.
  __device__ __forceinline__ void multiply(const char* rows, const char* x,
                                           float (&sums)[EIGHTS][4]) const {
    const Unit upper = Unit::load(rows, lane), lower = Unit::load(rows + EIGHT, lane);
#pragma unroll
    for (int b = 0; b < Unit::BLOCKS; ++b) {
      const Pairs lo = upper.pairs(b, a.masks), hi = lower.pairs(b, a.masks);
      const u32 w0[4] = {lo.v[0], hi.v[0], lo.v[1], hi.v[1]};
      const u32 w1[4] = {lo.v[2], hi.v[2], lo.v[3], hi.v[3]};
#pragma unroll
      for (int j = 0; j < EIGHTS; ++j) {
        const uint4 column = *reinterpret_cast<const uint4*>(x + b * STEP + j * 512);
        mma<f16>(sums[j], w0, column.x, column.y);
        mma<f16>(sums[j], w1, column.z, column.w);
      }
    }
  }

  // The sums of a tile's part; x: this lane's place in the columns where the part begins.
  __device__ __forceinline__ void multiply_part(const char* x, float (&sums)[EIGHTS][4]) {
#pragma unroll 1
    for (int u = 0; u < units; u += UNITS) {
      barrier_wait(bars + stage, parity);
      const char* rows = ring + stage * STAGE;
      const int n = min(UNITS, units - u);
#pragma unroll 1
      for (int i = 0; i < n; ++i, rows += Unit::BYTES, x += Unit::BLOCKS * STEP) {
        multiply(rows, x, sums);
      }
      __syncwarp();
      if (ask_tile < count) request(stage);
      if (++stage == a.w_stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }
};
#endif
