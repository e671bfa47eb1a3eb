// all_reduce: the sum of parts, in their order; of parts that other devices make while this runs,
// too. A device writes its part into the channels of the others (see all_reduce.py), which arrive
// there at the same time as theirs do here, and waits at its own channel. All add in the same
// order, or one adds for all, so that every device has the same bits.
#include "cuda/dependent.cuh"
#include "cuda/peer.cuh"

constexpr int kDevices = 8;           // DEVICES of all_reduce.py
constexpr int kCounters = 256;        // COUNTERS: blocks, at most
constexpr int kBlock = 256;           // BLOCK
constexpr i64 kPieceWords = 1 << 10;  // PIECE, in words of 16 bytes

struct AddArgs {
  const float* parts[kDevices + 1];
  float* to;
  i64 n;
  i32 n_parts;
};

__global__ void __launch_bounds__(kBlock) add_parts(const __grid_constant__ AddArgs a) {
  launch_dependents();
  wait_for_previous();
  for (i64 i = global_thread(); i < a.n; i += global_threads()) {
    float sum = a.parts[0][i];
    for (int p = 1; p < a.n_parts; ++p) sum += a.parts[p][i];
    a.to[i] = sum;
  }
}

// residual: added in the end, or null.
struct ReduceArgs {
  char* channels[kDevices];
  const char* part;
  const char* residual;
  char* to;
  u32* given_up;
  i64 timeout_ns, nbytes;
  i64 room, flags;          // where they begin in a channel
  i64 stride, flag_stride;  // from one device's to the next one's
  u32 code;
  i32 rank, n;
  i32 early;  // whether the next kernel's blocks may come while this one's wait
};

// The number of this exchange. Every block has a counter of its own: a common one could only be
// changed by the last block to end, which all would have to tell that they did. Counters of blocks
// that this exchange has not are set too, so that all stay equal.
__device__ __forceinline__ u32* counters(const ReduceArgs& a) {
  return reinterpret_cast<u32*>(a.channels[a.rank]);
}
__device__ __forceinline__ u32 next_exchange(const ReduceArgs& a) {
  return load_fresh(counters(a) + blockIdx.x) + 1;
}
__device__ __forceinline__ void end_exchange(const ReduceArgs& a, u32 e) {
  __syncthreads();
  const int i = blockIdx.x + threadIdx.x * gridDim.x;
  if (i < kCounters) counters(a)[i] = e;
}

// -- small parts: data with flags
// ------------------------------------------------------------------

// Two numbers, each with the exchange's beside it: what has the right flag is there.
__device__ __forceinline__ float2 wait_for_line(const uint4* from, u32 e, Patience& patience) {
  uint4 w = load_volatile(from);
  while ((w.y != e || w.w != e) && !patience.is_over()) w = load_volatile(from);
  return make_float2(__uint_as_float(w.x), __uint_as_float(w.z));
}

__global__ void __launch_bounds__(kBlock) all_reduce_small(const __grid_constant__ ReduceArgs a) {
  if (a.early) launch_dependents();
  wait_for_previous();
  const u32 e = next_exchange(a);
  const i64 lines = (a.nbytes + 7) / 8;
  const i64 half = a.room + (i64)(e & 1) * a.n * a.stride;
  const float2* const part = reinterpret_cast<const float2*>(a.part);
  for (i64 i = global_thread(); i < lines; i += global_threads()) {
    const float2 v = part[i];
    const uint4 line = make_uint4(__float_as_uint(v.x), e, __float_as_uint(v.y), e);
    for (int k = 1; k < a.n; ++k) {  // not all to the same one at once
      const int peer = (a.rank + k) % a.n;
      char* const room = a.channels[peer] + half + a.rank * a.stride;
      store_volatile(reinterpret_cast<uint4*>(room) + i, line);
    }
  }
  Patience patience(a.given_up, a.timeout_ns, a.code);
  const char* const own = a.channels[a.rank] + half;
  for (i64 i = global_thread(); i < lines; i += global_threads()) {
    float2 r = make_float2(0.0f, 0.0f), sum = r;
    if (a.residual != nullptr) r = reinterpret_cast<const float2*>(a.residual)[i];
    for (int k = 0; k < a.n; ++k) {
      const uint4* const line = reinterpret_cast<const uint4*>(own + k * a.stride) + i;
      const float2 v = k == a.rank ? part[i] : wait_for_line(line, e, patience);
      sum = k == 0 ? v : make_float2(sum.x + v.x, sum.y + v.y);
    }
    if (a.residual != nullptr) sum = make_float2(sum.x + r.x, sum.y + r.y);
    if (2 * i + 1 < a.nbytes / 4) {
      reinterpret_cast<float2*>(a.to)[i] = sum;
    } else {
      reinterpret_cast<float*>(a.to)[2 * i] = sum.x;
    }
  }
  end_exchange(a, e);
}

// -- large parts: pieces with a flag
// ---------------------------------------------------------------

