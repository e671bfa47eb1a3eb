// 16-bit weights times 1 to 16 columns: weights stream through shared memory once, are fragments as
// they lie there, and meet the columns, which stay in registers, in the tensor cores.
//
// A block is one multiprocessor's. It takes parts of k, at most 4096 elements, one after the other;
// each of its sixteen warps has a sixteenth of a part and loads the columns' fragments for that
// once. Tiles of sixteen rows come through a ring of stages, brought as whole runs of bytes by one
// more warp; they are asked for before the kernels before this one are done (programmatic dependent
// launch). The sums of the sixteen warps are added by a further warp for every eight columns.
//
// The order of sums is that of float_columns.cuh.
#include "cuda/columns.cuh"
#include "cuda/columns_weights.cuh"
#include "cuda/float_columns.cuh"
#include "cuda/mma.cuh"
#include "cuda/registers.cuh"
#include "cuda/ring.cuh"

constexpr int kWarps = kFloatParts, kThreads = 32 * (kWarps + 4), kTileRows = 16, kTilePairs = 8;
constexpr int kBatch = 8;  // tiles that have sums of a few parts of k at once

#if __CUDA_ARCH__ >= 900

struct Memory {
  u64 *full, *free;            // of the ring's stages
  u64 *sums_full, *sums_free;  // of both places for sums
  float4* sums;                // [2][16 warps][groups of 8 columns][32 lanes]
  float4* totals;              // [batch][groups of 8 columns][32 lanes]
  char* ring;
};

// All of this block's work in the order in which every warp does its share: work(slice, tile, which
// of the batch), after enter(slice) where a part of k begins. So many tiles are done part by part.
template <class E, class F>
__device__ __forceinline__ void for_each(const ColumnsArgs& a, E enter, F work) {
  const int mine = (a.tiles - 1 - (int)blockIdx.x) / (int)gridDim.x + 1;
  const int batch = a.splits > 1 ? kBatch : mine;
  for (int first = 0; first < mine; first += batch) {
    for (int slice = 0; slice < a.splits; ++slice) {
      enter(slice);
      for (int i = first; i < min(first + batch, mine); ++i) {
        work(slice, (int)(blockIdx.x + i * gridDim.x), i - first);
      }
    }
  }
}

// P parts of a row are stages of their own; a warp multiplies B blocks of 32 of each.
template <class W, int P, int B>
__device__ __forceinline__ void bring(const ColumnsArgs& a, const Memory& m, int lane) {
  const u64 policy = read_once();
  Place at;
  Slice slice;
  const auto enter = [&](int s) { slice = slice_of(a.k, a.splits, s); };
  for_each(a, enter, [&](int, int tile, int) {
    const Tile t = tile_of<kTilePairs>(a, tile);
    const char* const row =
        row_start(a, t.matrix, t.pair + lane % 8, lane / 8 % 2) + Weights<W>::bytes_of(slice.begin);
    for (int p = 0; p < P && p * kWarps * B < slice.blocks; ++p) {
      const int first = p * kWarps * B;
      const char* const start = row + Weights<W>::bytes_of(first);
      const u32 all = (u32)Weights<W>::bytes_of(min(slice.blocks - first, kWarps * B));
      barrier_wait(m.free + at.stage, at.parity ^ 1);
      if (lane < kTileRows) {
        const u32 bar = shared_address(m.full + at.stage);
        const u32 to = shared_address(m.ring + (at.stage * kTileRows + lane) * a.w_stride);
        expect_bytes(bar, all);
        copy_bulk(to, start, all, bar, policy);
      }
      __syncwarp();
      at.next(a.w_stages);
    }
  });
}

template <class W, int G>
__device__ __forceinline__ void multiply_block(const char* upper, const char* lower, int block32,
                                               int t, const Masks& masks, const uint4 (&x)[G],
                                               float (&sums)[G][4]) {
  const Pairs hi = Weights<W>::pairs(upper, block32, t, 0, masks);
  const Pairs lo = Weights<W>::pairs(lower, block32, t, 0, masks);
  const u32 first[4] = {hi.v[0], lo.v[0], hi.v[1], lo.v[1]};
  const u32 second[4] = {hi.v[2], lo.v[2], hi.v[3], lo.v[3]};
#pragma unroll
  for (int j = 0; j < G; ++j) {
    mma<typename Weights<W>::T>(sums[j], first, x[j].x, x[j].y);
    mma<typename Weights<W>::T>(sums[j], second, x[j].z, x[j].w);
  }
}

