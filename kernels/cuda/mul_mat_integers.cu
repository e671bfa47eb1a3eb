// Quantized weights times many columns on Hopper, in the order of sums of int8_columns.cuh: a
// column has the bits that it has alone (mul_mat_one.cu) and among a few (mul_mat_few.cu).
//
// Weights and columns are whole numbers in 16-bit floats. Their products by warpgroups, summed over
// a block of 32 elements, are below 2^24 and exact, whatever order the tensor cores have, and come
// out as floats. From there on every operation is the one that the order prescribes.
//
// A block multiplies 128 weight rows with N columns: two warpgroups of 64 rows each. While the
// tensor cores work at a block of 32, a warpgroup adds the one before it. A third brings weights
// and columns through rings of stages in shared memory. Weights are asked for before the kernels
// before this one are done (programmatic dependent launch).
//
// The quarters of all tiles are a row of which every multiprocessor has a piece. Where a tile's
// quarters are several blocks', sum_integers adds them. Where there are tiles enough, a block has
// all quarters of each of its tiles, and neighbouring blocks get columns together (TOGETHER).
#include "cuda/integers_products.cuh"
#include "cuda/integers_sums.cuh"
#include "cuda/registers.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// -- bringing ------------------------------------------------------------------------------------

// Eight lanes bring a row, 16 bytes at a time.
template <class W, bool TOGETHER>
__device__ __forceinline__ void bring_weights(const IntegersArgs& args, const Memory& m,
                                              int thread) {
  using L = Weights<W>;
  constexpr int STAGE = kRows * L::STRIDE;
  constexpr int AT_ONCE = kBringers / 8, EACH = (kRows + AT_ONCE - 1) / AT_ONCE;  // rows
  const ColumnsArgs& a = args.c;
  const int row = thread / 8, first = thread % 8;  // first: piece of 16 bytes
  Place at;
  int table = 0;
  for_each_unit<TOGETHER>(args, [&](const Unit& u) {
    const char** const rows = m.rows + table * kRows;
    const Tile tile = tile_of<kPairs>(a, u.tile);
    for (int r = thread; r < kRows; r += kBringers) {
      rows[r] = row_start(a, tile.matrix, tile.pair + r / 16 * 8 + r % 8, r / 8 % 2);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kBringers) : "memory");
    table ^= 1;
    const char* starts[EACH];  // in registers, or every copy would wait for one of them
#pragma unroll
    for (int i = 0; i < EACH; ++i) starts[i] = rows[min(row + i * AT_ONCE, kRows - 1)];
    const Range q = chunks_of(a.k, u.begin, u.end);
    for (int chunk = q.begin; chunk < q.end; ++chunk) {
      barrier_wait(m.w_free + at.stage, at.parity ^ 1);
      const u32 to = shared_address(m.w + at.stage * STAGE) + row * L::STRIDE + first * 16;
      const int skipped = chunk * L::BYTES;
#pragma unroll
      for (int i = 0; i < EACH; ++i) {
        if ((i + 1) * AT_ONCE > kRows && row + i * AT_ONCE >= kRows) continue;
        const char* const start = starts[i] + skipped;
        const char* const from = start - L::offset(start) + first * 16;
#pragma unroll
        for (int p = 0; p < L::PIECES; p += 8) {
          const bool is_piece = p + 8 <= L::PIECES || first + p < L::PIECES;
          if (is_piece && (L::ALIGNED || from + p * 16 < start + L::BYTES)) {
            copy16_async(to + i * AT_ONCE * L::STRIDE + p * 16, from + p * 16);
          }
        }
      }
      arrive_with_copies(m.w_full + at.stage);
      at.next(a.w_stages);
    }
  });
}

// TOGETHER: to all blocks of the cluster, into the same place and for the same barrier there.
template <bool TOGETHER>
__device__ __forceinline__ void bulk_copy(u32 to, const char* from, u32 n, u64* bar) {
  if constexpr (TOGETHER) {
    copy_bulk_to_all<kCluster>(to, from, n, shared_address(bar));
  } else {
    copy_bulk(to, from, n, shared_address(bar));
  }
}

