// relu(gate) * up of the neurons that a token wants, between the dense products of many tokens.
#include "cuda/sparse.cuh"

struct ReluGateArgs {
  Neurons on;
  float* gate;  // [m][n_rows]; becomes the result
  const float* up;
  i32 relu_up;
};

constexpr int kThreads = 256;

// blockIdx.x counts tokens, blockIdx.y runs of rows.
__global__ void __launch_bounds__(kThreads) relu_gate(const __grid_constant__ ReluGateArgs a) {
  const int t = blockIdx.x;
  const i64 at = (i64)t * a.on.n_rows;
  for (int r = blockIdx.y * kThreads + threadIdx.x; r < a.on.n_rows; r += gridDim.y * kThreads) {
    const int j = a.on.neuron(r);
    const bool active = !a.on.skips(j) && a.on.wants(t, r, j);
    const float up = a.relu_up ? relu_of(a.up[at + r]) : a.up[at + r];
    a.gate[at + r] = active ? relu_of(a.gate[at + r]) * up : 0.0f;
  }
}
