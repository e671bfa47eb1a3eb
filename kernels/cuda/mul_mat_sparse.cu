// Rows of active neurons times a few columns: the rows half of sparse_ffn, and mul_mat_sparse.
//
// As mul_mat_vec.cu streams rows two at a time through its warps' stages, but the rows are those of
// the list that every block makes for itself (sparse.cuh). What comes out:
//
//   GATED    h = relu(gate row . x) * (up row . x), by the place in the list
//   TIMES    h = relu(gate) * (up row . x) with gate known, by the place in the list
//   SCATTER  row . x, where the neuron's place is
//   ALONE    h = relu(up row . x + bias), by the place in the list
//
// CUT_GATED and CUT_TIMES are the first two with a ReLU that makes zero what is not above a cut; so
// does ALONE.
#include "cuda/sparse.cuh"
#include "cuda/vec_parts.cuh"

enum { GATED, TIMES, SCATTER, ALONE, CUT_GATED, CUT_TIMES };

template <int KIND>
struct Form {
  static constexpr bool BOTH = KIND == GATED || KIND == CUT_GATED;   // rows of gate and up
  static constexpr bool KNOWN = KIND == TIMES || KIND == CUT_TIMES;  // the gate
  static constexpr bool CUT = KIND >= ALONE;
};

// Mirrored by `rows_launch` in mul_mat_sparse.py.
struct SparseRowsArgs {
  Neurons on;
  const char* w[2];  // gate and up; up; w; up
  i64 row_bytes[2];
  const float* x;
  i64 x_step;
  const float* norm;  // null: x as it is
  float* h;           // by place in the list, [..][columns]; of SCATTER by neuron, [m][..]
  i64 h_step;         // of SCATTER: floats from token to token
  i32 k, columns, stages, relu_up;
  i32 share;  // rows of a block at most
  float eps;
  const float* bias;  // of ALONE, by neuron; null: none
  float cut;          // of ALONE and CUT_*
};

// The result of the block's neuron number i, of row r, for token t.
template <int KIND>
__device__ __forceinline__ void put(const SparseRowsArgs& a, int i, int r, int t, bool wanted,
                                    float gate, float y) {
  if (KIND == SCATTER) {
    if (wanted) a.h[t * a.h_step + a.on.neuron(r)] = y;
    return;
  }
  const i64 place = blockIdx.x + (i64)i * gridDim.x;
  const float cut = Form<KIND>::CUT ? a.cut : 0.0f;
  if (KIND == ALONE) {
    const float up = a.bias ? y + __ldg(a.bias + a.on.neuron(r)) : y;
    a.h[place * a.columns + t] = wanted ? relu_of(up, cut) : 0.0f;
    return;
  }
  const float up = a.relu_up ? relu_of(y, cut) : y;
  a.h[place * a.columns + t] = wanted ? relu_of(gate, cut) * up : 0.0f;
}

