// One column times rows of quantized weights, and what stands around such a product in a decode
// step: the norm before it, the residual, SwiGLU, rotation and KV write after it. The bits are
// those that mul_mat_few.cu gives a column among up to 16.
//
// The grid is one block a multiprocessor. Every warp streams its rows, two at a time, through its
// own stages in shared memory. The first stages are asked for before the kernel waits for the one
// before it (programmatic dependent launch), so that memory stays busy from kernel to kernel while
// every block rounds the column for itself.
#include "cuda/columns.cuh"
#include "cuda/mul_mat_one.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/rope.cuh"

// Mirrored by `launches` in mul_mat_one.py.
struct OneArgs {
  ColumnsArgs c;  // w_stages: stages of a warp
  const float* x;
  const float* norm;  // weights of the norm, or null
  const i32* pos;
  const float* factors;  // of the frequencies, or null
  RopeNumbers rope;
  float eps;
  int v_row;   // bytes from row to row of values, which may have a type of their own
  int pieces;  // of a row
  int turns_at, squares_at, sums_at, x_at, ring_at;  // bytes in shared memory
};

// Where a type's pieces lie in rows and stages.
template <class W>
struct Pieces {
  static constexpr int BYTES = Vec<W>::BYTES;                            // of a piece
  static constexpr bool MANY_WORDS = sizeof(typename Vec<W>::Raw) > 68;  // that a lane has at once

  // Bytes of a piece of n elements: rows have room for whole 16.
  static __device__ __forceinline__ u32 bytes(int n) {
    return ((u32)n / W::QK * (u32)sizeof(W) + 15) & ~15u;
  }
};

// Of a thread. With 64, attention may start beside the products before it, where stages leave it
// room: not beside types of many words.
template <class V>
constexpr int kRegisters = Pieces<V>::MANY_WORDS ? 80 : 64;

// Pair number `index` of all matrices' pairs, and where its rows start.
struct PairAt {
  int matrix, pair;
  const char *upper, *lower;
};
template <int KIND>
__device__ __forceinline__ PairAt pair_at(const OneArgs& args, int index) {
  const ColumnsArgs& a = args.c;
  const Tile t = KIND == QKV ? tile_of<1>(a, index) : Tile{0, index};
  const int2 rows = rows_of(KIND, a, t.matrix, t.pair);
  const i64 bytes = t.matrix == 2 ? args.v_row : a.w_row;
  const char* w = a.w[0];
#pragma unroll
  for (int i = 1; i < 3; ++i) {
    if (t.matrix == i) w = a.w[i];
  }
  const char* const second = KIND == GLU ? a.w[1] : w;
  return {t.matrix, t.pair, w + rows.x * bytes, second + rows.y * bytes};
}

// W: type of the weights; V: of the values among QKV, which may differ. KIND:
// `c.kind`, known to the compiler, for the code's length counts.
template <int KIND, class W, class V>
__global__ void __maxnreg__((kRegisters<V>)) mul_mat_one(const __grid_constant__ OneArgs args) {
  constexpr int N = Int8Sums::N;
  constexpr int STAGE = kRows * larger(Pieces<W>::BYTES, Pieces<V>::BYTES) + 16;
  extern __shared__ __align__(128) char shared[];
  const ColumnsArgs& a = args.c;
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  u64* const bars = reinterpret_cast<u64*>(shared) + warp * a.w_stages;
  float2* const turns = reinterpret_cast<float2*>(shared + args.turns_at);
  float* const squares = reinterpret_cast<float*>(shared + args.squares_at);
  char* const x = shared + args.x_at;
  char* const ring = shared + args.ring_at + warp * a.w_stages * STAGE;

  const int first = blockIdx.x + gridDim.x * warp, step = gridDim.x * warps;
  const int total = first < a.tiles ? ((a.tiles - first - 1) / step + 1) * args.pieces : 0;
  const auto second = [&](int matrix) {
    return KIND == QKV && !is_same<W, V>::value && matrix == 2;
  };

  const u64 policy = read_once();
  int asked = 0, ask_index = first, ask_piece = 0;  // of the pair whose pieces are asked for next
  PairAt ask = {};
  const auto length = [&](int piece) { return min(N, a.k - piece * N); };  // in elements
  const auto request = [&](int stage) {
    if (ask_piece == 0) ask = pair_at<KIND>(args, ask_index);
    const bool v = second(ask.matrix);
    const int bytes = v ? Pieces<V>::BYTES : Pieces<W>::BYTES, at = ask_piece * bytes;
    const int n = length(ask_piece);
    char* const to = ring + stage * STAGE;
    fill(to, ask.upper + at, to + bytes, ask.lower + at,
         v ? Pieces<V>::bytes(n) : Pieces<W>::bytes(n), bars + stage, lane, policy);
    ++asked;
    if (++ask_piece == args.pieces) {
      ask_piece = 0;
      ask_index += step;
    }
  };

  barriers_make(bars, a.w_stages, lane);
#pragma unroll 1
  for (int s = 0; s < a.w_stages && asked < total; ++s) request(s);
  launch_dependents();

  // What does not depend on the kernels before this one.
  const int half = a.head_dim / 2;
  double angle = 0.0;
  if (KIND == QKV && threadIdx.x < half) {
    angle = angle_of(args.rope, threadIdx.x, args.factors ? args.factors[threadIdx.x] : 1.0f);
  }
  int pos = 0;
  const auto put_turns = [&] {
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
      if (i >= blockDim.x) angle = angle_of(args.rope, i, args.factors ? args.factors[i] : 1.0f);
      turn(args.rope, pos * angle, &turns[i].y, &turns[i].x);
    }
  };
  float scale = 1.0f;
  Octet by[kBatch] = {};
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    const int at = (i * warps + warp) * kChunkK + octet_at(lane);
    if (args.norm && at < a.k) by[i] = ask_octet(args.norm + at);
  }
  wait_for_previous();
  if (KIND == QKV) pos = __ldcg(args.pos);
  load_int8(args.x, args.norm, a.k, x, squares, by);
  if (KIND == QKV) put_turns();
  __syncthreads();
  if (args.norm) scale = norm_scale_of([&](int c) { return squares[c]; }, a.k, args.eps);
  Int8Sums sums;
  sums.chunks = a.k / kChunkK;
  sums.of_chunks =
      reinterpret_cast<float2*>(shared + args.sums_at) + warp * args.pieces * (kChunk / kChunkK);

  int stage = 0, index = first, piece = 0;
  u32 parity = 0;
  PairAt p = {};
  BesideOne beside = {};
  for (int done = 0; done < total; ++done) {
    if (piece == 0) {
      p = pair_at<KIND>(args, index);
      beside = lane == 0 ? beside_single(KIND, a, p.matrix, p.pair) : BesideOne{};
    }
    barrier_wait(bars + stage, parity);
    const char* const w = ring + stage * STAGE;
    if (second(p.matrix)) {
      sums.template add<V>(w, x, piece, length(piece), lane);
    } else {
      sums.template add<W>(w, x, piece, length(piece), lane);
    }
    __syncwarp();
    if (asked < total) request(stage);
    if (++stage == a.w_stages) {
      stage = 0;
      parity ^= 1;
    }
    if (++piece < args.pieces) continue;
    piece = 0;
    index += step;
    const float2 y = sums.result(lane);
    if (lane == 0) {
      beside.scale = scale;
      if (KIND == QKV) beside.turn = turns[p.pair % half];
      finish_one(KIND, a, p.matrix, p.pair, 0, y.x, y.y, beside);
    }
  }
}
