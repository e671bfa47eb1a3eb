// What surrounds a matrix product of a library: activations rounded to 16-bit rows before it, and
// what is done to its result after it.
#include "cuda/functions.cuh"
#include "cuda/row_scale.cuh"

constexpr int kThreads = 256;

struct RoundArgs {
  gf_tensor x;    // [c3, c2, m, k] f32, rows dense
  char* to;       // dense rows of T
  float* scales;  // of each row, unless T needs none
};

// blockIdx.x counts rows, blockIdx.y parts of a row; a scaled row has one part. V: 4 where rows and
// addresses allow 16-byte loads, else 1.
template <class T, bool SCALED, int V>
__global__ void __launch_bounds__(kThreads) round_rows(const __grid_constant__ RoundArgs a) {
  const i64 row = blockIdx.x, k = a.x.ne[0];
  const float* const x = reinterpret_cast<const float*>(a.x.row(row));
  T* const to = reinterpret_cast<T*>(a.to) + row * k;
  float inverse = 1.0f;
  if (SCALED) {
    float largest = 0.0f;
    for (i64 i = threadIdx.x * V; i < k; i += kThreads * V) {
      const Pack<float, V> p = load_pack(reinterpret_cast<const Pack<float, V>*>(x + i));
#pragma unroll
      for (int j = 0; j < V; ++j) largest = fmaxf(largest, fabsf(p.v[j]));
    }
    const float scale = scale_of(block_reduce(largest, Max()));
    if (threadIdx.x == 0) a.scales[row] = scale;
    inverse = 1.0f / scale;
  }
  const i64 step = (i64)gridDim.y * kThreads * V;
  for (i64 i = ((i64)blockIdx.y * kThreads + threadIdx.x) * V; i < k; i += step) {
    const Pack<float, V> p = load_pack(reinterpret_cast<const Pack<float, V>*>(x + i));
    Pack<T, V> y;
    if constexpr (V == 1) {
      y.v[0] = Float<T>::from(p.v[0] * inverse);
    } else {
      u32* const words = reinterpret_cast<u32*>(&y);
#pragma unroll
      for (int j = 0; j < V; j += 2) {
        words[j / 2] = Float<T>::pair(p.v[j] * inverse, p.v[j + 1] * inverse);
      }
    }
    *reinterpret_cast<Pack<T, V>*>(to + i) = y;
  }
}

struct FinishArgs {
  gf_tensor dst, r;     // [.., m, n] f32, rows of dst dense; r with dst's lengths, or null
  const float* scales;  // of each row, or null
  i64 added;            // whether dst already contains r
};

// dst = dst * scale + r. A warp a row, or as many parts of it as blockIdx.y counts.
__global__ void __launch_bounds__(kThreads) finish_rows(const __grid_constant__ FinishArgs a) {
  const i64 row = (i64)blockIdx.x * (kThreads / 32) + threadIdx.x / 32, n = a.dst.ne[0];
  if (row >= a.dst.ne[1] * a.dst.ne[2] * a.dst.ne[3]) return;
  const float scale = a.scales ? a.scales[row] : 1.0f;
  if (scale == 1.0f && (a.added || !a.r.data)) return;
  const i64 i1 = row % a.dst.ne[1], q = row / a.dst.ne[1];
  const i64 i2 = q % a.dst.ne[2], i3 = q / a.dst.ne[2];
  float* const y = reinterpret_cast<float*>(a.dst.row(i1, i2, i3));
  const char* const r = a.r.data ? a.r.row(i1, i2, i3) : nullptr;
  for (i64 i = blockIdx.y * 32 + threadIdx.x % 32; i < n; i += 32 * gridDim.y) {
    const float add = r ? *reinterpret_cast<const float*>(r + i * a.r.nb[0]) : 0.0f;
    y[i] = (a.added ? y[i] - add : y[i]) * scale + add;
  }
}

struct GateArgs {
  float* dst;             // dense rows of n
  const char *gate, *up;  // dense rows of T
  const float* scales;    // of each row, or null
  i64 n;
};

// dst = silu(gate * scale) * (up * scale). blockIdx.x counts rows, blockIdx.y runs within them.
// ROUGH: silu as in mul_mat_tma.cu.
template <class T, int V, bool ROUGH>
__global__ void __launch_bounds__(kThreads) gate_rows(const __grid_constant__ GateArgs a) {
  const i64 row = blockIdx.x;
  const float scale = a.scales ? a.scales[row] : 1.0f;
  const i64 step = (i64)gridDim.y * kThreads * V;
  for (i64 i = ((i64)blockIdx.y * kThreads + threadIdx.x) * V; i < a.n; i += step) {
    const i64 at = row * a.n + i;
    const auto g = *reinterpret_cast<const Pack<T, V>*>(reinterpret_cast<const T*>(a.gate) + at);
    const auto u = *reinterpret_cast<const Pack<T, V>*>(reinterpret_cast<const T*>(a.up) + at);
    Pack<float, V> y;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float x = to_f32(g.v[j]) * scale;
      y.v[j] = (ROUGH ? silu().rough(x) : silu()(x)) * (to_f32(u.v[j]) * scale);
    }
    *reinterpret_cast<Pack<float, V>*>(a.dst + at) = y;
  }
}