// Columns that blocks have in common are brought by each of them, its share to all.
template <class W, int N, bool TOGETHER>
__device__ __forceinline__ void bring_columns(const IntegersArgs& args, const Memory& m) {
  constexpr u32 STAGE = N * kTileK * 2, ALL = 2 * N * sizeof(float) * kColumnNumbers;
  constexpr u32 NUMBERS = 2 * N * sizeof(float) * kNumbers<W>;
  constexpr u32 SHARES = TOGETHER ? kCluster : 1, X_SHARE = STAGE / SHARES;
  constexpr u32 SHARE = NUMBERS / SHARES;
  static_assert(SHARE % 16 == 0, "as bulk copies want it");
  const ColumnsArgs& a = args.c;
  const u32 share = TOGETHER ? blockIdx.x % kCluster : 0;
  const auto wait = [&](const Place& at) {
    u64* const bar = m.x_free + at.stage;
    if (TOGETHER) {
      cluster_barrier_wait(bar, at.parity ^ 1);
    } else {
      barrier_wait(bar, at.parity ^ 1);
    }
  };
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  for_each_unit<TOGETHER>(args, [&](const Unit& u) {
    const i64 first = (i64)u.group * (a.k / kTileK);
    const char* const x = a.x + first * STAGE + share * X_SHARE;
    const char* const numbers =
        reinterpret_cast<const char*>(args.numbers) + first * ALL + share * SHARE;
    const Range q = chunks_of(a.k, u.begin, u.end);
    for (int tile = q.begin * kChunkTiles; tile < q.end * kChunkTiles; ++tile) {
      wait(at);
      u64* const bar = m.x_full + at.stage;
      expect_bytes(bar, STAGE + NUMBERS);
      bulk_copy<TOGETHER>(shared_address(m.x) + at.stage * STAGE + share * X_SHARE,
                          x + (i64)tile * STAGE, X_SHARE, bar);
      bulk_copy<TOGETHER>(shared_address(m.numbers) + at.stage * NUMBERS + share * SHARE,
                          numbers + (i64)tile * ALL, SHARE, bar);
      at.next(a.x_stages);
    }
  });
  for (int s = 0; TOGETHER && s < a.x_stages; ++s) {  // until no other block writes here any more
    wait(at);
    at.next(a.x_stages);
  }
}

// -- all of it -----------------------------------------------------------------------------------

template <class W, int N, bool TOGETHER>
__device__ __forceinline__ void multiply(const IntegersArgs& args, const Memory& m) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Consumer me = {warp, lane, lane / 4, lane % 4, warp * 16 + lane / 4};
  Multiplier<W, N, TOGETHER> multiplier(args, m, me);
  const Adder<N> adder = {args, m};
  wait_for_previous();
  for_each_unit<TOGETHER>(args, [&](const Unit& u) {
    if (!Weights<W>::ALIGNED) {
      const Tile tile = tile_of<kPairs>(args.c, u.tile);
      const int pair = tile.pair + me.row / 16 * 8 + me.g;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        multiplier.starts[i] =
            (u32) reinterpret_cast<u64>(row_start(args.c, tile.matrix, pair, i == 1));
      }
    }
#pragma unroll 1
    for (int quarter = u.begin; quarter < u.end; ++quarter) {
      float sums[N / 2] = {};
      multiplier.run(chunks_of(args.c.k, quarter, quarter + 1), sums);
      adder.add(u, quarter, sums);
    }
    adder.end(u);
  });
}

