// The parts of a decode step's products: arguments, columns brought into shared memory, which rows
// belong together, and what becomes of their sums. mul_mat_sparse.cu uses the columns alone.
#pragma once

#include "cuda/functions.cuh"
#include "cuda/kv_state.cuh"
#include "cuda/mul_mat_vec.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/rope.cuh"

enum {
  PLAIN,
  GLU,
  QKV,
  RELU,
  GEGLU,
  GELU,
  GELU_ERF,
  BIASED,
  JOINED,
  PARALLEL,
  PARALLEL_ERF,
};

// Of rows of two matrices, gate and up.
constexpr bool gated_kind(int kind) { return kind == GLU || kind == GEGLU; }
// QKV and the first half of a feed-forward layer, which ends in GELU, of one LayerNorm.
constexpr bool parallel_kind(int kind) { return kind == PARALLEL || kind == PARALLEL_ERF; }
// Of which queries and keys are rotated, keys and values written to states.
constexpr bool turned_kind(int kind) { return kind == QKV || parallel_kind(kind); }
// Of rows of several matrices, one after the other.
constexpr bool several_kind(int kind) { return turned_kind(kind) || kind == JOINED; }
// To which a residual, or a bias, may be added.
constexpr bool added_kind(int kind) {
  return kind == PLAIN || kind == GELU || kind == GELU_ERF || kind == BIASED;
}

// Mirrored by `arguments` in mul_mat_vec.py. Rows go by twos, called pairs: neighbours of one
// matrix; for GLU and GEGLU the same row of gate and up; where there is rotation two dimensions
// that are rotated together.
struct VecArgs {
  const char* w[4];
  const float* x;
  const float* norm;  // null: the columns as they are
  float* dst;
  const float* r;     // added; null: nothing
  const float* bias;  // of BIASED, added before r
  const i32* pos;
  const i32* state_rows;  // rows of the states that the columns become
  const float* factors;   // of the frequencies; null: ones
  char* state[2];         // keys and values
  i64 row_bytes[4];
  i64 x_step, dst_step, r_step;  // floats from column to column
  i64 state_step[2];             // bytes from row to row
  RopeNumbers rope;
  float eps;
  i32 pairs[4], rows[4];
  i32 k, m, stages;
  i32 head_dim, neox, state_type[2], n_ctx;
  const float* norm_bias;  // of a LayerNorm, whose result goes to normed; null: zeros
  float *normed, *act;     // act: what GELU makes of the fourth matrix
};

constexpr int kMaxWarps = 16;

// -- columns into shared memory ------------------------------------------------------------------

// Four elements at e of a column: quantized or as they are. All lanes of a warp take part, those
// past the end with zeros.
template <bool QUANTIZED>
__device__ __forceinline__ void put_quad(char* column, int e, bool inside,
                                         const Pack<float, 4>& v) {
  if (!QUANTIZED) {
    char* const at = column + e / 256 * 1024 + e % 8 / 4 * 512 + e % 256 / 8 * 16;
    if (inside) *reinterpret_cast<Pack<float, 4>*>(at) = v;
    return;
  }
  float most = fmaxf(fmaxf(fabsf(v.v[0]), fabsf(v.v[1])), fmaxf(fabsf(v.v[2]), fabsf(v.v[3])));
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
  }
  const float inverse = most > 1e-30f ? __fdividef(127.0f, most) : 0.0f;
  int n[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) n[i] = __float2int_rn(v.v[i] * inverse);
  const u32 q =
      __byte_perm(__byte_perm(n[0], n[1], 0x0040), __byte_perm(n[2], n[3], 0x0040), 0x5410);
  int sum = __dp4a((int)q, 0x01010101, 0);
  sum += __shfl_xor_sync(kAllLanes, sum, 1);
  sum += __shfl_xor_sync(kAllLanes, sum, 2);
  const int other = __shfl_xor_sync(kAllLanes, sum, 4);
  if (!inside) return;
  const int chunk = e / kChunk, in_chunk = e % kChunk;
  const int unit = in_chunk / 64, quad = in_chunk % 64 / 16;
  char* const base = column + chunk * Chunk<block_q8_0>::X_BYTES;
  *reinterpret_cast<u32*>(base + (quad * 32 + unit) * 16 + in_chunk % 16) = q;
  if (in_chunk % 32 == 0) {
    const XBlock block = {most * (1.0f / 127.0f), {(short)sum, (short)other}};
    reinterpret_cast<XBlock*>(base + kChunk)[2 * unit + quad / 2] = block;
  }
}

// The columns of x. Read past L1, which may hold what was there before: this block may have started
// while an older kernel ran. A thread asks for a few pieces at once, for the latency is long; more
// would make the kernel longer, and its instructions come from far away too.
constexpr int kPieces = 4;

template <int PIECES = kPieces>
__device__ __forceinline__ void ask_pieces(const float* x, int base, int k, float4* v) {
#pragma unroll
  for (int b = 0; b < PIECES; ++b) {
    const int e = base + (b * blockDim.x + threadIdx.x) * 4;
    v[b] = e < k ? __ldcg(reinterpret_cast<const float4*>(x + e)) : float4{};
  }
}

