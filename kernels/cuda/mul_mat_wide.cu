// 16-bit weights times 17 to 128 columns on Hopper. A row's sum is one chain along k
// (float_columns.cuh), so that its bits do not depend on how many columns there are.
//
// Without parts of k there are as many blocks as tiles of weight rows, so tiles are narrow: in the
// products of warpgroups the columns are the 64 rows that these have at least, and N weight rows
// are their columns. Both lie in shared memory as they are multiplied. Narrow tiles read all
// columns often: four blocks, a cluster, bring a quarter each, to all four.
//
// A block has a warpgroup for every 64 columns, some warps that bring weights and one that
// brings the columns. Weights are asked for before the kernels before this one are done
// (programmatic dependent launch).
#include "cuda/cluster.cuh"
#include "cuda/columns.cuh"
#include "cuda/wgmma_shared.cuh"

constexpr int kCluster = 4;
constexpr int kTileK = 64;  // elements of a tile's rows: 128 bytes

// Threads that bring weights, as many as leave the sums room.
constexpr int bringers(int n, int groups) { return groups == 1 ? 128 : n <= 48 ? 64 : 32; }

// Tiles of weights of a stage: rows of 256 bytes at once where they are few.
constexpr int tiles_of_stage(int n) { return n <= 64 ? 2 : 1; }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The rings: stages of columns, stages of weights, and for each of both a barrier that tells that
// it is full and one that tells that it is free.
struct Rings {
  char *x, *w;
  u64 *x_full, *x_free, *w_full, *w_free;
  const char** rows;  // where this block's rows start, first and second rows of pairs in turns
};

__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ u32 cluster_rank() {
  u32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// At the barrier of that place in a block of the cluster. Nothing is handed over but the place:
// what was read there was read before.
__device__ __forceinline__ void arrive_at(u64* bar, u32 rank) {
  asm volatile(
      "{\n.reg .b32 at;\nmapa.shared::cluster.u32 at, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [at];\n}\n" ::"r"(shared_address(bar)),
      "r"(rank)
      : "memory");
}
__device__ __forceinline__ void barrier_wait_cluster(u64* bar, u32 parity) {
  u32 done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(bar)), "r"(parity)
        : "memory");
  } while (!done);
}

template <int KIND>
__device__ __forceinline__ int pairs_of(const ColumnsArgs& a) {
  return KIND == QKV ? a.pairs[0] + a.pairs[1] + a.pairs[2] : a.pairs[0];
}
// Pair number `pair` of all matrices.
template <int KIND>
__device__ __forceinline__ Tile pair_at(const ColumnsArgs& a, int pair) {
  return KIND == QKV ? tile_of<1>(a, pair) : Tile{0, pair};
}

// A thread brings the same 16 bytes of some rows of every stage.
template <int N, int BRINGERS>
__device__ __forceinline__ void bring_weights(const ColumnsArgs& a, const Rings& rings,
                                              int thread) {
  constexpr int TILES = tiles_of_stage(N), PIECES = TILES * kTileK * 2 / 16;
  constexpr int TILE = N * kTileK * 2, STAGE = TILES * TILE;
  constexpr int ROWS = BRINGERS / PIECES;  // at once
  static_assert((ROWS & (ROWS - 1)) == 0 && N % ROWS == 0, "places are found by exclusive or");
  const int row = thread / PIECES, piece = thread % PIECES;
  const char* from[N / ROWS];
#pragma unroll
  for (int i = 0; i < N / ROWS; ++i) from[i] = rings.rows[row + i * ROWS] + piece * 16;
  const u32 within = piece / 8 * TILE + row * 128, place = ((piece ^ row) % 8) * 16;
  Place at;
  for (int k = 0; k < a.k; k += TILES * kTileK) {
    barrier_wait(rings.w_free + at.stage, at.parity ^ 1);
    const u32 to = shared_address(rings.w + at.stage * STAGE) + within;
#pragma unroll
    for (int i = 0; i < N / ROWS; ++i) {
      copy16_async(to + i * ROWS * 128 + (place ^ (i * ROWS % 8 * 16)), from[i] + 2 * k);
    }
    arrive_with_copies(rings.w_full + at.stage);
    at.next(a.w_stages);
  }
}

// One thread. Of a tile of 64 C columns those are brought that there are, by eights.
template <int C>
__device__ __forceinline__ void bring_columns(const ColumnsArgs& a, const Rings& rings) {
  constexpr int TILE = 64 * C * kTileK * 2;
  const u32 bytes = (a.m + 7) / 8 * 8 * kTileK * 2, part = bytes / kCluster;
  const u32 begin = cluster_rank() * part;
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  for (int tile = 0; tile < a.k / kTileK; ++tile) {
    barrier_wait_cluster(rings.x_free + at.stage, at.parity ^ 1);
    const u32 bar = shared_address(rings.x_full + at.stage);
    expect_bytes(bar, bytes);
    copy_bulk_to_all<kCluster>(shared_address(rings.x + at.stage * TILE) + begin,
                               a.x + (i64)tile * TILE + begin, part, bar);
    at.next(a.x_stages);
  }
}

