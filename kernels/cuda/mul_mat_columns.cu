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
#include "cuda/columns_block.cuh"
#include "cuda/columns_ring.cuh"

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

template <int N, int MT>
__device__ __forceinline__ void finish_sums(const ColumnsArgs& a, char* shared,
                                            const float (&sums)[MT][N / 2]) {
  constexpr int F = MT * N / 8;  // float4s of a thread
  if (a.splits == 1) {
    constexpr int EACH = N * 2 * MT / (kConsumers / 32), MOST = two_blocks(N, MT) ? 4 : 8;
    finish_tile < N, MT,
        EACH<MOST ? EACH : MOST>(a.kind, a, shared, blockIdx.x, blockIdx.z * N, sums);
    return;
  }
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const i64 block = ((i64)blockIdx.y * gridDim.z + blockIdx.z) * gridDim.x + blockIdx.x;
  float4* const to = a.parts + (block * 2 + group) * F * 128 + thread;
#pragma unroll
  for (int f = 0; f < F; ++f) {
    const float* const v = sums[f / (N / 8)] + f % (N / 8) * 4;
    to[f * 128] = {v[0], v[1], v[2], v[3]};
  }
}

template <class W, int N, int MT>
__device__ __forceinline__ void run(const ColumnsArgs& a) {
  using L = Weights<W>;
  constexpr bool TWO = two_blocks(N, MT);
  constexpr int LESS = TWO ? 40 : 56, MORE = TWO ? 96 : 224;
  static_assert(registers_are_there<kThreads, TWO ? 2 : 1>(LESS + 2 * MORE), "");
  extern __shared__ __align__(1024) char memory[];
  char* const shared = memory + (-shared_address(memory) & 1023);
  const Rings rings = make_rings<W, N, MT, 1>(a, shared, blockIdx.x);
  __syncthreads();

  const int chunks = a.k / L::CHUNK;
  const int begin = chunks * blockIdx.y / a.splits, end = chunks * (blockIdx.y + 1) / a.splits;
  if (threadIdx.x >= kConsumers) {
    const int thread = threadIdx.x - kConsumers;
    registers_less<LESS>();
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
  registers_more<MORE>();
  wait_for_previous();
  float sums[MT][N / 2] = {};
  Multiplier<W, N, MT, 1>(a, rings, begin, end).part(begin, end, end, sums);
  finish_sums<N, MT>(a, shared, sums);
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
  const float4 sum = sum_of_parts(p, all, a.splits);
  finish(a, spot.matrix, spot.pair, spot.column, sum, beside);
}
