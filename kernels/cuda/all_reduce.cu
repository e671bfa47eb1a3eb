// all_reduce: the sum of parts, in their order; of parts that other devices make while this runs,
// too. A device writes its part into the channels of the others (see all_reduce.py), which arrive
// there at the same time as theirs do here, and waits at its own channel. All add in the same
// order, or one adds for all, so that every device has the same bits.
#include "cuda/all_reduce.cuh"

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

// -- large parts: pieces of words that say that they are there
// -------------------------------------

__device__ __forceinline__ uint4 bits(float4 v) {
  return make_uint4(__float_as_uint(v.x), __float_as_uint(v.y), __float_as_uint(v.z),
                    __float_as_uint(v.w));
}
// A thread has the same words of a piece on every device: it waits for no other one of its block.
struct Pieces {
  static constexpr int kTurns = kPieceWords / kBlock;  // words of a thread

  const ReduceArgs& a;
  u32 e;
  Patience patience;

  __device__ Pieces(const ReduceArgs& args, u32 exchange)
      : a(args), e(exchange), patience(args.given_up, args.timeout_ns, args.code) {}

  // Room k of a device's channel: a part's, or of n what is added up.
  __device__ uint4* room(int device, int k, i64 piece) const {
    char* const at = a.channels[device] + a.room + ((i64)(e & 1) * (a.n + 1) + k) * a.stride;
    return reinterpret_cast<uint4*>(at) + piece * kPieceWords;
  }
  __device__ int words(i64 piece) const {
    const i64 left = (a.nbytes + 15) / 16 - piece * kPieceWords;
    return (int)(left < kPieceWords ? left : kPieceWords);
  }
  __device__ const uint4* of(const char* memory, i64 piece) const {
    return reinterpret_cast<const uint4*>(memory) + piece * kPieceWords;
  }
  template <class F>
  __device__ __forceinline__ void each(i64 piece, F f) const {
    each_word<kBlock, kTurns>(words(piece), f);
  }

  // A piece of the own part. All of a thread's loads are on their way before its first store.
  __device__ void send(int device, i64 piece) const {
    uint4* const to = room(device, a.rank, piece);
    const uint4* const from = of(a.part, piece);
    uint4 v[kTurns];
    each(piece, [&](int i, int j) { v[j] = load_fresh(from + i); });
    each(piece, [&](int i, int j) { store_volatile(to + i, sent(v[j])); });
  }

  // The sum of a piece, to the result, and as it is to the others if they do not add it up too.
  __device__ void add(i64 piece, bool for_all) {
    float4 sum[kTurns];
    for (int k = 0; k < a.n; ++k) {
      uint4 v[kTurns];
      if (k == a.rank) {
        const uint4* const own = of(a.part, piece);
        each(piece, [&](int i, int j) { v[j] = load_fresh(own + i); });
      } else {
        take_words<kBlock, kTurns>(room(a.rank, k, piece), words(piece), v, patience);
      }
      each(piece, [&](int, int j) { sum[j] = k == 0 ? floats(v[j]) : plus(sum[j], floats(v[j])); });
    }
    for (int k = 1; for_all && k < a.n; ++k) {
      uint4* const there = room((a.rank + k) % a.n, a.n, piece);
      each(piece, [&](int i, int j) { store_volatile(there + i, sent(bits(sum[j]))); });
    }
    finish(piece, sum);
  }

  // A piece that another device has added up.
  __device__ void take(i64 piece) {
    uint4 v[kTurns];
    take_words<kBlock, kTurns>(room(a.rank, a.n, piece), words(piece), v, patience);
    float4 sum[kTurns];
    each(piece, [&](int, int j) { sum[j] = floats(v[j]); });
    finish(piece, sum);
  }

  __device__ void finish(i64 piece, float4 (&sum)[kTurns]) const {
    if (a.residual != nullptr) {
      const uint4* const residual = of(a.residual, piece);
      each(piece, [&](int i, int j) { sum[j] = plus(sum[j], floats(load_fresh(residual + i))); });
    }
    uint4* const to = const_cast<uint4*>(of(a.to, piece));
    each(piece, [&](int i, int j) { to[i] = bits(sum[j]); });
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
    for (i64 p = blockIdx.x; p < n_pieces + gridDim.x; p += gridDim.x) {
      if (p < n_pieces) pieces.send(1 - a.rank, p);
      if (p >= gridDim.x) pieces.add(p - gridDim.x, false);
    }
    return end_exchange(a, e);
  }
  for (i64 p = blockIdx.x; p < n_pieces; p += gridDim.x) {
    if (p % a.n != a.rank) pieces.send((int)(p % a.n), p);
  }
  for (i64 p = blockIdx.x; p < n_pieces; p += gridDim.x) {
    if (p % a.n == a.rank) pieces.add(p, true);
  }
  for (i64 p = blockIdx.x; p < n_pieces; p += gridDim.x) {
    if (p % a.n != a.rank) pieces.take(p);
  }
  end_exchange(a, e);
}
