// all_reduce_norm: a sum of several devices' parts on a residual whose rows they share, and its
// norm. A device sends the others what it has of the sums of their rows, adds up its own, and sends
// them the norms of these, rounded to what the next products want. What crosses says by itself that
// it is there (sent_words.cuh), so the first rows are being normed while the last are on their way.
#include "cuda/all_reduce.cuh"
#include "cuda/row_scale.cuh"

constexpr int kNormBlock = 1024;

// [m, d] rows on this device. Of the residual it has those from bounds[rank] to bounds[rank + 1].
struct RowsArgs {
  const float* parts[kDevices];      // all, where they are on this device; else its own alone
  const float* residuals[kDevices];  // likewise
  const float* w;                    // of the norm, or null: none
  char* to;                          // the norms of all rows, as T, or what is added up
  float* scales;                     // of each row, where T needs them
  float* own;                        // what is added up of the own rows, if there is a norm
  i32 bounds[kDevices + 1];
  i32 rank, n, d;
  float eps;
};

struct ExchangeArgs {
  RowsArgs rows;
  char* channels[kDevices];
  u32* given_up;
  i64 timeout_ns;
  i64 sums, norms;                // where their rooms begin in a channel
  i64 sums_stride, norms_stride;  // from one device's to the next one's
  i64 norm_bytes;                 // of a row among norms
  u32 code;
  i32 most;   // rows of the largest share
  i32 early;  // whether the next kernel's blocks may come while this one's wait
};

// -- a row, four elements a word, of which a thread of B has W
// -------------------------------------

// The sum of a row's squares in the order of norm.cu, whose block has a thread for every word of a
// row of up to 4096 elements: this one stands for several of them.
template <int B, int W>
__device__ __forceinline__ float sum_of_squares(const float4 (&x)[W], int d) {
  constexpr int kEach = kNormBlock / B;
  __shared__ float partial[32];
  float sum[kEach] = {};
  each_word<B, W>(d / 4, [&](int, int j) {
    float& s = sum[j % kEach];
    s += x[j].x * x[j].x;
    s += x[j].y * x[j].y;
    s += x[j].z * x[j].z;
    s += x[j].w * x[j].w;
  });
  __syncthreads();  // `partial` may still be read for the row before
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const float of_warp = warp_reduce(sum[j], Add());
    if (threadIdx.x % 32 == 0) partial[j * (B / 32) + threadIdx.x / 32] = of_warp;
  }
  __syncthreads();
  return warp_reduce(partial[threadIdx.x % 32], Add());
}

template <int B, int W>
__device__ __forceinline__ void norm(const RowsArgs& a, float4 (&x)[W]) {
  const float scale = 1.0f / sqrtf(sum_of_squares<B, W>(x, a.d) / (float)a.d + a.eps);
  each_word<B, W>(a.d / 4, [&](int i, int j) {
    const float4 w = __ldg(reinterpret_cast<const float4*>(a.w) + i);
    x[j] = make_float4(x[j].x * scale, x[j].y * scale, x[j].z * scale, x[j].w * scale);
    x[j] = make_float4(x[j].x * w.x, x[j].y * w.y, x[j].z * w.z, x[j].w * w.w);
  });
}

// -- four elements as T
// ----------------------------------------------------------------------------

template <class T>
struct Rounded {
  using Word = uint2;
  static __device__ __forceinline__ Word from(float4 v) {
    return make_uint2(Float<T>::pair(v.x, v.y), Float<T>::pair(v.z, v.w));
  }
};
template <>
struct Rounded<f32> {
  using Word = uint4;
  static __device__ __forceinline__ Word from(float4 v) {
    return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                      __float_as_uint(v.w));
  }
};

// The scale of a row that becomes f16; 1 for other types.
template <class T, int B, int W>
__device__ __forceinline__ float row_scale(const float4 (&x)[W], int d) {
  if constexpr (!is_same<T, f16>::value) return 1.0f;
  float largest = 0.0f;
  each_word<B, W>(d / 4, [&](int, int j) {
    largest = fmaxf(fmaxf(largest, fabsf(x[j].x)), fabsf(x[j].y));
    largest = fmaxf(fmaxf(largest, fabsf(x[j].z)), fabsf(x[j].w));
  });
  return scale_of(block_reduce(largest, Max()));
}

// -- exchanges
// -------------------------------------------------------------------------------------

