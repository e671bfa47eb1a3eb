// 16-bit weights times many columns on Hopper, as prompts have them, and what is added to each row.
// Weights and columns come as tiles of a tensor map (TMA) into a ring of shared memory, where
// products of warpgroups read both.
//
// A block goes through all of k. Where other kernels add parts of k, it does so one part after the
// other: what a part has is added to the parts before it, in registers, so that sums have the same
// bits and none of them goes through memory. Two warpgroups have 64 rows each, and all of the
// block's N columns. C neighbouring blocks, a cluster, have the same rows, of which each brings a
// share for all: the second-level cache is asked for less.
#include "cuda/cluster.cuh"
#include "cuda/dependent.cuh"
#include "cuda/registers.cuh"
#include "cuda/tma.cuh"
#include "cuda/wgmma_shared.cuh"

// Mirrored by mul_mat_tma_many.py. w, x: of rows of k elements. scales: of columns, or null. r:
// what is added, or null; its steps are bytes.
struct TmaManyArgs {
  TensorMap w, x;
  const float* scales;
  const char* r;
  float* dst;
  long long r_step, r_row, dst_row;
  int rows, columns;
  int tiles, part;  // of k: all, and of each part but the last
  int groups;       // of columns, which clusters of the same rows have
  int stages;
};

constexpr int kRows = 128, kThreads = 256;  // of a block; that multiply
constexpr int kBringing = 128;              // threads, of which one brings
constexpr int kMore = 240, kLess = 24;      // registers, of those and of these
static_assert(registers_are_there<kThreads + kBringing>(2 * kMore + kLess), "too many registers");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

template <class W, int N, int C>
struct Block {
  static constexpr int W_BYTES = kRows * kTileRow, STAGE = W_BYTES + N * kTileRow;
  static constexpr int SHARE = kRows / C;  // of rows, that a block brings
  using Sums = float[N / 2];               // as product_shared has them

  const TmaManyArgs& a;
  char* const ring;
  u64 *const full, *const free;
  float* const scales;  // [N]
  const int rank;
  const int first_row, first_column;

  __device__ Block(const TmaManyArgs& args, char* memory)
      : a(args),
        ring(memory + (-shared_address(memory) & 1023)),
        full(reinterpret_cast<u64*>(ring + args.stages * STAGE)),
        free(full + args.stages),
        scales(reinterpret_cast<float*>(free + args.stages)),
        rank((int)blockIdx.x % C),
        first_row((int)blockIdx.x / C / args.groups * kRows),
        first_column(((int)blockIdx.x / C % args.groups * C + rank) * N) {}

