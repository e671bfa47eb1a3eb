// Many pairs (row, id) times the experts that they go to, quantized or of 16-bit floats, on Hopper:
// 128 weight rows of an expert, as they are in memory, become 16-bit fragments in registers and are
// multiplied with a tile of its pairs by the products of warpgroups. expert_rows.cu has sorted the
// pairs and made the tiles.
//
// Blocks stay and take one piece of work after the other: two warpgroups multiply, a third brings
// weights and columns through rings in shared memory and is a few stages ahead, into the next piece
// too. A result's sum is one chain along k, whatever the tile's other columns are.
#include "cuda/columns.cuh"
#include "cuda/columns_weights.cuh"
#include "cuda/dependent.cuh"
#include "cuda/expert_sort.cuh"
#include "cuda/gated.cuh"
#include "cuda/registers.cuh"
#include "cuda/ring.cuh"
#include "cuda/wgmma.cuh"

// Mirrored by `_arguments` in expert_columns.py.
struct ExpertColumnsArgs {
  const char* w[2];      // up is the second, or the first is there twice
  const float* bias[2];  // or null
  const char* x;         // the tiles that expert_rows.cu makes
  const float* scales;   // of each column
  const i32* pairs;      // by expert
  const ExpertTile* tiles;
  const i32* n_tiles;
  float* dst;  // [pairs, n]
  i64 w_row[2], w_expert[2],
      bias_step[2];  // bytes from row to row and from expert to expert; floats
  i32 k, n, blocks;  // blocks: of rows, of an expert
  i32 w_stages, x_stages;
  float alpha, limit;  // of gated_clamped
  Masks masks;
};

constexpr int kConsumers = 256, kBringers = 96, kThreads = kConsumers + kBringers + 32;
constexpr int kRowsOfBlock = 128;
constexpr int kColumnStage = kMostColumns * 128;  // bytes: 64 elements of each

// No activation: rows r and r + 8 of sixteen are rows of one matrix.
struct plain {};

template <class Act>
constexpr bool is_gated = !is_same<Act, plain>::value;

template <class Act>
__device__ __forceinline__ Act act_with(const ExpertColumnsArgs&) {
  return Act();
}
template <>
__device__ __forceinline__ gated_clamped act_with<gated_clamped>(const ExpertColumnsArgs& a) {
  gated_clamped act;
  act.alpha = a.alpha;
  act.limit = a.limit;
  return act;
}

// How fragments are made of a type's weights, where that is not as in columns_weights.cuh.
template <class W>
struct ExpertWeights : Weights<W> {
  static __device__ __forceinline__ int row_bytes(int k) { return k / W::QK * (int)sizeof(W); }
};

// Elements 4 t + {0, 2}, 4 t + {1, 3}, and those 16 later. A code is a sign, two bits of exponent
// and one of mantissa: the same bits of a half are its value times 2^-14.
template <>
struct ExpertWeights<block_mxfp4> : Weights<block_mxfp4> {
  static __device__ __forceinline__ int row_bytes(int k) { return k / 32 * 17; }
  static __device__ __forceinline__ Pairs pairs(const char* row, int block32, int t, int,
                                                const Masks&) {
    const int at = 17 * block32 + 1, shift = at % 4 * 8;  // row is a multiple of four
    const u32* const words = reinterpret_cast<const u32*>(row + at / 4 * 4) + t;
    const u32 w = shift == 0 ? words[0] : __funnelshift_r(words[0], words[1], shift);
    const u32 e = reinterpret_cast<const gf_u8*>(row)[17 * block32];
    const float scale = gf_float_of(e << 23);
    const u32 d = Float<f16>::pair(scale, scale);
    const auto two = [d](u32 up, u32 sign) {
      const u32 half = (up & 0x0E000E00u) | (sign & 0x80008000u);
      return mul2(mul2(half, 0x74007400u), d);
    };
    return {two(w << 9, w << 12), two(w << 1, w << 4), two(w << 5, w << 8), two(w >> 3, w)};
  }
};

// 16-bit floats as they are: elements 8 t and following, neighbours as pairs. Odd rows have the
// halves of 128 bytes exchanged, against conflicts.
template <class F>
struct FloatExperts {
  using T = F;
  static constexpr int CHUNK = 128, BYTES = 2 * CHUNK;
  static constexpr bool ALIGNED = true;
  static constexpr int PIECES = BYTES / 16, STRIDE = BYTES;

