// mul_mat for weights of any type, by dequantizing: a warp a weight row for few columns, tiles in
// shared memory for many. float32 arithmetic throughout.
//
// out[c3, c2, j, i] = sum_k x[c3, c2, j, k] w[c3 / r3, c2 / r2, i, k], plus r where given.
#include "cuda/dequant.cuh"

struct MulMatArgs {
  gf_tensor dst, w, x, r;  // r may be null; its strides are zero where it is repeated
  i64 ratio2, ratio3;      // batches of x a batch of w
};

struct Batch {
  const char *w, *x, *r;
  char* dst;
};

__device__ __forceinline__ Batch batch(const MulMatArgs& a, i64 b) {
  const i64 i2 = b % a.x.ne[2], i3 = b / a.x.ne[2];
  return {a.w.row(0, i2 / a.ratio2, i3 / a.ratio3), a.x.row(0, i2, i3),
          a.r.data ? a.r.row(0, i2, i3) : nullptr, a.dst.row(0, i2, i3)};
}

__device__ __forceinline__ void store(const MulMatArgs& a, const Batch& b, i64 row, i64 column,
                                      float sum) {
  if (b.r) sum += *reinterpret_cast<const float*>(b.r + column * a.r.nb[1] + row * a.r.nb[0]);
  reinterpret_cast<float*>(b.dst + column * a.dst.nb[1])[row] = sum;
}

// A warp a weight row, up to C columns. Lane l takes pieces l, l + 32, ... of the row.
template <class W, int C>
__global__ void __launch_bounds__(128) mul_mat_vec(const __grid_constant__ MulMatArgs a) {
  constexpr int PIECE = Row<W>::PIECE;
  const i64 row = (i64)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const i64 first = (i64)blockIdx.y * C;
  const int lane = threadIdx.x % 32;
  if (row >= a.w.ne[1]) return;
  const Batch b = batch(a, blockIdx.z);
  const char* const w = b.w + row * a.w.nb[1];
  float sums[C] = {};
  for (i64 p = lane; p < a.w.ne[0] / PIECE; p += 32) {
    float weights[PIECE];
    Row<W>::read(w, a.w.nb[0], p, weights);
#pragma unroll
    for (int c = 0; c < C; ++c) {
      if (first + c >= a.x.ne[1]) break;
      const float* const x =
          reinterpret_cast<const float*>(b.x + (first + c) * a.x.nb[1]) + p * PIECE;
#pragma unroll
      for (int j = 0; j < PIECE; ++j) sums[c] = fmaf(weights[j], x[j], sums[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < C; ++c) {
    const float sum = warp_reduce(sums[c], Add());
    if (lane == 0 && first + c < a.x.ne[1]) store(a, b, row, first + c, sum);
  }
}

// Tiles of 64 weight rows by 64 columns; each of 256 threads sums 4 by 4 results over depths of 32.
// Rows of shared memory are one element longer than the tile, against bank conflicts.
constexpr int kTile = 64, kDepth = 32;

template <class W>
__global__ void __launch_bounds__(256) mul_mat_tile(const __grid_constant__ MulMatArgs a) {
  __shared__ float ws[kDepth][kTile + 1], xs[kDepth][kTile + 1];
  constexpr int PIECE = Row<W>::PIECE, PER_ROW = kDepth / PIECE;
  const i64 row0 = (i64)blockIdx.x * kTile, column0 = (i64)blockIdx.y * kTile, k = a.w.ne[0];
  const Batch b = batch(a, blockIdx.z);
  const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
  float sums[4][4] = {};
  for (i64 k0 = 0; k0 < k; k0 += kDepth) {
    for (int t = threadIdx.x; t < kTile * PER_ROW; t += 256) {
      const int row = t / PER_ROW, piece = t % PER_ROW;
      float y[PIECE] = {};
      if (row0 + row < a.w.ne[1] && k0 + piece * PIECE < k) {
        Row<W>::read(b.w + (row0 + row) * a.w.nb[1], a.w.nb[0], k0 / PIECE + piece, y);
      }
#pragma unroll
      for (int j = 0; j < PIECE; ++j) ws[piece * PIECE + j][row] = y[j];
    }
    for (int t = threadIdx.x; t < kTile * kDepth; t += 256) {
      const int column = t / kDepth, d = t % kDepth;
      const bool inside = column0 + column < a.x.ne[1] && k0 + d < k;
      xs[d][column] = inside ? *reinterpret_cast<const float*>(
                                   b.x + (column0 + column) * a.x.nb[1] + (k0 + d) * a.x.nb[0])
                             : 0.0f;
    }
    __syncthreads();
#pragma unroll 8
    for (int d = 0; d < kDepth; ++d) {
      float wv[4], xv[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wv[i] = ws[d][tx + 16 * i];
        xv[i] = xs[d][ty + 16 * i];
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[i][j] = fmaf(wv[i], xv[j], sums[i][j]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const i64 row = row0 + tx + 16 * i, column = column0 + ty + 16 * j;
      if (row < a.w.ne[1] && column < a.x.ne[1]) store(a, b, row, column, sums[i][j]);
    }
  }
}
