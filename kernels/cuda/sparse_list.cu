// What stands before and beside the products over active neurons: marks of rows that some token
// wants, the compact list for axpy_sparse, results that nobody computes.
#include "cuda/sparse.cuh"

struct MarkArgs {
  Neurons on;
  u32* marks;
};

// A bit a row. One thread a row, in whole warps.
__global__ void __launch_bounds__(256) mark_rows(const __grid_constant__ MarkArgs a) {
  launch_dependents();
  wait_for_previous();
  const int r[1] = {(int)blockIdx.x * 256 + (int)threadIdx.x};
  bool on[1];
  any_active(a.on, r, on);
  const u32 word = __ballot_sync(kAllLanes, on[0]);
  if (threadIdx.x % 32 == 0 && r[0] < a.on.n_rows) a.marks[r[0] / 32] = word;
}

struct ListArgs {
  Neurons on;
  const float* from;  // by neuron
  i64 step;           // floats from token to token
  i32* count;
  i32* rows;
  float* h;  // [count][columns]
  i32 columns;
};

// Active rows in ascending order and what is to be multiplied by each. One block.
__global__ void __launch_bounds__(1024) list_rows(const __grid_constant__ ListArgs a) {
  extern __shared__ u32 bits[];
  launch_dependents();
  wait_for_previous();
  find_rows(a.on, bits);
  const Share s = share_rows(bits, a.on.words(), 0, 1, [&a](int i, int r) { a.rows[i] = r; });
  if (threadIdx.x == 0) *a.count = s.n;
  for (int i = threadIdx.x; i < s.n * a.columns; i += blockDim.x) {
    const int p = i / a.columns, t = i - p * a.columns;
    const int r = a.rows[p], j = a.on.neuron(r);
    const bool used = t < a.on.m && a.on.wants(t, r, j);
    a.h[i] = used ? __ldcg(a.from + t * a.step + j) : 0.0f;
  }
}

struct ZeroArgs {
  float* to;
  i64 n;
};

__global__ void __launch_bounds__(256) zero(const __grid_constant__ ZeroArgs a) {
  launch_dependents();
  wait_for_previous();
  for (i64 i = global_thread(); i < a.n; i += global_threads()) a.to[i] = 0.0f;
}