  __device__ __forceinline__ void start() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < a.stages; ++s) {
        barrier_make(full + s, 1);
        barrier_make(free + s, kThreads / 32 * C);
      }
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_meet<C>();
  }

  // -- bringing, by one thread -------------------------------------------------------------------

  __device__ __forceinline__ void weights(int stage, int k) const {
    const u32 to = shared_address(ring + stage * STAGE);
    expect_bytes(full + stage, STAGE);
    if (C > 1) {
      bring_tile_to((1 << C) - 1, to + rank * SHARE * kTileRow, a.w, full + stage, k * kTileK,
                    first_row + rank * SHARE);
    } else {
      bring_tile(to, a.w, full + stage, k * kTileK, first_row);
    }
  }
  __device__ __forceinline__ void columns(int stage, int k) const {
    const u32 to = shared_address(ring + stage * STAGE + W_BYTES);
    bring_tile(to, a.x, full + stage, k * kTileK, first_column);
  }
  __device__ __forceinline__ void bring() const {
    const int early = min(a.stages, a.tiles);
    for (int k = 0; k < early; ++k) weights(k, k);
    wait_for_previous();
    asm volatile("fence.proxy.async;" ::: "memory");  // columns: other threads' stores
    for (int k = 0; k < early; ++k) columns(k, k);
    Place at;
    for (int k = early; k < a.tiles; ++k) {
      cluster_barrier_wait(free + at.stage, at.parity);
      weights(at.stage, k);
      columns(at.stage, k);
      at.next(a.stages);
    }
  }

  // -- multiplying -------------------------------------------------------------------------------

  // A stage may be filled again, by all blocks of the cluster.
  __device__ __forceinline__ void release(int stage) const {
    const int lane = threadIdx.x % 32;
    if (lane >= C) return;
    if (C > 1) {
      reads_done_at(address_at(shared_address(free + stage), lane));
    } else {
      barrier_arrive(free + stage);
    }
  }
  // The sums of the tiles from k to end.
  __device__ __forceinline__ void multiply(Sums& sums, int k, int end, Place& at) const {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = 0.0f;
    int used = -1;
#pragma unroll 1
    for (; k < end; ++k) {
      barrier_wait(full + at.stage, at.parity);
      const u32 stage = shared_address(ring + at.stage * STAGE);
      const u64 w = columns_descriptor(stage + threadIdx.x / 128 * (W_BYTES / 2));
      const u64 x = columns_descriptor(stage + W_BYTES);
      products_fence();
#pragma unroll
      for (int s = 0; s < kTileK / 16; ++s) product_shared<W, N>(sums, w + 2 * s, x + 2 * s);
      products_end();
      products_wait<1>();  // the tile before is done
      if (used >= 0) release(used);
      used = at.stage;
      at.next(a.stages);
    }
    products_wait<0>();
    release(used);
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {  // no use of a sum moves before the wait
      asm volatile("" : "+f"(sums[i])::"memory");
    }
  }

  // -- what becomes of the sums ------------------------------------------------------------------

  __device__ __forceinline__ void keep_scales() const {
    for (int i = threadIdx.x; i < N; i += kThreads) {
      const bool is_there = a.scales != nullptr && first_column + i < a.columns;
      scales[i] = is_there ? __ldcg(a.scales + first_column + i) : 1.0f;
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
  // f: of each sum whose row and column are there: which one, and where from `first` on what is of
  // that row and column lies, in steps of T from one to the next.
  template <class T, class F>
  __device__ __forceinline__ void each_sum(T* first, long long row_step, long long column_step,
                                           F f) const {
    const int row = first_row + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    const int column = first_column + (int)threadIdx.x % 4 * 2;
    T* at = first + row * row_step + column * column_step;
#pragma unroll
    for (int j = 0; j < N / 8; ++j, at += 8 * column_step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_there = column + 8 * j + i % 2 < a.columns && row + i / 2 * 8 < a.rows;
        if (is_there) f(4 * j + i, at + i % 2 * column_step + i / 2 * 8 * row_step);
      }
    }
  }
  // What is added to the sums, asked for while the last part of k is multiplied.
  __device__ __forceinline__ void ask(Sums& added) const {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) added[i] = 0.0f;
    if (a.r == nullptr) return;
    each_sum(a.r, a.r_step, a.r_row,
             [&](int i, const char* r) { added[i] = __ldcg(reinterpret_cast<const float*>(r)); });
  }

  __device__ __forceinline__ void make() const {
    wait_for_previous();
    keep_scales();
    Sums sums, total = {};
    Place at;
    int k = 0;
#pragma unroll 1
    for (; k + a.part < a.tiles; k += a.part) {
      multiply(sums, k, k + a.part, at);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) total[i] = k == 0 ? sums[i] : total[i] + sums[i];
    }
    Sums added;
    ask(added);
    multiply(sums, k, a.tiles, at);
    const int column = threadIdx.x % 4 * 2;
    each_sum(a.dst, 1, a.dst_row, [&](int i, float* to) {
      const float sum = k == 0 ? sums[i] : total[i] + sums[i];
      *to = sum * scales[column + i / 4 * 8 + i % 2] + added[i];
    });
  }

  __device__ __forceinline__ void run() const {
    start();
    if (threadIdx.x < kThreads) {
      registers_more<kMore>();
      make();
    } else {
      registers_less<kLess>();
      launch_dependents();
      if (threadIdx.x < kThreads + 32 && elected()) bring();
      __syncwarp();
    }
    cluster_meet<C>();  // others may still bring to this block, or release its stages
  }
};
#endif

// N: columns of a block. C: blocks of a cluster.
template <class W, int N, int C>
__global__ void GF_CLUSTER(C) __launch_bounds__(kThreads + kBringing, 1)
    mul_mat_tma_many(const __grid_constant__ TmaManyArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  Block<W, N, C>(args, memory).run();
#endif
}
