// One column each of two products of as many rows, added: what attention and a feed-forward layer
// beside it give back to the residual stream.
//
// The grid is one block a multiprocessor, as in mul_mat_vec.cu, and a block has every gridDim.x-th
// pair of rows. Its warps share the chunks of all of these rows evenly, however many the pairs are:
// a warp has a run of chunks that begins and ends anywhere in a row. What it makes of a row's
// part is left in shared memory, and a row's parts are added at the end. So the order of sums
// depends on the shapes and the number of multiprocessors, and no warp has twice what others have
// where pairs are a little more than warps.
#include "cuda/vec_parts.cuh"

// Mirrored by `launches` in mul_mat_two.py.
struct TwoArgs {
  const char* w[2];
  const float* x[2];
  const float* r;        // added
  const float* bias[2];  // the same; null: nothing
  float* dst;
  i64 row_bytes[2];
  i32 k[2];
  i32 rows, pairs, stages;
  i32 early;  // whether x[0] is there when the kernel begins
};

// A warp's next chunk: of which product, of which of the block's pairs; and how many are left of
// this product.
struct Walk {
  int product, pair, chunk, left;

  __device__ __forceinline__ Walk(int product, int chunks, int mine, int warp, int warps)
      : product(product) {
    const int begin = mine * chunks * warp / warps;
    pair = begin / chunks;
    chunk = begin - pair * chunks;
    left = mine * chunks * (warp + 1) / warps - begin;
  }
  __device__ __forceinline__ void next(int chunks) {
    --left;
    if (++chunk == chunks) {
      chunk = 0;
      ++pair;
    }
  }
};

// W, V: types of the weights, of which both are quantized or none is. Shared memory: barriers, what
// is added to each pair, parts of rows, columns, stages.
template <class W, class V>
__global__ void __launch_bounds__(32 * kMaxWarps, 2)
    mul_mat_two(const __grid_constant__ TwoArgs a) {
  static_assert(Chunk<W>::QUANTIZED == Chunk<V>::QUANTIZED, "both columns have one form");
  constexpr bool QUANTIZED = Chunk<W>::QUANTIZED;
  constexpr int X_BYTES = Chunk<W>::X_BYTES, N = Chunk<W>::N;
  constexpr int STAGE = kRows * larger(Chunk<W>::BYTES, Chunk<V>::BYTES) + 16;
  extern __shared__ __align__(128) char shared[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks[2] = {(a.k[0] + N - 1) / N, (a.k[1] + N - 1) / N};
  const int most = (a.pairs + gridDim.x - 1) / gridDim.x;
  const int mine = (a.pairs - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
  u64* const bars = reinterpret_cast<u64*>(shared) + warp * a.stages;
  float2* const added = reinterpret_cast<float2*>(shared) + warps * a.stages;
  // A part of pair p that warp w makes is the (p + w)-th: of two parts that follow each other one
  // of both numbers differs at least.
  float2* const parts = added + most;
  const int n_parts = most + warps;
  char* const xs = shared + (8 * (warps * a.stages + most + 2 * n_parts) + 15) / 16 * 16;
  char* const x1 = xs + chunks[0] * X_BYTES;
  char* const stages = x1 + chunks[1] * X_BYTES + warp * a.stages * STAGE;

  const u64 policy = read_once();
  Walk ask(0, chunks[0], mine, warp, warps);
  int asked = 0;
  const Walk second(1, chunks[1], mine, warp, warps);
  const int total = ask.left + second.left;
  if (ask.left == 0) ask = second;
  const auto request = [&](int stage) {
    const bool v = ask.product == 1;
    const int row0 = 2 * (blockIdx.x + gridDim.x * ask.pair), row1 = min(row0 + 1, a.rows - 1);
    const u32 bytes = v ? Chunk<V>::BYTES : Chunk<W>::BYTES, at = ask.chunk * bytes;
    const i64 row = v ? a.row_bytes[1] : a.row_bytes[0];
    const char* const w = (v ? a.w[1] : a.w[0]) + at;
    char* const to = stages + stage * STAGE;
    fill(to, w + row0 * row, to + bytes, w + row1 * row, min(bytes, (u32)row - at), bars + stage,
         lane, policy);
    ++asked;
    ask.next(v ? chunks[1] : chunks[0]);
    if (ask.left == 0 && !v) ask = second;
  };

  barriers_make(bars, a.stages, lane);
#pragma unroll 1
  for (int s = 0; s < a.stages && asked < total; ++s) request(s);
  launch_dependents();

  int stage = 0;
  u32 parity = 0;
  const auto multiply = [&](Walk at, auto chunk_of, const char* x, int n_chunks, int k) {
    typedef decltype(chunk_of) C;
    float acc[kRows][1] = {};
    while (at.left > 0) {
      barrier_wait(bars + stage, parity);
      C::multiply(stages + stage * STAGE, x + at.chunk * X_BYTES, 0, min(k - at.chunk * N, N), lane,
                  acc);
      __syncwarp();
      if (asked < total) request(stage);
      if (++stage == a.stages) {
        stage = 0;
        parity ^= 1;
      }
      const int pair = at.pair;
      at.next(n_chunks);
      if (at.left > 0 && at.pair == pair) continue;
      const float y0 = warp_reduce(acc[0][0], Add()), y1 = warp_reduce(acc[1][0], Add());
      if (lane == 0) parts[at.product * n_parts + pair + warp] = {y0, y1};
      acc[0][0] = acc[1][0] = 0.0f;
    }
  };
  const auto column = [&](int p, char* to) {
    VecArgs x = {};
    x.x = a.x[p];
    x.k = a.k[p];
    x.m = 1;
    load_columns<QUANTIZED, 1>(x, to, 0);
    __syncthreads();
  };

  if (!a.early) wait_for_previous();
  column(0, xs);
  multiply(Walk(0, chunks[0], mine, warp, warps), Chunk<W>(), xs, chunks[0], a.k[0]);
  if (a.early) wait_for_previous();
  for (int i = threadIdx.x; i < mine; i += blockDim.x) {
    const int row0 = 2 * (blockIdx.x + gridDim.x * i), row1 = min(row0 + 1, a.rows - 1);
    float2 sum = {__ldcg(a.r + row0), __ldcg(a.r + row1)};
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      if (a.bias[p] == nullptr) continue;
      sum.x += __ldcg(a.bias[p] + row0);
      sum.y += __ldcg(a.bias[p] + row1);
    }
    added[i] = sum;
  }
  column(1, x1);
  multiply(second, Chunk<V>(), x1, chunks[1], a.k[1]);
  __syncthreads();

  // A warp a pair, a lane what one warp may have made of one product.
  const int product = lane / kMaxWarps, other = lane % kMaxWarps;
  const int n = product == 0 ? chunks[0] : chunks[1];
  const int begin = mine * n * other / warps, end = mine * n * (other + 1) / warps;
  for (int i = warp; i < mine; i += warps) {
    const bool has = other < warps && begin < end && begin < (i + 1) * n && end > i * n;
    const float2 part = has ? parts[product * n_parts + i + other] : float2{};
    const float y0 = warp_reduce(part.x, Add()), y1 = warp_reduce(part.y, Add());
    const int row0 = 2 * (blockIdx.x + gridDim.x * i), row1 = min(row0 + 1, a.rows - 1);
    if (lane == 0) {
      a.dst[row0] = y0 + added[i].x;
      a.dst[row1] = y1 + added[i].y;  // the same when there is no second row
    }
  }
}
