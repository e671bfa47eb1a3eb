// 16-bit weights times 2 and more columns on Hopper, with k divided as is fastest. Weights and
// columns come as tiles of a tensor map (TMA), which lie in shared memory as products of warpgroups
// read them: one thread asks for all of them.
//
// A block has G groups of 64 pairs of rows, which two warpgroups share, and up to 256 columns.
// Blocks of the same rows with other columns are neighbours, so that weights come from memory once.
// S blocks, a cluster, have parts of k of the same rows, so that there are blocks for all
// multiprocessors; their sums are added through each other's shared memory, in the order of the
// parts. The first stages of weights are asked for before the kernels before this one are done
// (programmatic dependent launch): a ring is as large as shared memory, so while small kernels run
// the device's memory is read.
#include "cuda/cluster.cuh"
#include "cuda/tma_finish.cuh"
#include "cuda/wgmma_shared.cuh"

constexpr int kThreads = 256;  // that multiply: two warpgroups

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// N: columns. G: groups of 64 pairs. S: parts of k.
template <int KIND, class W, int N, int G, int S>
struct Block {
  static constexpr int W_BYTES = 2 * G * kTileBytes, STAGE = W_BYTES + N * kTileRow;
  // Others would be much code, unrolled over the sums of a thread.
  static constexpr bool DIRECT = S == 1 && G == 2 && KIND == GLU;
  static constexpr int STRIDE = 2 * kTilePairs * G + 8;  // of sums in shared memory, of a column
  static constexpr int HALVES = N > 128 ? 2 : 1;         // products that have all columns

  const TmaArgs& t;
  const ColumnsArgs& a;
  char* const ring;
  u64 *const full, *const free;
  float* const scales;  // [N]
  const int stages;
  const int first, count;  // columns
  const Tile tile;
  int begin, end;  // of k, in tiles

  __device__ Block(const TmaArgs& args, char* memory)
      : t(args),
        a(args.c),
        ring(memory + (-shared_address(memory) & 1023)),
        full(reinterpret_cast<u64*>(ring + args.c.w_stages * STAGE)),
        free(full + args.c.w_stages),
        scales(reinterpret_cast<float*>(free + args.c.w_stages)),
        stages(args.c.w_stages),
        first((int)blockIdx.x / S % args.shares * N),
        count(min(N, args.c.m - first)),
        tile(tile_of<kTilePairs * G>(args.c, (int)blockIdx.x / S / args.shares)) {
    const int part = blockIdx.x % S, tiles = a.k / kTileK, most = (tiles + S - 1) / S;
    begin = min(tiles, part * most);
    end = min(tiles, begin + most);
  }

  __device__ __forceinline__ void start() const {
    if (threadIdx.x != 0) return;
    for (int s = 0; s < stages; ++s) {
      barrier_make(full + s, 1);
      barrier_make(free + s, kThreads / 32);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  // -- bringing, by one thread -------------------------------------------------------------------

  __device__ __forceinline__ void weights(int stage, int k, u64 policy) const {
    expect_bytes(full + stage, STAGE);
#pragma unroll
    for (int i = 0; i < 2 * G; ++i) {
      const auto rows = rows_of_pairs<KIND>(t, tile.matrix, tile.pair + i / 2 * kTilePairs, i % 2);
      const u32 to = shared_address(ring + stage * STAGE + i * kTileBytes);
      bring_tile(to, *rows.map, full + stage, k * kTileK, rows.inner, rows.second, rows.head,
                 policy);
    }
  }
  __device__ __forceinline__ void columns(int stage, int k) const {
    const u32 to = shared_address(ring + stage * STAGE + W_BYTES);
    bring_tile(to, t.x, full + stage, k * kTileK, first);
  }

  __device__ __forceinline__ void bring() const {
    const int early = min(stages, end - begin);
    const u64 policy = read_once();
    for (int i = 0; i < early; ++i) weights(i, begin + i, policy);
    wait_for_previous();
    asm volatile("fence.proxy.async;" ::: "memory");  // columns: other threads' stores
    for (int i = 0; i < early; ++i) columns(i, begin + i);
    Place at;
    for (int k = begin + early; k < end; ++k) {
      barrier_wait(free + at.stage, at.parity);
      weights(at.stage, k, policy);
      columns(at.stage, k);
      at.next(stages);
    }
  }

  // -- multiplying -------------------------------------------------------------------------------

  // A warpgroup's: first and second rows of its pairs, or one of both.
  using Sums = float[G][N / 2];

  __device__ __forceinline__ void multiply(Sums& sums) const {
    Place at;
    const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
    int used = -1;
    for (int k = begin; k < end; ++k) {
      barrier_wait(full + at.stage, at.parity);
      const u32 stage = shared_address(ring + at.stage * STAGE);
      const u64 x = columns_descriptor(stage + W_BYTES);
      const u64 w = columns_descriptor(stage + group * G * kTileBytes);
      products_fence();
#pragma unroll
      for (int s = 0; s < kTileK / 16; ++s) {
#pragma unroll
        for (int i = 0; i < G; ++i) {
#pragma unroll
          for (int h = 0; h < HALVES; ++h) {
            constexpr int M = N / HALVES;
            float (&mine)[M / 2] = reinterpret_cast<float (&)[M / 2]>(sums[i][h * M / 2]);
            product_shared<W, M>(mine, w + i * (kTileBytes / 16) + 2 * s,
                                 x + h * (M * kTileRow / 16) + 2 * s);
          }
        }
      }
      products_end();
      products_wait<1>();  // the tile before is done
      if (used >= 0 && lane == 0) barrier_arrive(free + used);
      used = at.stage;
      at.next(stages);
    }
    products_wait<0>();
#pragma unroll
    for (int i = 0; i < G * N / 2; ++i) {  // no use of a sum moves before the wait
      asm volatile("" : "+f"(sums[i / (N / 2)][i % (N / 2)])::"memory");
    }
  }

  // -- what becomes of the sums ------------------------------------------------------------------

  __device__ __forceinline__ void keep_scales() const {
    for (int i = threadIdx.x; i < N; i += kThreads) {
      scales[i] = t.scales != nullptr && i < count ? __ldcg(t.scales + first + i) : 1.0f;
    }
  }
  __device__ __forceinline__ void consumers_meet() const {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }

  // All of k is here: from registers.
  __device__ __forceinline__ void finish_own(const Sums& sums) const {
    const int column = threadIdx.x % 4 * 2;
    const int pair = tile.pair + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float* const to = a.dst + (first + column) * a.dst_row + pair;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int c = 8 * j + i % 2;
        if (column + c < count && pair + i / 2 * 8 < a.pairs[0]) {
          to[c * a.dst_row + i / 2 * 8] =
              gated(sums[0][4 * j + i], sums[1][4 * j + i], scales[column + c]);
        }
      }
    }
  }

