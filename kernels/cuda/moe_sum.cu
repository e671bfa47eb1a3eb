// moe_sum: what a token's experts gave, added up by their shares; of mul_mat_id_sum with what is
// added to it.
#include "cuda/dependent.cuh"

struct MoeSumArgs {
  gf_tensor dst, x, weights, r;  // r may be null
};

// A thread has V neighbouring elements. blockIdx.y counts rows.
template <int V>
__global__ void __launch_bounds__(256) moe_sum(const __grid_constant__ MoeSumArgs a) {
  using Floats = Pack<float, V>;
  begin_dependent();
  const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  if (i >= a.dst.ne[0] / V) return;
  for (i64 row = blockIdx.y; row < a.dst.ne[1]; row += gridDim.y) {
    const float* const w = reinterpret_cast<const float*>(a.weights.row(row, 0, 0));
    Floats sum = {};
#pragma unroll 4
    for (i64 j = 0; j < a.x.ne[1]; ++j) {
      const float share = load_fresh(w + j);
      const Floats v = load_fresh(reinterpret_cast<const Floats*>(a.x.row(j, row, 0)) + i);
#pragma unroll
      for (int e = 0; e < V; ++e) sum.v[e] = fmaf(share, v.v[e], sum.v[e]);
    }
    if (a.r.data) {
      const Floats v = load_fresh(reinterpret_cast<const Floats*>(a.r.row(row, 0, 0)) + i);
#pragma unroll
      for (int e = 0; e < V; ++e) sum.v[e] += v.v[e];
    }
    reinterpret_cast<Floats*>(a.dst.row(row, 0, 0))[i] = sum;
  }
}
