// 17 to 128 columns times rows of quantized weights that lie as fragments (fragments.cuh), with the
// bits of mul_mat_columns.cu, by the products of warpgroups.
//
// A block multiplies 256 weight rows with N columns over a part of k: sixteen warps of sixteen rows
// each, of which every one makes its own rows' fragments while the products of those before are on
// their way. Other warps bring weights, as they lie, and columns through rings of stages in shared
// memory. Sums of parts of k lie apart and are added by sum_fragments, always in one order.
#include "cuda/columns_finish.cuh"
#include "cuda/columns_ring.cuh"
#include "cuda/fragments.cuh"
#include "cuda/registers.cuh"
#include "cuda/wgmma.cuh"

constexpr int kConsumers = 512, kThreads = kConsumers + 128;
constexpr int kTile = 128;    // pairs of rows of a block
constexpr int kStride = 260;  // floats from column to column of the sums, against conflicts

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Rings {
  char *x, *w;
  u64 *x_full, *x_free, *w_full, *w_free;
};

// UNITS: of a stage of weights, whose copies are as much longer.
template <class W, int N, int UNITS>
struct Block {
  typedef FragmentUnit<W> Unit;
  typedef FragmentHalf<W> Half;
  static constexpr int EIGHT = UNITS * Unit::BYTES;
  static constexpr int W_STAGE = 2 * kTile / kEight * EIGHT, X_STAGE = N * kTileK * 2;
  static constexpr int BUFFERS = N > 64 ? 1 : 2;  // of fragments, as registers allow

  const ColumnsArgs& a;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int begin, end;  // units of k
  Rings rings;

  __device__ __forceinline__ Block(const ColumnsArgs& a, char* shared)
      : a(a),
        begin(a.k / kUnit * blockIdx.y / a.splits),
        end(a.k / kUnit * (blockIdx.y + 1) / a.splits) {
    rings.x = shared;
    rings.w = shared + a.x_stages * X_STAGE;
    rings.x_full = reinterpret_cast<u64*>(rings.w + a.w_stages * W_STAGE);
    rings.x_free = rings.x_full + a.x_stages;
    rings.w_full = rings.x_free + a.x_stages;
    rings.w_free = rings.w_full + a.w_stages;
    if (threadIdx.x == 0) {
      for (int s = 0; s < a.x_stages; ++s) {
        barrier_make(rings.x_full + s, 1);
        barrier_make(rings.x_free + s, kConsumers / 32);
      }
      for (int s = 0; s < a.w_stages; ++s) {
        barrier_make(rings.w_full + s, 1);
        barrier_make(rings.w_free + s, kConsumers / 32);
      }
      asm volatile("fence.proxy.async;" ::: "memory");
    }
    __syncthreads();
  }

  // A warp, of which each lane has eight rows.
  __device__ __forceinline__ void bring_weights() const {
    const Tile t = tile_of<kTile>(a, blockIdx.x);
    const int pair = min(t.pair + lane / 2 * kEight, a.pairs[t.matrix] - kEight);
    const bool second = lane % 2, order = in_order(a.kind, a, t.matrix);
    const char* const from = eight_start(a.kind, a, {t.matrix, pair}, second, order);
    const u64 policy = read_once();
    Place at;
    for (int unit = begin; unit < end; unit += UNITS) {
      const int bytes = min(UNITS, end - unit) * Unit::BYTES;
      barrier_wait(rings.w_free + at.stage, at.parity ^ 1);
      const u32 bar = shared_address(rings.w_full + at.stage);
      if (lane == 0) expect_bytes(bar, 2 * kTile / kEight * bytes);
      __syncwarp();
      copy_bulk(shared_address(rings.w + at.stage * W_STAGE + lane * EIGHT),
                from + (i64)unit * Unit::BYTES, bytes, bar, policy);
      at.next(a.w_stages);
    }
  }

  // What the products of 64 elements take of the rows.
  struct Steps {
    u32 v[4][4];

    __device__ __forceinline__ void make(const Half& upper, const Half& lower, int block) {
#pragma unroll
      for (int b = 0; b < 2; ++b) {
        to_fragments(upper.pairs(block + b), lower.pairs(block + b), v + 2 * b);
      }
    }
  };