  // Into this block's shared memory, where the ring was: [columns][pairs] of two sums.
  __device__ __forceinline__ void leave(const Sums& sums) const {
    const int warp = threadIdx.x / 32 % (4 * G), lane = threadIdx.x % 32;
    float* const to = reinterpret_cast<float*>(ring) + 2 * (warp * 16 + lane / 4) +
                      lane % 4 * 2 * STRIDE + (G == 1 ? threadIdx.x / 128 : 0);
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float* const at = to + (8 * j + i % 2) * STRIDE + i / 2 * 16;
        if constexpr (G == 1) {
          *at = sums[0][4 * j + i];
        } else {
          *reinterpret_cast<float2*>(at) = {sums[0][4 * j + i], sums[1][4 * j + i]};
        }
      }
    }
  }

  // Every block of a cluster finishes some columns of all its rows: a warp has 64 pairs, two a
  // lane, of some of these columns.
  static constexpr int WARPS = kThreads / 32 / G;  // that have the same pairs
  static constexpr int AT_ONCE = S <= 4 ? 4 : 2;
  static constexpr bool EARLY = G == 1;  // what meets the first sums is there, as registers allow
  using Lane = LaneRows<KIND>;
  using Besides = typename Lane::Beside[AT_ONCE];

  __device__ __forceinline__ int column_of(int turn) const {
    return ((int)threadIdx.x / (32 * G) + turn * WARPS) * S + (int)blockIdx.x % S;
  }
  __device__ __forceinline__ void ask(const Lane& lane, int turn, Besides& besides) const {
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int column = column_of(turn + i);
      if (column < count) besides[i] = lane.ask(first + column);
    }
  }
  __device__ __forceinline__ void finish_parts(const Lane& lane, int within,
                                               Besides& besides) const {
    u32 there[S];
#pragma unroll
    for (int s = 0; s < S; ++s) {
      there[s] = address_at(shared_address(ring), s) + 4 * 2 * within;
    }
#pragma unroll 1
    for (int turn = 0; column_of(turn) < count; turn += AT_ONCE) {
      float4 sums[AT_ONCE][S];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
        for (int s = 0; s < S; ++s) {
          sums[i][s] = get_at(there[s] + 4 * min(column_of(turn + i), N - 1) * STRIDE);
        }
      }
      typename Lane::Beside now[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) now[i] = besides[i];
      ask(lane, turn + AT_ONCE, besides);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const int column = column_of(turn + i);
        float4 sum = sums[i][0];
#pragma unroll
        for (int s = 1; s < S; ++s) sum = plus(sum, sums[i][s]);
        if (column < count) lane.finish(first + column, sum, scales[column], now[i]);
      }
    }
  }

  __device__ __forceinline__ void run() const {
    start();
    __syncthreads();
    if (threadIdx.x >= kThreads) {
      launch_dependents();
      if (elected()) bring();
      __syncwarp();
      if (DIRECT) return;
      cluster_meet<S>();
    } else {
      const int within = threadIdx.x / 32 % G * kTilePairs + threadIdx.x % 32 * 2;
      const Lane lane(a, t.turns, tile, within);
      Besides besides;
      wait_for_previous();
      keep_scales();
      if (EARLY) ask(lane, 0, besides);
      Sums sums = {};
      multiply(sums);
      consumers_meet();
      if constexpr (DIRECT) {
        finish_own(sums);
        return;
      }
      leave(sums);
      if (!EARLY) ask(lane, 0, besides);
      cluster_meet<S>();
      finish_parts(lane, within, besides);
    }
    cluster_meet<S>();  // this block's sums may still be read
  }
};
#endif

template <int KIND, class W, int N, int G, int S>
__global__ void GF_CLUSTER(S) __launch_bounds__(kThreads + 32, 1)
    mul_mat_tma(const __grid_constant__ TmaArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) char memory[];
  Block<KIND, W, N, G, S>(args, memory).run();
#endif
}
