// The sum of active weight rows, each times its activations: axpy_sparse, and the second half of
// sparse_ffn.
//
// A block has a slice of the columns and every so many-th row of the list, which it makes for
// itself (sparse.cuh). Its first rows are asked for while the kernel that computes the activations
// still runs. Where blocks share a slice the last of them to arrive adds their parts, in the order
// of the blocks.
#include "cuda/eight.cuh"
#include "cuda/sparse.cuh"

// Mirrored by `axpy_launch` in axpy_sparse.py.
struct AxpyArgs {
  Neurons on;
  const char* w;
  i64 row_bytes;
  const float* h;  // by place in the list, [..][C], or by neuron, [m][..]
  i64 h_step;      // floats from token to token; 0: by place
  float* dst;
  i64 dst_step;
  const float* r;  // added to the result; null: nothing
  i64 r_step;
  float* parts;  // [gridDim.y][C][n_embd]
  i32 n_embd;
  i32 share;  // rows of a block at most
  i32 early;  // whether the list may be made before the kernel ahead has ended
};

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kSlots = 1024;     // slices that blocks may share; mirrored in axpy_sparse.py
__device__ u32 arrived[kSlots];  // blocks of a slice; zero between launches

__device__ __forceinline__ int rounded_up(int n) { return (n + 15) / 16 * 16; }

// The block's rows in shared memory.
struct Mine {
  const i32* rows;
  int n;
};

// Shared memory starts with bits and the block's rows; what else there is comes after them.
__device__ __forceinline__ Mine list_mine(const AxpyArgs& a, char* shared, char** rest) {
  u32* const bits = reinterpret_cast<u32*>(shared);
  i32* const rows = reinterpret_cast<i32*>(shared + rounded_up(4 * a.on.words()));
  *rest = reinterpret_cast<char*>(rows) + rounded_up(4 * a.share);
  launch_dependents();
  if (!a.early) wait_for_previous();
  find_rows(a.on, bits);
  const int part = blockIdx.y, parts = gridDim.y;
  const int n = share_rows(bits, a.on.words(), part, parts, [&](int i, int r) { rows[i] = r; });
  return {rows, share_of(n, part, parts)};
}

// The activation of the block's row number i for token t.
__device__ __forceinline__ float activation(const AxpyArgs& a, const Mine& mine, int i, int t,
                                            int columns) {
  if (a.h_step == 0) return __ldcg(a.h + ((i64)i * gridDim.y + blockIdx.y) * columns + t);
  const int r = mine.rows[i], j = a.on.neuron(r);
  return t < a.on.m && a.on.wants(t, r, j) ? __ldcg(a.h + t * a.h_step + j) : 0.0f;
}

// Adds one to a slice's count, which starts over at zero after the last of n; true for that one.
// What the blocks before wrote is visible to it.
__device__ __forceinline__ bool arrives_last(int slice, u32 n) {
  __shared__ u32 before;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    before = atomicInc(arrived + slice, n - 1);
    __threadfence();
  }
  __syncthreads();
  return before == n - 1;
}

// Sums of the block's warps for the slice's columns to the result: sums [kWarps][WIDTH] are one
// token's, in shared memory that nobody reads any more.
template <int WIDTH, int C, class Put>
__device__ __forceinline__ void finish(const AxpyArgs& a, float* sums, Put put) {
  const int slice = blockIdx.x, part = blockIdx.y, parts = gridDim.y;
  const auto store = [&a](int c, int at, float y) {
    a.dst[c * a.dst_step + at] = a.r ? y + __ldcg(a.r + c * a.r_step + at) : y;
  };
#pragma unroll
  for (int c = 0; c < C; ++c) {
    __syncthreads();  // the rows, or the sums of the token before, were read
    put(c);
    __syncthreads();
    for (int i = threadIdx.x; i < WIDTH && c < a.on.m; i += kThreads) {
      const int at = slice * WIDTH + i;
      if (at >= a.n_embd) continue;
      float y = 0.0f;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) y += sums[w * WIDTH + i];
      if (parts == 1) {
        store(c, at, y);
      } else {
        a.parts[((i64)part * C + c) * a.n_embd + at] = y;
      }
    }
  }
  if (parts == 1 || !arrives_last(slice, parts)) return;
  for (int i = threadIdx.x; i < WIDTH * a.on.m; i += kThreads) {
    const int c = i / WIDTH, at = slice * WIDTH + i % WIDTH;
    if (at >= a.n_embd) continue;
    constexpr int BATCH = 8;
    float y = 0.0f;
    for (int p0 = 0; p0 < parts; p0 += BATCH) {
      float v[BATCH];
#pragma unroll
      for (int p = 0; p < BATCH; ++p) {
        v[p] = __ldcg(a.parts + ((i64)min(p0 + p, parts - 1) * C + c) * a.n_embd + at);
      }
#pragma unroll
      for (int p = 0; p < BATCH; ++p) y += p0 + p < parts ? v[p] : 0.0f;
    }
    store(c, at, y);
  }
}

