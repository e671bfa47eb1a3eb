// Columns for mul_mat_stream.cu and mul_mat_columns.cu: normalized if a norm's weights are given,
// as 16-bit floats, in the order that the fragments of the weights have (columns_weights.cuh).
#include "cuda/dependent.cuh"
#include "cuda/rope.cuh"

struct RoundColumnsArgs {
  gf_tensor x;           // [c3, c2, m, k] f32, rows dense and aligned to 16 bytes
  const float* norm;     // weights of the norm, or null
  char* to;              // the columns, of T
  float* scales;         // of each row, unless T needs none
  u32* counts;           // become zero
  const i32* pos;        // of each column, for turns
  const float* factors;  // of the frequencies, or null
  float2* turns;         // [m, half_dim] cosine and sine; nothing if half_dim is zero
  RopeNumbers rope;
  float eps;
  int n;           // columns of a group
  int lane, half;  // elements from lane to lane, and to a lane's second four
  int split;       // whether the pairs of four are (0, 2) and (1, 3), or (0, 1) and (2, 3)
  int fragments;   // whether they lie as fragments of mma, or else as tiles for a warpgroup
  int n_counts, half_dim;
};

constexpr int kThreads = 512, kTileK = 64;

// Power of two by which a row with this largest magnitude is divided, as in mul_mat_rows.cu.
__device__ __forceinline__ float scale_of(float largest) {
  if (!(largest > 32768.0f || (largest < 0.00390625f && largest > 0.0f))) return 1.0f;
  return gf_float_of((max(gf_bits_of(largest) >> 23, 29u) - 14) << 23);
}

// A block a column.
template <class T, bool SCALED>
__global__ void __launch_bounds__(kThreads)
    round_columns(const __grid_constant__ RoundColumnsArgs a) {
  launch_dependents();
  const int column = blockIdx.x, k = (int)a.x.ne[0];
  double angle = 0.0;
  if (threadIdx.x < a.half_dim) {
    angle = angle_of(a.rope, threadIdx.x, a.factors ? a.factors[threadIdx.x] : 1.0f);
  }
  wait_for_previous();
  for (int i = column * kThreads + threadIdx.x; i < a.n_counts; i += gridDim.x * kThreads) {
    a.counts[i] = 0;
  }
  for (int i = threadIdx.x; i < a.half_dim; i += kThreads) {
    if (i >= kThreads) angle = angle_of(a.rope, i, a.factors ? a.factors[i] : 1.0f);
    float2 at;
    turn(a.rope, __ldcg(a.pos + column) * angle, &at.y, &at.x);
    a.turns[column * a.half_dim + i] = at;
  }

  const float* const x = reinterpret_cast<const float*>(a.x.row(column));
  float norm_scale = 1.0f, inverse = 1.0f;
  if (SCALED || a.norm) {
    float largest = 0.0f, sum = 0.0f;
    for (int i = threadIdx.x * 4; i < k; i += kThreads * 4) {
      float4 v = __ldcg(reinterpret_cast<const float4*>(x + i));
      sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
      if (a.norm) {
        const float4 by = *reinterpret_cast<const float4*>(a.norm + i);
        v = {v.x * by.x, v.y * by.y, v.z * by.z, v.w * by.w};
      }
      largest = fmaxf(fmaxf(fmaxf(largest, fabsf(v.x)), fmaxf(fabsf(v.y), fabsf(v.z))), fabsf(v.w));
    }
    if (a.norm) norm_scale = 1.0f / sqrtf(block_reduce(sum, Add()) / (float)k + a.eps);
    if (SCALED) {
      const float scale = scale_of(block_reduce(largest, Max()) * norm_scale);
      if (threadIdx.x == 0) a.scales[column] = scale;
      inverse = 1.0f / scale;
    }
  }

  const int group = column / a.n, within = column % a.n;
  for (int i = threadIdx.x; i < k / 8; i += kThreads) {
    const int block32 = i / 4, t = i % 4;
    u32 w[4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int at = block32 * 32 + t * a.lane + h * a.half;
      float4 v = __ldcg(reinterpret_cast<const float4*>(x + at));
      if (a.norm) {
        const float4 by = *reinterpret_cast<const float4*>(a.norm + at);
        v = {v.x * norm_scale * by.x, v.y * norm_scale * by.y, v.z * norm_scale * by.z,
             v.w * norm_scale * by.w};
      }
      v = {v.x * inverse, v.y * inverse, v.z * inverse, v.w * inverse};
      w[2 * h] = Float<T>::pair(v.x, a.split ? v.z : v.y);
      w[2 * h + 1] = Float<T>::pair(a.split ? v.y : v.z, v.w);
    }
    if (a.fragments) {  // [k / 32][n / 8][8 columns][4 lanes] of 16 bytes
      uint4* const to = reinterpret_cast<uint4*>(a.to) + (block32 * (a.n / 8) + within / 8) * 32;
      to[within % 8 * 4 + t] = {w[0], w[1], w[2], w[3]};
      continue;
    }
    // [groups][k / 64][n][64], the pieces of 16 bytes swizzled
    char* const to =
        a.to + (((i64)group * (k / kTileK) + block32 / 2) * a.n + within) * 128 + t * 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      *reinterpret_cast<u32*>(to + ((block32 % 2 * 4 + j) ^ (within % 8)) * 16) = w[j];
    }
  }
}