template <int B, int W>
struct Exchange {
  const ExchangeArgs& a;
  i64 half;  // of the rooms: two exchanges use them in turn
  Patience patience;

  __device__ Exchange(const ExchangeArgs& args, u32 e)
      : a(args),
        half((i64)(e & 1) * args.rows.n),
        patience(args.given_up, args.timeout_ns, args.code) {}

  // Room for row i of what `from` sends to `device`.
  __device__ uint4* sums(int device, int from, int i) const {
    char* const at = a.channels[device] + a.sums + (half + from) * a.sums_stride;
    return reinterpret_cast<uint4*>(at) + (i64)i * (a.rows.d / 4);
  }
  template <class Word>
  __device__ Word* norms(int device, int from, int i) const {
    char* const at = a.channels[device] + a.norms + (half + from) * a.norms_stride;
    return reinterpret_cast<Word*>(at + i * a.norm_bytes);
  }
  // Behind the elements of such a row: its scale.
  template <class Word>
  __device__ u32* scale_of_norm(int device, int from, int i) const {
    return reinterpret_cast<u32*>(norms<Word>(device, from, i) + a.rows.d / 4);
  }

  __device__ int rows_of(int device) const {
    return a.rows.bounds[device + 1] - a.rows.bounds[device];
  }

  template <class Word>
  __device__ __forceinline__ void take(Word* from, Word (&v)[W]) {
    take_words<B, W>(from, a.rows.d / 4, v, patience);
  }

  // Row i of every other device's share, of the own part.
  __device__ __forceinline__ void send_parts(int i) const {
    for (int k = 1; k < a.rows.n; ++k) {  // not all to the same one at once
      const int peer = (a.rows.rank + k) % a.rows.n;
      if (i >= rows_of(peer)) continue;
      const i64 row = a.rows.bounds[peer] + i;
      const uint4* const from =
          reinterpret_cast<const uint4*>(a.rows.parts[a.rows.rank] + row * a.rows.d);
      uint4* const to = sums(peer, a.rows.rank, i);
      uint4 v[W];
      each_word<B, W>(a.rows.d / 4, [&](int at, int j) { v[j] = load_fresh(from + at); });
      each_word<B, W>(a.rows.d / 4, [&](int at, int j) { store_volatile(to + at, sent(v[j])); });
    }
  }

  // Row i of the own share: the sum, and its norm or itself to everybody.
  template <class T>
  __device__ __forceinline__ void add(int i) {
    using Word = typename Rounded<T>::Word;
    const RowsArgs& rows = a.rows;
    const i64 row = rows.bounds[rows.rank] + i;
    const auto mine = reinterpret_cast<const float4*>(rows.parts[rows.rank] + row * rows.d);
    const auto r = reinterpret_cast<const float4*>(rows.residuals[rows.rank] + (i64)i * rows.d);
    float4 plus_r[W], part[W], x[W];
    each_word<B, W>(rows.d / 4, [&](int at, int j) {
      plus_r[j] = load_fresh(r + at);
      part[j] = load_fresh(mine + at);
    });
    for (int k = 0; k < rows.n; ++k) {
      uint4 v[W];
      if (k != rows.rank) take(sums(rows.rank, k, i), v);
      each_word<B, W>(rows.d / 4, [&](int at, int j) {
        float4 y = make_float4(__uint_as_float(v[j].x), __uint_as_float(v[j].y),
                               __uint_as_float(v[j].z), __uint_as_float(v[j].w));
        if (k == rows.rank) y = part[j];
        x[j] = k == 0 ? y : plus(x[j], y);
      });
    }
    each_word<B, W>(rows.d / 4, [&](int, int j) { x[j] = plus(x[j], plus_r[j]); });
    if (rows.w != nullptr) {
      float4* const own = reinterpret_cast<float4*>(rows.own + (i64)i * rows.d);
      each_word<B, W>(rows.d / 4, [&](int at, int j) { own[at] = x[j]; });
      norm<B, W>(rows, x);
    }
    const float scale = row_scale<T, B, W>(x, rows.d), inverse = 1.0f / scale;
    Word* const to = reinterpret_cast<Word*>(rows.to) + row * (rows.d / 4);
    Word y[W];
    each_word<B, W>(rows.d / 4, [&](int, int j) {
      y[j] = Rounded<T>::from(
          make_float4(x[j].x * inverse, x[j].y * inverse, x[j].z * inverse, x[j].w * inverse));
    });
    for (int k = 1; k < rows.n; ++k) {
      const int peer = (rows.rank + k) % rows.n;
      Word* const there = norms<Word>(peer, rows.rank, i);
      each_word<B, W>(rows.d / 4, [&](int at, int j) { store_volatile(there + at, sent(y[j])); });
      if (is_same<T, f16>::value && threadIdx.x == 0) {
        store_volatile(scale_of_norm<Word>(peer, rows.rank, i), sent(__float_as_uint(scale)));
      }
    }
    each_word<B, W>(rows.d / 4, [&](int at, int j) { to[at] = y[j]; });
    if (is_same<T, f16>::value && threadIdx.x == 0) rows.scales[row] = scale;
  }