template <class W, int N, int C>
__device__ __forceinline__ void multiply(const ColumnsArgs& a, const Rings& rings,
                                         float (&sums)[N / 2]) {
  constexpr int TILES = tiles_of_stage(N), W_TILE = N * kTileK * 2;
  constexpr int X_TILE = 64 * C * kTileK * 2;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int tiles = a.k / kTileK;
  Place w, x;
  int used = -1;                        // stage of columns that the products before have used up
  int used_w = -1;                      // the same of weights
  const auto release = [&](int tile) {  // what was used for the tile before
    if (used >= 0 && tile - 1 < tiles - a.x_stages && lane < kCluster) {
      arrive_at(rings.x_free + used, lane);
    }
    if (used_w >= 0 && lane == 0) barrier_arrive(rings.w_free + used_w);
  };
  for (int tile = 0; tile < tiles; ++tile) {
    const int within = tile % TILES;
    if (within == 0) barrier_wait(rings.w_full + w.stage, w.parity);
    barrier_wait(rings.x_full + x.stage, x.parity);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // weights: copies of threads
    const u64 columns =
        columns_descriptor(shared_address(rings.x + x.stage * X_TILE + group * 64 * kTileK * 2));
    const u64 rows =
        columns_descriptor(shared_address(rings.w + (w.stage * TILES + within) * W_TILE));
    products_fence();
#pragma unroll
    for (int s = 0; s < kTileK / 16; ++s) product_shared<W, N>(sums, columns + 2 * s, rows + 2 * s);
    products_end();
    products_wait<1>();  // the tile before is done
    __syncwarp();
    release(tile);
    used = x.stage;
    used_w = within == TILES - 1 ? w.stage : -1;
    x.next(a.x_stages);
    if (within == TILES - 1) w.next(a.w_stages);
  }
  products_wait<0>();
}

template <int KIND, int N>
__device__ __forceinline__ void finish_sums(const ColumnsArgs& a, const float (&sums)[N / 2]) {
  const int first = blockIdx.x * (N / 2) + threadIdx.x % 4, all = pairs_of<KIND>(a);
  const int column = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  constexpr int AT_ONCE = 2;  // whose latencies overlap
#pragma unroll
  for (int j = 0; j < N / 8; j += AT_ONCE) {
    Tile pairs[AT_ONCE];
    BesideOne besides[AT_ONCE][2];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int pair = first + (j + i) * 4;
      pairs[i] = pair < all ? pair_at<KIND>(a, pair) : Tile{0, 1 << 30};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        besides[i][h] = beside_one(KIND, a, pairs[i].matrix, pairs[i].pair, column + 8 * h);
      }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float* const y = sums + (j + i) * 4 + 2 * h;
        finish_one(KIND, a, pairs[i].matrix, pairs[i].pair, column + 8 * h, y[0], y[1],
                   besides[i][h]);
      }
    }
  }
}

template <int KIND, class W, int N, int C>
__device__ __forceinline__ void run(const ColumnsArgs& a) {
  constexpr int CONSUMERS = 128 * C, BRINGERS = bringers(N, C), TILE = kTileK * 2;
  extern __shared__ __align__(1024) char memory[];
  char* const shared = memory + (-shared_address(memory) & 1023);
  Rings rings;
  rings.x = shared;
  rings.w = rings.x + a.x_stages * 64 * C * TILE;
  rings.x_full = reinterpret_cast<u64*>(rings.w + a.w_stages * tiles_of_stage(N) * N * TILE);
  rings.x_free = rings.x_full + a.x_stages;
  rings.w_full = rings.x_free + a.x_stages;
  rings.w_free = rings.w_full + a.w_stages;
  rings.rows = reinterpret_cast<const char**>(rings.w_free + a.w_stages);
  if (threadIdx.x < N) {
    const int pair = min((int)(blockIdx.x * N + threadIdx.x) / 2, pairs_of<KIND>(a) - 1);
    const Tile at = pair_at<KIND>(a, pair);
    rings.rows[threadIdx.x] = row_start(a, at.matrix, at.pair, threadIdx.x % 2);
  }
  if (threadIdx.x == 0) {
    for (int s = 0; s < a.x_stages; ++s) {
      barrier_make(rings.x_full + s, 1);
      barrier_make(rings.x_free + s, 4 * C * kCluster);
    }
    for (int s = 0; s < a.w_stages; ++s) {
      barrier_make(rings.w_full + s, BRINGERS);
      barrier_make(rings.w_free + s, 4 * C);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  cluster_arrive();

  if (threadIdx.x >= CONSUMERS) {
    const int thread = threadIdx.x - CONSUMERS;
    if (thread < BRINGERS) {
      launch_dependents();
      bring_weights<N, BRINGERS>(a, rings, thread);
      copies_end();
      copies_wait<0>();
      cluster_wait();
    } else {
      cluster_wait();
      wait_for_previous();
      if (thread == BRINGERS) bring_columns<C>(a, rings);
    }
    return;
  }
  cluster_wait();
  wait_for_previous();
  float sums[N / 2] = {};
  multiply<W, N, C>(a, rings, sums);
#pragma unroll
  for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");  // after the wait
  finish_sums<KIND, N>(a, sums);
}
#endif

// N: weight rows of a block, 16 to 112. C: columns by 64, 1 or 2.
template <int KIND, class W, int N, int C>
__global__ void GF_CLUSTER(kCluster) __launch_bounds__(128 * C + bringers(N, C) + 32, 2)
    mul_mat_wide(const __grid_constant__ ColumnsArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run<KIND, W, N, C>(a);
#endif
}
