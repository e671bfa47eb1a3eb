// The sum of active weight rows, each times its activations: axpy_sparse, and the second half of
// sparse_ffn.
//
// A block has a slice of the columns and every so many-th row of the list, which it makes for
// itself (sparse.cuh). Its first rows are asked for while the kernel that computes the activations
// still runs; then all its activations come into shared memory, so that nothing in the loop over
// rows waits for more than the rows. Where blocks share a slice the last of them to arrive adds
// their parts, in the order of the blocks.
#include "cuda/arrivals.cuh"
#include "cuda/async_copy.cuh"
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
  i32 share;  // rows of a block at most, in whole rounds of its warps
  i32 early;  // whether the list may be made before the kernel ahead has ended
};

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kSlots = 1024;     // slices that blocks may share; mirrored in axpy_sparse.py
__device__ u32 arrived[kSlots];  // blocks of a slice; zero between launches

// The block's rows and activations in shared memory; -1: not needed after all.
struct Mine {
  i32* rows;
  float* h;  // [share][C], after load_activations
  int n;
};

// Shared memory starts with bits, the block's rows and activations; what else there is comes after.
template <int C>
__device__ __forceinline__ Mine list_mine(const AxpyArgs& a, char* shared, char** rest) {
  u32* const bits = reinterpret_cast<u32*>(shared);
  i32* const rows = reinterpret_cast<i32*>(shared + rounded_up(4 * a.on.words()));
  float* const h = reinterpret_cast<float*>(rows + a.share);
  *rest = reinterpret_cast<char*>(h + a.share * C);
  launch_dependents();
  if (!a.early) wait_for_previous();
  find_rows(a.on, bits);
  const int part = blockIdx.y, parts = gridDim.y;
  const int n = share_rows(bits, a.on.words(), part, parts, [&](int i, int r) { rows[i] = r; });
  return {rows, h, share_of(n, part, parts)};
}

// The activations of the block's rows, [..][C] in shared memory, zeros behind them up to row
// number `upto`. Rows from number `asked` on that no token has use for are struck out of the list:
// those before are on their way already. All loads of a thread at once, for everything waits here.
template <int C>
__device__ __forceinline__ void load_activations(const AxpyArgs& a, const Mine& mine, int upto,
                                                 int asked) {
  constexpr int ROWS = C <= 2 ? 4 : 1;
  for (int first = threadIdx.x; first < upto; first += ROWS * kThreads) {
    float y[ROWS][C];
    if (a.h_step == 0) {
#pragma unroll
      for (int u = 0; u < ROWS; ++u) {
        const int i = first + u * kThreads;
        const float* const from = a.h + ((i64)i * gridDim.y + blockIdx.y) * C;
#pragma unroll
        for (int c = 0; c < C; ++c) y[u][c] = i < mine.n ? __ldcg(from + c) : 0.0f;
      }
    } else {
#pragma unroll
      for (int u = 0; u < ROWS; ++u) {
        const int i = first + u * kThreads, r = i < mine.n ? mine.rows[i] : 0;
        const int j = a.on.neuron(r);
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const bool wanted = i < mine.n && c < a.on.m && a.on.wants(c, r, j);
          y[u][c] = wanted ? __ldcg(a.h + c * a.h_step + j) : 0.0f;
        }
      }
    }
#pragma unroll
    for (int u = 0; u < ROWS; ++u) {
      const int i = first + u * kThreads;
      if (i >= upto) break;
      bool used = false;
#pragma unroll
      for (int c = 0; c < C; ++c) {
        mine.h[i * C + c] = y[u][c];
        used |= y[u][c] != 0.0f;
      }
      if (!used && i >= asked && i < mine.n) mine.rows[i] = -1;
    }
  }
  __syncthreads();
}

// Where a warp's sum of a column lies: lanes write EACH columns each, threads read one, and neither
// meets another in a bank.
template <int EACH>
__device__ __forceinline__ int sum_place(int column) {
  return column % EACH * (32 + 32 / EACH) + column / EACH;
}

// Sums of the block's warps, acc[C][EACH] in each lane, to the result. sums: shared memory that no
// copy is on its way to.
template <int EACH, int C>
__device__ __forceinline__ void finish(const AxpyArgs& a, float* sums,
                                       const float (&acc)[C][EACH]) {
  constexpr int WIDTH = 32 * EACH, PITCH = WIDTH + 32;
  const int slice = blockIdx.x, part = blockIdx.y, parts = gridDim.y;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto residual = [&a](int c, int at) {
    return a.r ? __ldcg(a.r + c * a.r_step + at) : 0.0f;
  };
#pragma unroll
  for (int c = 0; c < C; ++c) {
    __syncthreads();  // the stages, or the sums of the token before, were read
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      sums[warp * PITCH + sum_place<EACH>(lane * EACH + e)] = acc[c][e];
    }
    __syncthreads();
    const int i = threadIdx.x, at = slice * WIDTH + i;
    if (i >= WIDTH || c >= a.on.m || at >= a.n_embd) continue;
    const float r = parts == 1 ? residual(c, at) : 0.0f;
    float y = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) y += sums[w * PITCH + sum_place<EACH>(i)];
    if (parts == 1) {
      a.dst[c * a.dst_step + at] = y + r;
    } else {
      a.parts[((i64)part * C + c) * a.n_embd + at] = y;
    }
  }
  if (parts == 1 || !arrives_last(arrived + slice, parts)) return;
  for (int i = threadIdx.x; i < WIDTH * a.on.m; i += kThreads) {
    const int c = i / WIDTH, at = slice * WIDTH + i % WIDTH;
    if (at >= a.n_embd) continue;
    constexpr int BATCH = 8;
    const float r = residual(c, at);
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
    a.dst[c * a.dst_step + at] = y + r;
  }
}

