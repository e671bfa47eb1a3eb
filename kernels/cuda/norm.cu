// rms_norm, rms_norm_mul and layer_norm: one block a row.
#include "cuda/common.cuh"

struct NormArgs {
  gf_tensor dst, x, w, b;  // w and b may be null
  float eps;
};

template <int V>
__global__ void __launch_bounds__(1024) rms_norm(const __grid_constant__ NormArgs a) {
  const i64 r = blockIdx.x, n = a.x.ne[0] / V;
  const auto* const x = reinterpret_cast<const Pack<float, V>*>(a.x.row(r));
  auto* const y = reinterpret_cast<Pack<float, V>*>(a.dst.row(r));
  const auto* const w = reinterpret_cast<const Pack<float, V>*>(a.w.data);
  float sum = 0.0f;
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
    const Pack<float, V> v = x[i];
#pragma unroll
    for (int k = 0; k < V; ++k) sum += v.v[k] * v.v[k];
  }
  sum = block_reduce(sum, Add());
  const float scale = 1.0f / sqrtf(sum / (float)a.x.ne[0] + a.eps);
  for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
    Pack<float, V> v = x[i];
#pragma unroll
    for (int k = 0; k < V; ++k) v.v[k] *= scale;
    if (w != nullptr) {
      const Pack<float, V> by = w[i];
#pragma unroll
      for (int k = 0; k < V; ++k) v.v[k] *= by.v[k];
    }
    y[i] = v;
  }
}

// Count, mean and sum of squared deviations of a set of values. Adding one value: Welford 1962;
// joining two sets: Chan, Golub and LeVeque 1979. One pass, and no cancellation.
struct Moments {
  float n, mean, m2;

  __device__ void add(float x) {
    n += 1.0f;
    const float delta = x - mean;
    mean += delta / n;
    m2 += delta * (x - mean);
  }
  __device__ void join(Moments o) {
    const float both = n + o.n;
    if (both == 0.0f) return;
    const float delta = o.mean - mean, share = o.n / both;
    mean += delta * share;
    m2 += o.m2 + delta * delta * n * share;
    n = both;
  }
};

// Lane 0 gets the moments of the warp.
__device__ Moments warp_join(Moments m) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    m.join({__shfl_down_sync(kAllLanes, m.n, step), __shfl_down_sync(kAllLanes, m.mean, step),
            __shfl_down_sync(kAllLanes, m.m2, step)});
  }
  return m;
}

__global__ void __launch_bounds__(1024) layer_norm(const __grid_constant__ NormArgs a) {
  __shared__ float shared[3][32];
  const i64 r = blockIdx.x, d = a.x.ne[0];
  const float* const x = reinterpret_cast<const float*>(a.x.row(r));
  float* const y = reinterpret_cast<float*>(a.dst.row(r));
  const float* const w = reinterpret_cast<const float*>(a.w.data);
  const float* const b = reinterpret_cast<const float*>(a.b.data);
  Moments m = {0.0f, 0.0f, 0.0f};
  for (i64 i = threadIdx.x; i < d; i += blockDim.x) m.add(x[i]);
  m = warp_join(m);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (lane == 0) {
    shared[0][warp] = m.n;
    shared[1][warp] = m.mean;
    shared[2][warp] = m.m2;
  }
  __syncthreads();
  if (warp == 0) {
    const bool there = lane < blockDim.x / 32;
    m = {there ? shared[0][lane] : 0.0f, there ? shared[1][lane] : 0.0f,
         there ? shared[2][lane] : 0.0f};
    m = warp_join(m);
    __syncwarp();
    if (lane == 0) {
      shared[1][0] = m.mean;
      shared[2][0] = m.m2;
    }
  }
  __syncthreads();
  const float mean = shared[1][0], scale = 1.0f / sqrtf(shared[2][0] / (float)d + a.eps);
  for (i64 i = threadIdx.x; i < d; i += blockDim.x) {
    float v = (x[i] - mean) * scale;
    if (w != nullptr) v *= w[i];
    if (b != nullptr) v += b[i];
    y[i] = v;
  }
}
