// A block of mul_mat_columns.cu and mul_mat_tiles.cu: 128 MT weight rows times N columns. Two
// warpgroups multiply MT times 64 rows each, a third brings weights and columns through rings of
// stages in shared memory.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/columns_finish.cuh"
#include "cuda/columns_ring.cuh"
#include "cuda/columns_weights.cuh"
#include "cuda/registers.cuh"
#include "cuda/wgmma.cuh"

constexpr int kConsumers = 256, kBringers = 96, kThreads = kConsumers + kBringers + 32;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The rings: stages of columns, stages of weights, and for each of both a barrier that tells that
// it is full and one that tells that it is free.
struct Rings {
  char *x, *w;
  u64 *x_full, *x_free, *w_full, *w_free;
  const char** rows;  // where this block's rows start: of every sixteen, r and r + 8 are a pair
  Masks* masks;       // twice
};

// SHARERS: blocks that get columns together.
template <class W, int N, int MT, int SHARERS>
__device__ __forceinline__ Rings make_rings(const ColumnsArgs& a, char* shared, int tile) {
  using L = Weights<W>;
  Rings rings;
  rings.x = shared;
  rings.w = rings.x + a.x_stages * N * kTileK * 2;
  rings.x_full = reinterpret_cast<u64*>(rings.w + a.w_stages * 128 * MT * L::STRIDE);
  rings.x_free = rings.x_full + a.x_stages;
  rings.w_full = rings.x_free + a.x_stages;
  rings.w_free = rings.w_full + a.w_stages;
  rings.rows = reinterpret_cast<const char**>(rings.w_free + a.w_stages);
  for (int r = threadIdx.x; r < 128 * MT; r += kThreads) {
    const Tile at = tile_of<64 * MT>(a, tile);
    rings.rows[r] = row_start(a, at.matrix, at.pair + r / 16 * 8 + r % 8, r / 8 % 2);
  }
  rings.masks = reinterpret_cast<Masks*>(rings.rows + 128 * MT);
  if (threadIdx.x == 0) {
    rings.masks[0] = rings.masks[1] = a.masks;
    for (int s = 0; s < a.x_stages; ++s) {
      barrier_make(rings.x_full + s, 1);
      barrier_make(rings.x_free + s, kConsumers / 32 * SHARERS);
    }
    for (int s = 0; s < a.w_stages; ++s) {
      barrier_make(rings.w_full + s, kBringers);
      barrier_make(rings.w_free + s, kConsumers / 32);
    }
    if (SHARERS > 1) asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  return rings;
}

template <class W, int MT>
__device__ __forceinline__ void bring_weights(const ColumnsArgs& a, const Rings& rings, int begin,
                                              int end, int thread) {
  using L = Weights<W>;
  constexpr int ROWS = 128 * MT, STAGE = ROWS * L::STRIDE;
  Place at;
  for (int chunk = begin; chunk < end; ++chunk) {
    barrier_wait(rings.w_free + at.stage, at.parity ^ 1);
    const u32 to = shared_address(rings.w + at.stage * STAGE);
#pragma unroll 4
    for (int i = thread; i < ROWS * L::PIECES; i += kBringers) {
      const int r = i / L::PIECES, piece = i % L::PIECES;
      const char* const start = rings.rows[r] + chunk * L::BYTES;
      const char* const from = start - L::offset(start) + 16 * piece;
      if (L::ALIGNED || from < start + L::BYTES) copy16_async(to + L::place(r, piece), from);
    }
    arrive_with_copies(rings.w_full + at.stage);
    at.next(a.w_stages);
  }
}

// What fragments of BLOCKS times 32 elements are made of: of the upper and the lower row of each
// tile that a lane has.
template <class W, int MT, int BLOCKS>
struct RawFragments {
  typename Weights<W>::Raw v[MT][BLOCKS][2];

  __device__ __forceinline__ void load(const char* const (&rows)[MT][2], int block32, int t,
                                       int odd) {
#pragma unroll
    for (int i = 0; i < 2 * MT * BLOCKS; ++i) {
      const int b = i / 2 % BLOCKS;
      v[i / 2 / BLOCKS][b][i % 2] =
          Weights<W>::raw(rows[i / 2 / BLOCKS][i % 2], block32 + b, t, odd);
    }
  }
};

// Fragments of BLOCKS times 32 elements: two steps of 16 each.
template <class W, int MT, int BLOCKS>
struct Fragments {
  u32 v[MT][2 * BLOCKS][4];

  __device__ __forceinline__ void make(const RawFragments<W, MT, BLOCKS>& raw, const Masks& masks) {
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
      for (int b = 0; b < BLOCKS; ++b) {
        const Pairs lo = Weights<W>::pairs(raw.v[i][b][0], masks);
        const Pairs hi = Weights<W>::pairs(raw.v[i][b][1], masks);
        to_fragments(lo, hi, v[i] + 2 * b);
      }
    }
  }
};

// SHARERS: as make_rings has it. Parts of k follow each other.
template <class W, int N, int MT, int SHARERS>
struct Multiplier {
  using L = Weights<W>;
  static constexpr int STAGE = 128 * MT * L::STRIDE, X_STAGE = N * kTileK * 2;
  static constexpr int BLOCKS =
      MT * N > 128 ? 1 : 2;  // of 32 elements in a step, as registers allow
  static constexpr int STEPS = L::CHUNK / 32 / BLOCKS;
  // Whether weights are read while products are waited for, as registers allow.
  static constexpr bool EARLY = MT == 1 && N >= 128;

