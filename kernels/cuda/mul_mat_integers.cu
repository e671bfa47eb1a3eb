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
// Four blocks are a cluster. Of a few columns they have the four quarters of a tile, and give each
// other their sums: each adds those of a fourth of the columns, in order, when it has begun the
// next tile. Of many columns each has a tile of its own, a quarter after the other, and columns
// come to all four at once.
#include "cuda/integers_block.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// -- products -------------------------------------------------------------------------------------

// A block of 32 elements onto the chunk's sums, in the order of int8_columns.cuh. dots: the exact
// sums of both halves of 16, or of the whole; numbers: of the columns' block.
template <class W, int N, int S>
__device__ __forceinline__ void add_block(float (&acc)[N / 2], const float (&dots)[S][N / 2],
                                          const IntegerBlock& q, const float* numbers, int t) {
  using T = Int8<W>;
#pragma unroll
  for (int two = 0; two < N / 16; ++two) {  // tiles of eight columns
    float4 c[3];
#pragma unroll
    for (int i = 0; i < kNumbers<W>; ++i) {
      c[i] = *reinterpret_cast<const float4*>(numbers + i * 2 * N + two * 16 + t * 4);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int i = two * 8 + e, row = e / 2 % 2, column = e / 4 * 2 + e % 2;
      const auto of = [column](const float4& v) {
        return column == 0 ? v.x : column == 1 ? v.y : column == 2 ? v.z : v.w;
      };
      float y = __fmul_rn(q.s[row][S - 1], dots[S - 1][i]);
      if (T::SPLIT) y = fmaf(q.s[row][0], dots[0][i], y);
      if (T::MIN && T::SPLIT) {
        const float sum = of(c[1]), sum0 = of(c[2]);
        y = fmaf(q.b[row][1], sum - sum0, fmaf(q.b[row][0], sum0, y));
      } else if (T::MIN) {
        y = fmaf(q.b[row][0], of(c[1]), y);
      }
      acc[i] = fmaf(of(c[0]), y, acc[i]);
    }
  }
}

// Where a thread is among those that multiply.
struct Consumer {
  int warp, lane, g, t, row;  // row: the upper of its two rows in the tile
};

template <class W, int N, bool APART>
struct Multiplier {
  using L = Weights<W>;
  // Dot products of a block, and blocks that have theirs at once, as registers allow.
  static constexpr int DOTS = Int8<W>::SPLIT ? 2 : 1, AT_ONCE = DOTS * N > 64 ? 1 : 2;
  static constexpr int STAGE = kRows * L::STRIDE, X_STAGE = N * kTileK * 2;

  const IntegersArgs& args;
  const Memory& m;
  const Consumer& me;
  // One of two copies in shared memory: what the compiler takes for the same in a warp it keeps in
  // uniform registers, and moves from there at every use.
  const AllMasks masks;
  const u32 x_low;  // of the descriptor of the first stage of columns
  Place w, x;
  IntegerRows<W> rows;
  u32 starts[2];  // the last bits of where rows start
  IntegerBlock blocks[2];
  float dots[AT_ONCE][DOTS][N / 2];

  __device__ __forceinline__ Multiplier(const IntegersArgs& args, const Memory& m,
                                        const Consumer& me)
      : args(args),
        m(m),
        me(me),
        masks(m.masks[me.lane % 2]),
        x_low((u32)columns_descriptor(shared_address(m.x))) {}