  static __device__ __forceinline__ int row_bytes(int k) { return 2 * k; }
  static __device__ __forceinline__ int place(int row, int p) {
    return row * STRIDE + (p ^ (row % 2 * 4)) * 16;
  }
  static __device__ __forceinline__ Pairs pairs(const char* row, int block32, int t, int odd,
                                                const Masks&) {
    const int piece = (block32 * 4 + t) ^ (odd * 4);
    const uint4 v = *reinterpret_cast<const uint4*>(row + piece * 16);
    return {v.x, v.y, v.z, v.w};
  }
};
template <>
struct ExpertWeights<f16> : FloatExperts<f16> {};
template <>
struct ExpertWeights<bf16> : FloatExperts<bf16> {};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Stages of columns, stages of weights, for each of both a barrier that tells that it is full and
// one that tells that it is free, and where the rows begin that are being brought.
struct Rings {
  char *x, *w;
  u64 *x_full, *x_free, *w_full, *w_free;
  const char** rows;
};

// f(tile, which rows) for the pieces of work of this block.
template <class F>
__device__ __forceinline__ void each_piece(const ExpertColumnsArgs& a, const F& f) {
  const int n = load_fresh(a.n_tiles) * a.blocks;
  for (int i = blockIdx.x; i < n; i += gridDim.x) {
    f(load_fresh(reinterpret_cast<const ExpertTile*>(a.tiles + i / a.blocks)), i % a.blocks);
  }
}

__device__ __forceinline__ void bringers_meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kBringers) : "memory");
}

// Of a block's rows, r and r + 8 of sixteen belong to one result with Gated, and are neighbours'
// otherwise.
template <bool GATED>
__device__ __forceinline__ const char* row_start(const ExpertColumnsArgs& a, int expert, int block,
                                                 int r) {
  const int which = GATED ? r / 8 % 2 : 0;
  const int row =
      GATED ? block * (kRowsOfBlock / 2) + r / 16 * 8 + r % 8 : block * kRowsOfBlock + r;
  return a.w[which] + expert * a.w_expert[which] + min(row, a.n - 1) * a.w_row[which];
}

template <class W, bool GATED, bool WHOLE>
__device__ __forceinline__ void bring_weights(const ExpertColumnsArgs& a, const Rings& rings,
                                              int thread) {
  using L = ExpertWeights<W>;
  constexpr int STAGE = kRowsOfBlock * L::STRIDE;
  const int row_bytes = L::row_bytes(a.k);
  Place at;
  each_piece(a, [&](const ExpertTile& tile, int block) {
    if (tile.expert < 0) return;
    bringers_meet();  // nobody reads the rows of the piece before
    for (int r = thread; r < kRowsOfBlock; r += kBringers) {
      rings.rows[r] = row_start<GATED>(a, tile.expert, block, r);
    }
    bringers_meet();
    for (int begin = 0; begin < row_bytes; begin += L::BYTES) {
      barrier_wait(rings.w_free + at.stage, at.parity ^ 1);
      const u32 to = shared_address(rings.w + at.stage * STAGE);
      const int first = L::ALIGNED ? begin : begin / 16 * 16;
      const int end = min(begin + L::BYTES, row_bytes);
#pragma unroll 4
      for (int i = thread; i < kRowsOfBlock * L::PIECES; i += kBringers) {
        const int r = i / L::PIECES, piece = i % L::PIECES, from = first + 16 * piece;
        if ((L::ALIGNED && WHOLE) || from < end) {
          copy16_async(to + L::place(r, piece), rings.rows[r] + from);
        }
      }
      arrive_with_copies(rings.w_full + at.stage);
      at.next(a.w_stages);
    }
  });
}