  const ColumnsArgs& a;
  const Rings& rings;
  // One of two copies in shared memory: what the compiler takes for the same in a warp it keeps in
  // uniform registers, and moves from there at every use.
  const Masks masks;
  const int lane, row0;  // row0: in the block
  const char* rows[MT][2];
  RawFragments<W, MT, BLOCKS> raw;
  Fragments<W, MT, BLOCKS> fragments[2];
  Place w, x;
  int used = -1;  // stage of columns that the group before has used up
  int kept;       // stages of columns that nobody will write again, and others, that are left

  // last: the chunk behind all parts.
  __device__ __forceinline__ Multiplier(const ColumnsArgs& a, const Rings& rings, int begin,
                                        int last)
      : a(a),
        rings(rings),
        masks(rings.masks[threadIdx.x % 2]),
        lane(threadIdx.x % 32),
        row0(threadIdx.x / 128 * 64 * MT + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4),
        kept((last - begin) * (L::CHUNK / kTileK)) {
    barrier_wait(rings.w_full, 0);
    enter(begin);
    read(0);
    fragments[0].make(raw, masks);
  }

  __device__ __forceinline__ void enter(int chunk) {
#pragma unroll
    for (int i = 0; i < 2 * MT; ++i) {
      const int row = row0 + i * 8 + i / 2 * 48;
      int offset = 0;
      if (!L::ALIGNED) {
        offset = L::offset(rings.rows[row] + chunk * L::BYTES);
      }
      rows[i / 2][i % 2] = rings.w + w.stage * STAGE + row * L::STRIDE + offset;
    }
  }
  __device__ __forceinline__ void read(int block32) {
    raw.load(rows, block32, lane % 4, lane / 4 % 2);
  }
  // The weights of the step behind this one; false if there is none.
  __device__ __forceinline__ bool read_next(int step, bool is_last_chunk, int chunk) {
    if (step + 1 < STEPS) {
      read((step + 1) * BLOCKS);
      return true;
    }
    __syncwarp();
    if (lane == 0) barrier_arrive(rings.w_free + w.stage);
    w.next(a.w_stages);
    if (is_last_chunk) return false;
    barrier_wait(rings.w_full + w.stage, w.parity);
    enter(chunk + 1);
    read(0);
    return true;
  }
  // Of columns that were used up. The last ones stay, for a block that would bring others may be
  // gone.
  __device__ __forceinline__ void free_columns() {
    if (used < 0) return;
    if (SHARERS == 1) {
      if (lane == 0) barrier_arrive(rings.x_free + used);
    } else if (--kept >= a.x_stages && lane < SHARERS) {
      reads_done_at(address_at(shared_address(rings.x_free + used), lane));
    }
  }

  // The chunks of a part, onto sums. last: as before.
  __device__ __forceinline__ void part(int begin, int end, int last, float (&sums)[MT][N / 2]) {
    for (int chunk = begin; chunk < end; ++chunk) {
#pragma unroll
      for (int step = 0; step < STEPS; ++step) {
        const bool first = BLOCKS == 2 || step % 2 == 0, done = BLOCKS == 2 || step % 2 == 1;
        if (first) barrier_wait(rings.x_full + x.stage, x.parity);
        const u64 columns = columns_descriptor(shared_address(rings.x + x.stage * X_STAGE)) +
                            (first ? 0 : 4);  // of 16 bytes
        products_fence();
#pragma unroll
        for (int s = 0; s < 2 * BLOCKS; ++s) {
#pragma unroll
          for (int i = 0; i < MT; ++i) {
            product<typename L::T, N>(sums[i], fragments[step % 2].v[i][s], columns + 2 * s);
          }
        }
        products_end();
        bool more = EARLY && read_next(step, chunk + 1 == last, chunk);
        // The group before is done: its columns are free, and its fragments may be overwritten.
        products_wait<1>();
        free_columns();
        used = done ? x.stage : -1;
        if (done) x.next(a.x_stages);
        if (!EARLY) more = read_next(step, chunk + 1 == last, chunk);
        if (more) fragments[(step + 1) % 2].make(raw, masks);
      }
    }
    products_wait<0>();
#pragma unroll
    for (int i = 0; i < MT * N / 2; ++i) {  // no use of a sum moves before the wait
      asm volatile("" : "+f"(sums[i / (N / 2)][i % (N / 2)])::"memory");
    }
  }
};

// -- what becomes of the sums
// ----------------------------------------------------------------------

// Bytes that they take in shared memory: rows of sums, of a column each, against conflicts.
template <int N, int MT>
constexpr int kSumsStride = 128 * MT + 4;

__device__ __forceinline__ void consumers_meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

// Through shared memory, which nobody uses any more: the code for as many sums as a thread has
// would be longer than all the rest. AT_ONCE: whose latencies overlap.
template <int N, int MT, int AT_ONCE>
__device__ __forceinline__ void finish_tile(int kind, const ColumnsArgs& a, char* shared, int tile,
                                            int columns, const float (&sums)[MT][N / 2]) {
  constexpr int STRIDE = kSumsStride<N, MT>, WARPS = kConsumers / 32;
  float* const all = reinterpret_cast<float*>(shared);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  consumers_meet();
#pragma unroll
  for (int i = 0; i < MT; ++i) {
    const int pair = (warp / 4 * MT + i) * 32 + warp % 4 * 8 + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const float* const v = sums[i] + j * 4;
      float* const to = all + (j * 8 + lane % 4 * 2) * STRIDE + 2 * pair;
      *reinterpret_cast<float2*>(to) = {v[0], v[2]};
      *reinterpret_cast<float2*>(to + STRIDE) = {v[1], v[3]};
    }
  }
  consumers_meet();
  finish_pairs<64 * MT, N, WARPS, AT_ONCE>(kind, a, tile_of<64 * MT>(a, tile), columns, all,
                                           STRIDE);
}

#endif
