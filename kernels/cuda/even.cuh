// Pairs of weight rows, shared evenly among the warps of a block.
//
// The rows of a block's pairs follow each other as units, what a lane has of a chunk: 64 elements
// of quantized weights. A chunk is 32 units wherever they lie, the last of one pair and the first
// of the next among them, so that few lanes have nothing to do; only that runs of bytes begin at
// multiples of 16 pads a row, to some units or to whole chunks. Warps have runs of chunks that
// begin and end anywhere. What a warp makes of a pair's rows it leaves as a part in shared memory,
// and whoever ends the pair adds them in order of the warps.
//
// So the order of sums depends on the shapes and the number of multiprocessors.
#pragma once

#include "cuda/mul_mat_vec.cuh"
#include "cuda/pipeline.cuh"

// Units that a row's length is rounded up to, so that their bytes are a multiple of 16.
template <class W>
constexpr int unit_step() {
  for (int n = 4; n < 32; n *= 2) {
    if (n * Chunk<W>::BYTES % (32 * 16) == 0) return n;
  }
  return 32;
}

// Units of a row of k elements; a chunk has those of two rows at most.
template <class W>
__device__ __forceinline__ int units_of(int k) {
  constexpr int STEP = unit_step<W>(), EACH = kChunk / 32;
  const int units = (k + EACH * STEP - 1) / (EACH * STEP) * STEP;
  return units < 32 ? 32 : units;
}

// Where two rows begin, and how long they are.
struct RowPair {
  const char *w0, *w1;
  u32 bytes;
};

// What a warp has yet of n pairs of `units` each: `left` chunks, from `unit` of `pair` on.
struct Walk {
  int pair, unit, left;

  __device__ __forceinline__ Walk(int units, int n, int warp, int warps) {
    const int chunks = (n * units + 31) / 32;
    const int begin = chunks * warp / warps;
    pair = begin * 32 / units;
    unit = begin * 32 - pair * units;
    left = chunks * (warp + 1) / warps - begin;
  }
  // The pair after the last one that it has something of.
  __device__ __forceinline__ int end(int units) const {
    return pair + (unit + 32 * left + units - 1) / units;
  }
  // Units of the chunk that are this pair's; the others are the next one's.
  __device__ __forceinline__ int own(int units) const { return min(32, units - unit); }
  __device__ __forceinline__ void next(int units) {
    --left;
    unit += 32;
    if (unit >= units) {
      unit -= units;
      ++pair;
    }
  }
};

template <class W>
struct Even {
  static_assert(Chunk<W>::QUANTIZED, "units are of quantized weights");
  static constexpr int N = kChunk, X_BYTES = Chunk<W>::X_BYTES, ROW = Chunk<W>::BYTES;
  static constexpr int STAGE = kRows * ROW + 16;

  // Of whole steps of units.
  static __device__ __forceinline__ u32 bytes(int units) {
    constexpr int STEP = unit_step<W>(), EACH = STEP * Chunk<W>::BYTES / 32;
    return (u32)units / STEP * EACH;
  }

  // The whole warp asks for a chunk. last: whether there is no pair after this one.
  template <class Rows>
  static __device__ __forceinline__ void ask(char* to, const Walk& at, int units, bool last,
                                             Rows rows_of, u64* bar, int lane, u64 policy) {
    const RowPair a = rows_of(at.pair);
    const int own = at.own(units);
    const u32 from = bytes(at.unit), room = bytes(own);
    const u32 n = min(room, a.bytes - from);
    if (own == 32 || last) {
      fill_runs<2>({to, to + ROW}, {a.w0 + from, a.w1 + from}, {n, n}, bar, lane, policy);
      return;
    }
    const RowPair b = rows_of(at.pair + 1);
    const u32 m = min(bytes(32 - own), b.bytes);
    fill_runs<4>({to, to + ROW, to + room, to + ROW + room}, {a.w0 + from, a.w1 + from, b.w0, b.w1},
                 {n, n, m, m}, bar, lane, policy);
  }

  // A chunk that has come times x. A lane has the `lane`-th of its units. sums: the lane's, of the
  // pair; once it ends they are left in parts[pair + warp]. n: pairs; k: elements of a row.
  static __device__ __forceinline__ void take(const char* stage, const char* x, const Walk& at,
                                              int units, int n, int k, int lane,
                                              float (&sums)[kRows][1], float2* parts) {
    const int own = at.own(units);
    const bool next = lane >= own;
    const int v = next ? lane - own : at.unit + lane;  // of the row
    float acc[kRows][1];
#pragma unroll
    for (int r = 0; r < kRows; ++r) acc[r][0] = next ? 0.0f : sums[r][0];
    if ((!next || at.pair + 1 < n) && v * 64 < k) {
      typename Vec<W>::Raw raw[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) raw[r] = Vec<W>::load(stage + r * ROW, lane);
      const char* const column = x + v / 32 * X_BYTES;
      Chunk<W>::template half<0, 1>(raw, column, 0, v % 32, acc);
      Chunk<W>::template half<1, 1>(raw, column, 0, v % 32, acc);
    }
    if (at.unit + 32 < units) {
      sums[0][0] = acc[0][0], sums[1][0] = acc[1][0];
      return;
    }
    leave(next ? sums[0][0] : acc[0][0], next ? sums[1][0] : acc[1][0], lane, parts + at.pair);
    sums[0][0] = next ? acc[0][0] : 0.0f, sums[1][0] = next ? acc[1][0] : 0.0f;
  }

  // The same for the pair that a warp's last chunk, before `at`, did not end.
  static __device__ __forceinline__ void end(const Walk& all, const Walk& at, int n, int lane,
                                             const float (&sums)[kRows][1], float2* parts) {
    if (all.left > 0 && at.unit > 0 && at.pair < n) {
      leave(sums[0][0], sums[1][0], lane, parts + at.pair);
    }
  }

  static __device__ __forceinline__ void leave(float y0, float y1, int lane, float2* part) {
    y0 = warp_reduce(y0, Add()), y1 = warp_reduce(y1, Add());
    if (lane == 0) *part = {y0, y1};
  }
};

// Of n pairs, what all warps made of one of them. parts: as `Even::take` leaves them.
__device__ __forceinline__ float2 sum_of(const float2* parts, int pair, int units, int n,
                                         int warps) {
  const int chunks = (n * units + 31) / 32, begin = pair * units, end = begin + units;
  float2 sum = {};
  for (int w = 0; w < warps; ++w) {
    const int b = chunks * w / warps * 32, e = chunks * (w + 1) / warps * 32;
    if (b >= e || b >= end || e <= begin) continue;
    const float2 part = parts[pair + w];
    sum.x += part.x;
    sum.y += part.y;
  }
  return sum;
}
