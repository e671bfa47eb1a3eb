// The sum of listed weight rows, each times its activations: axpy_sparse, and the second half of
// sparse_ffn.
//
// A block has a slice of the columns and every so many-th entry of the list. LANES neighbouring
// threads take 8 columns each of one row, and so a block has 512 / LANES rows in hand at a time and
// several more on their way in every thread. Where blocks share a slice the last of them to arrive
// adds their parts, in the order of the blocks.
#include "cuda/eight.cuh"
#include "cuda/pipeline.cuh"

// Mirrored by `axpy_launches` in axpy_sparse.py.
struct AxpyArgs {
  const char* w;
  i64 row_bytes;
  const i32* count;
  const i32* rows;
  const float* h;  // [count][C]
  float* dst;
  i64 dst_step;  // floats from token to token
  float* parts;  // [gridDim.y][C][n_embd]
  i32 n_embd, m;
  i32 share;  // entries of a block at most
};

constexpr int kThreads = 512;
constexpr int kSlots = 1024;     // slices that blocks may share; mirrored in axpy_sparse.py
__device__ u32 arrived[kSlots];  // blocks of a slice; zero between launches

// Eight columns of a row, kept in registers while they are on their way. LOOSE: rows of any length
// and alignment.
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

// Shared memory: rows and activations of the block's entries; after them the warps' sums.
template <class W, bool LOOSE, int LANES, int C>
__global__ void __launch_bounds__(kThreads, 1) axpy_sparse(const __grid_constant__ AxpyArgs a) {
  typedef Piece<W, LOOSE> P;
  constexpr int AHEAD = C <= 2 ? 8 : 4;  // rows a thread has on their way
  constexpr int STEP = kThreads / LANES, WIDTH = 8 * LANES, WARPS = kThreads / 32;
  extern __shared__ __align__(16) char shared[];
  i32* const rows = reinterpret_cast<i32*>(shared);
  float* const h = reinterpret_cast<float*>(rows + (a.share + 3) / 4 * 4);
  const int slice = blockIdx.x, part = blockIdx.y, parts = gridDim.y;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int sub = threadIdx.x / LANES, column = slice * WIDTH + threadIdx.x % LANES * 8;
  const bool inside = column < a.n_embd;

  launch_dependents();
  wait_for_previous();
  // Entries past the end are rubbish and are not used. Asked for together with the count.
  const int early = min((int)threadIdx.x, a.share - 1);
  const i32 first_row = __ldcg(a.rows + part + (i64)early * parts);
  float first_h[C];
#pragma unroll
  for (int c = 0; c < C; ++c) first_h[c] = __ldcg(a.h + (part + (i64)early * parts) * C + c);
  const int count = __ldcg(a.count), n = (count - part + parts - 1) / parts;
  for (int i = threadIdx.x; i < n; i += kThreads) {
    const i64 at = part + (i64)i * parts;
    rows[i] = i < kThreads ? first_row : __ldcg(a.rows + at);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      h[i * C + c] = i < kThreads ? first_h[c] : __ldcg(a.h + at * C + c);
    }
  }
  __syncthreads();

  const auto load = [&](int i) {
    if (i >= n || !inside || (C == 1 && h[i] == 0.0f)) return P::none();
    return P::load(a.w + rows[i] * a.row_bytes, column, a.n_embd);
  };
  typename P::Raw raw[AHEAD];
  float acc[C][8] = {};
#pragma unroll
  for (int u = 0; u < AHEAD; ++u) raw[u] = load(sub + u * STEP);
  for (int base = sub; base < n; base += AHEAD * STEP) {
#pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int i = base + u * STEP;
      float y[8];
      P::unpack(raw[u], y);
      raw[u] = load(i + AHEAD * STEP);
      if (i < n) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
          const float by = h[i * C + c];
#pragma unroll
          for (int e = 0; e < 8; ++e) acc[c][e] = fmaf(by, y[e], acc[c][e]);
        }
      }
    }
  }

  // The rows' sums of a warp, of the block, of the blocks that share the slice.
  float* const sums = reinterpret_cast<float*>(shared);  // [WARPS][WIDTH]
#pragma unroll
  for (int c = 0; c < C; ++c) {
#pragma unroll
    for (int e = 0; e < 8; ++e) {
#pragma unroll
      for (int step = LANES; step < 32; step *= 2) {
        acc[c][e] += __shfl_xor_sync(kAllLanes, acc[c][e], step);
      }
    }
    __syncthreads();  // the entries, or the sums of the token before, were read
    if (lane < LANES) {
#pragma unroll
      for (int e = 0; e < 8; ++e) sums[warp * WIDTH + lane * 8 + e] = acc[c][e];
    }
    __syncthreads();
    const int at = slice * WIDTH + threadIdx.x;
    if (threadIdx.x < WIDTH && at < a.n_embd && c < a.m) {
      float y = 0.0f;
#pragma unroll
      for (int w = 0; w < WARPS; ++w) y += sums[w * WIDTH + threadIdx.x];
      if (parts == 1) {
        a.dst[c * a.dst_step + at] = y;
      } else {
        a.parts[((i64)part * C + c) * a.n_embd + at] = y;
      }
    }
  }
  if (parts == 1 || !arrives_last(slice, parts)) return;
  for (int i = threadIdx.x; i < WIDTH * a.m; i += kThreads) {
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
    a.dst[c * a.dst_step + at] = y;
  }
}
