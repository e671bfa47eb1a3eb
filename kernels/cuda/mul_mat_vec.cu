// A few columns times weight rows, and what stands around such a product in a decode step: the norm
// before it, the residual, an activation, rotation and KV write after it.
//
// The grid is one block a multiprocessor. Every warp streams its rows, two at a time, through its
// own stages in shared memory. The first stages are asked for before the kernel waits for the one
// before it (programmatic dependent launch), so that memory stays busy from kernel to kernel while
// every block computes the norm and quantizes the columns for itself.
//
// A result is summed in an order that depends on the weight's type and length alone.
#include "cuda/vec_parts.cuh"

// W: type of the weights; V: of the third matrix of several, which may differ. C: at least m
// columns. Shared memory: barriers, rotations, columns, stages.
template <int KIND, class W, class V, int C>
__global__ void __launch_bounds__(32 * kMaxWarps, C <= 2 ? 2 : 1)
    mul_mat_vec(const __grid_constant__ VecArgs a) {
  static_assert(Chunk<W>::QUANTIZED == Chunk<V>::QUANTIZED, "both read the same columns");
  constexpr int X_BYTES = Chunk<W>::X_BYTES, N = Chunk<W>::N;
  constexpr int STAGE = kRows * larger(Chunk<W>::BYTES, Chunk<V>::BYTES) + 16;
  extern __shared__ __align__(128) char shared[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = (a.k + N - 1) / N;
  u64* const bars = reinterpret_cast<u64*>(shared) + warp * a.stages;
  float2* const turns = reinterpret_cast<float2*>(shared + (warps * a.stages * 8 + 15) / 16 * 16);
  char* const xs = reinterpret_cast<char*>(turns) +
                   (turned_kind(KIND) ? (C * a.head_dim * 4 + 15) / 16 * 16 : 0);
  char* const stages = xs + C * chunks * X_BYTES + warp * a.stages * STAGE;

  int pairs = a.pairs[0];
  if (several_kind(KIND)) pairs += a.pairs[1] + a.pairs[2] + a.pairs[3];
  const int first = blockIdx.x + gridDim.x * warp, step = gridDim.x * warps;
  const int total = first < pairs ? ((pairs - first - 1) / step + 1) * chunks : 0;

  const u64 policy = read_once();
  // The pair and chunk that is asked for next.
  int asked = 0, ask_chunk = 0, ask_index = first;
  Pair ask = {};
  const auto request = [&](int stage) {
    if (ask_chunk == 0) ask = pair_of(KIND, a, ask_index);
    const bool v = several_kind(KIND) && ask.matrix == 2;
    const u32 bytes = v ? Chunk<V>::BYTES : Chunk<W>::BYTES, at = ask_chunk * bytes;
    const u32 row = (u32)(v ? a.row_bytes[2] : a.row_bytes[0]);
    char* const to = stages + stage * STAGE;
    fill(to, ask.w0 + at, to + bytes, ask.w1 + at, min(bytes, row - at), bars + stage, lane,
         policy);
    ++asked;
    if (++ask_chunk == chunks) {
      ask_chunk = 0;
      ask_index += step;
    }
  };

  barriers_make(bars, a.stages, lane);
#pragma unroll 1
  for (int s = 0; s < a.stages && asked < total; ++s) request(s);
  launch_dependents();

  // What does not depend on the kernels before this one.
  float4 by[kPieces];
  if (a.norm != nullptr) ask_pieces(a.norm, 0, a.k, by);
  const int half = turned_kind(KIND) ? a.head_dim / 2 : 1;
  double angle = 0.0;
  if (turned_kind(KIND) && threadIdx.x < C * half) angle = angle_of(a, threadIdx.x % half);
  wait_for_previous();

  int pos = 0;
  if (turned_kind(KIND) && threadIdx.x < C * half)
    pos = __ldcg(a.pos + min(threadIdx.x / half, a.m - 1));
  if (parallel_kind(KIND)) {
    float4 plus[kPieces];
    load_centered<Chunk<W>::QUANTIZED>(a, xs, by, plus);
  } else if (a.norm != nullptr) {
    load_normed<Chunk<W>::QUANTIZED, C>(a, xs, chunks * X_BYTES, by);
  } else {
    load_columns<Chunk<W>::QUANTIZED, C>(a, xs, chunks * X_BYTES);
  }
  if (turned_kind(KIND)) {
    for (int t = threadIdx.x; t < C * half; t += blockDim.x) {
      if (t != threadIdx.x) {
        angle = angle_of(a, t % half);
        pos = __ldcg(a.pos + min(t / half, a.m - 1));
      }
      turn(a.rope, pos * angle, &turns[t].y, &turns[t].x);
    }
  }
  __syncthreads();

  int stage = 0, chunk = 0, index = first;
  u32 parity = 0;
  float r0 = 0.0f, r1 = 0.0f, b0 = 0.0f, b1 = 0.0f;
  float acc[kRows][C] = {};
  Pair p = {};
  for (int done = 0; done < total; ++done) {
    if (chunk == 0) {
      p = pair_of(KIND, a, index);
      if (added_kind(KIND) && a.r != nullptr && lane < a.m) {  // asked for now, added at the end
        r0 = __ldcg(a.r + lane * a.r_step + p.row0);
        r1 = __ldcg(a.r + lane * a.r_step + p.row1);
      }
      if (KIND == BIASED) {
        b0 = __ldcg(a.bias + p.row0);
        b1 = __ldcg(a.bias + p.row1);
      }
    }
    barrier_wait(bars + stage, parity);
    const char* const w = stages + stage * STAGE;
    const char* const x = xs + chunk * X_BYTES;
    const int n = min(a.k - chunk * N, N);
    if (several_kind(KIND) && !is_same<W, V>::value && p.matrix == 2) {
      Chunk<V>::multiply(w, x, chunks * X_BYTES, n, lane, acc);
    } else {
      Chunk<W>::multiply(w, x, chunks * X_BYTES, n, lane, acc);
    }
    __syncwarp();
    if (asked < total) request(stage);
    if (++stage == a.stages) {
      stage = 0;
      parity ^= 1;
    }
    if (++chunk < chunks) continue;
    chunk = 0;
    index += step;
#pragma unroll
    for (int c = 0; c < C; ++c) {
      float y0 = warp_reduce(acc[0][c], Add()), y1 = warp_reduce(acc[1][c], Add());
      if (KIND == BIASED) {
        y0 += b0;
        y1 += b1;
      }
      if (lane == c && c < a.m) finish(KIND, a, p, turns, c, y0, y1, r0, r1);
      acc[0][c] = acc[1][c] = 0.0f;
    }
  }
}
