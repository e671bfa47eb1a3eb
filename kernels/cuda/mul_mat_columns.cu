// mul_mat for many columns on Hopper: weights are read once, as they are in memory, become 16-bit
// fragments in registers, and are multiplied by the columns, which lie in shared memory, by the
// products of warpgroups.
//
// A block multiplies 128 MT weight rows with N columns over a part of k: two warpgroups of MT times
// 64 rows each. A third brings weights and columns through rings of stages in shared memory.
// Weights are asked for before the kernels before this one are done (programmatic dependent
// launch).
//
// Sums of parts of k lie apart and are added by sum_columns, always in one order. The parts depend
// on the weights' shape alone, so that a result does not depend on the other columns.
#include "cuda/columns.cuh"
#include "cuda/columns_weights.cuh"
#include "cuda/ring.cuh"
#include "cuda/wgmma.cuh"

constexpr int kConsumers = 256, kBringers = 96, kThreads = kConsumers + kBringers + 32;
constexpr int kTileK = 64;  // elements of a stage of columns

// Whether two blocks share a multiprocessor.
constexpr bool two_blocks(int n, int mt) { return mt == 1 && n <= 64; }

// Where float4 f of a thread's sums belongs.
struct Spot {
  int matrix, pair, column;
};

template <int N, int MT>
__device__ __forceinline__ Spot spot_of(const ColumnsArgs& a, int tile, int columns, int group,
                                        int thread, int f) {
  const Tile at = tile_of<64 * MT>(a, tile);
  const int sixteen = (group * MT + f / (N / 8)) * 4 + thread / 32;
  return {at.matrix, at.pair + sixteen * 8 + thread % 32 / 4,
          columns * N + f % (N / 8) * 8 + thread % 4 * 2};
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The rings: stages of columns, stages of weights, and for each of both a barrier that tells that
// it is full and one that tells that it is free.
struct Rings {
  char *x, *w;
  u64 *x_full, *x_free, *w_full, *w_free;
  const char** rows;  // where this block's rows start: of every sixteen, r and r + 8 are a pair
};

template <class W, int MT>
__device__ __forceinline__ void bring_weights(const ColumnsArgs& a, const Rings& rings, int begin,
                                              int end, int thread) {
  using L = Weights<W>;
  constexpr int ROWS = 128 * MT, STAGE = ROWS * L::STRIDE;
  Place at;
  for (int chunk = begin; chunk < end; ++chunk) {
    barrier_wait(rings.w_free + at.stage, at.parity ^ 1);
    const u32 to = shared_address(rings.w + at.stage * STAGE);
#pragma unroll 4
    for (int i = thread; i < ROWS * L::PIECES; i += kBringers) {
      const int r = i / L::PIECES, piece = i % L::PIECES;
      const char* const start = rings.rows[r] + chunk * L::BYTES;
      const char* const from = start - L::offset(start) + 16 * piece;
      if (L::ALIGNED || from < start + L::BYTES) copy16_async(to + L::place(r, piece), from);
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(
                     shared_address(rings.w_full + at.stage))
                 : "memory");
    at.next(a.w_stages);
  }
}

template <int N>
__device__ __forceinline__ void bring_columns(const ColumnsArgs& a, const Rings& rings, int begin,
                                              int end) {
  constexpr u32 STAGE = N * kTileK * 2;
  const char* const x = a.x + (i64)blockIdx.z * (a.k / kTileK) * STAGE;
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  for (int tile = begin; tile < end; ++tile) {
    barrier_wait(rings.x_free + at.stage, at.parity ^ 1);
    const u32 bar = shared_address(rings.x_full + at.stage);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(STAGE)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_address(rings.x + at.stage * STAGE)),
        "l"(x + (i64)tile * STAGE), "r"(STAGE), "r"(bar)
        : "memory");
    at.next(a.x_stages);
  }
}

// Fragments of BLOCKS times 32 elements: two steps of 16 each.
template <class W, int MT, int BLOCKS>
struct Fragments {
  u32 v[MT][2 * BLOCKS][4];

  // rows: of this lane, the upper and the lower of each tile.
  __device__ __forceinline__ void load(const char* const (&rows)[MT][2], int block32, int t,
                                       int odd, const Masks& masks) {
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        const Pairs lo = Weights<W>::pairs(rows[i][0], block32 + b, t, odd, masks);
        const Pairs hi = Weights<W>::pairs(rows[i][1], block32 + b, t, odd, masks);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          u32(&to)[4] = v[i][2 * b + s];
          to[0] = lo.v[2 * s];
          to[1] = hi.v[2 * s];
          to[2] = lo.v[2 * s + 1];
          to[3] = hi.v[2 * s + 1];
        }
      }
    }
  }
};