// -- rows in registers
// -----------------------------------------------------------------------------

// Eight columns of a row while they are on their way. LOOSE: rows of any length and alignment.
template <class W, bool LOOSE>
struct Piece {  // quantized
  typedef Eight Raw;
  static __device__ __forceinline__ Raw none() { return {0, 0, 0.0f, 0.0f}; }
  static __device__ __forceinline__ Raw load(const char* row, int column, int) {
    const W* const block = reinterpret_cast<const W*>(row) + column / W::QK;
    return eight(block, column % W::QK / 8);
  }
  static __device__ __forceinline__ void unpack(const Raw& e, float* y) {
    if (is_same<W, block_q8_0>::value) {
      bytes<true>(e, e.offset, y);
    } else {  // the bytes come with 128 added
      bytes<false>(e, fmaf(-128.0f, e.scale, e.offset), y);
    }
  }
  template <bool WIDE>
  static __device__ __forceinline__ void bytes(const Eight& e, float offset, float* y) {
    each<WIDE>(e.lo, e.scale, offset, y);
    each<WIDE>(e.hi, e.scale, offset, y + 4);
  }
  template <bool WIDE>
  static __device__ __forceinline__ void each(u32 w, float scale, float offset, float* y) {
    y[0] = fmaf(scale, WIDE ? byte_as_float<0>(w) : plus128<0>(w), offset);
    y[1] = fmaf(scale, WIDE ? byte_as_float<1>(w) : plus128<1>(w), offset);
    y[2] = fmaf(scale, WIDE ? byte_as_float<2>(w) : plus128<2>(w), offset);
    y[3] = fmaf(scale, WIDE ? byte_as_float<3>(w) : plus128<3>(w), offset);
  }
};

template <class T>
struct LoosePiece {
  struct Raw {
    float v[8];
  };
  static __device__ __forceinline__ Raw none() { return {}; }
  static __device__ __forceinline__ Raw load(const char* row, int column, int n) {
    Raw r;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      r.v[i] = column + i < n ? to_f32(reinterpret_cast<const T*>(row)[column + i]) : 0.0f;
    }
    return r;
  }
  static __device__ __forceinline__ void unpack(const Raw& r, float* y) {
#pragma unroll
    for (int i = 0; i < 8; ++i) y[i] = r.v[i];
  }
};
template <>
struct Piece<f32, true> : LoosePiece<f32> {};
template <>
struct Piece<f16, true> : LoosePiece<f16> {};
template <>
struct Piece<bf16, true> : LoosePiece<bf16> {};

// 16 bytes that are read once; the rest of the line will be wanted by a neighbouring block.
__device__ __forceinline__ uint4 stream16(const char* p) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(p));
  return v;
}

