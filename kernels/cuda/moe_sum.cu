// moe_sum: what a token's experts gave, added up by their shares.
#include "cuda/dependent.cuh"

struct MoeSumArgs {
  gf_tensor dst, x, weights;
};

__global__ void __launch_bounds__(256) moe_sum(const __grid_constant__ MoeSumArgs a) {
  begin_dependent();
  const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i >= a.dst.ne[0]) return;
  for (i64 row = blockIdx.y; row < a.dst.ne[1]; row += gridDim.y) {
    const float* const w = reinterpret_cast<const float*>(a.weights.row(row, 0, 0));
    float sum = 0.0f;
    for (i64 j = 0; j < a.x.ne[1]; ++j) {
      sum = fmaf(w[j], reinterpret_cast<const float*>(a.x.row(j, row, 0))[i], sum);
    }
    reinterpret_cast<float*>(a.dst.row(row, 0, 0))[i] = sum;
  }
}
