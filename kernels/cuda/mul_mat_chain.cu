// 16-bit weights times 1 to 16 columns. A row's sum is a chain of tensor-core products along k, or
// a few that are added (float_columns.cuh), so that its bits do not depend on how many columns
// there are.
//
// A step of such a chain takes some 33 cycles and 512 bytes of weights, so that two chains a
// multiprocessor keep up with memory. A block has a few tiles of sixteen rows at once, a warp each,
// which go along k side by side. Two warps bring weights through a ring of stages for each tile,
// 256 or 512 elements of its rows a stage; they are asked for before the kernels before this one
// are done (programmatic dependent launch). Several columns are brought by one more warp, once for
// all tiles; a single one is made in shared memory by the block itself (float_column.cuh).
#include "cuda/columns.cuh"
#include "cuda/float_column.cuh"
#include "cuda/mma.cuh"
#include "cuda/ring.cuh"
#include "cuda/rope.cuh"

constexpr int kTileRows = 16, kTilePairs = 8;
constexpr int kBringers = 2;  // warps that bring weights

// N: elements of a stage's rows.
template <int N>
struct Stage {
  static constexpr int STRIDE = 2 * N + 32;  // bytes from row to row: without conflicts
  static constexpr int BYTES = kTileRows * STRIDE;
};

// Mirrored by `launches` in mul_mat_chain.py.
struct ChainArgs {
  ColumnsArgs c;      // w_stages: of each tile
  const float* x;     // of a single column, what it is made of
  const float* norm;  // weights of the norm, or null
  const i32* pos;
  const float* factors;  // of the frequencies, or null
  RopeNumbers rope;
  float eps;
  int warps, rounds;  // tiles that a block has at once, at most; how often it takes some
  int share, longer;  // tiles of a block in all; the first so many blocks have one more
  int part;  // elements of a part of k, of a single column; 0: one chain, and SwiGLU as exact as
             // can be
  int rows_at, turns_at, squares_at, x_at, ring_at;  // bytes in shared memory
};

#if __CUDA_ARCH__ >= 900

struct Memory {
  u64 *full, *free;      // of the rings' stages: [w_stages][warps]
  u64 *x_full, *x_free;  // of the columns' stages
  const char** rows;     // where the rows of the round's tiles start
  float2* turns;
  float* squares;
  char *x, *ring;
};

// The tiles of a block, a neighbouring share of all, which it takes in rounds.
struct Share {
  int first, count, warps;

  __device__ __forceinline__ explicit Share(const ChainArgs& args) : warps(args.warps) {
    const int block = (int)blockIdx.x;
    first = args.share * block + min(block, args.longer);
    count = args.share + (block < args.longer);
  }
  // Tiles before a round.
  __device__ __forceinline__ int before(int round) const { return min(count, warps * round); }
  __device__ __forceinline__ int size(int round) const { return before(round + 1) - before(round); }
};

template <int KIND>
__device__ __forceinline__ Tile tile_at(const ColumnsArgs& a, int tile) {
  return KIND == QKV ? tile_of<kTilePairs>(a, tile) : Tile{0, tile * kTilePairs};
}

// Row r of a tile: rows r and r + 8 are a pair.
template <int KIND>
__device__ __forceinline__ const char* tile_row(const ColumnsArgs& a, int tile, int r) {
  const Tile t = tile_at<KIND>(a, tile);
  const int2 rows = rows_of(KIND, a, t.matrix, min(t.pair + r % 8, a.pairs[t.matrix] - 1));
  const bool second = r / 8;
  const int at = KIND == GLU ? (int)second : t.matrix;
  const char* w = a.w[0];
#pragma unroll
  for (int i = 1; i < 3; ++i) {
    if (at == i) w = a.w[i];
  }
  return w + (second ? rows.y : rows.x) * a.w_row;
}

__device__ __forceinline__ void bring(char* to, const char* from, u32 bytes, u64* bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(bar))
      : "memory");
}
__device__ __forceinline__ void bring(char* to, const char* from, u32 bytes, u64* bar, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void expect(u64* bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
               "r"(bytes)
               : "memory");
}