__device__ __forceinline__ float4 floats(uint4 w) {
  return make_float4(__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                     __uint_as_float(w.w));
}
__device__ __forceinline__ uint4 bits(float4 v) {
  return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                    __float_as_uint(v.w));
}
__device__ __forceinline__ float4 plus(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

struct Pieces {
  static constexpr int kTurns = kPieceWords / kBlock;  // words of a thread

  const ReduceArgs& a;
  u32 e;
  Patience patience;

  __device__ Pieces(const ReduceArgs& args, u32 exchange)
      : a(args), e(exchange), patience(args.given_up, args.timeout_ns, args.code) {}

  __device__ i64 half() const { return (i64)(e & 1) * (a.n + 1); }

  // Room k of a device's channel, and the flag of one of its pieces: a part's, or of n what is
  // added up.
  __device__ uint4* room(int device, int k, i64 piece) const {
    char* const at = a.channels[device] + a.room + (half() + k) * a.stride;
    return reinterpret_cast<uint4*>(at) + piece * kPieceWords;
  }
  __device__ u32* flag(int device, int k, i64 piece) const {
    char* const at = a.channels[device] + a.flags + (half() + k) * a.flag_stride;
    return reinterpret_cast<u32*>(at) + piece;
  }

  __device__ int words(i64 piece) const {
    const i64 left = (a.nbytes + 15) / 16 - piece * kPieceWords;
    return (int)(left < kPieceWords ? left : kPieceWords);
  }
  __device__ const uint4* of(const char* memory, i64 piece) const {
    return reinterpret_cast<const uint4*>(memory) + piece * kPieceWords;
  }

  // f(word, turn) for this thread's words of the first n of a piece.
  template <class F>
  static __device__ __forceinline__ void each_word(int n, F f) {
#pragma unroll
    for (int j = 0; j < kTurns; ++j) {
      const int i = threadIdx.x + j * kBlock;
      if (i < n) f(i, j);
    }
  }

  // What all threads of the block have written can be seen over there before the flag.
  __device__ void signal(int device, int k, i64 piece) const {
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence_system();
      store_release(flag(device, k, piece), e);
    }
  }
  __device__ void wait(int k, i64 piece) {
    if (threadIdx.x == 0) {
      const u32* const f = flag(a.rank, k, piece);
      while (load_acquire(f) != e && !patience.is_over()) {
      }
    }
    __syncthreads();
  }

  // A piece of the own part. All of a thread's loads are on their way before its first store.
  __device__ void send(int device, i64 piece) const {
    uint4* const to = room(device, a.rank, piece);
    const uint4* const from = of(a.part, piece);
    const int n = words(piece);
    uint4 v[kTurns];
    each_word(n, [&](int i, int j) { v[j] = from[i]; });
    each_word(n, [&](int i, int j) { to[i] = v[j]; });
    signal(device, a.rank, piece);
  }

  // The sum of a piece, to the result, and as it is to the others if they do not add it up too.
  __device__ void add(i64 piece, bool for_all) const {
    uint4* const to = const_cast<uint4*>(of(a.to, piece));
    const int n = words(piece);
    float4 sum[kTurns];
    for (int k = 0; k < a.n; ++k) {
      const uint4* const from = k == a.rank ? of(a.part, piece) : room(a.rank, k, piece);
      float4 v[kTurns];
      each_word(n, [&](int i, int j) { v[j] = floats(load_volatile(from + i)); });
#pragma unroll
      for (int j = 0; j < kTurns; ++j) sum[j] = k == 0 ? v[j] : plus(sum[j], v[j]);
    }
    for (int k = 1; for_all && k < a.n; ++k) {
      uint4* const there = room((a.rank + k) % a.n, a.n, piece);
      each_word(n, [&](int i, int j) { there[i] = bits(sum[j]); });
    }
    finish(to, piece, sum);
    for (int k = 1; for_all && k < a.n; ++k) signal((a.rank + k) % a.n, a.n, piece);
    __syncthreads();
  }

  // A piece that another device has added up.
  __device__ void take(i64 piece) const {
    const uint4* const from = room(a.rank, a.n, piece);
    float4 sum[kTurns];
    each_word(words(piece), [&](int i, int j) { sum[j] = floats(load_volatile(from + i)); });
    finish(const_cast<uint4*>(of(a.to, piece)), piece, sum);
  }

  __device__ void finish(uint4* to, i64 piece, float4 (&sum)[kTurns]) const {
    const uint4* const residual = of(a.residual, piece);
    const int n = words(piece);
    if (a.residual != nullptr) {
      each_word(n, [&](int i, int j) { sum[j] = plus(sum[j], floats(residual[i])); });
    }
    each_word(n, [&](int i, int j) { to[i] = bits(sum[j]); });
  }
};

// Two devices send each other all they have; a block adds what came of a piece while its next one
// is on the way. More devices would send as much to each: of them one adds each piece for all, and
// sends what it is.
__global__ void __launch_bounds__(kBlock) all_reduce_large(const __grid_constant__ ReduceArgs a) {
  if (a.early) launch_dependents();
  wait_for_previous();
  const u32 e = next_exchange(a);
  Pieces pieces(a, e);
  const i64 n_pieces = ((a.nbytes + 15) / 16 + kPieceWords - 1) / kPieceWords;
  if (a.n == 2) {
    const int other = 1 - a.rank;
    for (i64 p = blockIdx.x; p < n_pieces + gridDim.x; p += gridDim.x) {
      if (p < n_pieces) pieces.send(other, p);
      if (p < gridDim.x) continue;
      pieces.wait(other, p - gridDim.x);
      pieces.add(p - gridDim.x, false);
    }
    return end_exchange(a, e);
  }
  for (i64 p = blockIdx.x; p < n_pieces; p += gridDim.x) {
    if (p % a.n != a.rank) pieces.send((int)(p % a.n), p);
  }
  for (i64 p = blockIdx.x; p < n_pieces; p += gridDim.x) {
    if (p % a.n != a.rank) continue;
    for (int k = 0; k < a.n; ++k) {
      if (k != a.rank) pieces.wait(k, p);
    }
    pieces.add(p, true);
  }
  for (i64 p = blockIdx.x; p < n_pieces; p += gridDim.x) {
    if (p % a.n == a.rank) continue;
    pieces.wait(a.n, p);
    pieces.take(p);
  }
  end_exchange(a, e);
}