template <class T>
struct HalfPiece {
  typedef uint4 Raw;
  static __device__ __forceinline__ Raw none() { return {0, 0, 0, 0}; }
  static __device__ __forceinline__ Raw load(const char* row, int column, int) {
    return stream16(row + 2 * column);
  }
  static __device__ __forceinline__ void two(u32 w, float* y) {
    y[0] = to_f32(T{(gf_u16)w});
    y[1] = to_f32(T{(gf_u16)(w >> 16)});
  }
  static __device__ __forceinline__ void unpack(const Raw& r, float* y) {
    two(r.x, y);
    two(r.y, y + 2);
    two(r.z, y + 4);
    two(r.w, y + 6);
  }
};
template <>
struct Piece<f16, false> : HalfPiece<f16> {};
template <>
struct Piece<bf16, false> : HalfPiece<bf16> {};
template <>
struct Piece<f32, false> {
  struct Raw {
    uint4 a, b;
  };
  static __device__ __forceinline__ Raw none() { return {{0, 0, 0, 0}, {0, 0, 0, 0}}; }
  static __device__ __forceinline__ Raw load(const char* row, int column, int) {
    return {stream16(row + 4 * column), stream16(row + 4 * column + 16)};
  }
  static __device__ __forceinline__ void unpack(const Raw& r, float* y) {
    y[0] = gf_float_of(r.a.x), y[1] = gf_float_of(r.a.y), y[2] = gf_float_of(r.a.z);
    y[3] = gf_float_of(r.a.w), y[4] = gf_float_of(r.b.x), y[5] = gf_float_of(r.b.y);
    y[6] = gf_float_of(r.b.z), y[7] = gf_float_of(r.b.w);
  }
};

// LANES neighbouring threads take 8 columns each of one row; every thread has AHEAD rows on their
// way. Shared memory: the list; after it the warps' sums.
template <class W, bool LOOSE, int LANES, int C>
__global__ void __launch_bounds__(kThreads, C <= 4 ? 2 : 1)
    axpy_rows(const __grid_constant__ AxpyArgs a) {
  typedef Piece<W, LOOSE> P;
  constexpr int MOST = sizeof(typename P::Raw) > 16 ? 8 : 16;
  constexpr int AHEAD = MOST / C < 4 ? 4 : MOST / C;
  constexpr int STEP = kThreads / LANES, WIDTH = 8 * LANES;
  extern __shared__ __align__(128) char shared[];
  char* rest;
  const Mine mine = list_mine(a, shared, &rest);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int sub = threadIdx.x / LANES, column = blockIdx.x * WIDTH + threadIdx.x % LANES * 8;
  const bool inside = column < a.n_embd;

  const auto load = [&](int i) {
    if (i >= mine.n || !inside) return P::none();
    return P::load(a.w + mine.rows[i] * a.row_bytes, column, a.n_embd);
  };
  typename P::Raw raw[AHEAD];
  float h[AHEAD][C];
  const auto load_h = [&](int i, float* to) {
#pragma unroll
    for (int c = 0; c < C; ++c) to[c] = i < mine.n ? activation(a, mine, i, c, C) : 0.0f;
  };
#pragma unroll
  for (int u = 0; u < AHEAD; ++u) raw[u] = load(sub + u * STEP);
  if (a.early) wait_for_previous();
#pragma unroll
  for (int u = 0; u < AHEAD; ++u) load_h(sub + u * STEP, h[u]);

  float acc[C][8] = {};
  for (int base = sub; base < mine.n; base += AHEAD * STEP) {
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int next = base + (u + AHEAD) * STEP;
      float y[8];
      P::unpack(raw[u], y);
      raw[u] = load(next);
#pragma unroll
      for (int c = 0; c < C; ++c) {
#pragma unroll
        for (int e = 0; e < 8; ++e) acc[c][e] = fmaf(h[u][c], y[e], acc[c][e]);
      }
      load_h(next, h[u]);
    }
  }

  float* const sums = reinterpret_cast<float*>(rest);
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#pragma unroll
      for (int step = LANES; step < 32; step *= 2) {
        acc[c][e] += __shfl_xor_sync(kAllLanes, acc[c][e], step);
      }
    }
  }
  finish<WIDTH, C>(a, sums, [&](int c) {
    if (lane >= LANES) return;
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[warp * WIDTH + lane * 8 + e] = acc[c][e];
  });
}

// -- quantized rows in shared memory
// ---------------------------------------------------------------

