// rms_norm, rms_norm_mul, rms_norm_add and layer_norm: one block a row.
//
// A thread has every blockDim.x-th pack of V elements, and keeps the first K of them between the
// passes over the row. Weights are asked for before the kernels that make the row have ended.
#include "cuda/dependent.cuh"

struct NormArgs {
  gf_tensor dst, x, w, b, r;  // w, b and r, which is added, may be null
  int constant;               // whether no kernel writes w and b
  float eps;
};

template <int V>
using Floats = Pack<float, V>;

// A row, or weights of one; null: nothing, for which zeros are read.
template <int V, int K>
struct Part {
  const Floats<V>* at;
  Floats<V> kept[K];

  __device__ __forceinline__ explicit Part(const char* data)
      : at(reinterpret_cast<const Floats<V>*>(data)), kept{} {}
  __device__ __forceinline__ void ask_first(i64 n) {
#pragma unroll
    for (int k = 0; k < K; ++k) {
      const i64 i = threadIdx.x + k * blockDim.x;
      if (at != nullptr && i < n) kept[k] = load_fresh(at + i);
    }
  }
  __device__ __forceinline__ Floats<V> pack(i64 i) const {
    return at != nullptr ? load_fresh(at + i) : Floats<V>{};
  }
};

// f(i, packs i of the parts) for every one of the thread's n packs a row.
template <int V, int K, class F, class... P>
__device__ __forceinline__ void each(i64 n, const F& f, const P&... parts) {
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const i64 i = threadIdx.x + k * blockDim.x;
    if (i < n) f(i, parts.kept[k]...);
  }
  for (i64 i = threadIdx.x + K * blockDim.x; i < n; i += blockDim.x) f(i, parts.pack(i)...);
}

template <int V, int K>
__global__ void __launch_bounds__(1024) rms_norm(const __grid_constant__ NormArgs a) {
  const i64 row = blockIdx.x, n = a.x.ne[0] / V;
  Part<V, K> w(a.w.data), x(a.x.row(row)), r(a.r.data ? a.r.row(row) : nullptr);
  auto* const y = reinterpret_cast<Floats<V>*>(a.dst.row(row));
  if (a.constant) w.ask_first(n);
  begin_dependent();
  x.ask_first(n);
  r.ask_first(n);
  if (!a.constant) w.ask_first(n);
  float sum = 0.0f;
  each<V, K>(
      n,
      [&](i64, const Floats<V>& v) {
#pragma unroll
        for (int k = 0; k < V; ++k) sum += v.v[k] * v.v[k];
      },
      x);
  sum = block_reduce(sum, Add());
  const float scale = 1.0f / sqrtf(sum / (float)a.x.ne[0] + a.eps);
  each<V, K>(
      n,
      [&](i64 i, Floats<V> v, const Floats<V>& by, const Floats<V>& plus) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          v.v[k] *= scale;
          if (w.at != nullptr) v.v[k] *= by.v[k];
          if (r.at != nullptr) v.v[k] += plus.v[k];
        }
        y[i] = v;
      },
      x, w, r);
}

// The squared deviations are added in a second pass, so that nothing cancels.
template <int V, int K>
__global__ void __launch_bounds__(1024) layer_norm(const __grid_constant__ NormArgs a) {
  const i64 row = blockIdx.x, n = a.x.ne[0] / V;
  Part<V, K> w(a.w.data), b(a.b.data), x(a.x.row(row));
  auto* const y = reinterpret_cast<Floats<V>*>(a.dst.row(row));
  if (a.constant) {
    w.ask_first(n);
    b.ask_first(n);
  }
  begin_dependent();
  x.ask_first(n);
  if (!a.constant) {
    w.ask_first(n);
    b.ask_first(n);
  }
  float sum = 0.0f, squares = 0.0f;
  each<V, K>(
      n,
      [&](i64, const Floats<V>& v) {
#pragma unroll
        for (int k = 0; k < V; ++k) sum += v.v[k];
      },
      x);
  const float mean = block_reduce(sum, Add()) / (float)a.x.ne[0];
  each<V, K>(
      n,
      [&](i64, const Floats<V>& v) {
#pragma unroll
        for (int k = 0; k < V; ++k) squares += (v.v[k] - mean) * (v.v[k] - mean);
      },
      x);
  squares = block_reduce(squares, Add());
  const float scale = 1.0f / sqrtf(squares / (float)a.x.ne[0] + a.eps);
  each<V, K>(
      n,
      [&](i64 i, Floats<V> v, const Floats<V>& by, const Floats<V>& plus) {
#pragma unroll
        for (int k = 0; k < V; ++k) {
          v.v[k] = (v.v[k] - mean) * scale;
          if (w.at != nullptr) v.v[k] *= by.v[k];
          if (b.at != nullptr) v.v[k] += plus.v[k];
        }
        y[i] = v;
      },
      x, w, b);
}
