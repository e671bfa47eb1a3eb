// sum, mean, max and argmax along any dimension, without atomics: how many threads share a result,
// and in which order they accumulate it, follows from the length of the dimension alone.
//
// Dimensions too long for one block are cut into slices (the grid's y); `reduce_slices` then joins
// the partial results.
#include "cuda/common.cuh"

struct ReduceArgs {
  gf_tensor dst, x;  // dst has length one along the reduced dimension, which is last in x.ne
  char* partial;     // [results][slices] states, when there are several slices
  i64 n;             // length of the reduced dimension
  i64 step;          // bytes between its elements
  i64 slice;         // elements of it a block takes, a multiple of 4
  i64 results;
  FastDiv by[3];  // dst.ne
};

struct sum_ {
  typedef float State;
  typedef float Out;
  static __device__ __forceinline__ State start(i32) { return 0.0f; }
  static __device__ __forceinline__ void take(State& s, float x, i32) { s += x; }
  static __device__ __forceinline__ State join(State a, State b) { return a + b; }
  static __device__ __forceinline__ State shuffle(State a, int step) {
    return __shfl_xor_sync(kAllLanes, a, step);
  }
  static __device__ __forceinline__ Out result(State a, i64) { return a; }
};
struct mean_ : sum_ {
  static __device__ __forceinline__ Out result(State a, i64 n) { return a / (float)n; }
};
struct max_ : sum_ {  // fmaxf takes the number of a number and a NaN
  static __device__ __forceinline__ State start(i32) { return -infinity(); }
  static __device__ __forceinline__ void take(State& s, float x, i32) { s = fmaxf(s, x); }
  static __device__ __forceinline__ State join(State a, State b) { return fmaxf(a, b); }
};
// The first of the largest. A state starts with the first index it may meet, so that the answer is
// an index also where no element is larger than -infinity.
struct argmax_ {
  struct State {
    float value;
    i32 index;
  };
  typedef i32 Out;
  static __device__ __forceinline__ State start(i32 first) { return {-infinity(), first}; }
  static __device__ __forceinline__ void take(State& s, float x, i32 k) {
    if (x > s.value) s = {x, k};
  }
  static __device__ __forceinline__ State join(State a, State b) {
    const bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
    return second ? b : a;
  }
  static __device__ __forceinline__ State shuffle(State a, int step) {
    return {__shfl_xor_sync(kAllLanes, a.value, step), __shfl_xor_sync(kAllLanes, a.index, step)};
  }
  static __device__ __forceinline__ Out result(State a, i64) { return a.index; }
};

// Byte offset of result o in a tensor without its reduced dimension.
__device__ __forceinline__ i64 offset(const ReduceArgs& a, const gf_tensor& t, i64 o) {
  const bool wide = a.results > 0x7FFFFFFF;
  const Index at = wide ? unravel<true>(o, a.dst.ne, a.by) : unravel<false>(o, a.dst.ne, a.by);
  return at.i0 * t.nb[0] + at.i1 * t.nb[1] + at.i2 * t.nb[2];
}

template <class R>
__device__ __forceinline__ void put(const ReduceArgs& a, i64 o, typename R::State s) {
  *reinterpret_cast<typename R::Out*>(a.dst.data + offset(a, a.dst, o)) = R::result(s, a.n);
}

// The result, or the partial one of a slice.
template <class R>
__device__ __forceinline__ void finish(const ReduceArgs& a, i64 o, typename R::State s) {
  if (gridDim.y == 1) {
    put<R>(a, o, s);
  } else {
    reinterpret_cast<typename R::State*>(a.partial)[o * gridDim.y + blockIdx.y] = s;
  }
}

// Of a group of T lanes; all of them get it.
template <class R, int T>
__device__ __forceinline__ typename R::State join_lanes(typename R::State s) {
#pragma unroll
  for (int step = T / 2; step > 0; step /= 2) s = R::join(s, R::shuffle(s, step));
  return s;
}