// Where the part of k that begins here ends. Parts are those of mul_mat_tma.cu.
__device__ __forceinline__ int end_of_part(const ChainArgs& args, int k) {
  return args.part > 0 ? min(k + args.part, args.c.k) : args.c.k;
}

// Warp `which` of kBringers brings its part of every stage's rows.
template <int KIND, int N>
__device__ __forceinline__ void bring_weights(const ChainArgs& args, const Memory& m, int which,
                                              int lane) {
  constexpr int ROWS = kTileRows / kBringers;
  const ColumnsArgs& a = args.c;
  const Share share(args);
  const u64 policy = read_once();
  Place at;
  for (int round = 0; round < args.rounds; ++round) {
    const int n = share.size(round);
    if (round > 0) {  // the first round's rows are there
      __syncwarp();
      for (int i = lane; i < n * ROWS; i += 32) {
        const int tile = i / ROWS, row = which * ROWS + i % ROWS;
        m.rows[tile * kTileRows + row] =
            tile_row<KIND>(a, share.first + share.before(round) + tile, row);
      }
      __syncwarp();
    }
    for (int k = 0, end = end_of_part(args, 0); k < a.k;) {
      const int length = min(end - k, N);
      const u32 bytes = 2 * length;
      for (int i = 0; i < n; ++i) {
        const int stage = at.stage * args.warps + i;
        u64* const full = m.full + stage;
        const char* from[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          from[r] = m.rows[i * kTileRows + which * ROWS + r] + 2 * k;
        }
        barrier_wait(m.free + stage, at.parity ^ 1);
        if (elected()) {  // one lane, and the compiler knows it: others would take turns
          if (which == 0) expect(full, kTileRows * bytes);
#pragma unroll
          for (int r = 0; r < ROWS; ++r) {
            bring(m.ring + stage * Stage<N>::BYTES + (which * ROWS + r) * Stage<N>::STRIDE, from[r],
                  bytes, full, policy);
          }
        }
        __syncwarp();
      }
      at.next(a.w_stages);
      k += length;
      if (k == end) end = end_of_part(args, k);
    }
  }
}

// One thread. A stage has the fragments of N elements of all columns.
template <int N, int G>
__device__ __forceinline__ void bring_columns(const ChainArgs& args, const Memory& m) {
  const ColumnsArgs& a = args.c;
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  for (int round = 0; round < args.rounds; ++round) {
    for (int k = 0; k < a.k; k += N) {
      const u32 bytes = min(a.k - k, N) * 16 * G;
      barrier_wait(m.x_free + at.stage, at.parity ^ 1);
      expect(m.x_full + at.stage, bytes);
      bring(m.x + at.stage * N * 16 * G, a.x + (i64)k * 16 * G, bytes, m.x_full + at.stage);
      at.next(a.x_stages);
    }
  }
}

// Fragments of a tile's rows: lane t of the four that share a row has elements 4 t to 4 t + 3 of
// every sixteen.
struct RowFragments {
  u32 v[4];

  __device__ __forceinline__ RowFragments(const char* rows, int stride, int step) {
    const uint2 upper = *reinterpret_cast<const uint2*>(rows + step * 32);
    const uint2 lower = *reinterpret_cast<const uint2*>(rows + step * 32 + 8 * stride);
    v[0] = upper.x;
    v[1] = lower.x;
    v[2] = upper.y;
    v[3] = lower.y;
  }
};

