// soft_max over rows of s = scale x + slope(head) mask: one block a row. A row of -inf alone gives
// zeros.
#include "cuda/common.cuh"

struct SoftMaxArgs {
  gf_tensor dst, x, mask;  // mask may be null
  float scale, max_bias;
};

// ALiBi (Press et al. 2021); head counts that are no power of two interleave the slopes of the next
// one, as ggml does.
__device__ float alibi_slope(i64 h, i64 n_head, float max_bias) {
  if (max_bias <= 0.0f) return 1.0f;
  i64 p = 1;
  while (2 * p <= n_head) p *= 2;
  const float power = h < p ? (float)(h + 1) / (float)p : (float)(2 * (h - p) + 1) / (float)(2 * p);
  return exp2f(-max_bias * power);
}

// M: element type of the mask.
template <class M>
__global__ void __launch_bounds__(1024) soft_max(const __grid_constant__ SoftMaxArgs a) {
  const i64 n = a.x.ne[0], i1 = blockIdx.x % a.x.ne[1], q = blockIdx.x / a.x.ne[1];
  const i64 i2 = q % a.x.ne[2], i3 = q / a.x.ne[2];
  const float* const x = reinterpret_cast<const float*>(a.x.row(i1, i2, i3));
  float* const y = reinterpret_cast<float*>(a.dst.row(i1, i2, i3));
  const M* const mask =
      a.mask.data ? reinterpret_cast<const M*>(a.mask.data + i1 * a.mask.nb[1]) : nullptr;
  const float slope = alibi_slope(i2, a.x.ne[2], a.max_bias);
  const auto score = [&](i64 i) {
    return mask ? fmaf(slope, to_f32(mask[i]), x[i] * a.scale) : x[i] * a.scale;
  };

  float top = -infinity();
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, score(i));
  top = block_reduce(top, Max());
  const bool empty = top == -infinity();
  float sum = 0.0f;
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
    const float e = empty ? 0.0f : expf(score(i) - top);
    y[i] = e;  // y may be x: a thread reads only the elements it writes
    sum += e;
  }
  const float inverse = empty ? 0.0f : 1.0f / block_reduce(sum, Add());
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) y[i] *= inverse;
}
