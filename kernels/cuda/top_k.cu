// top_k: indices of the k largest values of each row. One block a row.
#include "cuda/select.cuh"

struct TopKArgs {
  gf_tensor dst, x;
  i32* scratch;  // 2 n indices a row, for k > kMaxSelect
};

__global__ void __launch_bounds__(1024) top_k_few(const __grid_constant__ TopKArgs a) {
  __shared__ SelectShared s;
  const float* const v = reinterpret_cast<const float*>(a.x.row(blockIdx.x));
  i32* const out = reinterpret_cast<i32*>(a.dst.row(blockIdx.x));
  const int k = (int)a.dst.ne[0];
  select_top(v, a.x.ne[0], k, s);
  for (int i = threadIdx.x; i < k; i += kThreads) out[i] = (i32)index_of(s.keys[i]);
}

__global__ void __launch_bounds__(1024) top_k_all(const __grid_constant__ TopKArgs a) {
  __shared__ SortShared s;
  const i64 n = a.x.ne[0];
  const float* const v = reinterpret_cast<const float*>(a.x.row(blockIdx.x));
  i32* const out = reinterpret_cast<i32*>(a.dst.row(blockIdx.x));
  i32* const order = a.scratch + blockIdx.x * 2 * n;
  sort_all(v, n, order, order + n, s);
  __syncthreads();
  for (i64 i = threadIdx.x; i < a.dst.ne[0]; i += kThreads) out[i] = order[i];
}