// Two steps of the chains of eight columns each. x: this lane's place in the columns' chunk, whose
// elements are in order (ONE) or lie as columns_round.cu leaves them.
template <class W, int N, int G, bool ONE>
__device__ __forceinline__ void two_steps(const char* rows, const char* x, int step,
                                          float (&sums)[G][4]) {
  const RowFragments first(rows, Stage<N>::STRIDE, step), second(rows, Stage<N>::STRIDE, step + 1);
  if constexpr (ONE) {
    const uint2 x0 = *reinterpret_cast<const uint2*>(x + step * 32);
    const uint2 x1 = *reinterpret_cast<const uint2*>(x + step * 32 + 32);
    mma<W>(sums[0], first.v, x0.x, x0.y);
    mma<W>(sums[0], second.v, x1.x, x1.y);
  } else {
    uint4 v[G];
#pragma unroll
    for (int j = 0; j < G; ++j) {
      v[j] = *reinterpret_cast<const uint4*>(x + (step / 2 * G + j) * 512);
    }
#pragma unroll
    for (int j = 0; j < G; ++j) mma<W>(sums[j], first.v, v[j].x, v[j].y);
#pragma unroll
    for (int j = 0; j < G; ++j) mma<W>(sums[j], second.v, v[j].z, v[j].w);
  }
}

// Warp number `warp` has the tile of that number of every round. scale: of a single column.
template <int KIND, class W, int N, int G, bool ONE>
__device__ __forceinline__ void multiply(const ChainArgs& args, const Memory& m, int warp, int lane,
                                         float scale) {
  const ColumnsArgs& a = args.c;
  const Share share(args);
  const int row = lane / 4, t = lane % 4;
  Place w, x;
  for (int round = 0; round < args.rounds; ++round) {
    const bool mine = warp < share.size(round);  // only the last round may be short
    const Tile tile = tile_at<KIND>(a, share.first + share.before(round) + warp);
    const int pair = tile.pair + row;
    float sums[G][4] = {}, total[4] = {};
    Beside beside[G] = {};
    for (int k = 0; k < a.k;) {
      const bool is_first = k == 0;
      const int end = end_of_part(args, k);
      for (; k < end; k += N) {
        if (mine && k + N >= a.k) {  // the last chunk: there when its products are
#pragma unroll
          for (int j = 0; j < G; ++j) {
            if (!ONE) beside[j] = beside_of(a, tile.matrix, pair, j * 8 + 2 * t);
          }
          if (ONE && t == 0 && pair < a.pairs[tile.matrix]) {
            BesideOne& b = beside[0].of[0];
            const int2 rows = rows_of(KIND, a, tile.matrix, pair);
            if (KIND == PLAIN && a.r) {
              b.r[0] = __ldcg(reinterpret_cast<const float*>(a.r + rows.x * a.r_step));
              b.r[1] = __ldcg(reinterpret_cast<const float*>(a.r + rows.y * a.r_step));
            }
            if (KIND == QKV) b.state_row = __ldcg(a.state_rows);
          }
        }
        const int stage = w.stage * args.warps + warp;
        if (!ONE) barrier_wait(m.x_full + x.stage, x.parity);
        if (mine) {
          barrier_wait(m.full + stage, w.parity);
          const char* const rows =
              m.ring + stage * Stage<N>::BYTES + row * Stage<N>::STRIDE + t * 8;
          const char* const columns =
              ONE ? m.x + 2 * k + t * 8 : m.x + x.stage * N * 16 * G + lane * 16;
          if (end - k >= N) {
#pragma unroll
            for (int s = 0; s < N / 16; s += 2) two_steps<W, N, G, ONE>(rows, columns, s, sums);
          } else {
            for (int s = 0; s < (end - k) / 16; s += 2) {
              two_steps<W, N, G, ONE>(rows, columns, s, sums);
            }
          }
        }
        __syncwarp();
        if (lane == 0) {
          if (mine) barrier_arrive(m.free + stage);
          if (!ONE) barrier_arrive(m.x_free + x.stage);
        }
        w.next(a.w_stages);
        if (!ONE) x.next(a.x_stages);
      }
      k = end;
      if constexpr (ONE) {  // others have all of k as one part
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          total[i] = is_first ? sums[0][i] : total[i] + sums[0][i];
          sums[0][i] = k < a.k ? 0.0f : total[i];
        }
      }
    }
    if (!mine) continue;
    if constexpr (ONE) {
      if (t == 0) {
        BesideOne& b = beside[0].of[0];
        b.scale = scale;
        if (KIND == QKV) b.turn = m.turns[pair % (a.head_dim / 2)];
        finish_one(KIND, a, tile.matrix, pair, 0, sums[0][0], sums[0][2], b, args.part > 0);
      }
    } else {
#pragma unroll
      for (int j = 0; j < G; ++j) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          finish_one(KIND, a, tile.matrix, pair, j * 8 + 2 * t + c, sums[j][c], sums[j][2 + c],
                     beside[j].of[c]);
        }
      }
    }
    __syncwarp();
  }
}