// Pieces at base, times a scale and weights if there are any, into shared memory.
template <bool QUANTIZED>
__device__ __forceinline__ void put_pieces(char* column, int base, int k, const float4* v,
                                           float scale, const float4* by) {
  const int rounded = (k + 127) / 128 * 128;  // whole warps
#pragma unroll
  for (int b = 0; b < kPieces; ++b) {
    const int e = base + (b * blockDim.x + threadIdx.x) * 4;
    if (e >= rounded) break;
    Pack<float, 4> y = {v[b].x, v[b].y, v[b].z, v[b].w};
    if (by != nullptr) {
      y = {y.v[0] * scale * by[b].x, y.v[1] * scale * by[b].y, y.v[2] * scale * by[b].z,
           y.v[3] * scale * by[b].w};
    }
    put_quad<QUANTIZED>(column, e, e < k, y);
  }
}

template <bool QUANTIZED, int C>
__device__ __forceinline__ void load_columns(const VecArgs& a, char* xs, int x_step) {
#pragma unroll 1
  for (int c = 0; c < C; ++c) {
    const float* const x = a.x + min(c, a.m - 1) * a.x_step;
#pragma unroll 1
    for (int base = 0; base < a.k; base += blockDim.x * 4 * kPieces) {
      float4 v[kPieces];
      ask_pieces(x, base, a.k, v);
      put_pieces<QUANTIZED>(xs + c * x_step, base, a.k, v, 1.0f, nullptr);
    }
  }
}

// The same, normalized. by: the first pieces of the norm's weights, which a thread has brought
// along; the first pieces of x are kept between the two passes.
template <bool QUANTIZED, int C>
__device__ __forceinline__ void load_normed(const VecArgs& a, char* xs, int x_step, float4* by) {
  const int batch = blockDim.x * 4 * kPieces;
#pragma unroll 1
  for (int c = 0; c < C; ++c) {
    const float* const x = a.x + min(c, a.m - 1) * a.x_step;
    float4 v[kPieces];
    float sum = 0.0f;
#pragma unroll 1
    for (int base = 0; base < a.k; base += batch) {
      ask_pieces(x, base, a.k, v);
#pragma unroll
      for (int b = 0; b < kPieces; ++b) {
        const float4 f = v[b];
        sum = fmaf(f.x, f.x, fmaf(f.y, f.y, fmaf(f.z, f.z, fmaf(f.w, f.w, sum))));
      }
    }
    sum = block_reduce(sum, Add());
    const float scale = 1.0f / sqrtf(sum / (float)a.k + a.eps);
#pragma unroll 1
    for (int base = 0; base < a.k; base += batch) {
      if (a.k > batch) {
        ask_pieces(x, base, a.k, v);
        ask_pieces(a.norm, base, a.k, by);
      }
      put_pieces<QUANTIZED>(xs + c * x_step, base, a.k, v, scale, by);
    }
  }
}

// The one column, brought to mean 0 and variance 1; the squared deviations are added in a second
// pass, so that nothing cancels. The first block writes it to normed too. by, plus: the first
// pieces of the norm's weights and of its bias; ASKED: whether the latter are there as well.
template <bool QUANTIZED, int PIECES = kPieces, bool ASKED = false>
__device__ __forceinline__ void load_centered(const VecArgs& a, char* column, float4* by,
                                              float4* plus) {
  const int batch = blockDim.x * 4 * PIECES, rounded = (a.k + 127) / 128 * 128;
  float4 v[PIECES];
  float sum = 0.0f, squares = 0.0f;
#pragma unroll 1
  for (int base = 0; base < a.k; base += batch) {
    ask_pieces<PIECES>(a.x, base, a.k, v);
#pragma unroll
    for (int b = 0; b < PIECES; ++b) sum += (v[b].x + v[b].y) + (v[b].z + v[b].w);
  }
  const float mean = block_reduce(sum, Add()) / (float)a.k;
#pragma unroll 1
  for (int base = 0; base < a.k; base += batch) {
    if (a.k > batch) ask_pieces<PIECES>(a.x, base, a.k, v);
#pragma unroll
    for (int b = 0; b < PIECES; ++b) {
      if (base + (b * blockDim.x + threadIdx.x) * 4 >= a.k) break;
      const float4 d = {v[b].x - mean, v[b].y - mean, v[b].z - mean, v[b].w - mean};
      squares = fmaf(d.x, d.x, fmaf(d.y, d.y, fmaf(d.z, d.z, fmaf(d.w, d.w, squares))));
    }
  }
  squares = block_reduce(squares, Add());
  const float scale = 1.0f / sqrtf(squares / (float)a.k + a.eps);
#pragma unroll 1
  for (int base = 0; base < a.k; base += batch) {
    if (a.k > batch) {
      ask_pieces<PIECES>(a.x, base, a.k, v);
      ask_pieces<PIECES>(a.norm, base, a.k, by);
    }
    if (!ASKED || a.k > batch) {
      ask_pieces<PIECES>(a.norm_bias, base, a.norm_bias != nullptr ? a.k : 0, plus);
    }
#pragma unroll
    for (int b = 0; b < PIECES; ++b) {
      const int e = base + (b * blockDim.x + threadIdx.x) * 4;
      if (e >= rounded) break;
      const Pack<float, 4> y = {(v[b].x - mean) * scale * by[b].x + plus[b].x,
                                (v[b].y - mean) * scale * by[b].y + plus[b].y,
                                (v[b].z - mean) * scale * by[b].z + plus[b].z,
                                (v[b].w - mean) * scale * by[b].w + plus[b].w};
      if (blockIdx.x == 0 && e < a.k) *reinterpret_cast<Pack<float, 4>*>(a.normed + e) = y;
      put_quad<QUANTIZED>(column, e, e < a.k, y);
    }
  }
}