// Shared memory: barriers, bits, the block's rows, columns, stages.
template <int KIND, class W, int C>
__global__ void __launch_bounds__(32 * kMaxWarps, C <= 2 ? 2 : 1)
    sparse_rows(const __grid_constant__ SparseRowsArgs a) {
  constexpr int X_BYTES = Chunk<W>::X_BYTES, N = Chunk<W>::N, BYTES = Chunk<W>::BYTES;
  constexpr int STAGE = kRows * BYTES + 16;
  constexpr bool BOTH = Form<KIND>::BOTH;
  extern __shared__ __align__(128) char shared[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int chunks = (a.k + N - 1) / N;
  u64* const bars = reinterpret_cast<u64*>(shared) + warp * a.stages;
  u32* const bits = reinterpret_cast<u32*>(shared + rounded_up(warps * a.stages * 8));
  i32* const mine = reinterpret_cast<i32*>(bits + rounded_up(4 * a.on.words()) / 4);
  char* const xs = reinterpret_cast<char*>(mine) + rounded_up(4 * a.share);
  char* const stages = xs + C * chunks * X_BYTES + warp * a.stages * STAGE;

  barriers_make(bars, a.stages, lane);
  const u64 policy = read_once();
  wait_for_previous();
  // Not sooner: axpy_sparse reads what this kernel waited for before it waits itself.
  launch_dependents();

  find_rows(a.on, bits);
  const int n = share_of(
      share_rows(bits, a.on.words(), blockIdx.x, gridDim.x, [&](int i, int r) { mine[i] = r; }),
      blockIdx.x, gridDim.x);

  // A unit is two weight rows: both of a neuron, or those of two neighbours in the list.
  const int units = BOTH ? n : (n + 1) / 2;
  const int total = warp < units ? ((units - warp - 1) / warps + 1) * chunks : 0;
  const auto row0 = [&](int unit) { return mine[BOTH ? unit : 2 * unit]; };
  const auto row1 = [&](int unit) { return mine[BOTH ? unit : min(2 * unit + 1, n - 1)]; };

  // Copies are of 16 bytes, and rows start at multiples of that.
  const u32 row_end = rounded_up(a.k / N * BYTES + a.k % N * BYTES / N);
  int asked = 0, ask_chunk = 0, ask_unit = warp;
  const char *ask0 = nullptr, *ask1 = nullptr;
  const auto request = [&](int stage) {
    if (ask_chunk == 0) {
      constexpr int second = BOTH ? 1 : 0;
      ask0 = a.w[0] + row0(ask_unit) * a.row_bytes[0];
      ask1 = a.w[second] + row1(ask_unit) * a.row_bytes[second];
    }
    const u32 at = ask_chunk * BYTES;
    char* const to = stages + stage * STAGE;
    fill(to, ask0 + at, to + BYTES, ask1 + at, min((u32)BYTES, row_end - at), bars + stage, lane,
         policy);
    ++asked;
    if (++ask_chunk == chunks) {
      ask_chunk = 0;
      ask_unit += warps;
    }
  };
  for (int i = 0; i < a.stages && asked < total; ++i) request(i);

  VecArgs columns;
  columns.x = a.x;
  columns.x_step = a.x_step;
  columns.k = a.k;
  columns.m = a.on.m;
  columns.norm = a.norm;
  columns.eps = a.eps;
  if (a.norm != nullptr) {
    float4 by[kPieces];
    ask_pieces(a.norm, 0, a.k, by);
    load_normed<Chunk<W>::QUANTIZED, C>(columns, xs, chunks * X_BYTES, by);
  } else {
    load_columns<Chunk<W>::QUANTIZED, C>(columns, xs, chunks * X_BYTES);
  }
  __syncthreads();

  int stage = 0, chunk = 0, unit = warp;
  u32 parity = 0;
  bool wanted0 = false, wanted1 = false;
  float gate0 = 0.0f, gate1 = 0.0f;
  float acc[kRows][C] = {};
  for (int done = 0; done < total; ++done) {
    if (chunk == 0 && lane < a.on.m) {  // asked for now, used at the end
      const int r0 = row0(unit), r1 = row1(unit);
      if (Form<KIND>::KNOWN) {
        gate0 = __ldcg(a.on.idx + lane * a.on.idx_step + r0);
        gate1 = __ldcg(a.on.idx + lane * a.on.idx_step + r1);
        wanted0 = wanted1 = true;
      } else {
        wanted0 = a.on.wants(lane, r0, a.on.neuron(r0));
        if (!BOTH) wanted1 = a.on.wants(lane, r1, a.on.neuron(r1));
      }
    }
    barrier_wait(bars + stage, parity);
    Chunk<W>::multiply(stages + stage * STAGE, xs + chunk * X_BYTES, chunks * X_BYTES,
                       min(a.k - chunk * N, N), lane, acc);
    __syncwarp();
    if (asked < total) request(stage);
    if (++stage == a.stages) {
      stage = 0;
      parity ^= 1;
    }
    if (++chunk < chunks) continue;
    chunk = 0;
    const int r0 = row0(unit), r1 = row1(unit);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      const float y0 = warp_reduce(acc[0][c], Add()), y1 = warp_reduce(acc[1][c], Add());
      acc[0][c] = acc[1][c] = 0.0f;
      if (lane != c) continue;
      if (BOTH) {
        put<KIND>(a, unit, r0, c, wanted0, y0, y1);
      } else {
        if (2 * unit + 1 < n) put<KIND>(a, 2 * unit + 1, r1, c, wanted1, gate1, y1);
        put<KIND>(a, 2 * unit, r0, c, wanted0, gate0, y0);
      }
    }
    unit += warps;
  }
}

// -- rows of any type and layout -----------------------------------------------------------------

// W, V: the types of the rows of a.w[0] and a.w[1]. C: at least a.columns. A warp a neuron of the
// list, float32 arithmetic. Shared memory: bits, the block's rows.
template <int KIND, class W, class V, int C>
__global__ void __launch_bounds__(256) sparse_rows_any(const __grid_constant__ SparseRowsArgs a) {
  extern __shared__ __align__(128) char shared[];
  u32* const bits = reinterpret_cast<u32*>(shared);
  i32* const mine = reinterpret_cast<i32*>(bits + rounded_up(4 * a.on.words()) / 4);
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  find_rows(a.on, bits);
  const int n = share_of(
      share_rows(bits, a.on.words(), blockIdx.x, gridDim.x, [&](int i, int r) { mine[i] = r; }),
      blockIdx.x, gridDim.x);
  const auto dot = [&](const char* row, auto type, float* y) {
    typedef decltype(type) T;
    constexpr int PIECE = Row<T>::PIECE;
    float sums[C] = {};
    for (int p = lane; p < a.k / PIECE; p += 32) {
      float weights[PIECE];
      Row<T>::read(row, sizeof(T), p, weights);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float* const x = a.x + min(c, a.on.m - 1) * a.x_step + p * PIECE;
#pragma unroll
        for (int j = 0; j < PIECE; ++j) sums[c] = fmaf(weights[j], x[j], sums[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < C; ++c) y[c] = warp_reduce(sums[c], Add());
  };
  for (int i = warp; i < n; i += warps) {
    const int r = mine[i], j = a.on.neuron(r);
    float y0[C], y1[C] = {};
    dot(a.w[0] + r * a.row_bytes[0], W(), y0);
    if (Form<KIND>::BOTH) dot(a.w[1] + r * a.row_bytes[1], V(), y1);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (lane != c || c >= a.columns) continue;
      const bool wanted = c < a.on.m && (Form<KIND>::KNOWN || a.on.wants(c, r, j));
      float gate = y0[c];
      if (Form<KIND>::KNOWN && wanted) gate = __ldcg(a.on.idx + c * a.on.idx_step + r);
      put<KIND>(a, i, r, c, wanted, gate, Form<KIND>::BOTH ? y1[c] : y0[c]);
    }
  }
}
