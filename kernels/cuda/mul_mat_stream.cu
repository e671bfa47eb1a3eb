// mul_mat for 2 to 16 columns: weights stream through shared memory once, become 16-bit fragments
// in registers, and meet the columns, which stay in registers, in the tensor cores.
//
// A block is one multiprocessor's. It has one part of k, at most 4096 elements, of which each of
// its sixteen warps has a sixteenth: the columns' fragments for that are loaded once. Tiles of
// sixteen rows come through a ring of stages, brought as whole runs of bytes by one more warp; they
// are asked for before the kernels before this one are done (programmatic dependent launch). The
// sums of the sixteen warps are added by a further warp for every eight columns.
//
// Parts of k are added by the last block to arrive, always in one order. Everything that a sum's
// order depends on comes from the weights' shape and type, not from the other columns.
#include "cuda/columns.cuh"
#include "cuda/columns_weights.cuh"
#include "cuda/mma.cuh"
#include "cuda/pipeline.cuh"

constexpr int kWarps = 16, kTileRows = 16, kTilePairs = 8;

#if __CUDA_ARCH__ >= 900

__device__ __forceinline__ void barrier_make(u64* bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals)
               : "memory");
}
// Once for the whole warp.
__device__ __forceinline__ void warp_arrive(u64* bar, int lane) {
  __syncwarp();
  if (lane == 0) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
  }
}

// A stage of a ring, and how often it has been passed.
struct Place {
  int stage = 0;
  u32 parity = 0;

