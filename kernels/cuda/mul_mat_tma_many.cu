// 16-bit weights times many columns on Hopper, as prompts have them, with what stands around them.
// Weights and columns come as tiles of a tensor map (TMA) into a ring of shared memory, where
// products of warpgroups read both.
//
// A block goes through all of k. Where other kernels add parts of k, it does so one part after the
// other: what a part has is added to the parts before it, in registers, so that sums have the same
// bits and none of them goes through memory. Two warpgroups have 64 rows each, and all of the
// block's N columns: neighbouring rows, or the first and the second rows of pairs. C neighbouring
// blocks, a cluster, have the same rows, of which each brings a share for all: the second-level
// cache is asked for less.
#include "cuda/cluster.cuh"
#include "cuda/dependent.cuh"
#include "cuda/registers.cuh"
#include "cuda/tma_finish.cuh"
#include "cuda/wgmma_shared.cuh"

constexpr int kRows = 128, kThreads = 256;  // of a block; that multiply
constexpr int kBringing = 128;              // threads, of which one brings
constexpr int kMore = 240, kLess = 24;      // registers, of those and of these
static_assert(registers_are_there<kThreads + kBringing>(2 * kMore + kLess), "too many registers");

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// TmaArgs: of c, splits are parts of k; the first map of PLAIN has k and rows.
template <int KIND, class W, int N, int C>
struct Block {
  static constexpr int W_BYTES = kRows * kTileRow, STAGE = W_BYTES + N * kTileRow;
  static constexpr int SHARE = kRows / C;  // of rows, that a block brings
  using Sums = float[N / 2];               // as product_shared has them

  const TmaArgs& t;
  const ColumnsArgs& a;
  const int stages, tiles, part;  // tiles of k: all, and of each part but the last
  char* const ring;
  u64 *const full, *const free;
  float* const scales;  // [N]
  const int rank;
  const Tile tile;
  const int first_column;

  __device__ Block(const TmaArgs& args, char* memory)
      : t(args),
        a(args.c),
        stages(a.w_stages),
        tiles(a.k / kTileK),
        part((tiles + a.splits - 1) / a.splits),
        ring(memory + (-shared_address(memory) & 1023)),
        full(reinterpret_cast<u64*>(ring + stages * STAGE)),
        free(full + stages),
        scales(reinterpret_cast<float*>(free + stages)),
        rank((int)blockIdx.x % C),
        tile(tile_of<kTilePairs>(a, (int)blockIdx.x / C / args.shares)),
        first_column(((int)blockIdx.x / C % args.shares * C + rank) * N) {}