template <class W, int N, int MT>
__device__ __forceinline__ void multiply(const ColumnsArgs& a, const Rings& rings, int begin,
                                         int end, float (&sums)[MT][N / 2]) {
  using L = Weights<W>;
  constexpr int STAGE = 128 * MT * L::STRIDE, X_STAGE = N * kTileK * 2;
  constexpr int BLOCKS = MT * N > 128 ? 1 : 2;  // of 32 elements in a step, as registers allow
  constexpr int STEPS = L::CHUNK / 32 / BLOCKS;
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const int g = lane / 4, t = lane % 4;
  const int row0 = group * 64 * MT + warp * 16 + g;  // in the block

  const char* rows[MT][2];
  const auto enter = [&](int chunk, int stage) {
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i) {
      const int row = row0 + i * 8 + i / 2 * 48;
      int offset = 0;
      if (!L::ALIGNED) {
        offset = L::offset(rings.rows[row] + chunk * L::BYTES);
      }
      rows[i / 2][i % 2] = rings.w + stage * STAGE + row * L::STRIDE + offset;
    }
  };

  const Masks masks = a.masks;
  Fragments<W, MT, BLOCKS> fragments[2];
  Place w, x;
  int used = -1;  // stage of columns that the group before has used up
  barrier_wait(rings.w_full, 0);
  enter(begin, 0);
  fragments[0].load(rows, 0, t, g % 2, masks);
  for (int chunk = begin; chunk < end; ++chunk) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      const bool first = BLOCKS == 2 || step % 2 == 0, last = BLOCKS == 2 || step % 2 == 1;
      if (first) barrier_wait(rings.x_full + x.stage, x.parity);
      const u64 columns = columns_descriptor(shared_address(rings.x + x.stage * X_STAGE)) +
                          (first ? 0 : 4);  // of 16 bytes
      products_fence();
#pragma unroll
      for (int s = 0; s < 2 * BLOCKS; ++s) {
#pragma unroll
        for (int i = 0; i < MT; ++i) {
          product<typename L::T, N>(sums[i], fragments[step % 2].v[i][s], columns + 2 * s);
        }
      }
      products_end();
      // The group before is done: its columns are free, and its fragments may be overwritten.
      products_wait<1>();
      if (used >= 0 && lane == 0) barrier_arrive(rings.x_free + used);
      used = last ? x.stage : -1;
      if (last) x.next(a.x_stages);
      if (step + 1 < STEPS) {
        fragments[(step + 1) % 2].load(rows, (step + 1) * BLOCKS, t, g % 2, masks);
      } else {
        __syncwarp();
        if (lane == 0) barrier_arrive(rings.w_free + w.stage);
        w.next(a.w_stages);
        if (chunk + 1 < end) {
          barrier_wait(rings.w_full + w.stage, w.parity);
          enter(chunk + 1, w.stage);
          fragments[(step + 1) % 2].load(rows, 0, t, g % 2, masks);
        }
      }
    }
  }
  products_wait<0>();
}

template <int N, int MT>
__device__ __forceinline__ void finish_sums(const ColumnsArgs& a, const float (&sums)[MT][N / 2]) {
  constexpr int F = MT * N / 8;  // float4s of a thread
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const auto sum_of = [&](int f) {
    const float* const v = sums[f / (N / 8)] + f % (N / 8) * 4;
    return float4{v[0], v[1], v[2], v[3]};
  };
  if (a.splits > 1) {
    const i64 block = ((i64)blockIdx.y * gridDim.z + blockIdx.z) * gridDim.x + blockIdx.x;
    float4* const to = a.parts + (block * 2 + group) * F * 128 + thread;
#pragma unroll
    for (int f = 0; f < F; ++f) to[f * 128] = sum_of(f);
    return;
  }
  constexpr int AT_ONCE = F < 8 ? F : two_blocks(N, MT) ? 2 : 8;  // whose latencies overlap
#pragma unroll
  for (int first = 0; first < F; first += AT_ONCE) {
    Spot spots[AT_ONCE];
    Beside besides[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      spots[i] = spot_of<N, MT>(a, blockIdx.x, blockIdx.z, group, thread, first + i);
      besides[i] = beside_of(a, spots[i].matrix, spots[i].pair, spots[i].column);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const Spot& s = spots[i];
      finish(a, s.matrix, s.pair, s.column, sum_of(first + i), besides[i]);
    }
  }
}