// -- which rows ----------------------------------------------------------------------------------

struct Pair {
  int matrix;      // of several; 0 otherwise
  int index;       // among the matrix's pairs
  int row0, row1;  // row1 == row0 when there is no second one
  const char *w0, *w1;
};

__device__ __forceinline__ Pair pair_of(int kind, const VecArgs& a, int index) {
  Pair p = {0, index, 2 * index, 2 * index + 1, nullptr, nullptr};
  if (gated_kind(kind)) {
    p.row0 = p.row1 = index;
    p.w0 = a.w[0] + index * a.row_bytes[0];
    p.w1 = a.w[1] + index * a.row_bytes[1];
    return p;
  }
  const char* w = a.w[0];
  i64 bytes = a.row_bytes[0];
  int rows = a.rows[0];
  if (several_kind(kind)) {
#pragma unroll
    for (int i = 0; i < (kind == QKV ? 2 : 3); ++i) {
      if (p.matrix == i && p.index >= a.pairs[i]) {
        p.index -= a.pairs[i];
        p.matrix = i + 1;
        w = a.w[i + 1];
        bytes = a.row_bytes[i + 1];
        rows = a.rows[i + 1];
      }
    }
    p.row0 = 2 * p.index;
    p.row1 = p.row0 + 1;
    if (turned_kind(kind) && p.matrix < 2 && a.neox) {
      const int half = a.head_dim / 2, head = p.index / half;
      p.row0 = head * a.head_dim + p.index - head * half;
      p.row1 = p.row0 + half;
    }
  }
  p.row1 = min(p.row1, rows - 1);
  p.w0 = w + p.row0 * bytes;
  p.w1 = w + p.row1 * bytes;
  return p;
}

// -- what becomes of two sums --------------------------------------------------------------------

__device__ __forceinline__ void finish(int kind, const VecArgs& a, const Pair& p,
                                       const float2* turns, int c, float y0, float y1, float r0,
                                       float r1) {
  float* const dst = a.dst + c * a.dst_step;
  if (kind == GLU) {
    dst[p.row0] = y0 / (1.0f + expf(-y0)) * y1;
    return;
  }
  if (kind == GEGLU) {
    dst[p.row0] = gelu()(y0) * y1;
    return;
  }
  if (kind == GELU || kind == GELU_ERF) {
    y0 += r0;
    y1 += r1;
    dst[p.row0] = kind == GELU ? gelu()(y0) : gelu_erf()(y0);
    dst[p.row1] = kind == GELU ? gelu()(y1) : gelu_erf()(y1);
    return;
  }
  if (kind == RELU) {
    dst[p.row0] = y0 <= 0.0f ? 0.0f : y0;
    dst[p.row1] = y1 <= 0.0f ? 0.0f : y1;
    return;
  }
  if (kind == PLAIN || kind == BIASED) {
    dst[p.row0] = y0 + r0;
    dst[p.row1] = y1 + r1;  // the same when there is no second row
    return;
  }
  if (kind == JOINED) {
    int before = 0;
#pragma unroll
    for (int i = 0; i < 3; ++i) before += p.matrix > i ? a.rows[i] : 0;
    dst[before + p.row0] = y0;
    dst[before + p.row1] = y1;
    return;
  }
  if (parallel_kind(kind) && p.matrix == 3) {
    a.act[p.row0] = kind == PARALLEL ? gelu()(y0) : gelu_erf()(y0);
    a.act[p.row1] = kind == PARALLEL ? gelu()(y1) : gelu_erf()(y1);
    return;
  }
  if (p.matrix < 2) {
    const int half = a.head_dim / 2;
    const float2 t = turns[c * half + p.index % half];
    const float u = y0 * t.x - y1 * t.y;
    y1 = y0 * t.y + y1 * t.x;
    y0 = u;
  }
  if (p.matrix == 0) {
    dst[p.row0] = y0;
    dst[p.row1] = y1;
    return;
  }
  const int s = p.matrix - 1, at = __ldcg(a.state_rows + c);
  if (at < 0 || at >= a.n_ctx) return;
  char* const row = a.state[s] + at * a.state_step[s];
  put_state(row, a.state_type[s], p.row0, y0);
  put_state(row, a.state_type[s], p.row1, y1);
}

__device__ __forceinline__ double angle_of(const VecArgs& a, int i) {
  return angle_of(a.rope, i, a.factors ? a.factors[i] : 1.0f);
}