// T threads a result, for a dimension whose elements are neighbours in memory. Thread t takes four
// elements in a row, then those 4 T later, each of the four into a state of its own. PACKED: they
// are read at once; the order is the same without.
template <class R, int T, bool PACKED>
__global__ void __launch_bounds__(larger(T, 256))
    reduce_rows(const __grid_constant__ ReduceArgs a) {
  typedef typename R::State State;
  constexpr int BLOCK = larger(T, 256);
  constexpr int AHEAD = !PACKED || T == 1 ? 2 : 4;  // reads under way
  const i64 o = (i64)blockIdx.x * (BLOCK / T) + threadIdx.x / T;
  const int t = threadIdx.x % T;
  const i64 begin = blockIdx.y * a.slice, left = a.n - begin;
  const int n = (int)(left < a.slice ? left : a.slice), packs = n / 4;
  const int first = (int)begin + 4 * t;
  State s[4] = {R::start(first), R::start(first + 1), R::start(first + 2), R::start(first + 3)};
  if (o < a.results) {
    const char* const x = a.x.data + offset(a, a.x, o) + begin * a.step;
    for (int p = t; p < packs; p += AHEAD * T) {
      Pack<float, 4> v[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        const int at = p + u * T;
        if (at >= packs) continue;
        if constexpr (PACKED) {
          v[u] = load_pack(reinterpret_cast<const Pack<float, 4>*>(x) + at);
        } else {
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            v[u].v[k] = *reinterpret_cast<const float*>(x + (i64)(4 * at + k) * a.step);
          }
        }
      }
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        const int at = p + u * T;
        if (at >= packs) continue;
#pragma unroll
        for (int k = 0; k < 4; ++k) R::take(s[k], v[u].v[k], (int)begin + 4 * at + k);
      }
    }
    if (packs % T == t) {  // up to three elements are left
#pragma unroll
      for (int k = 0; k < 3; ++k) {
        const int at = 4 * packs + k;
        if (at < n) {
          R::take(s[k], *reinterpret_cast<const float*>(x + at * a.step), (int)begin + at);
        }
      }
    }
  }
  State all = join_lanes<R, (T < 32 ? T : 32)>(R::join(R::join(s[0], s[1]), R::join(s[2], s[3])));
  if constexpr (T > 32) {
    __shared__ State of_warp[BLOCK / 32];
    if (t % 32 == 0) of_warp[threadIdx.x / 32] = all;
    __syncthreads();
    if (t >= 32) return;
    all = join_lanes<R, T / 32>(of_warp[threadIdx.x / T * (T / 32) + t % (T / 32)]);
  }
  if (t == 0 && o < a.results) finish<R>(a, o, all);
}

// X neighbouring results a block and Y threads a result, for a dimension whose elements lie apart
// while results are neighbours in memory. Thread y takes elements y, y + Y, ...
template <class R, int X, int Y>
__global__ void __launch_bounds__(X* Y, X* Y == 1024 ? 2 : 1)
    reduce_columns(const __grid_constant__ ReduceArgs a) {
  typedef typename R::State State;
  const i64 o = (i64)blockIdx.x * X + threadIdx.x;
  const int y = threadIdx.y;
  const i64 begin = blockIdx.y * a.slice, left = a.n - begin;
  const int n = (int)(left < a.slice ? left : a.slice);
  State s = R::start((int)begin + y);
  if (o < a.results) {
    const char* x = a.x.data + offset(a, a.x, o) + (begin + y) * a.step;
    const i64 step = Y * a.step;
#pragma unroll 8
    for (int k = y; k < n; k += Y, x += step) {
      R::take(s, *reinterpret_cast<const float*>(x), (int)begin + k);
    }
  }
  if constexpr (Y > 1) {
    __shared__ State of_thread[Y][X + 1];
    of_thread[y][threadIdx.x] = s;
    __syncthreads();
    if (y != 0) return;
#pragma unroll
    for (int w = 1; w < Y; ++w) s = R::join(s, of_thread[w][threadIdx.x]);
  }
  if (o < a.results) finish<R>(a, o, s);
}

// One warp a result; `slice` is the number of slices.
template <class R>
__global__ void __launch_bounds__(128) reduce_slices(const __grid_constant__ ReduceArgs a) {
  const i64 o = (i64)blockIdx.x * 4 + threadIdx.x / 32;
  if (o >= a.results) return;
  const auto* const partial = reinterpret_cast<typename R::State*>(a.partial) + o * a.slice;
  typename R::State s = R::start(0x7FFFFFFF);
  for (i64 k = threadIdx.x % 32; k < a.slice; k += 32) s = R::join(s, partial[k]);
  s = join_lanes<R, 32>(s);
  if (threadIdx.x % 32 == 0) put<R>(a, o, s);
}