// Registers go from the warpgroup that brings to those that multiply.
template <int COUNT>
__device__ __forceinline__ void registers_less() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <class W, int N, int MT>
__device__ __forceinline__ void run(const ColumnsArgs& a) {
  using L = Weights<W>;
  constexpr bool TWO = two_blocks(N, MT);
  extern __shared__ __align__(1024) char memory[];
  char* const shared = memory + (-shared_address(memory) & 1023);
  Rings rings;
  rings.x = shared;
  rings.w = rings.x + a.x_stages * N * kTileK * 2;
  rings.x_full = reinterpret_cast<u64*>(rings.w + a.w_stages * 128 * MT * L::STRIDE);
  rings.x_free = rings.x_full + a.x_stages;
  rings.w_full = rings.x_free + a.x_stages;
  rings.w_free = rings.w_full + a.w_stages;
  rings.rows = reinterpret_cast<const char**>(rings.w_free + a.w_stages);
  for (int r = threadIdx.x; r < 128 * MT; r += kThreads) {
    const Tile tile = tile_of<64 * MT>(a, blockIdx.x);
    rings.rows[r] = row_start(a, tile.matrix, tile.pair + r / 16 * 8 + r % 8, r / 8 % 2);
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < a.x_stages; ++s) {
      barrier_make(rings.x_full + s, 1);
      barrier_make(rings.x_free + s, kConsumers / 32);
    }
    for (int s = 0; s < a.w_stages; ++s) {
      barrier_make(rings.w_full + s, kBringers);
      barrier_make(rings.w_free + s, kConsumers / 32);
    }
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();

  const int chunks = a.k / L::CHUNK;
  const int begin = chunks * blockIdx.y / a.splits, end = chunks * (blockIdx.y + 1) / a.splits;
  if (threadIdx.x >= kConsumers) {
    const int thread = threadIdx.x - kConsumers;
    registers_less<TWO ? 40 : 56>();
    if (thread < kBringers) {
      launch_dependents();
      bring_weights<W, MT>(a, rings, begin, end, thread);
      copies_end();
      copies_wait<0>();
    } else if (thread == kBringers) {
      constexpr int TILES = L::CHUNK / kTileK;
      wait_for_previous();
      bring_columns<N>(a, rings, begin * TILES, end * TILES);
    }
    return;
  }
  registers_more<TWO ? 96 : 224>();
  wait_for_previous();
  float sums[MT][N / 2] = {};
  multiply<W, N, MT>(a, rings, begin, end, sums);
#pragma unroll
  for (int i = 0; i < MT * N / 2; ++i) {  // no use of a sum moves before the wait
    asm volatile("" : "+f"(sums[i / (N / 2)][i % (N / 2)])::"memory");
  }
  finish_sums<N, MT>(a, sums);
}
#endif

// N: 8, 16, 32, 64 or 128. splits chunks of k are never fewer than blocks.
template <class W, int N, int MT>
__global__ void __launch_bounds__(kThreads, two_blocks(N, MT) ? 2 : 1)
    mul_mat_columns(const __grid_constant__ ColumnsArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run<W, N, MT>(a);
#endif
}

// The parts of k together. blockIdx.x counts float4s of a thread of mul_mat_columns and its
// warpgroups, blockIdx.y its blocks, blockIdx.z the groups of N columns.
template <int N, int MT>
__global__ void __launch_bounds__(128) sum_columns(const __grid_constant__ ColumnsArgs a) {
  constexpr int F = MT * N / 8;
  launch_dependents();
  const int f = blockIdx.x % F, group = blockIdx.x / F, thread = threadIdx.x;
  if (blockIdx.z * N + f % (N / 8) * 8 >= a.m) return;
  const i64 all = (i64)gridDim.z * gridDim.y * 2 * F * 128;  // of a part
  const i64 block = (i64)blockIdx.z * gridDim.y + blockIdx.y;
  const float4* p = a.parts + ((block * 2 + group) * F + f) * 128 + thread;
  const Spot spot = spot_of<N, MT>(a, blockIdx.y, blockIdx.z, group, thread, f);
  wait_for_previous();
  const Beside beside = beside_of(a, spot.matrix, spot.pair, spot.column);
  float4 sum = {};
#pragma unroll 8
  for (int s = 0; s < a.splits; ++s) {
    const float4 v = __ldcg(p + s * all);
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  finish(a, spot.matrix, spot.pair, spot.column, sum, beside);
}
