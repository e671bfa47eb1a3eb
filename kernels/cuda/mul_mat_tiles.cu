// Quantized weights times more columns than one pass of mul_mat_columns.cu has, on Hopper, with the
// bits that it gives them.
//
// A block multiplies 128 weight rows with N columns over all of k. Where mul_mat_columns.cu has
// parts of k in blocks of their own, whose sums go through memory, this one makes them one after
// the other and adds each to those before it, which stay in registers: of so many columns there are
// tiles enough. Without parts there are registers for twice as many columns, so that weights become
// fragments half as often. Two neighbouring blocks, a cluster, have the same columns and bring half
// of them each, to both.
#include "cuda/columns_block.cuh"

constexpr int kCluster = 2, kMostInParts = 128;  // columns of which there are parts of k

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A block's tile of rows and group of columns. Clusters that run at the same time have all columns
// of the same tiles.
struct Work {
  int tile, group;
};
template <int N>
__device__ __forceinline__ Work work_of(const ColumnsArgs& a) {
  const int groups = (a.m + N - 1) / N, cluster = blockIdx.x / kCluster;
  return {cluster / groups * kCluster + (int)blockIdx.x % kCluster, cluster % groups};
}

// One thread. This block's half of every stage, to both.
template <int N>
__device__ __forceinline__ void bring_columns(const ColumnsArgs& a, const Rings& rings, int group) {
  constexpr u32 STAGE = N * kTileK * 2, HALF = STAGE / kCluster;
  const u32 begin = blockIdx.x % kCluster * HALF;
  const char* const x = a.x + (i64)group * (a.k / kTileK) * STAGE + begin;
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  for (int tile = 0; tile < a.k / kTileK; ++tile) {
    cluster_barrier_wait(rings.x_free + at.stage, at.parity ^ 1);
    const u32 bar = shared_address(rings.x_full + at.stage);
    expect_bytes(bar, STAGE);
    copy_bulk_to_all<kCluster>(shared_address(rings.x + at.stage * STAGE) + begin,
                               x + (i64)tile * STAGE, HALF, bar);
    at.next(a.x_stages);
  }
}

template <int KIND, class W, int N>
__device__ __forceinline__ void run(const ColumnsArgs& a) {
  constexpr int LESS = 56, MORE = 224;
  static_assert(registers_are_there<kThreads>(LESS + 2 * MORE), "");
  extern __shared__ __align__(1024) char memory[];
  char* const shared = memory + (-shared_address(memory) & 1023);
  const Work work = work_of<N>(a);
  const bool own = work.tile < a.tiles;  // or there is no other row for the second block
  const int tile = own ? work.tile : a.tiles - 1;
  const Rings rings = make_rings<W, N, 1, kCluster>(a, shared, tile);
  cluster_sync();

  const int chunks = a.k / Weights<W>::CHUNK;
  if (threadIdx.x >= kConsumers) {
    const int thread = threadIdx.x - kConsumers;
    registers_less<LESS>();
    if (thread < kBringers) {
      launch_dependents();
      bring_weights<W, 1>(a, rings, 0, chunks, thread);
      copies_end();
      copies_wait<0>();
    } else if (thread == kBringers) {
      wait_for_previous();
      bring_columns<N>(a, rings, work.group);
    }
    return;
  }
  registers_more<MORE>();
  wait_for_previous();
  float sums[1][N / 2] = {};
  Multiplier<W, N, 1, kCluster> multiplier(a, rings, 0, chunks);
  if constexpr (N > kMostInParts) {
    multiplier.part(0, chunks, chunks, sums);
  } else {
#pragma unroll 1
    for (int s = 0; s < a.splits; ++s) {
      float part[1][N / 2] = {};
      multiplier.part(chunks * s / a.splits, chunks * (s + 1) / a.splits, chunks, part);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums[0][i] += part[0][i];
    }
  }
  if (own) finish_tile<N, 1, 8>(KIND, a, shared, tile, work.group * N, sums);
}
#endif

// N: 128, or without parts of k 256. The grid is of whole clusters.
template <int KIND, class W, int N>
__global__ void GF_CLUSTER(kCluster) __launch_bounds__(kThreads, 1)
    mul_mat_tiles(const __grid_constant__ ColumnsArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run<KIND, W, N>(a);
#endif
}
