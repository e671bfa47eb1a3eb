// mul_mat_id and mul_mat_id_glu of few pairs (row, id): a warp multiplies some weight rows with one
// pair, so only the chosen experts' weights are read.
#include "cuda/dependent.cuh"
#include "cuda/mul_mat_id.cuh"

// N weight rows of k elements, nb0 bytes a block, times x; every lane gets the sums.
template <class W, bool EIGHTS, int N>
__device__ __forceinline__ void products(const char* const (&w)[N], i64 nb0, i64 k, const float* x,
                                         int lane, float (&sums)[N]) {
  constexpr int PIECE = EIGHTS ? 8 : Row<W>::PIECE;
  for (i64 p = lane; p < k / PIECE; p += 32) {
#pragma unroll
    for (int r = 0; r < N; ++r) {
      if constexpr (EIGHTS) {
        sums[r] += Expert<W>::dot(w[r], p, x + 8 * p);
      } else {
        float weights[PIECE];
        Row<W>::read(w[r], nb0, p, weights);
#pragma unroll
        for (int j = 0; j < PIECE; ++j) sums[r] = fmaf(weights[j], x[p * PIECE + j], sums[r]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < N; ++r) sums[r] = warp_reduce(sums[r], Add());
}

// f(expert, its row of x, results) for the pairs of the block, which blockIdx.y counts; zeros for
// `rows` results from row0 on where there is no such expert.
template <class F>
__device__ __forceinline__ void each_pair(const IdArgs& a, i64 row0, int rows, int lane,
                                          const F& f) {
  for (i64 pair = blockIdx.y; pair < a.dst.ne[1] * a.dst.ne[2]; pair += gridDim.y) {
    const i32 expert = id_of(a, pair);
    float* const out = result_of(a, pair);
    if ((u32)expert < (u32)a.w.ne[2]) {
      f(expert, reinterpret_cast<const float*>(x_of(a, pair)), out);
    } else if (lane < rows && row0 + lane < a.w.ne[1]) {
      out[row0 + lane] = 0.0f;
    }
  }
}

// A warp R weight rows. EIGHTS: rows of whole, aligned eights.
template <class W, int R, bool EIGHTS>
__global__ void __launch_bounds__(128) mul_mat_id_vec(const __grid_constant__ IdArgs a) {
  begin_dependent();
  const i64 row0 = ((i64)blockIdx.x * 4 + threadIdx.x / 32) * R, n = a.w.ne[1];
  const int lane = threadIdx.x % 32;
  if (row0 >= n) return;
  each_pair(a, row0, R, lane, [&](i32 expert, const float* x, float* out) {
    const char* w[R];
#pragma unroll
    for (int r = 0; r < R; ++r) w[r] = a.w.row(min(row0 + r, n - 1), expert, 0);
    float sums[R] = {};
    products<W, EIGHTS>(w, a.w.nb[0], a.w.ne[0], x, lane, sums);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const i64 row = row0 + r;
      if (lane == 0 && row < n) out[row] = sums[r] + bias_of(a.bias, expert, row);
    }
  });
}

// A warp R rows of either matrix, and the gated activation over them.
template <class W, int R, bool EIGHTS, class Act>
__global__ void __launch_bounds__(128) mul_mat_id_glu(const __grid_constant__ IdGluArgs a) {
  begin_dependent();
  const i64 row0 = ((i64)blockIdx.x * 4 + threadIdx.x / 32) * R, n = a.id.w.ne[1];
  const int lane = threadIdx.x % 32;
  if (row0 >= n) return;
  const Act act = act_of<Act>(a);
  each_pair(a.id, row0, R, lane, [&](i32 expert, const float* x, float* out) {
    const char* w[2 * R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      w[r] = a.id.w.row(min(row0 + r, n - 1), expert, 0);
      w[R + r] = a.up.row(min(row0 + r, n - 1), expert, 0);
    }
    float sums[2 * R] = {};
    products<W, EIGHTS>(w, a.id.w.nb[0], a.id.w.ne[0], x, lane, sums);
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const i64 row = row0 + r;
      if (lane != 0 || row >= n) continue;
      out[row] = act(sums[r] + bias_of(a.id.bias, expert, row),
                     sums[R + r] + bias_of(a.up_bias, expert, row));
    }
  });
}