  __device__ __forceinline__ void enter(int chunk) {
    barrier_wait(m.w_full + w.stage, w.parity);
    const char* const stage = m.w + w.stage * STAGE + me.row * L::STRIDE;
    const auto offset = [&](int i) {
      return L::ALIGNED ? 0 : (int)((starts[i] + (u32)(chunk * L::BYTES)) & 15);
    };
    rows.enter(stage + offset(0), stage + 8 * L::STRIDE + offset(1), me.t);
    load(0);
  }
  __device__ __forceinline__ void load(int b) {
    rows.block(blocks[b % 2], b, me.t, masks.bytes, masks.nibbles);
  }
  // Products of block b of a chunk, with the stage of columns `at`.
  __device__ __forceinline__ void issue(int b, const Place& at) {
    if (b % 2 == 0) barrier_wait(m.x_full + at.stage, at.parity);
    const u64 columns =
        columns_descriptor(shared_address(m.x + at.stage * X_STAGE)) + (b % 2) * 4;  // of 16 bytes
    float (&to)[DOTS][N / 2] = dots[b % AT_ONCE];
    products_fence();
    new_product<N>(to[0], blocks[b % 2].a[0], descriptor_of(columns));
    if constexpr (DOTS == 2) {
      new_product<N>(to[1], blocks[b % 2].a[1], descriptor_of(columns + 2));
    } else {
      product<f16, N>(to[0], blocks[b % 2].a[1], descriptor_of(columns + 2));
    }
    products_end();
  }
  // By all whose columns may be overwritten.
  __device__ __forceinline__ void free_columns() {
    __syncwarp();
    u64* const bar = m.x_free + x.stage;
    if (APART) {
      if (me.lane == 0) barrier_arrive(bar);
    } else if (me.lane < kBlocks) {
      reads_done_at(address_at(shared_address(bar), me.lane));
    }
  }

  // No use of a sum moves before the wait, and no other use of its register.
  static __device__ __forceinline__ void pin(float (&sums)[DOTS][N / 2]) {
#pragma unroll
    for (int i = 0; i < DOTS * N / 2; ++i) {
      asm volatile("" : "+f"(sums[i / (N / 2)][i % (N / 2)])::"memory");
    }
  }

  // A quarter's chunks together; between() after the first of them.
  template <class F>
  __device__ __forceinline__ void run(const Range& q, float (&sums)[N / 2], F between) {
    enter(q.begin);
    for (int chunk = q.begin; chunk < q.end; ++chunk) {
      float acc[N / 2] = {};
      issue(0, x);
#pragma unroll
      for (int b = 0; b < kChunkBlocks; ++b) {
        const bool last = b == kChunkBlocks - 1;  // with products on their way into the next chunk
        // the compiler would wait after each of them
        if (!last) {
          load(b + 1);
        } else {
          __syncwarp();
          if (me.lane == 0) barrier_arrive(m.w_free + w.stage);
          w.next(args.c.w_stages);
          if (chunk + 1 < q.end) enter(chunk + 1);
        }
        Place next = x;
        if (b % 2 == 1) next.next(args.c.x_stages);
        if (AT_ONCE == 2 && !last) {
          issue(b + 1, next);
          products_wait<1>();
        } else {
          products_wait<0>();
        }
        pin(dots[b % AT_ONCE]);
        const float* const numbers = m.numbers + x.stage * (2 * N * kNumbers<W>)+b % 2 * N;
        add_block<W, N>(acc, dots[b % AT_ONCE], blocks[b % 2], numbers, me.t);
        if (b % 2 == 1) {
          free_columns();
          x = next;
        }
        if (AT_ONCE == 1 && !last) issue(b + 1, x);
      }
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums[i] += acc[i];
      if (chunk == q.begin) between();
    }
  }
};

// -- sums -----------------------------------------------------------------------------------------

// The four quarters of a unit. Each thread meets the same one of the other blocks.
template <int N>
struct Joiner {
  static constexpr int F = N / 8, MINE = F / kQuarters;  // float4s of a thread, and that it adds
  const IntegersArgs& args;
  const Memory& m;
  const Consumer& me;
  const int rank;
  u32 parity = 0;  // of the join that comes next
  bool first = true, pending = false;
  Unit unit;

  __device__ __forceinline__ Joiner(const IntegersArgs& args, const Memory& m, const Consumer& me)
      : args(args), m(m), me(me), rank(block_rank()) {}