// -- rows through registers ----------------------------------------------------------------------

// Eight columns of a row.
template <class W>
struct Piece {  // quantized
  typedef Eight Raw;
  static __device__ __forceinline__ Raw load(const char* row, int column, int) {
    const W* const block = reinterpret_cast<const W*>(row) + column / W::QK;
    return eight(block, column % W::QK / 8);
  }
  static __device__ __forceinline__ void unpack(const Raw& e, float* y) {
    if (is_wide<W>()) {
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
struct Piece<f32> : LoosePiece<f32> {};
template <>
struct Piece<f16> : LoosePiece<f16> {};
template <>
struct Piece<bf16> : LoosePiece<bf16> {};

// Rows of any length and alignment, 8 columns a lane; every warp has AHEAD of them on their way.
// Shared memory: the list and the activations; after them the warps' sums.
template <class W, int C>
__global__ void __launch_bounds__(kThreads, C == 1 ? 2 : 1)
    axpy_rows(const __grid_constant__ AxpyArgs a) {
  typedef Piece<W> P;
  constexpr int AHEAD = 4, ROUND = AHEAD * kWarps;
  extern __shared__ __align__(128) char shared[];
  char* rest;
  const Mine mine = list_mine<C>(a, shared, &rest);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = blockIdx.x * 256 + lane * 8, from = column < a.n_embd ? column : 0;

  typename P::Raw raw[AHEAD];
  const auto load = [&](int first) {  // without branches, which would part the loads
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const u32 r = mine.rows[min(first + u * kWarps, mine.n - 1)];
      raw[u] = P::load(a.w + r * a.row_bytes, from, a.n_embd);
    }
  };
  if (mine.n > 0) load(warp);
  if (a.early) wait_for_previous();
  load_activations<C>(a, mine, rounded_up(mine.n, ROUND), mine.n);

  float acc[C][8] = {};
  for (int first = warp; first < mine.n; first += ROUND) {
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      float y[8];
      P::unpack(raw[u], y);
#pragma unroll
      for (int c = 0; c < C; ++c) {
        const float by = mine.h[(first + u * kWarps) * C + c];
#pragma unroll
        for (int e = 0; e < 8; ++e) acc[c][e] = fmaf(by, y[e], acc[c][e]);
      }
    }
    load(first + ROUND);
  }
  finish(a, reinterpret_cast<float*>(rest), acc);
}

// -- rows through shared memory ------------------------------------------------------------------

// What a block reads of a row: COLUMNS of them, in BYTES; PITCH bytes hold these and what stands
// before them, for blocks are not cut along multiples of 16 bytes. A lane has EACH columns.
template <class W>
struct Strip {  // quantized
  static constexpr int EACH = 8, COLUMNS = 32 * EACH;
  static constexpr int BYTES = COLUMNS / W::QK * (int)sizeof(W);
  static constexpr int PITCH = BYTES % 16 ? (BYTES + 29) / 16 * 16 : BYTES;  // `strip_pitch` in .py
  typedef typename Piece<W>::Raw Raw;
  static __device__ __forceinline__ int bytes_of(int n_embd) {
    return n_embd / W::QK * (int)sizeof(W);
  }
  static __device__ __forceinline__ Raw load(const char* strip, int lane) {
    return Piece<W>::load(strip, lane * EACH, 0);
  }
  static __device__ __forceinline__ void unpack(const Raw& r, float* y) { Piece<W>::unpack(r, y); }
};

__device__ __forceinline__ void unpack16(const uint4& r, float* y, f32) {
  y[0] = gf_float_of(r.x), y[1] = gf_float_of(r.y);
  y[2] = gf_float_of(r.z), y[3] = gf_float_of(r.w);
}
template <class T>
__device__ __forceinline__ void unpack16(const uint4& r, float* y, T) {
  const u32 words[4] = {r.x, r.y, r.z, r.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    y[2 * i] = to_f32(T{(gf_u16)words[i]});
    y[2 * i + 1] = to_f32(T{(gf_u16)(words[i] >> 16)});
  }
}

// 16 bytes a lane: those that the lane itself has brought.
template <class T>
struct FloatStrip {
  static constexpr int EACH = 16 / (int)sizeof(T), COLUMNS = 32 * EACH, BYTES = 512, PITCH = BYTES;
  typedef uint4 Raw;
  static __device__ __forceinline__ int bytes_of(int n_embd) { return n_embd * (int)sizeof(T); }
  static __device__ __forceinline__ Raw load(const char* strip, int lane) {
    return reinterpret_cast<const uint4*>(strip)[lane];
  }
  static __device__ __forceinline__ void unpack(const Raw& r, float* y) { unpack16(r, y, T()); }
};
template <>
struct Strip<f32> : FloatStrip<f32> {};
template <>
struct Strip<f16> : FloatStrip<f16> {};
template <>
struct Strip<bf16> : FloatStrip<bf16> {};

// N floats, which lie at a multiple of 8 or 16 bytes.
template <int N>
__device__ __forceinline__ void read_floats(const float* from, float* to) {
  static_assert(N % 2 == 0, "pairs");
#pragma unroll
  for (int i = 0; i < N; i += N % 4 == 0 ? 4 : 2) {
    if (N % 4 == 0) {
      const float4 v = *reinterpret_cast<const float4*>(from + i);
      to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
    } else {
      const float2 v = *reinterpret_cast<const float2*>(from + i);
      to[i] = v.x, to[i + 1] = v.y;
    }
  }
}

// A warp has GROUP neighbouring rows of the block's at a time, and the next of them on their way in
// STAGES stages. Rows that it does not have, and those without a use, are zeros that no memory is
// read for, so that all goes without branches. Rows start at multiples of 16 bytes. Shared memory:
// the list and the activations, the stages; after these the warps' sums.
template <class W, int C, int GROUP, int STAGES>
__global__ void __launch_bounds__(kThreads, C <= 2 ? 2 : 1)
    axpy_stream(const __grid_constant__ AxpyArgs a) {
  typedef Strip<W> S;
  constexpr int EACH = S::EACH, PITCH = S::PITCH, PIECES = PITCH / 16;
  constexpr int ASKS = (GROUP * PIECES + 31) / 32, ROUND = kWarps * GROUP;
  extern __shared__ __align__(128) char shared[];
  char* rest;
  const Mine mine = list_mine<C>(a, shared, &rest);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int begin = blockIdx.x * S::BYTES, lead = begin % 16;
  const int nbytes = min(S::BYTES, S::bytes_of(a.n_embd) - begin) + lead;
  const char* const from = a.w + begin - lead;
  char* const stages = rest + warp * STAGES * GROUP * PITCH;

  // Copy number k of this lane: of which row, and where in its strip.
  int row[ASKS], at[ASKS];
#pragma unroll
  for (int k = 0; k < ASKS; ++k) {
    const int q = 32 * k + lane;
    row[k] = q / PIECES;
    at[k] = q % PIECES * 16;
  }
  const auto request = [&](int group, char* to) {
    const int first = (group * kWarps + warp) * GROUP;
    i32 r[ASKS];
#pragma unroll
    for (int k = 0; k < ASKS; ++k) {
      r[k] = first + row[k] < mine.n ? mine.rows[first + row[k]] : -1;
    }
#pragma unroll
    for (int k = 0; k < ASKS; ++k) {
      if (32 * k + lane >= GROUP * PIECES) continue;
      copy16_or_zeros(shared_address(to + row[k] * PITCH + at[k]),
                      from + (u64)(u32)max(r[k], 0) * (u32)a.row_bytes + at[k],
                      r[k] >= 0 && at[k] < nbytes);
    }
    copies_end();
  };
#pragma unroll
  for (int s = 0; s < STAGES; ++s) request(s, stages + s * GROUP * PITCH);
  if (a.early) wait_for_previous();
  load_activations<C>(a, mine, rounded_up(mine.n, ROUND), STAGES * ROUND);

  float acc[C][EACH] = {};
  int stage = 0;
  for (int group = 0; (group * kWarps + warp) * GROUP < mine.n; ++group) {
    char* const strips = stages + stage * GROUP * PITCH;
    copies_wait<STAGES - 1>();
    __syncwarp();
    typename S::Raw raw[GROUP];
#pragma unroll
    for (int u = 0; u < GROUP; ++u) raw[u] = S::load(strips + u * PITCH + lead, lane);
    __syncwarp();
    request(group + STAGES, strips);
    if (++stage == STAGES) stage = 0;
    float by[GROUP * C];
    read_floats<GROUP * C>(mine.h + (group * kWarps + warp) * GROUP * C, by);
#pragma unroll
    for (int u = 0; u < GROUP; ++u) {
      float y[EACH];
      S::unpack(raw[u], y);
#pragma unroll
      for (int c = 0; c < C; ++c) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) acc[c][e] = fmaf(by[u * C + c], y[e], acc[c][e]);
      }
    }
  }
  copies_wait<0>();
  finish(a, reinterpret_cast<float*>(rest), acc);
}
