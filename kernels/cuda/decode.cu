// One token's way through many layers in one kernel: the products of mul_mat_vec.cu and the
// attention of attention_decode.cu, a step after the other, with a meeting of all blocks between.
//
// A kernel a step leaves memory idle at every boundary: while the last sums are finished, while the
// next kernel starts, while it prepares its columns. Here a warp's stages in shared memory do not
// end with a step: as soon as one is free, the rows of the next steps are asked for, so that
// memory stays busy through the meetings. Weights are never written, hence may be read at any time.
// But only a few stages are on their way at a time: what the meetings themselves read would have to
// wait behind them.
//
// One block a multiprocessor; all of them run at once, or they could not meet.
#include "cuda/attention_decode.cuh"
#include "cuda/vec_parts.cuh"

enum { ATTENTION = QKV + 1 };

// Mirrored by `step_bytes` in decode.py.
struct alignas(16) Step {
  union {
    VecArgs vec;
    AttentionArgs attention;
    char room[496];
  };
  i32 kind;
  i32 second;  // bit 0: the weights are of type B; bit 1: those of the last matrix of QKV are
  i32 total;   // pairs of rows, or parts of the attention
  i32 unused;
};
static_assert(sizeof(Step) == 512, "32 lanes copy 16 bytes each");

// Mirrored by decode.py. The rotation is the same in every layer and computed once.
struct DecodeArgs {
  const Step* steps;
  u64* clocks;  // null, or where to note the end of every step but the last
  const i32* pos;
  const float* factors;
  RopeNumbers rope;
  i32 n_steps, head_dim, stages, in_flight, work_at, ring_at;
};

constexpr int kSlots = 4;  // steps in shared memory at a time
constexpr int kAhead = 2;  // steps whose rows may be asked for before their turn
constexpr int kStepLanes = sizeof(Step) / 16;

__device__ u32 arrived, left;  // blocks; zero between launches

__device__ __forceinline__ void copy_step(Step* slots, const Step* steps, int i, int lane) {
  reinterpret_cast<uint4*>(slots + i % kSlots)[lane] =
      __ldg(reinterpret_cast<const uint4*>(steps + i) + lane);
}

// One thread of a block tells the others that its block has come, after __syncthreads.
__device__ __forceinline__ void arrive() {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&arrived) : "memory");
}

// Blocks that have come. What they wrote before can be read by this thread, and by those that learn
// of it from this thread.
__device__ __forceinline__ u32 have_arrived() {
  u32 n;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(&arrived) : "memory");
  return n;
}

// The same within a block: the step that may begin.
__device__ __forceinline__ void let_begin(u32* step, u32 n) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(step)), "r"(n)
               : "memory");
}
__device__ __forceinline__ u32 may_begin(const u32* step) {
  u32 n;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];"
               : "=r"(n)
               : "r"(shared_address(step))
               : "memory");
  return n;
}