  // Where a quarter's i-th float4 of this thread lies.
  __device__ __forceinline__ float4* place(int quarter, int i) const {
    return m.sums + (quarter * MINE + i) * kConsumers + threadIdx.x;
  }
  __device__ __forceinline__ void wait_free() {
    cluster_barrier_wait(m.sums_free + me.warp, parity ^ 1);
  }

  // A thread's float4s from the first-th on, to block number `to`.
  __device__ __forceinline__ void give_to(int to, const float* sums) {
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
      const float* const v = sums + i * 4;
      put_at(address_at(shared_address(place(rank, i)), to), {v[0], v[1], v[2], v[3]});
    }
  }

  // This block's quarter to who adds it.
  __device__ __forceinline__ void give(const Unit& u, const float (&sums)[N / 2]) {
    if (!first) wait_free();
    first = false;
#pragma unroll
    for (int to = 0; to < kQuarters; ++to) give_to(to, sums + to * MINE * 4);
    __syncwarp();
    if (me.lane < kQuarters) {
      arrive_at(address_at(shared_address(m.sums_full + me.warp), me.lane));
    }
    unit = u;
    pending = true;
    parity ^= 1;
  }

  // What is to be added, if there is something.
  __device__ __forceinline__ void finish_pending() {
    if (!pending) return;
    pending = false;
    const ColumnsArgs& a = args.c;
    const Tile tile = tile_of<kPairs>(a, unit.tile);
    const int pair = tile.pair + me.row / 16 * 8 + me.g;
    const int column = unit.group * N + rank * MINE * 8 + 2 * me.t;
    Beside besides[MINE];
    float4 y[MINE];
#pragma unroll
    for (int i = 0; i < MINE; ++i) besides[i] = beside_of(a, tile.matrix, pair, column + 8 * i);
    cluster_barrier_wait(m.sums_full + me.warp, parity ^ 1);
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
      y[i] = {};
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) {
        const float4 v = *place(q, i);
        y[i] = {y[i].x + v.x, y[i].y + v.y, y[i].z + v.z, y[i].w + v.w};
      }
    }
    __syncwarp();
    if (me.lane < kBlocks) {
      arrive_at(address_at(shared_address(m.sums_free + me.warp), me.lane));
    }
#pragma unroll
    for (int i = 0; i < MINE; ++i) {
      finish(a, tile.matrix, pair, column + 8 * i, y[i], besides[i]);
    }
  }
};

// Quarters that one block has after each other. Each thread has its own place for sums.
template <int N>
struct Adder {
  static constexpr int F = N / 8,
                       AT_ONCE = 2;  // float4s of a thread, and whose latencies overlap
  const IntegersArgs& args;
  const Memory& m;
  const Consumer& me;

  // Onto the quarters before it, if there are any.
  __device__ __forceinline__ void add(bool first, const float (&sums)[N / 2]) const {
#pragma unroll
    for (int f = 0; f < F; ++f) {
      float4* const at = m.sums + f * kConsumers + threadIdx.x;
      const float4 y = first ? float4{} : *at;
      const float* const v = sums + f * 4;
      *at = {y.x + v[0], y.y + v[1], y.z + v[2], y.w + v[3]};
    }
  }
  __device__ __forceinline__ void finish_unit(const Unit& u) const {
    const ColumnsArgs& a = args.c;
    const Tile tile = tile_of<kPairs>(a, u.tile);
    const int pair = tile.pair + me.row / 16 * 8 + me.g, column = u.group * N + 2 * me.t;
#pragma unroll 1
    for (int f = 0; f < F; f += AT_ONCE) {
      Beside besides[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        besides[i] = beside_of(a, tile.matrix, pair, column + (f + i) * 8);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const float4 y = m.sums[(f + i) * kConsumers + threadIdx.x];
        finish(a, tile.matrix, pair, column + (f + i) * 8, y, besides[i]);
      }
    }
  }
};