  __device__ __forceinline__ void next(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

struct Memory {
  u64 *full, *free;            // of the ring's stages
  u64 *sums_full, *sums_free;  // of both places for sums
  int* offsets;                // [stages][16 rows] bytes before a row's first element
  float4* sums;                // [2][16 warps][groups of 8 columns][32 lanes]
  char* ring;
};

// The blocks of 32 elements of this block's part of k, and its tiles.
struct Work {
  int slice, begin, blocks, first, step;
};

template <class W>
__device__ __forceinline__ Work work_of(const ColumnsArgs& a) {
  const int units = (a.k + 255) / 256, slice = blockIdx.x % a.splits;
  const int begin = units * slice / a.splits * 8, end = units * (slice + 1) / a.splits * 8;
  return {slice, begin, min(end, a.k / 32) - begin, (int)blockIdx.x / a.splits,
          (int)gridDim.x / a.splits};
}

// P parts of a row are stages of their own; a warp multiplies B blocks of 32 of each.
template <class W, int P, int B>
__device__ __forceinline__ void bring(const ColumnsArgs& a, const Memory& m, const Work& work,
                                      int lane) {
  const u64 policy = read_once();
  Place at;
  for (int tile = work.first; tile < a.tiles; tile += work.step) {
    const Tile t = tile_of<kTilePairs>(a, tile);
    const char* const row =
        row_start(a, t.matrix, t.pair + lane % 8, lane / 8 % 2) + Weights<W>::bytes_of(work.begin);
    for (int p = 0; p < P && p * kWarps * B < work.blocks; ++p) {
      const int first = p * kWarps * B;
      const char* const start = row + Weights<W>::bytes_of(first);
      const int offset = Weights<W>::offset(start);
      const int n = Weights<W>::bytes_of(min(work.blocks - first, kWarps * B));
      const u32 all = (u32)(offset + n + 15) & ~15u;
      barrier_wait(m.free + at.stage, at.parity ^ 1);
      if (lane < kTileRows) {
        const u32 bar = shared_address(m.full + at.stage);
        const u32 to = shared_address(m.ring + (at.stage * kTileRows + lane) * a.w_stride);
        if (!Weights<W>::ALIGNED) m.offsets[at.stage * kTileRows + lane] = offset;
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(all)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(to),
            "l"(start - offset), "r"(all), "r"(bar), "l"(policy)
            : "memory");
      }
      __syncwarp();
      at.next(a.w_stages);
    }
  }
}

template <class W, int G>
__device__ __forceinline__ void multiply_block(const char* upper, const char* lower, int block32,
                                               int t, const uint4 (&x)[G], float (&sums)[G][4]) {
  const Pairs hi = Weights<W>::pairs(upper, block32, t, 0);
  const Pairs lo = Weights<W>::pairs(lower, block32, t, 0);
  const u32 first[4] = {hi.v[0], lo.v[0], hi.v[1], lo.v[1]};
  const u32 second[4] = {hi.v[2], lo.v[2], hi.v[3], lo.v[3]};
#pragma unroll
  for (int j = 0; j < G; ++j) {
    mma<typename Weights<W>::T>(sums[j], first, x[j].x, x[j].y);
    mma<typename Weights<W>::T>(sums[j], second, x[j].z, x[j].w);
  }
}

template <class W, int G, int P, int B>
__device__ __forceinline__ void multiply(const ColumnsArgs& a, const Memory& m, const Work& work,
                                         int warp, int lane) {
  const int row = lane / 4, t = lane % 4;
  uint4 x[P * B][G];
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < P * B; ++i) {
    const int block = (i / B * kWarps + warp) * B + i % B;
#pragma unroll
    for (int j = 0; j < G; ++j) {
      x[i][j] = uint4{};
      if (block < work.blocks) {
        x[i][j] = __ldcg(reinterpret_cast<const uint4*>(a.x) + ((work.begin + block) * G + j) * 32 +
                         lane);
      }
    }
  }
  Place at, out;
  for (int tile = work.first; tile < a.tiles; tile += work.step) {
    float sums[G][4] = {};
#pragma unroll
    for (int p = 0; p < P; ++p) {
      if (p * kWarps * B >= work.blocks) break;
      const int mine = work.blocks - (p * kWarps + warp) * B;
      barrier_wait(m.full + at.stage, at.parity);
      const char* upper = m.ring + (at.stage * kTileRows + row) * a.w_stride;
      const char* lower = upper + 8 * a.w_stride;
      if (!Weights<W>::ALIGNED) {
        upper += m.offsets[at.stage * kTileRows + row];
        lower += m.offsets[at.stage * kTileRows + row + 8];
      }
      if (mine >= B) {
#pragma unroll
        for (int b = 0; b < B; ++b) {
          multiply_block<W, G>(upper, lower, warp * B + b, t, x[p * B + b], sums);
        }
      } else {
#pragma unroll
        for (int b = 0; b < B; ++b) {
          if (b < mine) multiply_block<W, G>(upper, lower, warp * B + b, t, x[p * B + b], sums);
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
  }
}

__device__ __forceinline__ float4 plus(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

// Warp j adds the sums of columns 8 j and following.
template <int G>
__device__ __forceinline__ void add(const ColumnsArgs& a, const Memory& m, const Work& work, int j,
                                    int lane) {
  wait_for_previous();
  Place at;
  for (int tile = work.first; tile < a.tiles; tile += work.step) {
    barrier_wait(m.sums_full + at.stage, at.parity);
    float4 sum = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      sum = plus(sum, m.sums[((at.stage * kWarps + w) * G + j) * 32 + lane]);
    }
    warp_arrive(m.sums_free + at.stage, lane);
    at.next(2);
    if (a.splits > 1) {
      float4* const parts = a.parts + (tile * G + j) * 32 + lane;
      const i64 all = (i64)a.tiles * G * 32;  // of a part
      parts[work.slice * all] = sum;
      __threadfence();
      __syncwarp();
      u32 before = 0;
      if (lane == 0) before = atomicInc(a.counts + tile * G + j, a.splits - 1);
      if (__shfl_sync(kAllLanes, before, 0) != a.splits - 1) continue;
      __threadfence();
      sum = float4{};
      for (int s = 0; s < a.splits; ++s) sum = plus(sum, __ldcg(parts + s * all));
    }
    const Tile t = tile_of<kTilePairs>(a, tile);
    finish(a, t.matrix, t.pair + lane / 4, j * 8 + lane % 4 * 2, sum);
  }
}

template <class W, int G, int P, int B>
__device__ __forceinline__ void run(const ColumnsArgs& a) {
  extern __shared__ __align__(128) char shared[];
  Memory m;
  m.full = reinterpret_cast<u64*>(shared);
  m.free = m.full + a.w_stages;
  m.sums_full = m.free + a.w_stages;
  m.sums_free = m.sums_full + 2;
  m.offsets = reinterpret_cast<int*>(m.sums_free + 2);
  m.sums = reinterpret_cast<float4*>(m.offsets + a.w_stages * kTileRows);
  m.ring = reinterpret_cast<char*>(m.sums + 2 * kWarps * G * 32);
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
  const Work work = work_of<W>(a);
  if (warp < kWarps) {
    multiply<W, G, P, B>(a, m, work, warp, lane);
  } else if (warp == kWarps) {
    bring<W, P, B>(a, m, work, lane);
    launch_dependents();
  } else {
    add<G>(a, m, work, warp - kWarps - 1, lane);
  }
}
#endif

// G: groups of eight columns.
template <class W, int G, int P, int B>
__global__ void __launch_bounds__(32 * (kWarps + 1 + G), 1)
    mul_mat_stream(const __grid_constant__ ColumnsArgs a) {
#if __CUDA_ARCH__ >= 900
  run<W, G, P, B>(a);
#endif
}