  // Row i of every other share, from whoever added it up.
  template <class T>
  __device__ __forceinline__ void collect(int i) {
    using Word = typename Rounded<T>::Word;
    const RowsArgs& rows = a.rows;
    for (int k = 1; k < rows.n; ++k) {
      const int peer = (rows.rank + k) % rows.n;
      if (i >= rows_of(peer)) continue;
      const i64 row = rows.bounds[peer] + i;
      Word v[W];
      take(norms<Word>(rows.rank, peer, i), v);
      Word* const to = reinterpret_cast<Word*>(rows.to) + row * (rows.d / 4);
      each_word<B, W>(rows.d / 4, [&](int at, int j) { to[at] = v[j]; });
      if (is_same<T, f16>::value && threadIdx.x == 0) {
        u32* const from = scale_of_norm<Word>(rows.rank, peer, i);
        u32 bits;
        while ((bits = load_volatile(from)) == 0 && !patience.is_over()) {
        }
        *from = 0;
        rows.scales[row] = __uint_as_float(~bits);
      }
    }
  }
};

// A block has every gridDim.x-th row of each share, on every device the same: it waits for nothing
// but what blocks of its own number send, each before it waits for as much itself.
template <class T, int B, int W>
__global__ void __launch_bounds__(B) all_reduce_norm(const __grid_constant__ ExchangeArgs a) {
  if (a.early) launch_dependents();
  wait_for_previous();
  u32* const counters = reinterpret_cast<u32*>(a.channels[a.rows.rank]);
  const u32 e = load_fresh(counters + blockIdx.x) + 1;
  Exchange<B, W> exchange(a, e);
  const int own = exchange.rows_of(a.rows.rank), step = gridDim.x;
  int i = blockIdx.x;
  exchange.send_parts(i);
  for (; i < a.most; i += step) {
    if (i + step < a.most) exchange.send_parts(i + step);
    if (i < own) exchange.template add<T>(i);
    if (i >= step) exchange.template collect<T>(i - step);
  }
  exchange.template collect<T>(i - step);
  // Counters of blocks that this exchange has not are set too, so that all stay equal.
  __syncthreads();
  const int c = blockIdx.x + threadIdx.x * gridDim.x;
  if (c < kCounters) counters[c] = e;
}

// All parts and all of the residual on this device. A block a row.
template <int B, int W>
__global__ void __launch_bounds__(B) add_norm(const __grid_constant__ RowsArgs a) {
  const int row = blockIdx.x;
  float4 x[W];
  begin_dependent();
  int k = 0;
  while (row >= a.bounds[k + 1]) ++k;
  const float* const r = a.residuals[k] + (i64)(row - a.bounds[k]) * a.d;
  each_word<B, W>(a.d / 4, [&](int i, int j) {
    for (int p = 0; p < a.n; ++p) {
      const float4 v = load_fresh(reinterpret_cast<const float4*>(a.parts[p] + (i64)row * a.d) + i);
      x[j] = p == 0 ? v : plus(x[j], v);
    }
    x[j] = plus(x[j], load_fresh(reinterpret_cast<const float4*>(r) + i));
    if (a.w != nullptr && k == a.rank) {
      reinterpret_cast<float4*>(a.own + (i64)(row - a.bounds[k]) * a.d)[i] = x[j];
    }
  });
  if (a.w != nullptr) norm<B, W>(a, x);
  each_word<B, W>(a.d / 4, [&](int i, int j) {
    reinterpret_cast<float4*>(a.to + (i64)row * a.d * 4)[i] = x[j];
  });
}
