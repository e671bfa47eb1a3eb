// What a layer whose attention stands beside its feed-forward part begins with: a LayerNorm of one
// column, and of what it makes queries, keys and values and the first half of the feed-forward
// layer, which ends in GELU.
//
// As in mul_mat_vec.cu the grid is one block a multiprocessor and the first stages are asked for
// before the kernel waits for the one before it. A block has every gridDim.x-th pair of rows, and
// its warps share them evenly (even.cuh).
#include "cuda/even.cuh"
#include "cuda/vec_parts.cuh"

// Of a block, at most. Few have stages in little shared memory: a block then starts beside one of
// mul_mat_two.cu, with which the layer before ends, and its first rows are there when that is over.
constexpr int kParallelWarps = 8;
constexpr int kColumnPieces = 5;  // a thread's, of the column: all that Falcon 7B has

// W: type of the weights. Shared memory: where rows begin, a warp's apart from those of the others,
// barriers, rotations, parts, the column, stages.
template <int KIND, class W>
__global__ void __launch_bounds__(32 * kParallelWarps, 2)
    mul_mat_parallel(const __grid_constant__ VecArgs a) {
  typedef Even<W> E;
  extern __shared__ __align__(128) char shared[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int units = units_of<W>(a.k), half = a.head_dim / 2;
  const int pairs = a.pairs[0] + a.pairs[1] + a.pairs[2] + a.pairs[3];
  const int n = (pairs - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  const int most = (pairs + gridDim.x - 1) / gridDim.x;
  ulonglong2* const rows = reinterpret_cast<ulonglong2*>(shared);
  u64* const bars = reinterpret_cast<u64*>(rows + most + warps) + warp * a.stages;
  float2* const turns = reinterpret_cast<float2*>(rows + most + warps) + warps * a.stages;
  float2* const parts = turns + half;
  char* const xs = shared + (8 * (3 * (most + warps) + warps * a.stages + half) + 15) / 16 * 16;
  char* const stages = xs + (a.k + E::N - 1) / E::N * E::X_BYTES + warp * a.stages * E::STAGE;

  const auto index_of = [&](int pair) { return (int)(blockIdx.x + gridDim.x * pair); };
  const u64 policy = read_once();
  const Walk all(units, n, warp, warps);
  Walk ask = all;
  for (int i = all.pair + lane; i < min(all.end(units), n); i += 32) {
    const Pair p = pair_of(KIND, a, index_of(i));
    rows[i + warp] = {reinterpret_cast<u64>(p.w0), reinterpret_cast<u64>(p.w1)};
  }
  const auto rows_of = [&](int pair) {
    const ulonglong2 p = rows[pair + warp];
    return RowPair{reinterpret_cast<const char*>(p.x), reinterpret_cast<const char*>(p.y),
                   (u32)a.row_bytes[0]};
  };
  const auto request = [&](int stage) {
    E::ask(stages + stage * E::STAGE, ask, units, ask.pair + 1 >= n, rows_of, bars + stage, lane,
           policy);
    ask.next(units);
  };

  barriers_make(bars, a.stages, lane);
#pragma unroll 1
  for (int s = 0; s < a.stages && ask.left > 0; ++s) request(s);
  launch_dependents();

  // What does not depend on the kernels before this one.
  float4 by[kColumnPieces], plus[kColumnPieces];
  ask_pieces<kColumnPieces>(a.norm, 0, a.k, by);
  ask_pieces<kColumnPieces>(a.norm_bias, 0, a.norm_bias != nullptr ? a.k : 0, plus);
  const double angle = threadIdx.x < half ? angle_of(a, threadIdx.x) : 0.0;
  wait_for_previous();

  const int pos = __ldcg(a.pos);
  load_centered<true, kColumnPieces, true>(a, xs, by, plus);
  for (int t = threadIdx.x; t < half; t += blockDim.x) {
    turn(a.rope, pos * (t == threadIdx.x ? angle : angle_of(a, t)), &turns[t].y, &turns[t].x);
  }
  __syncthreads();

  int stage = 0;
  u32 parity = 0;
  float sums[kRows][1] = {};
  Walk at = all;
  while (at.left > 0) {
    barrier_wait(bars + stage, parity);
    E::take(stages + stage * E::STAGE, xs, at, units, n, a.k, lane, sums, parts + warp);
    __syncwarp();
    if (ask.left > 0) request(stage);
    if (++stage == a.stages) {
      stage = 0;
      parity ^= 1;
    }
    at.next(units);
  }
  E::end(all, at, n, lane, sums, parts + warp);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float2 y = sum_of(parts, i, units, n, warps);
    finish(KIND, a, pair_of(KIND, a, index_of(i)), turns, 0, y.x, y.y, 0.0f, 0.0f);
  }
}
