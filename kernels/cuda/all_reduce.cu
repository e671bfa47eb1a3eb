// all_reduce: the sum of parts, in their order; of parts that other devices make while this runs,
// too. A device writes its part into the channels of the others (see all_reduce.py), which arrive
// there at the same time as theirs do here, and waits at its own channel. All add in the same
// order, or one adds for all, so that every device has the same bits.
#include "cuda/arrivals.cuh"
#include "cuda/dependent.cuh"
#include "cuda/peer.cuh"

constexpr int kDevices = 8;           // DEVICES of all_reduce.py
constexpr int kHead = 256;            // HEAD
constexpr i64 kPieceWords = 1 << 10;  // PIECE, in words of 16 bytes

struct AddArgs {
  const float* parts[kDevices];
  float* to;
  i64 n;
  i32 n_parts;
};

__global__ void __launch_bounds__(256) add_parts(const __grid_constant__ AddArgs a) {
  launch_dependents();
  wait_for_previous();
  for (i64 i = global_thread(); i < a.n; i += global_threads()) {
    float sum = a.parts[0][i];
    for (int p = 1; p < a.n_parts; ++p) sum += a.parts[p][i];
    a.to[i] = sum;
  }
}

struct ReduceArgs {
  char* channels[kDevices];
  const char* part;
  char* to;
  u32* given_up;
  i64 timeout_ns, nbytes;
  i64 room, flags;          // where they begin in a channel
  i64 stride, flag_stride;  // from one device's to the next one's
  u32 code;
  i32 rank, n;
};

// The number of this exchange. Everybody reads it before the last block to end stores it.
__device__ __forceinline__ u32 next_exchange(const ReduceArgs& a) {
  return load_fresh(reinterpret_cast<const u32*>(a.channels[a.rank])) + 1;
}

__device__ __forceinline__ void end_exchange(const ReduceArgs& a, u32 e) {
  u32* const head = reinterpret_cast<u32*>(a.channels[a.rank]);
  if (arrives_last(head + 1, gridDim.x) && threadIdx.x == 0) *head = e;
}

// -- small parts: data with flags
// ------------------------------------------------------------------

// Two numbers, each with the exchange's beside it: what has the right flag is there.
__device__ __forceinline__ uint2 wait_for_line(const uint4* from, u32 e, Patience& patience) {
  uint4 w = load_volatile(from);
  while ((w.y != e || w.w != e) && !patience.is_over()) w = load_volatile(from);
  return make_uint2(w.x, w.z);
}

__global__ void __launch_bounds__(256) all_reduce_small(const __grid_constant__ ReduceArgs a) {
  launch_dependents();
  wait_for_previous();
  const u32 e = next_exchange(a);
  const i64 lines = (a.nbytes + 7) / 8;
  const i64 half = a.room + (i64)(e & 1) * a.n * a.stride;
  const uint2* const part = reinterpret_cast<const uint2*>(a.part);
  for (i64 i = global_thread(); i < lines; i += global_threads()) {
    const uint2 v = part[i];
    for (int k = 1; k < a.n; ++k) {  // not all to the same one at once
      const int peer = (a.rank + k) % a.n;
      char* const room = a.channels[peer] + half + a.rank * a.stride;
      store_volatile(reinterpret_cast<uint4*>(room) + i, make_uint4(v.x, e, v.y, e));
    }
  }
  Patience patience(a.given_up, a.timeout_ns, a.code);
  const char* const own = a.channels[a.rank] + half;
  for (i64 i = global_thread(); i < lines; i += global_threads()) {
    float2 sum = make_float2(0.0f, 0.0f);
    for (int k = 0; k < a.n; ++k) {
      const uint4* const line = reinterpret_cast<const uint4*>(own + k * a.stride) + i;
      const uint2 v = k == a.rank ? part[i] : wait_for_line(line, e, patience);
      sum.x = k == 0 ? __uint_as_float(v.x) : sum.x + __uint_as_float(v.x);
      sum.y = k == 0 ? __uint_as_float(v.y) : sum.y + __uint_as_float(v.y);
    }
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

struct Pieces {
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

  __device__ i64 words(i64 piece) const {
    const i64 left = (a.nbytes + 15) / 16 - piece * kPieceWords;
    return left < kPieceWords ? left : kPieceWords;
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

  __device__ void send(int device, int k, i64 piece, const uint4* from) const {
    uint4* const to = room(device, k, piece);
    for (i64 i = threadIdx.x; i < words(piece); i += blockDim.x) to[i] = from[i];
    signal(device, k, piece);
  }

  // The sum of a piece, to the result.
  __device__ void add(i64 piece) const {
    const i64 at = piece * kPieceWords;
    const uint4* const part = reinterpret_cast<const uint4*>(a.part) + at;
    uint4* const to = reinterpret_cast<uint4*>(a.to) + at;
    for (i64 i = threadIdx.x; i < words(piece); i += blockDim.x) {
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int k = 0; k < a.n; ++k) {
        const uint4 w = k == a.rank ? part[i] : load_volatile(room(a.rank, k, piece) + i);
        const float4 v = make_float4(__uint_as_float(w.x), __uint_as_float(w.y),
                                     __uint_as_float(w.z), __uint_as_float(w.w));
        sum = k == 0 ? v : make_float4(sum.x + v.x, sum.y + v.y, sum.z + v.z, sum.w + v.w);
      }
      to[i] = make_uint4(__float_as_uint(sum.x), __float_as_uint(sum.y), __float_as_uint(sum.z),
                         __float_as_uint(sum.w));
    }
    __syncthreads();
  }
};

// Two devices send each other all they have. More would send as much to each: of them one adds each
// piece for all, and sends what it is.
__global__ void __launch_bounds__(256) all_reduce_large(const __grid_constant__ ReduceArgs a) {
  launch_dependents();
  wait_for_previous();
  const u32 e = next_exchange(a);
  Pieces pieces(a, e);
  const i64 n_pieces = ((a.nbytes + 15) / 16 + kPieceWords - 1) / kPieceWords;
  const uint4* const part = reinterpret_cast<const uint4*>(a.part);
  uint4* const to = reinterpret_cast<uint4*>(a.to);
  for (i64 p = blockIdx.x; p < n_pieces; p += gridDim.x) {
    const int owner = a.n == 2 ? 1 - a.rank : (int)(p % a.n);
    if (owner != a.rank) pieces.send(owner, a.rank, p, part + p * kPieceWords);
  }
  for (i64 p = blockIdx.x; p < n_pieces; p += gridDim.x) {
    if (a.n > 2 && p % a.n != a.rank) continue;
    for (int k = 0; k < a.n; ++k) {
      if (k != a.rank) pieces.wait(k, p);
    }
    pieces.add(p);
    for (int k = 1; a.n > 2 && k < a.n; ++k) {
      pieces.send((a.rank + k) % a.n, a.n, p, to + p * kPieceWords);
    }
  }
  for (i64 p = blockIdx.x; a.n > 2 && p < n_pieces; p += gridDim.x) {
    if (p % a.n == a.rank) continue;
    pieces.wait(a.n, p);
    const uint4* const from = pieces.room(a.rank, a.n, p);
    for (i64 i = threadIdx.x; i < pieces.words(p); i += blockDim.x) {
      to[p * kPieceWords + i] = load_volatile(from + i);
    }
  }
  end_exchange(a, e);
}
