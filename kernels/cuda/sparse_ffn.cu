// The activations of the neurons that a token wants, of the dense products of a layer: relu(gate) *
// up, or relu(up + bias) without a gate.
#include "cuda/sparse.cuh"

// Mirrored by `relu_launch` in sparse_ffn.py.
struct ReluArgs {
  Neurons on;
  float* gate;      // [m][n_rows]; becomes the result. Without a gate it is up
  const float* up;  // beside a gate
  i32 relu_up;
  float cut;          // of cut_gate and relu_alone: what is not above it is zero
  const float* bias;  // of relu_alone, by neuron; null: none
};

constexpr int kThreads = 256;

// of(place, up) for the neurons that are wanted, with up = up_of(place, neuron), zeros for the
// others. blockIdx.x counts tokens, blockIdx.y runs of rows.
template <class U, class F>
__device__ __forceinline__ void each_wanted(const ReluArgs& a, U up_of, F of) {
  const int t = blockIdx.x;
  const i64 at = (i64)t * a.on.n_rows;
  for (int r = blockIdx.y * kThreads + threadIdx.x; r < a.on.n_rows; r += gridDim.y * kThreads) {
    const int j = a.on.neuron(r);
    const bool active = !a.on.skips(j) && a.on.wants(t, r, j);
    const float up = up_of(at + r, j);
    a.gate[at + r] = active ? of(at + r, up) : 0.0f;
  }
}

__global__ void __launch_bounds__(kThreads) relu_gate(const __grid_constant__ ReluArgs a) {
  each_wanted(
      a, [&](i64 at, int) { return a.relu_up ? relu_of(a.up[at]) : a.up[at]; },
      [&](i64 at, float up) { return relu_of(a.gate[at]) * up; });
}

__global__ void __launch_bounds__(kThreads) cut_gate(const __grid_constant__ ReluArgs a) {
  each_wanted(
      a, [&](i64 at, int) { return a.relu_up ? relu_of(a.up[at], a.cut) : a.up[at]; },
      [&](i64 at, float up) { return relu_of(a.gate[at], a.cut) * up; });
}

__global__ void __launch_bounds__(kThreads) relu_alone(const __grid_constant__ ReluArgs a) {
  each_wanted(
      a, [&](i64 at, int j) { return a.bias ? a.gate[at] + __ldg(a.bias + j) : a.gate[at]; },
      [&](i64, float up) { return relu_of(up, a.cut); });
}
