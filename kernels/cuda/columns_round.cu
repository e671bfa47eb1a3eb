// Columns for mul_mat_stream.cu and mul_mat_columns.cu: normalized if a norm's weights are given,
// as 16-bit floats, in the order that the fragments of the weights have (columns_weights.cuh).
#include "cuda/columns_order.cuh"
#include "cuda/dependent.cuh"
#include "cuda/rope.cuh"

struct RoundColumnsArgs {
  gf_tensor x;           // [c3, c2, m, k] f32, rows dense and aligned to 16 bytes
  const float* norm;     // weights of the norm, or null
  char* to;              // the columns, of T
  float* scales;         // of each row, unless T needs none
  float* corrections;    // [k / 32][n] of each 32 elements and column, or null
  const i32* pos;        // of each column, for turns
  const float* factors;  // of the frequencies, or null
  float2* turns;         // [m, half_dim] cosine and sine; nothing if half_dim is zero
  RopeNumbers rope;
  float eps;
  ColumnsOrder order;
  int n;          // columns of a group
  int fragments;  // whether they lie as fragments of mma, or else as tiles for a warpgroup
  int half_dim;
  int parts, blocks;  // of the warps of mul_mat_stream.cu, in whose order squares are added, or 0
};

constexpr int kTileK = 64;

// The sum over a column as the warps of mul_mat_stream.cu take it, from each thread's share.
__device__ __forceinline__ float sum_as_stream(const RoundColumnsArgs& a, float share) {
  constexpr int WARPS = 16;
  __shared__ float shares[1024], sums[WARPS];
  const int blocks32 = (int)a.x.ne[0] / 32, warp = threadIdx.x / 4, t = threadIdx.x % 4;
  shares[threadIdx.x] = share;
  __syncthreads();
  if (threadIdx.x < WARPS * 4) {
    float sum = 0.0f;
    for (int i = 0; i < a.parts * a.blocks; ++i) {
      const int block = (i / a.blocks * WARPS + warp) * a.blocks + i % a.blocks;
      if (block < blocks32) sum += shares[block * 4 + t];
    }
    sum = sum_of_four(sum);
    if (t == 0) sums[warp] = sum;
  }
  __syncthreads();
  float sum = 0.0f;
  for (int w = 0; w < WARPS; ++w) sum += sums[w];
  return sum;
}

// A block a column; a thread has R times eight elements.
template <class T, bool SCALED, int R>
__global__ void __launch_bounds__(1024) round_columns(const __grid_constant__ RoundColumnsArgs a) {
  launch_dependents();
  const int column = blockIdx.x, k = (int)a.x.ne[0];
  const float* const x = reinterpret_cast<const float*>(a.x.row(column));
  // Of piece r of this thread, lane t of block32 has two times four elements.
  const auto place = [&](int r, int h) {
    const int i = r * blockDim.x + threadIdx.x;
    return i / 4 * 32 + i % 4 * a.order.lane + h * a.order.half;
  };
  const auto inside = [&](int r) { return r * blockDim.x + threadIdx.x < k / 8; };
  double angle = 0.0;
  if (threadIdx.x < a.half_dim) {
    angle = angle_of(a.rope, threadIdx.x, a.factors ? a.factors[threadIdx.x] : 1.0f);
  }
  float4 by[R][2], v[R][2];
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      by[r][h] = {1.0f, 1.0f, 1.0f, 1.0f};
      if (a.norm && inside(r)) by[r][h] = *reinterpret_cast<const float4*>(a.norm + place(r, h));
    }
  }
  wait_for_previous();
  float sum = 0.0f, largest = 0.0f;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      v[r][h] = float4{};
      if (inside(r)) v[r][h] = __ldcg(reinterpret_cast<const float4*>(x + place(r, h)));
    }
  }
  for (int i = threadIdx.x; i < a.half_dim; i += blockDim.x) {
    if (i >= blockDim.x) angle = angle_of(a.rope, i, a.factors ? a.factors[i] : 1.0f);
    float2 at;
    turn(a.rope, __ldcg(a.pos + column) * angle, &at.y, &at.x);
    a.turns[column * a.half_dim + i] = at;
  }
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum += square_sum(v[r][h]);
      v[r][h] = times(v[r][h], by[r][h]);
      largest = fmaxf(largest, largest_of(v[r][h]));
    }
  }
  float scale = 1.0f;  // of all elements
  if (a.norm) {
    sum = R == 1 && a.parts ? sum_as_stream(a, sum) : block_reduce(sum, Add());
    scale = 1.0f / sqrtf(sum / (float)k + a.eps);
  }
  if (SCALED) {
    const float power = scale_of(block_reduce(largest, Max()) * scale);
    if (threadIdx.x == 0) a.scales[column] = power;
    scale *= 1.0f / power;
  }

  const int group = column / a.n, within = column % a.n;
#pragma unroll
  for (int r = 0; r < R; ++r) {
    const int i = r * blockDim.x + threadIdx.x, block32 = i / 4, t = i % 4;
    float correction;
    const uint4 w = rounded<T>(a.order, v[r], scale, &correction);
    correction = sum_of_four(correction);
    if (a.corrections && inside(r) && t == 0) a.corrections[block32 * a.n + within] = correction;
    if (!inside(r)) continue;
    if (a.fragments) {  // [k / 32][n / 8][8 columns][4 lanes] of 16 bytes
      uint4* const to = reinterpret_cast<uint4*>(a.to) + (block32 * (a.n / 8) + within / 8) * 32;
      to[within % 8 * 4 + t] = w;
      continue;
    }
    // [groups][k / 64][n][64], the pieces of 16 bytes swizzled
    char* const to =
        a.to + (((i64)group * (k / kTileK) + block32 / 2) * a.n + within) * 128 + t * 4;
    const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<u32*>(to + ((block32 % 2 * 4 + j) ^ (within % 8)) * 16) = words[j];
    }
  }
}
