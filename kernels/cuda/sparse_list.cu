// What stands before and beside the products over active neurons: marks of rows that some token
// wants, the dense form of axpy_sparse, results that nobody computes.
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

struct PickArgs {
  Neurons on;
  const float* from;  // by neuron
  i64 step;           // floats from token to token
  float* to;          // [m][n_rows]
};

// What belongs to each row, zero where a token does not want it. blockIdx.x counts tokens.
__global__ void __launch_bounds__(256) pick_rows(const __grid_constant__ PickArgs a) {
  const int t = blockIdx.x;
  for (int r = blockIdx.y * 256 + threadIdx.x; r < a.on.n_rows; r += gridDim.y * 256) {
    const int j = a.on.neuron(r);
    const bool active = !a.on.skips(j) && a.on.wants(t, r, j);
    a.to[(i64)t * a.on.n_rows + r] = active ? a.from[t * a.step + j] : 0.0f;
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