template <class W, int N, bool TOGETHER>
__device__ __forceinline__ void run(const IntegersArgs& args) {
  using L = Weights<W>;
  // Rows that begin between two multiples of 16 bytes need more to be brought.
  constexpr int LESS = L::ALIGNED ? 40 : 56, MORE = L::ALIGNED ? 232 : 224;
  static_assert(registers_are_there<kThreads>(LESS + 2 * MORE), "");
  const ColumnsArgs& a = args.c;
  extern __shared__ __align__(1024) char memory[];
  Memory m;
  m.x = memory + (-shared_address(memory) & 1023);
  m.sums = reinterpret_cast<float4*>(m.x + a.x_stages * N * kTileK * 2);
  m.numbers = reinterpret_cast<float*>(m.sums + N / 8 * kConsumers);
  m.w = reinterpret_cast<char*>(m.numbers + a.x_stages * 2 * N * kNumbers<W>);
  m.x_full = reinterpret_cast<u64*>(m.w + a.w_stages * kRows * L::STRIDE);
  m.x_free = m.x_full + a.x_stages;
  m.w_full = m.x_free + a.x_stages;
  m.w_free = m.w_full + a.w_stages;
  m.masks = reinterpret_cast<AllMasks*>(m.w_free + a.w_stages);
  m.rows = reinterpret_cast<const char**>(m.masks + 2);
  if (threadIdx.x == 0) {
    m.masks[0] = m.masks[1] = {a.masks, args.bytes};
    for (int s = 0; s < a.x_stages; ++s) {
      barrier_make(m.x_full + s, 1);
      barrier_make(m.x_free + s, kConsumerWarps * (TOGETHER ? kCluster : 1));
    }
    for (int s = 0; s < a.w_stages; ++s) {
      barrier_make(m.w_full + s, kBringers);
      barrier_make(m.w_free + s, kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  if (TOGETHER) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  if (threadIdx.x >= kConsumers) {
    const int thread = threadIdx.x - kConsumers;
    registers_less<LESS>();
    if (thread < kBringers) {
      launch_dependents();
      bring_weights<W, TOGETHER>(args, m, thread);
      copies_end();
      copies_wait<0>();
    } else if (thread == kBringers) {
      wait_for_previous();
      bring_columns<W, N, TOGETHER>(args, m);
    }
    return;
  }
  registers_more<MORE>();
  multiply<W, N, TOGETHER>(args, m);
}
#endif

// N: 32 or 64.
template <class W, int N>
__global__ void __launch_bounds__(kThreads, 1)
    mul_mat_integers(const __grid_constant__ IntegersArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run<W, N, false>(a);
#endif
}

// The grid is of whole clusters.
template <class W, int N>
__global__ void GF_CLUSTER(kCluster) __launch_bounds__(kThreads, 1)
    mul_mat_integers_together(const __grid_constant__ IntegersArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run<W, N, true>(a);
#endif
}

// Quarters that are several blocks'. blockIdx.y: the block of mul_mat_integers that has a tile's
// first ones, and not all; blockIdx.x counts a thread's float4s.
template <int N>
__global__ void __launch_bounds__(kConsumers)
    sum_integers(const __grid_constant__ IntegersArgs args) {
  const ColumnsArgs& a = args.c;
  launch_dependents();
  const Shares shares = shares_of(args);
  const int block = blockIdx.y, end = shares.begin(block + 1), which = end / kQuarters;
  if (end % kQuarters == 0 || shares.begin(block) > which * kQuarters) return;
  const int f = blockIdx.x, thread = threadIdx.x, at = f * kConsumers + thread;
  const Spot spot = spot_of<N>(a, which / args.groups, which % args.groups, thread, f);
  if (which % args.groups * N + f * 8 >= a.m) return;
  wait_for_previous();
  const Beside beside = beside_of(a, spot.matrix, spot.pair, spot.column);
  float4 sum = __ldcg(part_of<N>(a, block, 0) + at);
  int other = block + 1;
#pragma unroll
  for (int quarter = 1; quarter < kQuarters; ++quarter) {
    const int u = which * kQuarters + quarter;
    if (u < end) continue;
    while (shares.begin(other + 1) <= u) ++other;
    const float4 v = __ldcg(part_of<N>(a, other, quarter) + at);
    sum = {sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w};
  }
  finish(a, spot.matrix, spot.pair, spot.column, sum, beside);
}