// The single column and its turns; what its sums are multiplied by. The first kColumnWarps warps.
template <int KIND, class W>
__device__ __forceinline__ float prepare(const ChainArgs& args, const Memory& m) {
  const ColumnsArgs& a = args.c;
  constexpr int THREADS = 32 * kColumnWarps;
  Eight32 by[kAtOnce] = {};
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int e = column_element(0, i);
    if (args.norm && e < a.k) by[i] = ask_eight(args.norm + e);
  }
  const int half = a.head_dim / 2;
  double angle = 0.0;
  if (KIND == QKV && threadIdx.x < half) {
    angle = angle_of(args.rope, threadIdx.x, args.factors ? args.factors[threadIdx.x] : 1.0f);
  }
  wait_for_previous();
  const int pos = KIND == QKV ? __ldcg(args.pos) : 0;
  const float scale = make_column<W>(args.x, args.norm, a.k, args.eps, m.x, m.squares, by);
  if (KIND == QKV) {
    for (int i = threadIdx.x; i < half; i += THREADS) {
      if (i >= THREADS) angle = angle_of(args.rope, i, args.factors ? args.factors[i] : 1.0f);
      turn(args.rope, pos * angle, &m.turns[i].y, &m.turns[i].x);
    }
    column_barrier();
  }
  return scale;
}

template <int KIND, class W, int N, int G, bool ONE>
__device__ __forceinline__ void run(const ChainArgs& args) {
  extern __shared__ __align__(128) char shared[];
  const ColumnsArgs& a = args.c;
  Memory m;
  m.full = reinterpret_cast<u64*>(shared);
  m.free = m.full + a.w_stages * args.warps;
  m.x_full = m.free + a.w_stages * args.warps;
  m.x_free = m.x_full + a.x_stages;
  m.rows = reinterpret_cast<const char**>(shared + args.rows_at);
  m.turns = reinterpret_cast<float2*>(shared + args.turns_at);
  m.squares = reinterpret_cast<float*>(shared + args.squares_at);
  m.x = shared + args.x_at;
  m.ring = shared + args.ring_at;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Share share(args);
  for (int i = threadIdx.x; i < share.size(0) * kTileRows; i += blockDim.x) {
    m.rows[i] = tile_row<KIND>(a, share.first + i / kTileRows, i % kTileRows);
  }
  if (warp == 0) {
    if (lane < a.w_stages * args.warps) {
      barrier_make(m.full + lane, 1);
      barrier_make(m.free + lane, 1);
    }
    if (lane < a.x_stages) {
      barrier_make(m.x_full + lane, 1);
      barrier_make(m.x_free + lane, args.warps);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const int bringer = (int)blockDim.x / 32 - kBringers;
  if (warp >= bringer) {
    bring_weights<KIND, N>(args, m, warp - bringer, lane);
    return;
  }
  float scale = 1.0f;
  if constexpr (ONE) {
    if (warp == 0) launch_dependents();
    scale = prepare<KIND, W>(args, m);
  } else {
    if (warp == args.warps) {
      launch_dependents();
      wait_for_previous();
      if (lane == 0) bring_columns<N, G>(args, m);
      return;
    }
    wait_for_previous();
  }
  if (warp < args.warps) multiply<KIND, W, N, G, ONE>(args, m, warp, lane, scale);
}
#endif

// N: elements of a stage. G: groups of eight columns. ONE: a single column, made here.
template <int KIND, class W, int N, int G, bool ONE>
__global__ void __launch_bounds__(ONE ? 576 : 224, ONE ? 1 : 2)
    mul_mat_chain(const __grid_constant__ ChainArgs args) {
#if __CUDA_ARCH__ >= 900
  run<KIND, W, N, G, ONE>(args);
#endif
}