__device__ __forceinline__ void bring_columns(const ExpertColumnsArgs& a, const Rings& rings) {
  asm volatile("fence.proxy.async;" ::: "memory");
  Place at;
  each_piece(a, [&](const ExpertTile& tile, int) {
    if (tile.expert < 0) return;
    const u32 nbytes = width_of(tile.count) * 128;
    const char* from = a.x + (i64)tile.slot * a.k * 2;
    for (int begin = 0; begin < a.k; begin += 64) {
      barrier_wait(rings.x_free + at.stage, at.parity ^ 1);
      const u32 bar = shared_address(rings.x_full + at.stage);
      expect_bytes(bar, nbytes);
      copy_bulk(shared_address(rings.x + at.stage * kColumnStage), from, nbytes, bar);
      from += nbytes;
      at.next(a.x_stages);
    }
  });
}

// Fragments of 64 elements of a lane's two rows: four steps of 16.
template <class W>
struct Fragments {
  u32 v[4][4];

  __device__ __forceinline__ void load(const char* const (&rows)[2], int block32, int t, int odd,
                                       const Masks& masks) {
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const Pairs lo = ExpertWeights<W>::pairs(rows[0], block32 + b, t, odd, masks);
      const Pairs hi = ExpertWeights<W>::pairs(rows[1], block32 + b, t, odd, masks);
      to_fragments(lo, hi, v + 2 * b);
    }
  }
};

// WHOLE: rows are of whole chunks.
template <class W, int N, bool WHOLE>
__device__ __forceinline__ void multiply(const ExpertColumnsArgs& a, const Rings& rings, Place& w,
                                         Place& x, float (&sums)[N / 2]) {
  using L = ExpertWeights<W>;
  constexpr int STAGE = kRowsOfBlock * L::STRIDE, STEPS = L::CHUNK / 64;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int row0 = threadIdx.x / 32 * 16 + g;  // in the block

  const char* rows[2];
  const auto enter = [&](int chunk) {
    const int offset = L::ALIGNED ? 0 : chunk * L::BYTES % 16;
    rows[0] = rings.w + w.stage * STAGE + row0 * L::STRIDE + offset;
    rows[1] = rows[0] + 8 * L::STRIDE;
  };
  const Masks masks = a.masks;
  const int all = a.k / 64;
  Fragments<W> fragments[2];
  barrier_wait(rings.w_full + w.stage, w.parity);
  enter(0);
  fragments[0].load(rows, 0, t, g % 2, masks);
  for (int first = 0; first < all; first += STEPS) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
      if (!WHOLE && first + step >= all) break;
      barrier_wait(rings.x_full + x.stage, x.parity);
      const u64 columns = columns_descriptor(shared_address(rings.x + x.stage * kColumnStage));
      products_fence();
#pragma unroll
      for (int s = 0; s < 4; ++s) {
        product<typename L::T, N>(sums, fragments[step % 2].v[s], columns + 2 * s);
      }
      products_end();
      // Fragments of the next step are made meanwhile.
      const bool end_of_chunk = step + 1 == STEPS || (!WHOLE && first + step + 1 == all);
      if (end_of_chunk) {
        __syncwarp();
        if (lane == 0) barrier_arrive(rings.w_free + w.stage);
        w.next(a.w_stages);
        if (first + step + 1 < all) {
          barrier_wait(rings.w_full + w.stage, w.parity);
          enter(first / STEPS + 1);
          fragments[(step + 1) % 2].load(rows, 0, t, g % 2, masks);
        }
      } else {
        fragments[(step + 1) % 2].load(rows, 2 * (step + 1), t, g % 2, masks);
      }
      products_wait<0>();
      if (lane == 0) barrier_arrive(rings.x_free + x.stage);
      x.next(a.x_stages);
    }
  }
#pragma unroll
  for (int i = 0; i < N / 2; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// What becomes of the sums: sums[4 j + i] is of row i / 2 of a lane's two and column 8 j + 2 (lane
// % 4) + i % 2.
template <class Act, int N>
__device__ __forceinline__ void finish(const ExpertColumnsArgs& a, const ExpertTile& tile,
                                       int block, const float (&sums)[N / 2]) {
  constexpr bool GATED = is_gated<Act>;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, sixteen = threadIdx.x / 32;
  const int row = GATED ? block * (kRowsOfBlock / 2) + sixteen * 8 + g
                        : block * kRowsOfBlock + sixteen * 16 + g;
  const int second = GATED ? row : row + 8;
  if (row >= a.n) return;
  float bias[2] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int at = i == 0 ? row : second;
    const float* const from = a.bias[GATED ? i : 0];
    if (from && at < a.n) bias[i] = from[tile.expert * a.bias_step[GATED ? i : 0] + at];
  }
#pragma unroll
  for (int j = 0; j < N / 4; ++j) {
    const int column = j / 2 * 8 + 2 * t + j % 2;
    if (column >= tile.count) continue;
    const float scale = load_fresh(a.scales + tile.slot + column);
    float* const out = a.dst + (i64)load_fresh(a.pairs + tile.begin + column) * a.n;
    const float y0 = fmaf(sums[j / 2 * 4 + j % 2], scale, bias[0]);
    const float y1 = fmaf(sums[j / 2 * 4 + 2 + j % 2], scale, bias[1]);
    if constexpr (GATED) {
      out[row] = act_with<Act>(a)(y0, y1);
    } else {
      out[row] = y0;
      if (second < a.n) out[second] = y1;
    }
  }
}

