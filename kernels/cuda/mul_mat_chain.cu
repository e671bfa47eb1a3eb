// 16-bit weights times 2 to 16 columns. A row's sum is one chain of tensor-core products along k
// (float_columns.cuh), so that its bits do not depend on how many columns there are.
//
// A step of such a chain takes some 33 cycles and 512 bytes of weights, so that two chains a
// multiprocessor keep up with memory. A block has a few tiles of sixteen rows at once, a warp each,
// which go along k side by side. Two warps bring weights through a ring of stages for each tile;
// they are asked for before the kernels before this one are done (programmatic dependent launch).
// The columns are brought by one more warp, once for all tiles.
#include "cuda/columns.cuh"
#include "cuda/mma.cuh"
#include "cuda/ring.cuh"

constexpr int kTileRows = 16, kTilePairs = 8;
constexpr int kBringers = 2;  // warps that bring weights

// A stage's rows.
constexpr int kStageK = 256;               // elements
constexpr int kStride = 2 * kStageK + 32;  // bytes from row to row: without conflicts
constexpr int kStageBytes = kTileRows * kStride;

// Mirrored by `launches` in mul_mat_chain.py.
struct ChainArgs {
  ColumnsArgs c;               // w_stages: of each tile
  int warps, rounds;           // tiles that a block has at once, at most; how often it takes some
  int share, longer;           // tiles of a block in all; the first so many blocks have one more
  int rows_at, x_at, ring_at;  // bytes in shared memory
};

#if __CUDA_ARCH__ >= 900

struct Memory {
  u64 *full, *free;      // of the rings' stages: [w_stages][warps]
  u64 *x_full, *x_free;  // of the columns' stages
  const char** rows;     // where the rows of the round's tiles start
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
  return row_start(KIND, a, t.matrix, t.pair + r % 8, r / 8);
}

// Warp `which` of kBringers brings its part of every stage's rows.
template <int KIND>
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
    for (int k = 0; k < a.k; k += kStageK) {
      const u32 bytes = 2 * min(a.k - k, kStageK);
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
          if (which == 0) expect_bytes(full, kTileRows * bytes);
#pragma unroll
          for (int r = 0; r < ROWS; ++r) {
            copy_bulk(m.ring + stage * kStageBytes + (which * ROWS + r) * kStride, from[r], bytes,
                      full, policy);
          }
        }
        __syncwarp();
      }
      at.next(a.w_stages);
    }
  }
}

// One thread. A stage has the fragments of kStageK elements of all columns.
template <int G>
__device__ __forceinline__ void bring_columns(const ChainArgs& args, const Memory& m) {
  const ColumnsArgs& a = args.c;
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  for (int round = 0; round < args.rounds; ++round) {
    for (int k = 0; k < a.k; k += kStageK) {
      const u32 bytes = min(a.k - k, kStageK) * 16 * G;
      barrier_wait(m.x_free + at.stage, at.parity ^ 1);
      expect_bytes(m.x_full + at.stage, bytes);
      copy_bulk(m.x + at.stage * kStageK * 16 * G, a.x + (i64)k * 16 * G, bytes,
                m.x_full + at.stage);
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

// Two steps of the chains of eight columns each. x: this lane's place in the columns' chunk, which
// lie as columns_round.cu leaves them.
template <class W, int G>
__device__ __forceinline__ void two_steps(const char* rows, const char* x, int step,
                                          float (&sums)[G][4]) {
  const RowFragments first(rows, kStride, step), second(rows, kStride, step + 1);
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

// Warp number `warp` has the tile of that number of every round.
template <int KIND, class W, int G>
__device__ __forceinline__ void multiply(const ChainArgs& args, const Memory& m, int warp,
                                         int lane) {
  const ColumnsArgs& a = args.c;
  const Share share(args);
  const int row = lane / 4, t = lane % 4;
  Place w, x;
  for (int round = 0; round < args.rounds; ++round) {
    const bool mine = warp < share.size(round);  // only the last round may be short
    const Tile tile = tile_at<KIND>(a, share.first + share.before(round) + warp);
    const int pair = tile.pair + row;
    float sums[G][4] = {};
    Beside beside[G] = {};
    for (int k = 0; k < a.k; k += kStageK) {
      if (mine && k + kStageK >= a.k) {  // the last chunk: there when its products are
#pragma unroll
        for (int j = 0; j < G; ++j) {
          beside[j] = beside_of(a, tile.matrix, pair, j * 8 + 2 * t);
        }
      }
      const int stage = w.stage * args.warps + warp;
      barrier_wait(m.x_full + x.stage, x.parity);
      if (mine) {
        barrier_wait(m.full + stage, w.parity);
        const char* const rows = m.ring + stage * kStageBytes + row * kStride + t * 8;
        const char* const columns = m.x + x.stage * kStageK * 16 * G + lane * 16;
        if (a.k - k >= kStageK) {
#pragma unroll
          for (int s = 0; s < kStageK / 16; s += 2) two_steps<W, G>(rows, columns, s, sums);
        } else {
          for (int s = 0; s < (a.k - k) / 16; s += 2) two_steps<W, G>(rows, columns, s, sums);
        }
      }
      __syncwarp();
      if (lane == 0) {
        if (mine) barrier_arrive(m.free + stage);
        barrier_arrive(m.x_free + x.stage);
      }
      w.next(a.w_stages);
      x.next(a.x_stages);
    }
    if (!mine) continue;
#pragma unroll
    for (int j = 0; j < G; ++j) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        finish_one(KIND, a, tile.matrix, pair, j * 8 + 2 * t + c, sums[j][c], sums[j][2 + c],
                   beside[j].of[c]);
      }
    }
    __syncwarp();
  }
}

template <int KIND, class W, int G>
__device__ __forceinline__ void run(const ChainArgs& args) {
  extern __shared__ __align__(128) char shared[];
  const ColumnsArgs& a = args.c;
  Memory m;
  m.full = reinterpret_cast<u64*>(shared);
  m.free = m.full + a.w_stages * args.warps;
  m.x_full = m.free + a.w_stages * args.warps;
  m.x_free = m.x_full + a.x_stages;
  m.rows = reinterpret_cast<const char**>(shared + args.rows_at);
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
    bring_weights<KIND>(args, m, warp - bringer, lane);
    return;
  }
  if (warp == args.warps) {
    launch_dependents();
    wait_for_previous();
    if (lane == 0) bring_columns<G>(args, m);
    return;
  }
  wait_for_previous();
  multiply<KIND, W, G>(args, m, warp, lane);
}
#endif

// G: groups of eight columns.
template <int KIND, class W, int G>
__global__ void __launch_bounds__(224, 2) mul_mat_chain(const __grid_constant__ ChainArgs args) {
#if __CUDA_ARCH__ >= 900
  run<KIND, W, G>(args);
#endif
}
