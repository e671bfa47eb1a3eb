// Products of whole numbers by warpgroups, and their sums of a quarter of k, in the order of
// int8_columns.cuh.
#pragma once

#include "cuda/integers_block.cuh"
#include "cuda/wgmma.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A block of 32 elements onto the chunk's sums, in the order of int8_columns.cuh. dots: the exact
// sums of both halves of 16, or of the whole; numbers: of the columns' block. Returns bits of all
// that it has read, for after_reads.
template <class W, int N, int S>
__device__ __forceinline__ u32 add_block(float (&acc)[N / 2], const float (&dots)[S][N / 2],
                                         const IntegerBlock& q, const float* numbers, int t) {
  using T = Int8<W>;
  u32 read = 0;
#pragma unroll
  for (int two = 0; two < N / 16; ++two) {  // tiles of eight columns
    float4 c[3];
#pragma unroll
    for (int i = 0; i < kNumbers<W>; ++i) {
      c[i] = *reinterpret_cast<const float4*>(numbers + i * 2 * N + two * 16 + t * 4);
      read |= gf_bits_of(c[i].w);
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
  return read;
}

template <class W, int N, bool TOGETHER>
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
  u32 read = 0;  // of the columns' numbers, and so of the weights that were asked for before them

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
    const u32 columns = x_low + at.stage * (X_STAGE / 16) + b % 2 * 4;  // of 16 bytes
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
  __device__ __forceinline__ u64* all_read(u64* bar) const {
    return after_reads(bar, read, masks.bytes.high & masks.bytes.low);
  }
  // By all whose columns may be overwritten.
  __device__ __forceinline__ void free_columns(const Place& at) {
    __syncwarp();
    u64* const bar = all_read(m.x_free + at.stage);
    if (!TOGETHER) {
      if (me.lane == 0) barrier_arrive(bar);
    } else if (me.lane < kCluster) {
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

  // A quarter's chunks together.
  __device__ __forceinline__ void run(const Range& q, float (&sums)[N / 2]) {
    if (q.begin >= q.end) return;
    enter(q.begin);
    Place before = x;  // whose columns are used up; given back when their numbers have long come
    for (int chunk = q.begin; chunk < q.end; ++chunk) {
      float acc[N / 2] = {};
      issue(0, x);
#pragma unroll
      for (int b = 0; b < kChunkBlocks; ++b) {
        // With products on their way into the next chunk the compiler would wait after each of
        // them.
        const bool last = b == kChunkBlocks - 1;
        if (!last) {
          load(b + 1);
        } else {
          __syncwarp();
          if (me.lane == 0) barrier_arrive(all_read(m.w_free + w.stage));
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
        if (b > 0 && b % 2 == 0) free_columns(before);
        const float* const numbers = m.numbers + x.stage * (2 * N * kNumbers<W>)+b % 2 * N;
        const u32 now = add_block<W, N>(acc, dots[b % AT_ONCE], blocks[b % 2], numbers, me.t);
        read = b % 2 == 1 ? read | now : now;
        before = x;
        x = next;
        if (AT_ONCE == 1 && !last) issue(b + 1, x);
      }
#pragma unroll
      for (int i = 0; i < N / 2; ++i) sums[i] += acc[i];
      free_columns(before);
    }
  }
};

#endif