  __device__ __forceinline__ void start() const {
    if (threadIdx.x == 0) {
      for (int s = 0; s < stages; ++s) {
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
    constexpr int all = (1 << C) - 1;
    if (KIND == PLAIN && C > 1) {
      bring_tile_to(all, to + rank * SHARE * kTileRow, t.w[0], full + stage, k * kTileK,
                    2 * tile.pair + rank * SHARE);
    } else if (KIND == PLAIN) {
      bring_tile(to, t.w[0], full + stage, k * kTileK, 2 * tile.pair);
    } else {
#pragma unroll
      for (int second = 0; second < 2; ++second) {
        if (C > 1 && rank != second) continue;
        const auto rows = rows_of_pairs<KIND>(t, tile.matrix, tile.pair, second);
        bring_tile_to(all, to + second * kTileBytes, *rows.map, full + stage, k * kTileK,
                      rows.inner, rows.second, rows.head);
      }
    }
  }
  __device__ __forceinline__ void columns(int stage, int k) const {
    const u32 to = shared_address(ring + stage * STAGE + W_BYTES);
    bring_tile(to, t.x, full + stage, k * kTileK, first_column);
  }
  __device__ __forceinline__ void bring() const {
    const int early = min(stages, tiles);
    for (int k = 0; k < early; ++k) weights(k, k);
    wait_for_previous();
    asm volatile("fence.proxy.async;" ::: "memory");  // columns: other threads' stores
    for (int k = 0; k < early; ++k) columns(k, k);
    Place at;
    for (int k = early; k < tiles; ++k) {
      cluster_barrier_wait(free + at.stage, at.parity);
      weights(at.stage, k);
      columns(at.stage, k);
      at.next(stages);
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
      at.next(stages);
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
      const bool is_there = t.scales != nullptr && first_column + i < a.m;
      scales[i] = is_there ? __ldcg(t.scales + first_column + i) : 1.0f;
    }
  }
  __device__ __forceinline__ void consumers_meet() const {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
  // Sums of all of k: `sums` are those of the last part, `total` of those before it, if there are.
  __device__ __forceinline__ float sum_of(const Sums& sums, const Sums& total, int i) const {
    return a.splits > 1 ? total[i] + sums[i] : sums[i];
  }

  // Of neighbouring rows: from registers. f: of each sum whose row and column are there: which one,
  // and where from `first` on what is of that row and column lies, in steps of T from one to the
  // next.
  template <class T, class F>
  __device__ __forceinline__ void each_sum(T* first, long long row_step, long long column_step,
                                           F f) const {
    const int row = 2 * tile.pair + (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 32 / 4;
    const int column = first_column + (int)threadIdx.x % 4 * 2;
    T* at = first + row * row_step + column * column_step;
#pragma unroll
    for (int j = 0; j < N / 8; ++j, at += 8 * column_step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool is_there = column + 8 * j + i % 2 < a.m && row + i / 2 * 8 < a.rows[0];
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
  __device__ __forceinline__ void finish(const Sums& sums, const Sums& total,
                                         const Sums& added) const {
    const int column = threadIdx.x % 4 * 2;
    each_sum(a.dst, 1, a.dst_row, [&](int i, float* to) {
      *to = sum_of(sums, total, i) * scales[column + i / 4 * 8 + i % 2] + added[i];
    });
  }

  // Of pairs: through shared memory, where the ring was, as [columns][pairs] of two sums. Then a
  // lane has two pairs of its warp's columns.
  static constexpr int STRIDE = 2 * kTilePairs + 8, AT_ONCE = 4, WARPS = kThreads / 32;
  using Lane = LaneRows<KIND, true>;
  using Besides = typename Lane::Beside[AT_ONCE];

  __device__ __forceinline__ void leave(const Sums& sums, const Sums& total) const {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    float* const to = reinterpret_cast<float*>(ring) + 2 * (warp * 16 + lane / 4) +
                      lane % 4 * 2 * STRIDE + threadIdx.x / 128;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
      to[(i / 4 * 8 + i % 2) * STRIDE + i / 2 % 2 * 16] = sum_of(sums, total, i);
    }
  }
  __device__ __forceinline__ void ask(const Lane& lane, int first, Besides& besides) const {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int column = first_column + first + i * WARPS;
      if (column < a.m) besides[i] = lane.ask(column);
    }
  }
  __device__ __forceinline__ void finish(const Lane& lane, Besides& besides) const {
    const float* const from = reinterpret_cast<const float*>(ring) + threadIdx.x % 32 * 4;
    const int count = min(N, a.m - first_column);
#pragma unroll 1
    for (int first = threadIdx.x / 32; first < count; first += AT_ONCE * WARPS) {
      typename Lane::Beside now[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) now[i] = besides[i];
      ask(lane, first + AT_ONCE * WARPS, besides);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int column = first + i * WARPS;
        if (column >= count) continue;
        const auto sums = *reinterpret_cast<const float4*>(from + column * STRIDE);
        lane.finish(first_column + column, sums, scales[column], now[i]);
      }
    }
  }

  __device__ __forceinline__ void make() const {
    wait_for_previous();
    keep_scales();
    consumers_meet();
    Sums sums, total;
    Place at;
    int k = 0;
#pragma unroll 1
    for (; k + part < tiles; k += part) {
      multiply(sums, k, k + part, at);
#pragma unroll
      for (int i = 0; i < N / 2; ++i) total[i] = k == 0 ? sums[i] : total[i] + sums[i];
    }
    if constexpr (KIND == PLAIN) {
      Sums added;
      ask(added);
      multiply(sums, k, tiles, at);
      finish(sums, total, added);
    } else {
      const Lane lane(a, t.turns, tile, threadIdx.x % 32 * 2);
      Besides besides;
      ask(lane, threadIdx.x / 32, besides);
      multiply(sums, k, tiles, at);
      consumers_meet();  // no one reads the ring any more
      leave(sums, total);
      consumers_meet();
      finish(lane, besides);
    }
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
template <int KIND, class W, int N, int C>
__global__ void GF_CLUSTER(C) __launch_bounds__(kThreads + kBringing, 1)
    mul_mat_tma_many(const __grid_constant__ TmaArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  Block<KIND, W, N, C>(args, memory).run();
#endif
}