template <class W, int G, int P, int B, bool FULL>
__device__ __forceinline__ void multiply(const ColumnsArgs& a, const Memory& m, int warp,
                                         int lane) {
  const int row = lane / 4, t = lane % 4;
  const int first = warp * B;  // of a stage's blocks
  const Masks masks = a.masks;
  uint4 x[P * B][G];
  Place at, out;
  Slice slice;
  wait_for_previous();
  const auto enter = [&](int s) {
    slice = slice_of(a.k, a.splits, s);
#pragma unroll
    for (int i = 0; i < P * B; ++i) {
      const int block = (i / B * kWarps + warp) * B + i % B;
#pragma unroll
      for (int j = 0; j < G; ++j) {
        x[i][j] = uint4{};
        if (block < slice.blocks) {
          x[i][j] = __ldcg(reinterpret_cast<const uint4*>(a.x) +
                           ((slice.begin + block) * G + j) * 32 + lane);
        }
      }
    }
  };
  for_each(a, enter, [&](int, int, int) {
    float sums[G][4] = {};
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (p * kWarps * B >= slice.blocks) break;
      const int mine = slice.blocks - (p * kWarps + warp) * B;
      barrier_wait(m.full + at.stage, at.parity);
      const char* const upper = m.ring + (at.stage * kTileRows + row) * a.w_stride;
      const char* const lower = upper + 8 * a.w_stride;
      const auto block = [&](int b) {
        multiply_block<W, G>(upper, lower, first + b, t, masks, x[p * B + b], sums);
      };
      if (FULL && mine > 0) {  // without branches, so that blocks overlap
#pragma unroll
        for (int b = 0; b < B; ++b) block(b);
      }
      if (!FULL) {
#pragma unroll
        for (int b = 0; b < B; ++b) {
          if (b < mine) block(b);
        }
      }
      warp_arrive(m.free + at.stage, lane);
      at.next(a.w_stages);
    }
    barrier_wait(m.sums_free + out.stage, out.parity ^ 1);
#pragma unroll
    for (int j = 0; j < G; ++j) {
      m.sums[((out.stage * kWarps + warp) * G + j) * 32 + lane] = {sums[j][0], sums[j][1],
                                                                   sums[j][2], sums[j][3]};
    }
    warp_arrive(m.sums_full + out.stage, lane);
    out.next(2);
  });
}

// Warp j adds the sums of columns 8 j and following.
template <int G>
__device__ __forceinline__ void add(const ColumnsArgs& a, const Memory& m, int j, int lane) {
  Place at;
  wait_for_previous();
  for_each(
      a, [](int) {},
      [&](int slice, int tile, int which) {
        const bool last = slice == a.splits - 1;
        const Tile t = tile_of<kTilePairs>(a, tile);
        const int pair = t.pair + lane / 4, column = j * 8 + lane % 4 * 2;
        Beside beside = {};
        if (last) beside = beside_of(a, t.matrix, pair, column);
        barrier_wait(m.sums_full + at.stage, at.parity);
        float4 sum = {};
#pragma unroll
        for (int w = 0; w < kWarps; ++w) {
          sum = plus(sum, m.sums[((at.stage * kWarps + w) * G + j) * 32 + lane]);
        }
        warp_arrive(m.sums_free + at.stage, lane);
        at.next(2);
        if (a.splits > 1) {
          float4& total = m.totals[(which * G + j) * 32 + lane];
          if (slice > 0) sum = plus(total, sum);
          total = sum;
        }
        if (last) finish(a, t.matrix, pair, column, sum, beside);
      });
}

template <class W, int G, int P, int B, bool FULL>
__device__ __forceinline__ void run(const ColumnsArgs& a) {
  constexpr int LESS = 64, MORE = 104;
  static_assert(registers_are_there<kThreads>(LESS + 4 * MORE), "");
  extern __shared__ __align__(128) char shared[];
  Memory m;
  m.full = reinterpret_cast<u64*>(shared);
  m.free = m.full + a.w_stages;
  m.sums_full = m.free + a.w_stages;
  m.sums_free = m.sums_full + 2;
  m.sums = reinterpret_cast<float4*>(shared + 256);  // after the barriers of 12 stages at most
  m.totals = m.sums + 2 * kWarps * G * 32;
  m.ring = reinterpret_cast<char*>(m.totals + kBatch * G * 32);
  if (threadIdx.x == 0) {
    for (int s = 0; s < a.w_stages; ++s) {
      barrier_make(m.full + s, kTileRows);
      barrier_make(m.free + s, kWarps);
    }
    for (int s = 0; s < 2; ++s) {
      barrier_make(m.sums_full + s, kWarps);
      barrier_make(m.sums_free + s, G);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp < kWarps) {
    registers_more<MORE>();
    multiply<W, G, P, B, FULL>(a, m, warp, lane);
    return;
  }
  registers_less<LESS>();
  if (warp == kWarps) {
    launch_dependents();
    bring<W, P, B>(a, m, lane);
  } else if (warp <= kWarps + G) {
    add<G>(a, m, warp - kWarps - 1, lane);
  }
}
#endif

// G: groups of eight columns. FULL: a warp has all blocks of a stage or none.
template <class W, int G, int P, int B, bool FULL>
__global__ void __launch_bounds__(kThreads, 1)
    mul_mat_stream(const __grid_constant__ ColumnsArgs a) {
#if __CUDA_ARCH__ >= 900
  run<W, G, P, B, FULL>(a);
#endif
}