template <class W, int N, bool APART>
__device__ __forceinline__ void multiply(const IntegersArgs& args, const Memory& m) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Consumer me = {warp, lane, lane / 4, lane % 4, warp * 16 + lane / 4};
  Multiplier<W, N, APART> multiplier(args, m, me);
  const auto enter = [&](Unit u) {
    if (Weights<W>::ALIGNED) return;
    const Tile tile = tile_of<kPairs>(args.c, u.tile);
    const int pair = tile.pair + me.row / 16 * 8 + me.g;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      multiplier.starts[i] =
          (u32) reinterpret_cast<u64>(row_start(args.c, tile.matrix, pair, i == 1));
    }
  };
  wait_for_previous();
  if constexpr (APART) {
    const Range q = chunks_of<true>(args.c.k);
    Joiner<N> joiner(args, m, me);
    for_each_unit<true>(args, [&](Unit u) {
      enter(u);
      float sums[N / 2] = {};
      if (q.begin < q.end) multiplier.run(q, sums, [&] { joiner.finish_pending(); });
      joiner.finish_pending();
      joiner.give(u, sums);
    });
    joiner.finish_pending();
    joiner.wait_free();  // others still write here
  } else {
    const Adder<N> adder = {args, m, me};
    for_each_unit<false>(args, [&](Unit u) {
      enter(u);
      for (int quarter = 0; quarter < kQuarters; ++quarter) {
        const Range q = quarter_of(args.c.k, quarter);
        float sums[N / 2] = {};
        if (q.begin < q.end) multiplier.run(q, sums, [] {});
        adder.add(quarter == 0, sums);
      }
      if (u.own) adder.finish_unit(u);
    });
  }
}

// Registers go from the warpgroup that brings to those that multiply. Rows that begin between two
// multiples of 16 bytes need more to be brought.
template <bool ALIGNED>
__device__ __forceinline__ void registers_less() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(ALIGNED ? 40 : 56));
}
template <bool ALIGNED>
__device__ __forceinline__ void registers_more() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(ALIGNED ? 232 : 224));
}

template <class W, int N, bool APART>
__device__ __forceinline__ void run(const IntegersArgs& args) {
  using L = Weights<W>;
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
  m.sums_full = m.w_free + a.w_stages;
  m.sums_free = m.sums_full + kConsumerWarps;
  m.masks = reinterpret_cast<AllMasks*>(m.sums_free + kConsumerWarps);
  m.rows = reinterpret_cast<const char**>(m.masks + 2);
  if (threadIdx.x == 0) {
    m.masks[0] = m.masks[1] = {a.masks, args.bytes};
    for (int s = 0; s < a.x_stages; ++s) {
      barrier_make(m.x_full + s, 1);
      barrier_make(m.x_free + s, kConsumerWarps * (APART ? 1 : kBlocks));
    }
    for (int s = 0; s < a.w_stages; ++s) {
      barrier_make(m.w_full + s, kBringers);
      barrier_make(m.w_free + s, kConsumerWarps);
    }
    for (int w = 0; w < kConsumerWarps; ++w) {
      barrier_make(m.sums_full + w, kQuarters);
      barrier_make(m.sums_free + w, kQuarters);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  cluster_sync();

  if (threadIdx.x >= kConsumers) {
    const int thread = threadIdx.x - kConsumers;
    registers_less<L::ALIGNED>();
    if (thread < kBringers) {
      launch_dependents();
      bring_weights<W, APART>(args, m, thread);
      copies_end();
      copies_wait<0>();
    } else if (thread == kBringers) {
      wait_for_previous();
      bring_columns<W, N, APART>(args, m);
    }
    return;
  }
  registers_more<L::ALIGNED>();
  multiply<W, N, APART>(args, m);
}
#endif

// N: 32 or 64.
template <class W, int N, bool APART>
__global__ void GF_CLUSTER(kBlocks) __launch_bounds__(kThreads, 1)
    mul_mat_integers(const __grid_constant__ IntegersArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run<W, N, APART>(a);
#endif
}