template <class W, class Act, int N, bool WHOLE>
__device__ __forceinline__ void multiply_tile(const ExpertColumnsArgs& a, const Rings& rings,
                                              Place& w, Place& x, const ExpertTile& tile,
                                              int block) {
  float sums[N / 2] = {};
  multiply<W, N, WHOLE>(a, rings, w, x, sums);
  finish<Act, N>(a, tile, block, sums);
}

template <class W, class Act, bool WHOLE>
__device__ __forceinline__ void run(const ExpertColumnsArgs& a) {
  using L = ExpertWeights<W>;
  constexpr int LESS = 40, MORE = 96;
  static_assert(registers_are_there<kThreads, 2>(LESS + 2 * MORE), "");
  extern __shared__ __align__(1024) char memory[];
  Rings rings;
  rings.x = memory + (-shared_address(memory) & 1023);
  rings.w = rings.x + a.x_stages * kColumnStage;
  rings.x_full = reinterpret_cast<u64*>(rings.w + a.w_stages * kRowsOfBlock * L::STRIDE);
  rings.x_free = rings.x_full + a.x_stages;
  rings.w_full = rings.x_free + a.x_stages;
  rings.w_free = rings.w_full + a.w_stages;
  rings.rows = reinterpret_cast<const char**>(rings.w_free + a.w_stages);
  if (threadIdx.x == 0) {
    for (int s = 0; s < a.x_stages; ++s) {
      barrier_make(rings.x_full + s, 1);
      barrier_make(rings.x_free + s, kConsumers / 32);
    }
    for (int s = 0; s < a.w_stages; ++s) {
      barrier_make(rings.w_full + s, kBringers);
      barrier_make(rings.w_free + s, kConsumers / 32);
    }
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  begin_dependent();

  if (threadIdx.x >= kConsumers) {
    const int thread = threadIdx.x - kConsumers;
    registers_less<LESS>();
    if (thread < kBringers) {
      bring_weights<W, is_gated<Act>, WHOLE>(a, rings, thread);
      copies_end();
      copies_wait<0>();
    } else if (thread == kBringers) {
      bring_columns(a, rings);
    }
    return;
  }
  registers_more<MORE>();
  Place w, x;
  each_piece(a, [&](const ExpertTile& tile, int block) {
    if (tile.expert < 0) {
      constexpr int RESULTS = is_gated<Act> ? kRowsOfBlock / 2 : kRowsOfBlock;
      for (int i = threadIdx.x; i < tile.count * RESULTS; i += kConsumers) {
        const int row = block * RESULTS + i % RESULTS;
        const i64 pair = load_fresh(a.pairs + tile.begin + i / RESULTS);
        if (row < a.n) a.dst[pair * a.n + row] = 0.0f;
      }
    } else if (tile.count > 32) {
      multiply_tile<W, Act, 64, WHOLE>(a, rings, w, x, tile, block);
    } else if (tile.count > 16) {
      multiply_tile<W, Act, 32, WHOLE>(a, rings, w, x, tile, block);
    } else {
      multiply_tile<W, Act, 16, WHOLE>(a, rings, w, x, tile, block);
    }
  });
}
#endif

template <class W, class Act, bool WHOLE>
__global__ void __launch_bounds__(kThreads, 2)
    expert_columns(const __grid_constant__ ExpertColumnsArgs a) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  run<W, Act, WHOLE>(a);
#endif
}
