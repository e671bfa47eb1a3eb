// Columns as 16-bit floats, normalized if a norm's weights are given: for mul_mat_stream.cu,
// mul_mat_columns.cu, mul_mat_fragments_few.cu and mul_mat_fragments_many.cu in the order that the
// fragments of the weights have (columns_weights.cuh), for mul_mat_chain.cu, mul_mat_wide.cu,
// mul_mat_tma.cu, mul_mat_tma_many.cu and a library in their own.
#include "cuda/dependent.cuh"
#include "cuda/float_columns.cuh"
#include "cuda/rope.cuh"

// How the columns lie, as numbered in columns.py. TILES: for a warpgroup's products, in groups of n
// columns; FRAGMENTS: of mma.m16n8k16; ROWS: dense. Of fragments in order lane t has elements 4 t
// to 4 t + 3 of every sixteen.
enum { TILES, FRAGMENTS, FRAGMENTS_IN_ORDER, TILES_IN_ORDER, ROWS };

struct ColumnsOrder {
  int lane, half;  // elements from lane to lane, and to a lane's second four
  int split;       // whether the pairs of four are (0, 2) and (1, 3), or (0, 1) and (2, 3)
};

struct RoundColumnsArgs {
  gf_tensor x;           // [c3, c2, m, k] f32, rows dense and aligned to 16 bytes
  const float* norm;     // weights of the norm, or null
  char* to;              // the columns, of T
  float* scales;         // of each row, unless T needs none
  const i32* pos;        // of each column, for turns
  const float* factors;  // of the frequencies, or null
  float2* turns;         // [m, half_dim] cosine and sine; nothing if half_dim is zero
  RopeNumbers rope;
  float eps;
  ColumnsOrder order;
  int n;  // columns of a group
  int layout;
  int half_dim;
};

constexpr int kTileK = 64;
constexpr int kMostChunks = 256;  // a row may have at most 1 << 16 elements

// A lane's eight elements of 32, times scale.
template <class T>
__device__ __forceinline__ uint4 rounded(const ColumnsOrder& o, const float4 (&v)[2], float scale) {
  u32 w[4];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float4 y = times(v[h], scale);
    w[2 * h] = Float<T>::pair(y.x, o.split ? y.z : y.y);
    w[2 * h + 1] = Float<T>::pair(o.split ? y.y : y.z, y.w);
  }
  return {w[0], w[1], w[2], w[3]};
}

// A block a column, of B threads; a thread has R times eight elements. Small, so that it is there
// before the product ahead is done: the one behind may only then ask for its weights.
template <class T, bool SCALED, bool NORMED, int R, int B>
__global__ void __launch_bounds__(B, NORMED || B > 512 ? 1 : 2)
    round_columns(const __grid_constant__ RoundColumnsArgs a) {
  __shared__ float squares[kMostChunks];
  launch_dependents();
  const int column = blockIdx.x, k = (int)a.x.ne[0];
  const float* const x = reinterpret_cast<const float*>(a.x.row(column));
  // Of piece r of this thread, lane t of block32 has two times four elements.
  const auto place = [&](int r, int h) {
    const int i = r * B + threadIdx.x;
    return i / 4 * 32 + i % 4 * a.order.lane + h * a.order.half;
  };
  const auto inside = [&](int r) { return r * B + threadIdx.x < k / 8; };
  double angle = 0.0;
  if (threadIdx.x < a.half_dim) {
    angle = angle_of(a.rope, threadIdx.x, a.factors ? a.factors[threadIdx.x] : 1.0f);
  }
  float4 by[R][2], v[R][2];
#pragma unroll
  for (int r = 0; NORMED && r < R; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      by[r][h] = {1.0f, 1.0f, 1.0f, 1.0f};
      if (inside(r)) by[r][h] = *reinterpret_cast<const float4*>(a.norm + place(r, h));
    }
  }
  wait_for_previous();
  float largest = 0.0f;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      v[r][h] = float4{};
      if (inside(r)) v[r][h] = __ldcg(reinterpret_cast<const float4*>(x + place(r, h)));
    }
  }
  for (int i = threadIdx.x; i < a.half_dim; i += B) {
    if (i >= B) angle = angle_of(a.rope, i, a.factors ? a.factors[i] : 1.0f);
    float2 at;
    turn(a.rope, __ldcg(a.pos + column) * angle, &at.y, &at.x);
    a.turns[column * a.half_dim + i] = at;
  }
  const int chunks = (k + kSquaresChunk - 1) / kSquaresChunk;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    if (NORMED) {  // a warp has a chunk
      const int chunk = (r * B + threadIdx.x) / 32;
      const float sum = warp_reduce(add_squares(v[r][1], add_squares(v[r][0], 0.0f)), Add());
      if (threadIdx.x % 32 == 0 && chunk < chunks) squares[chunk] = sum;
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (NORMED) v[r][h] = times(v[r][h], by[r][h]);
      largest = fmaxf(largest, largest_of(v[r][h]));
    }
  }
  float scale = 1.0f;  // of all elements
  if (NORMED) {
    __syncthreads();
    scale = float_norm_scale(sum_of_chunks(squares, chunks), k, a.eps);
  }
  if (SCALED) {
    const float power = power_of(block_reduce(largest, Max()) * scale);
    if (threadIdx.x == 0) a.scales[column] = power;
    scale *= 1.0f / power;
  }

  const int group = column / a.n, within = column % a.n;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int i = r * B + threadIdx.x, block32 = i / 4, t = i % 4;
    const uint4 w = rounded<T>(a.order, v[r], scale);
    if (!inside(r)) continue;
    if (a.layout == ROWS) {
      reinterpret_cast<uint4*>(a.to)[(i64)column * (k / 8) + i] = w;
      continue;
    }
    if (a.layout == FRAGMENTS) {  // [k / 32][n / 8][8 columns, or n][4 lanes] of 16 bytes
      uint4* const to = reinterpret_cast<uint4*>(a.to) + block32 * a.n * 4 + within / 8 * 32;
      to[within % 8 * 4 + t] = w;
      continue;
    }
    if (a.layout == FRAGMENTS_IN_ORDER) {  // [k / 32][n / 8][8][4][2 steps] of 8 bytes
      uint2* const to = reinterpret_cast<uint2*>(a.to) + (block32 * (a.n / 8) + within / 8) * 64 +
                        (within % 8 * 4 + t % 2 * 2) * 2 + t / 2;
      to[0] = {w.x, w.y};
      to[2] = {w.z, w.w};
      continue;
    }
    // [groups][k / 64][n][64], the pieces of 16 bytes swizzled
    char* const row = a.to + (((i64)group * (k / kTileK) + block32 / 2) * a.n + within) * 128;
    if (a.layout == TILES_IN_ORDER) {
      *reinterpret_cast<uint4*>(row + ((block32 % 2 * 4 + t) ^ (within % 8)) * 16) = w;
      continue;
    }
    char* const to = row + t * 4;
    const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<u32*>(to + ((block32 % 2 * 4 + j) ^ (within % 8)) * 16) = words[j];
    }
  }
}