__device__ __forceinline__ void copy16(char* to, const char* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
}
__device__ __forceinline__ void copies_end() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the last N groups of this thread's copies are there.
template <int N>
__device__ __forceinline__ void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Blocks are not cut along multiples of 16 bytes, so a warp brings slices of 256 columns, kGroup
// rows at a time, into its stages, and its lanes read 8 columns each from there. Rows start at
// multiples of 16 bytes. Shared memory: the list, the stages; after the list the warps' sums.
constexpr int kSlice = 256, kGroup = 8, kStages = 3;

template <class W, int C>
__global__ void __launch_bounds__(kThreads, C <= 4 ? 2 : 1)
    axpy_blocks(const __grid_constant__ AxpyArgs a) {
  typedef Piece<W, false> P;
  constexpr int BYTES = kSlice / W::QK * (int)sizeof(W);
  constexpr int PITCH =
      BYTES % 16 ? (BYTES + 29) / 16 * 16 : BYTES;  // `stage_pitch` in axpy_sparse.py
  extern __shared__ __align__(128) char shared[];
  char* rest;
  const Mine mine = list_mine(a, shared, &rest);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = blockIdx.x * kSlice + lane * 8;
  const int begin = blockIdx.x * BYTES, lead = begin % 16;
  const int end = min(begin + BYTES, a.n_embd / W::QK * (int)sizeof(W));
  const u32 pieces = (end - begin + lead + 15) / 16, inverse = 65536 / pieces + 1;
  char* const stages = rest + warp * kStages * kGroup * PITCH;
  const char* const from = a.w + begin - lead;

  // Group g of the warp: rows warp + kWarps (kGroup g + 0, 1, ..).
  const auto request = [&](int g) {
    char* const to = stages + g % kStages * kGroup * PITCH;
    for (u32 q = lane; q < kGroup * pieces; q += 32) {
      const u32 row = q * inverse >> 16, piece = q - row * pieces;
      const int i = warp + kWarps * (kGroup * g + row);
      if (i < mine.n) {
        copy16(to + row * PITCH + piece * 16, from + mine.rows[i] * a.row_bytes + piece * 16);
      }
    }
    copies_end();
  };
  for (int g = 0; g < kStages - 1; ++g) request(g);
  if (a.early) wait_for_previous();

  // A lane brings the activations of some rows of the next group.
  constexpr int H = (kGroup * C + 31) / 32;
  float h[H];
  const auto load_h = [&](int g) {
#pragma unroll
    for (int k = 0; k < H; ++k) {
      const int e = 32 * k + lane, i = warp + kWarps * (kGroup * g + e / C);
      h[k] = e < kGroup * C && i < mine.n ? activation(a, mine, i, e % C, C) : 0.0f;
    }
  };
  load_h(0);
  float acc[C][8] = {};
  for (int g = 0; warp + kWarps * kGroup * g < mine.n; ++g) {
    request(g + kStages - 1);
    copies_wait<kStages - 1>();
    __syncwarp();
    float now[H];
#pragma unroll
    for (int k = 0; k < H; ++k) now[k] = h[k];
    load_h(g + 1);
    const char* const stage = stages + g % kStages * kGroup * PITCH + lead;
#pragma unroll
    for (int row = 0; row < kGroup; ++row) {
      float by[C];
#pragma unroll
      for (int c = 0; c < C; ++c) {
        by[c] = __shfl_sync(kAllLanes, now[(row * C + c) / 32], (row * C + c) % 32);
      }
      if (column >= a.n_embd || warp + kWarps * (kGroup * g + row) >= mine.n) continue;
      float y[8];
      P::unpack(P::load(stage + row * PITCH, lane * 8, 0), y);
#pragma unroll
      for (int c = 0; c < C; ++c) {
#pragma unroll
        for (int e = 0; e < 8; ++e) acc[c][e] = fmaf(by[c], y[e], acc[c][e]);
      }
    }
    __syncwarp();
  }
  copies_wait<0>();

  float* const sums = reinterpret_cast<float*>(rest);
  finish<kSlice, C>(a, sums, [&](int c) {
#pragma unroll
    for (int e = 0; e < 8; ++e) sums[warp * kSlice + lane * 8 + e] = acc[c][e];
  });
}