  __device__ __forceinline__ const char* rows_at(int stage) const {
    return rings.w + stage * W_STAGE + warp * 2 * EIGHT;
  }
  __device__ __forceinline__ void multiply(float (&sums)[N / 2]) const {
    Steps steps[BUFFERS];
    Place w, x;
    int used = -1;  // stage of columns that the products before read
    barrier_wait(rings.w_full, 0);
    const char* rows = rows_at(0);
    Half upper = Half::load(rows, 0, lane), lower = Half::load(rows + EIGHT, 0, lane);
    steps[0].make(upper, lower, 0);
#pragma unroll 1
    for (int unit = begin; unit < end; ++unit) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        barrier_wait(rings.x_full + x.stage, x.parity);
        const u64 columns = columns_descriptor(shared_address(rings.x + x.stage * X_STAGE));
        products_fence();
#pragma unroll
        for (int s = 0; s < 4; ++s) product<f16, N>(sums, steps[i % BUFFERS].v[s], columns + 2 * s);
        products_end();
        bool more = true;
        if (i == 1) {
          upper = Half::load(rows, 1, lane), lower = Half::load(rows + EIGHT, 1, lane);
        } else if (i == 3) {
          more = unit + 1 < end;
          rows += Unit::BYTES;
          if ((unit + 1 - begin) % UNITS == 0) {
            __syncwarp();
            if (lane == 0) barrier_arrive(rings.w_free + w.stage);
            w.next(a.w_stages);
            if (more) barrier_wait(rings.w_full + w.stage, w.parity);
            rows = rows_at(w.stage);
          }
          if (more) upper = Half::load(rows, 0, lane), lower = Half::load(rows + EIGHT, 0, lane);
        }
        // The products before are done, with one buffer these: their columns are free, and their
        // fragments.
        products_wait<BUFFERS - 1>();
        const int done = BUFFERS == 1 ? x.stage : used;
        if (done >= 0 && lane == 0) barrier_arrive(rings.x_free + done);
        used = x.stage;
        x.next(a.x_stages);
        if (more) steps[(i + 1) % BUFFERS].make(upper, lower, i % 2 == 0 ? 2 : 0);
      }
    }
    products_wait<0>();
#pragma unroll
    for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
  }

  static __device__ __forceinline__ void consumers_meet() {
    asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
  }
  // Through shared memory, which nobody uses any more.
  __device__ __forceinline__ void finish(char* shared, const float (&sums)[N / 2]) const {
    float* const all = reinterpret_cast<float*>(shared);
    const Tile t = tile_of<kTile>(a, blockIdx.x);
    const bool order = in_order(a.kind, a, t.matrix);
    const int row = warp * 16 + (order ? lane / 4 : lane / 4 * 2), next = order ? 8 : 1;
    consumers_meet();
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const float* const v = sums + j * 4;
      float* const to = all + (j * 8 + lane % 4 * 2) * kStride + row;
      to[0] = v[0], to[next] = v[2];
      to[kStride] = v[1], to[kStride + next] = v[3];
    }
    consumers_meet();
    finish_pairs<kTile, N, kConsumers / 32, 4>(a.kind, a, t, 0, all, kStride);
  }
  // Of a part of k, for sum_fragments: of rows in order those of pairs.
  __device__ __forceinline__ void leave_part(const float (&sums)[N / 2]) const {
    const bool order = in_order(a.kind, a, tile_of<kTile>(a, blockIdx.x).matrix);
    const i64 block = (i64)blockIdx.y * gridDim.x + blockIdx.x;
    float4* const to = a.parts + block * (N / 8) * kConsumers + threadIdx.x;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const float* const v = sums + j * 4;
      float2 first = {v[0], v[2]}, second = {v[1], v[3]};
      if (order) first = in_pairs(first), second = in_pairs(second);
      to[j * kConsumers] = {first.x, second.x, first.y, second.y};
    }
  }
};
#endif

// N: 32, 64 or 128.
template <class W, int N, int UNITS>
__global__ void __launch_bounds__(kThreads, 1)
    mul_mat_fragments_many(const __grid_constant__ ColumnsArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int LESS = 32, MORE = 112;
  static_assert(registers_are_there<kThreads>(LESS + 4 * MORE), "");
  extern __shared__ __align__(1024) char memory[];
  char* const shared = memory + (-shared_address(memory) & 1023);
  const Block<W, N, UNITS> block(a, shared);
  if (threadIdx.x >= kConsumers) {
    registers_less<LESS>();
    if (block.warp == kConsumers / 32) {
      launch_dependents();
      block.bring_weights();
    } else if (threadIdx.x == kConsumers + 32) {
      wait_for_previous();
      constexpr int TILES = kUnit / kTileK;
      bring_columns<N>(a, block.rings, block.begin * TILES, block.end * TILES);
    }
    return;
  }
  registers_more<MORE>();
  wait_for_previous();
  float sums[N / 2] = {};
  block.multiply(sums);
  if (a.splits > 1) {
    block.leave_part(sums);
  } else {
    block.finish(shared, sums);
  }
#endif
}

// The parts of k together. blockIdx.x counts eights of columns, blockIdx.y tiles.
template <int N>
__global__ void __launch_bounds__(kConsumers) sum_fragments(const __grid_constant__ ColumnsArgs a) {
  launch_dependents();
  const int j = blockIdx.x, lane = threadIdx.x % 32, r = lane / 4;
  const Tile t = tile_of<kTile>(a, blockIdx.y);
  const int in_tile = pair_of_eight(r, in_order(a.kind, a, t.matrix));
  const int pair = t.pair + threadIdx.x / 32 * 8 + in_tile;
  const int column = j * 8 + lane % 4 * 2;
  if (j * 8 >= a.m) return;
  const i64 all = (i64)gridDim.y * (N / 8) * kConsumers;  // of a part
  const float4* const p = a.parts + ((i64)blockIdx.y * (N / 8) + j) * kConsumers + threadIdx.x;
  wait_for_previous();
  const Beside beside = beside_of(a, t.matrix, pair, column);
  finish(a, t.matrix, pair, column, sum_of_parts(p, all, a.splits), beside);
}
