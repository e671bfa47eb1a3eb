// all_reduce_add of two devices' parts, and its norm as the next products round it first: rows of
// 16 bits, with a scale each. So these need no launch of their own. The sums have the bits of
// all_reduce.cu, the norms those of columns_round.cu.
#include "cuda/all_reduce.cuh"
#include "cuda/float_columns.cuh"

constexpr int kMostChunks = 32;  // a row has at most 8192 elements

// [m, d] rows. to, scales: the norms, which weights are for; no scales if T needs none.
struct RoundedArgs {
  ReduceArgs reduce;
  const float* weights;
  char* to;
  float* scales;
  float eps;
  i32 m, d;
};

// A block has whole rows; a thread R times eight neighbouring elements of one, two words each.
template <class T, bool SCALED, int B, int R>
struct Rows {
  const RoundedArgs& a;
  const ReduceArgs& reduce;
  i64 half;  // of the rooms: two exchanges use them in turn
  Patience patience;

  __device__ Rows(const RoundedArgs& args, u32 e)
      : a(args),
        reduce(args.reduce),
        half((i64)(e & 1) * (args.reduce.n + 1)),
        patience(args.reduce.given_up, args.reduce.timeout_ns, args.reduce.code) {}

  // Where a device's channel has room for what `from` sends of a row.
  __device__ uint4* room(int device, int from, int row) const {
    char* const at = reduce.channels[device] + reduce.room + (half + from) * reduce.stride;
    return reinterpret_cast<uint4*>(at) + (i64)row * (a.d / 4);
  }
  __device__ const uint4* of(const char* memory, int row) const {
    return reinterpret_cast<const uint4*>(memory) + (i64)row * (a.d / 4);
  }
  // f(word, which of the thread's).
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int j = 0; j < 2 * R; ++j) {
      const int i = j / 2 * B + threadIdx.x;
      if (i < a.d / 8) f(2 * i + j % 2, j);
    }
  }

  // Neighbouring threads send neighbouring words: what crosses goes in whole lines.
  __device__ __forceinline__ void send(int row) const {
    uint4* const to = room(1 - reduce.rank, reduce.rank, row);
    const uint4* const from = of(reduce.part, row);
    uint4 v[2 * R];
    each_word<B, 2 * R>(a.d / 4, [&](int i, int j) { v[j] = load_fresh(from + i); });
    each_word<B, 2 * R>(a.d / 4, [&](int i, int j) { store_volatile(to + i, sent(v[j])); });
  }

  // The other device's part, once all of the thread's words are there; zeros are put back.
  __device__ __forceinline__ void take(int row, uint4 (&v)[2 * R]) {
    uint4* const from = room(reduce.rank, 1 - reduce.rank, row);
    bool all = false;
    while (!all && !patience.over) {
      all = true;
      each([&](int i, int j) { v[j] = load_volatile(from + i); });
      each([&](int, int j) { all = is_there(v[j]) && all; });
      if (!all) patience.is_over();
    }
    each([&](int i, int j) {
      from[i] = uint4{};
      v[j] = taken(v[j]);
    });
  }

  __device__ __forceinline__ void add(int row) {
    float4 own[2 * R], x[2 * R], by[2 * R] = {};
    uint4 other[2 * R];
    const uint4* const part = of(reduce.part, row);
    const uint4* const residual = of(reduce.residual, row);
    each([&](int i, int j) {
      own[j] = floats(load_fresh(part + i));
      x[j] = floats(load_fresh(residual + i));
      by[j] = __ldg(reinterpret_cast<const float4*>(a.weights) + i);
    });
    take(row, other);
    float4* const to = const_cast<float4*>(reinterpret_cast<const float4*>(of(reduce.to, row)));
    each([&](int i, int j) {
      const float4 v = floats(other[j]);
      x[j] = plus(reduce.rank == 0 ? plus(own[j], v) : plus(v, own[j]), x[j]);
      to[i] = x[j];
    });
    round(row, x, by);
  }

  __device__ __forceinline__ void round(int row, float4 (&x)[2 * R], const float4 (&by)[2 * R]) {
    __shared__ float squares[kMostChunks];
    const int chunks = (a.d + kSquaresChunk - 1) / kSquaresChunk;
    float largest = 0.0f;
    __syncthreads();  // `squares` may still be read for the row before
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const bool is_there = r * B + threadIdx.x < a.d / 8;
      float sum = is_there ? add_squares(x[2 * r + 1], add_squares(x[2 * r], 0.0f)) : 0.0f;
      sum = warp_reduce(sum, Add());
      const int chunk = (r * B + threadIdx.x) / 32;
      if (threadIdx.x % 32 == 0 && chunk < chunks) squares[chunk] = sum;
    }
    each([&](int, int j) {
      x[j] = times(x[j], by[j]);
      largest = fmaxf(largest, largest_of(x[j]));
    });
    __syncthreads();
    float scale = float_norm_scale(sum_of_chunks(squares, chunks), a.d, a.eps);
    if (SCALED) {
      const float power = power_of(block_reduce(largest, Max()) * scale);
      if (threadIdx.x == 0) a.scales[row] = power;
      scale *= 1.0f / power;
    }
    uint2* const to = reinterpret_cast<uint2*>(a.to) + (i64)row * (a.d / 4);
    each([&](int i, int j) {
      const float4 y = times(x[j], scale);
      to[i] = {Float<T>::pair(y.x, y.y), Float<T>::pair(y.z, y.w)};
    });
  }
};

template <class T, bool SCALED, int B, int R>
__global__ void __launch_bounds__(B) all_reduce_rounded(const __grid_constant__ RoundedArgs a) {
  if (a.reduce.early) launch_dependents();
  wait_for_previous();
  const u32 e = next_exchange(a.reduce);
  Rows<T, SCALED, B, R> rows(a, e);
  const int step = gridDim.x;
  for (int row = blockIdx.x; row < a.m + step; row += step) {
    if (row < a.m) rows.send(row);
    if (row >= step) rows.add(row - step);
  }
  end_exchange(a.reduce, e);
}
