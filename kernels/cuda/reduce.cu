// sum, mean, max and argmax along any dimension, without atomics: every result is accumulated in
// one fixed order.
#include "cuda/common.cuh"

struct ReduceArgs {
  gf_tensor dst, x;  // dst has length one along the reduced dimension, which is last in x.ne
  i64 n;             // length of the reduced dimension
  i64 step;          // bytes between its elements
  i64 results;
};

// A value and where it was found; Best<true> keeps the index of the first largest.
struct Found {
  float value;
  i64 index;
};

struct sum_ {
  typedef float Out;
  static __device__ Found start() { return {0.0f, 0}; }
  static __device__ Found join(Found a, Found b) { return {a.value + b.value, 0}; }
  static __device__ float result(Found a, i64) { return a.value; }
};
struct mean_ : sum_ {
  static __device__ float result(Found a, i64 n) { return a.value / (float)n; }
};
struct max_ {
  typedef float Out;
  static __device__ Found start() { return {-infinity(), 0x7FFFFFFFFFFFFFFFll}; }
  static __device__ Found join(Found a, Found b) {
    if (a.value != b.value) return a.value > b.value ? a : b;
    return a.index <= b.index ? a : b;
  }
  static __device__ float result(Found a, i64) { return a.value; }
};
struct argmax_ : max_ {
  typedef i32 Out;
  static __device__ i32 result(Found a, i64) { return (i32)a.index; }
};

__device__ __forceinline__ Found shuffle(Found a, int step) {
  return {__shfl_xor_sync(kAllLanes, a.value, step), __shfl_xor_sync(kAllLanes, a.index, step)};
}

template <class R>
__device__ __forceinline__ void put(const ReduceArgs& a, i64 i0, i64 i1, i64 i2, Found f) {
  *reinterpret_cast<typename R::Out*>(a.dst.row(i1, i2, 0) + i0 * a.dst.nb[0]) = R::result(f, a.n);
}

// One block a result: for the innermost dimension, where neighbours in memory are reduced.
template <class R>
__global__ void __launch_bounds__(256) reduce_rows(const __grid_constant__ ReduceArgs a) {
  __shared__ float values[8];
  __shared__ i64 indices[8];
  const i64 i0 = blockIdx.x % a.dst.ne[0], q = blockIdx.x / a.dst.ne[0];
  const i64 i1 = q % a.dst.ne[1], i2 = q / a.dst.ne[1];
  const char* const x = a.x.row(i1, i2, 0) + i0 * a.x.nb[0];
  Found f = R::start();
  for (i64 k = threadIdx.x; k < a.n; k += blockDim.x) {
    f = R::join(f, {*reinterpret_cast<const float*>(x + k * a.step), k});
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) f = R::join(f, shuffle(f, step));
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = f.value;
    indices[threadIdx.x / 32] = f.index;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < blockDim.x / 32; ++w) f = R::join(f, {values[w], indices[w]});
  put<R>(a, i0, i1, i2, f);
}

// 32 results a block, eight threads a result: for the other dimensions, where neighbours in memory
// belong to different results.
template <class R>
__global__ void __launch_bounds__(256) reduce_columns(const __grid_constant__ ReduceArgs a) {
  __shared__ float values[8][33];
  __shared__ i64 indices[8][33];
  const i64 o = (i64)blockIdx.x * 32 + threadIdx.x;
  const i64 i0 = o % a.dst.ne[0], q = o / a.dst.ne[0];
  const i64 i1 = q % a.dst.ne[1], i2 = q / a.dst.ne[1];
  Found f = R::start();
  if (o < a.results) {
    const char* const x = a.x.row(i1, i2, 0) + i0 * a.x.nb[0];
    for (i64 k = threadIdx.y; k < a.n; k += 8) {
      f = R::join(f, {*reinterpret_cast<const float*>(x + k * a.step), k});
    }
  }
  values[threadIdx.y][threadIdx.x] = f.value;
  indices[threadIdx.y][threadIdx.x] = f.index;
  __syncthreads();
  if (threadIdx.y != 0 || o >= a.results) return;
  for (int w = 1; w < 8; ++w) f = R::join(f, {values[w][threadIdx.x], indices[w][threadIdx.x]});
  put<R>(a, i0, i1, i2, f);
}