__device__ __forceinline__ u64 clock_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// A and B: the types of the weights, both quantized or neither. K, V, HD: of the cache.
// Shared memory: steps, barriers, rotations, columns or the attention's sums, stages.
template <class A, class B, class K, class V, int HD>
__global__ void __launch_bounds__(32 * kMaxWarps, 1) decode(const __grid_constant__ DecodeArgs p) {
  static_assert(Chunk<A>::QUANTIZED == Chunk<B>::QUANTIZED, "both read the same columns");
  constexpr bool QUANTIZED = Chunk<A>::QUANTIZED;
  constexpr int X_BYTES = Chunk<A>::X_BYTES, N = Chunk<A>::N;
  constexpr int STAGE = kRows * larger(Chunk<A>::BYTES, Chunk<B>::BYTES) + 16;
  extern __shared__ __align__(128) char shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Step* const slots = reinterpret_cast<Step*>(shared);
  u64* const bars = reinterpret_cast<u64*>(slots + kSlots) + warp * p.stages;
  float2* const turns =
      reinterpret_cast<float2*>(shared + kSlots * sizeof(Step) + kMaxWarps * p.stages * 8);
  char* const xs = shared + p.work_at;
  char* const ring = shared + p.ring_at + warp * p.stages * STAGE;
  __shared__ u32 begin;
  if (threadIdx.x == 0) begin = 0;
  const int first = blockIdx.x + gridDim.x * warp, stride = gridDim.x * kMaxWarps;
  const u64 policy = read_once();

  if (warp <= kAhead && warp < p.n_steps && lane < kStepLanes) {
    copy_step(slots, p.steps, warp, lane);
  }
  if (lane == 0) {
    for (int s = 0; s < p.stages; ++s) barrier_init(bars + s);
  }
  barriers_ready();
  __syncthreads();

  // The rows asked for next: step, pair and chunk; the stage they go to, and how many are free.
  int ask_step = 0, ask_index = first, ask_chunk = 0, ask_stage = 0, n_free = p.stages;
  // Those on their way: the oldest one's stage.
  int n_flying = 0, land_stage = 0;
  u32 land_parity = 0;
  Pair ask = {};
  const auto request = [&](int last_step) {
    while (n_flying > 0 && barrier_test(bars + land_stage, land_parity)) {
      --n_flying;
      if (++land_stage == p.stages) {
        land_stage = 0;
        land_parity ^= 1;
      }
    }
    while (n_free > 0 && n_flying < p.in_flight) {
      while (ask_step <= last_step && (slots[ask_step % kSlots].kind == ATTENTION ||
                                       ask_index >= slots[ask_step % kSlots].total)) {
        ++ask_step;
        ask_index = first;
        ask_chunk = 0;
      }
      if (ask_step > last_step) return;
      const Step& s = slots[ask_step % kSlots];
      const VecArgs& a = s.vec;
      if (ask_chunk == 0) ask = pair_of(s.kind, a, ask_index);
      const bool v = ask.matrix == 2;
      const u32 bytes = (s.second >> (v ? 1 : 0)) & 1 ? Chunk<B>::BYTES : Chunk<A>::BYTES;
      const u32 row = (u32)(v ? a.row_bytes[2] : a.row_bytes[0]), at = ask_chunk * bytes;
      char* const to = ring + ask_stage * STAGE;
      fill(to, ask.w0 + at, to + bytes, ask.w1 + at, min(bytes, row - at), bars + ask_stage, lane,
           policy);
      if (++ask_stage == p.stages) ask_stage = 0;
      --n_free;
      ++n_flying;
      if (++ask_chunk * N >= a.k) {
        ask_chunk = 0;
        ask_index += stride;
      }
    }
  };
  request(min(kAhead, p.n_steps - 1));

  float4 by[kPieces];  // the norm's weights
  const auto ask_norm = [&](int i) {
    const Step& s = slots[i % kSlots];
    if (s.kind != ATTENTION && s.vec.norm != nullptr) ask_pieces(s.vec.norm, 0, s.vec.k, by);
  };
  ask_norm(0);
  const int half = p.head_dim / 2;
  double angle = 0.0;
  if (threadIdx.x < half) {
    angle = angle_of(p.rope, threadIdx.x, p.factors ? p.factors[threadIdx.x] : 1.0f);
  }
  wait_for_previous();
  if (threadIdx.x < half) {  // read after the next __syncthreads
    turn(p.rope, __ldcg(p.pos) * angle, &turns[threadIdx.x].y, &turns[threadIdx.x].x);
  }

  int stage = 0;
  u32 parity = 0;
  for (int i = 0; i < p.n_steps; ++i) {
    const Step& s = slots[i % kSlots];
    // Into the slot of the step before, which nobody reads any more.
    if (warp == kMaxWarps - 1 && i + kAhead + 1 < p.n_steps && lane < kStepLanes) {
      copy_step(slots, p.steps, i + kAhead + 1, lane);
    }
    const int ahead = min(i + kAhead, p.n_steps - 1);
    request(ahead);
    if (s.kind == ATTENTION) {
      const AttentionArgs& a = s.attention;
      const int heads = (int)a.k.ne[1];
      for (int part = blockIdx.x; part < s.total; part += gridDim.x) {
        attend<K, V, HD, 1>(a, {part % heads, part / heads, 0}, reinterpret_cast<float*>(xs));
        __syncthreads();
      }
    } else {
      const VecArgs& a = s.vec;
      const int chunks = (a.k + N - 1) / N;
      if (a.norm != nullptr) {
        load_normed<QUANTIZED, 1>(a, xs, chunks * X_BYTES, by);
      } else {
        load_columns<QUANTIZED, 1>(a, xs, chunks * X_BYTES);
      }
      __syncthreads();
      for (int index = first; index < s.total; index += stride) {
        const Pair pair = pair_of(s.kind, a, index);
        float r0 = 0.0f, r1 = 0.0f;
        if (s.kind == PLAIN && a.r != nullptr && lane == 0) {  // asked for now, added at the end
          r0 = __ldcg(a.r + pair.row0);
          r1 = __ldcg(a.r + pair.row1);
        }
        const bool second = (s.second >> (pair.matrix == 2 ? 1 : 0)) & 1;
        float acc[kRows][1] = {};
        for (int chunk = 0; chunk < chunks; ++chunk) {
          barrier_wait(bars + stage, parity);
          const char* const w = ring + stage * STAGE;
          const char* const x = xs + chunk * X_BYTES;
          const int n = min(a.k - chunk * N, N);
          if (!is_same<A, B>::value && second) {
            Chunk<B>::template multiply<1>(w, x, 0, n, lane, acc);
          } else {
            Chunk<A>::template multiply<1>(w, x, 0, n, lane, acc);
          }
          __syncwarp();
          ++n_free;
          request(ahead);
          if (++stage == p.stages) {
            stage = 0;
            parity ^= 1;
          }
        }
        const float y0 = warp_reduce(acc[0][0], Add()), y1 = warp_reduce(acc[1][0], Add());
        if (lane == 0) finish(s.kind, a, pair, turns, 0, y0, y1, r0, r1);
      }
    }
    if (i + 1 == p.n_steps) break;
    __syncthreads();
    if (threadIdx.x == 0) arrive();
    ask_norm(i + 1);
    if (slots[(i + 1) % kSlots].kind == ATTENTION && warp < kWarps) {
      const Step& next = slots[(i + 1) % kSlots];
      const int heads = (int)next.attention.k.ne[1];
      if ((int)blockIdx.x < next.total) {
        bring_near<K, V, HD, 1>(next.attention,
                                {(int)blockIdx.x % heads, (int)blockIdx.x / heads, 0});
      }
    }
    // Rows are asked for while the block waits, too.
    const u32 next = (u32)i + 1, everyone = next * gridDim.x;
    for (bool go = false; !go; request(ahead)) {
      if (warp == 0) {
        go = __shfl_sync(kAllLanes, lane == 0 ? have_arrived() : 0, 0) >= everyone;
      } else {
        go = __shfl_sync(kAllLanes, may_begin(&begin), 0) >= next;
      }
    }
    if (threadIdx.x == 0) {
      let_begin(&begin, next);
      if (p.clocks != nullptr && blockIdx.x == 0) p.clocks[i] = clock_ns();
    }
    __syncwarp();
  }
  launch_dependents();
  // The block that leaves last has seen all others past their last meeting.
  if (threadIdx.x == 0 && atomicInc(&left, gridDim.x - 1) == gridDim.x - 1) arrived = 0;
}
