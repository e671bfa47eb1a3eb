// Products of few tokens with the quantized experts that they go to, on Hopper: gate and up with
// the activation over them (expert_glu), and down with the sum over a token's experts (expert_sum).
//
// Rows of activations become int8 as in mul_mat_vec.cu. Every warp has rings of stages in shared
// memory for its weight rows, which are asked for as soon as the experts are known and before the
// activations are looked at. A result's sum has one order, whatever else is computed beside it.
#include "cuda/gated.cuh"
#include "cuda/mul_mat_id.cuh"
#include "cuda/vec_parts.cuh"

constexpr int kMostThreads = 704;
constexpr int kMostUsed = 32;  // experts of a token, in expert_sum

// How a block is divided. Mirrored by `_Division` in expert_vec.py.
struct Division {
  FastDiv quads, units;  // by quarters and by 64ths of a row of activations
  i32 rows;              // what a block has of the results: rows, or pairs of rows
  i32 stages, row_bytes, stage_bytes;
};

#if GF_BULK

// Shared memory: [barriers of every warp][what `head` counts][x][stages of every warp].
struct Shared {
  u64* bars;  // of this warp
  char *head, *x, *stages;

  __device__ __forceinline__ Shared(char* memory, const Division& d, int head_bytes, int x_bytes) {
    const int warps = blockDim.x / 32, warp = threadIdx.x / 32;
    const int barriers = (warps * d.stages * 8 + 15) / 16 * 16;
    bars = reinterpret_cast<u64*>(memory) + warp * d.stages;
    head = memory + barriers;
    x = head + head_bytes;
    stages = x + x_bytes + warp * d.stages * d.stage_bytes;
  }
  __device__ __forceinline__ void make_barriers(int stages, int lane) const {
    barriers_make(bars, stages, lane);
  }
};

constexpr int x_bytes_of(int k) { return (k + kChunk - 1) / kChunk * Chunk<block_q8_0>::X_BYTES; }

// Rows of k floats, x_step floats apart, which become int8. By all threads of a block. The first
// elements are asked for at once, while what else is to be known is not there yet.
template <int AT_ONCE>
struct XRows {
  const float* x;
  i64 x_step;
  int rows, k;
  FastDiv by_quads;
  float4 v[AT_ONCE];

  __device__ __forceinline__ int quads() const { return rows * (k / 4); }
  __device__ __forceinline__ void ask(int base) {
#pragma unroll
    for (int b = 0; b < AT_ONCE; ++b) {
      const int q = base + b * blockDim.x + threadIdx.x, row = by_quads.div(q);
      v[b] = float4{};
      if (q < quads()) {
        v[b] = load_fresh(reinterpret_cast<const float4*>(x + row * x_step) + (q - row * (k / 4)));
      }
    }
  }
  // share(row): what a row is multiplied by; rows of zero are zeros, whatever they hold.
  template <class F>
  __device__ __forceinline__ void put(char* to, const F& share) {
    const int x_bytes = x_bytes_of(k);
    for (int base = 0; base < quads(); base += blockDim.x * AT_ONCE) {
      if (base > 0) ask(base);
#pragma unroll
      for (int b = 0; b < AT_ONCE; ++b) {
        const int first = base + b * blockDim.x + threadIdx.x / 32 * 32;
        if (first >= quads()) break;
        const int q = first + threadIdx.x % 32, row = by_quads.div(q);
        const float s = q < quads() ? share(row) : 0.0f;
        Pack<float, 4> y = {};
        if (s != 0.0f) y = {v[b].x * s, v[b].y * s, v[b].z * s, v[b].w * s};
        put_quad<true>(to + row * x_bytes, (q - row * (k / 4)) * 4, q < quads(), y);
      }
    }
  }
};

// 64 elements, the unit-th of two rows `step` bytes apart, times those of x.
template <class W>
__device__ __forceinline__ void add_unit(const char* row, int step, const char* x, int unit,
                                         float (&sums)[kRows][1]) {
  const int chunk = unit / 32, lane = unit % 32;
  typename Vec<W>::Raw raw[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    raw[r] = Vec<W>::load(row + r * step + chunk * Vec<W>::BYTES, lane);
  }
  const char* const column = x + chunk * Chunk<W>::X_BYTES;
  Chunk<W>::template half<0, 1>(raw, column, 0, lane, sums);
  Chunk<W>::template half<1, 1>(raw, column, 0, lane, sums);
}

#endif

struct ExpertGluArgs {
  IdGluArgs glu;
  Division by;
};

// blockIdx.y counts pairs, blockIdx.x runs of rows of a pair. A stage is a row of gate and one of
// up.
template <class W, class Act>
__global__ void __launch_bounds__(kMostThreads, 1)
    expert_glu(const __grid_constant__ ExpertGluArgs a) {
#if GF_BULK
  extern __shared__ __align__(128) char memory[];
  const IdArgs& id = a.glu.id;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int k = (int)id.w.ne[0], n = (int)id.w.ne[1];
  const Shared at(memory, a.by, 0, x_bytes_of(k));
  at.make_barriers(a.by.stages, lane);
  const int row0 = blockIdx.x * a.by.rows + warp, end = min(n, (blockIdx.x + 1) * a.by.rows);
  const u64 policy = read_once();
  const i64 pair = blockIdx.y, used = id.dst.ne[1];
  const i32* const ids = reinterpret_cast<const i32*>(id.ids.row(pair / used, 0, 0)) + pair % used;
  const float* const x = reinterpret_cast<const float*>(x_of(id, pair));
  float* const out = result_of(id, pair);
  const Act act = act_of<Act>(a.glu);
  begin_dependent();

  XRows<4> columns = {x, 0, 1, k, a.by.quads};
  columns.ask(0);
  const i32 expert = load_fresh(ids);
  if ((u32)expert >= (u32)id.w.ne[2]) {
    for (int row = row0 - warp + threadIdx.x; row < end; row += blockDim.x) out[row] = 0.0f;
    return;
  }
  const char* const gate = id.w.row(0, expert, 0);
  const char* const up = a.glu.up.row(0, expert, 0);
  const auto ask = [&](int row, int stage) {
    char* const to = at.stages + stage * a.by.stage_bytes;
    fill(to, gate + row * id.w.nb[1], to + a.by.row_bytes, up + row * a.glu.up.nb[1],
         a.by.row_bytes, at.bars + stage, lane, policy);
  };
  for (int s = 0; s < a.by.stages && row0 + s * warps < end; ++s) ask(row0 + s * warps, s);
  columns.put(at.x, [](int) { return 1.0f; });
  __syncthreads();

  int stage = 0;
  u32 parity = 0;
  for (int row = row0; row < end; row += warps) {
    barrier_wait(at.bars + stage, parity);
    float sums[kRows][1] = {};
    for (int unit = lane; unit < k / 64; unit += 32) {
      add_unit<W>(at.stages + stage * a.by.stage_bytes, a.by.row_bytes, at.x, unit, sums);
    }
    __syncwarp();
    if (row + a.by.stages * warps < end) ask(row + a.by.stages * warps, stage);
    const float y0 = warp_reduce(sums[0][0], Add()), y1 = warp_reduce(sums[1][0], Add());
    if (lane == 0) {
      out[row] = act(y0 + bias_of(id.bias, expert, row), y1 + bias_of(a.glu.up_bias, expert, row));
    }
    if (++stage == a.by.stages) {
      stage = 0;
      parity ^= 1;
    }
  }
#endif
}

struct ExpertSumArgs {
  gf_tensor dst, w, x, ids, shares, bias, r;  // bias and r, which is added, may be null
  Division by;
};

// blockIdx.y counts tokens, blockIdx.x runs of pairs of rows. Two warps share a pair of rows: each
// has half of the token's experts. A stage is two rows of each of them, which lie behind one
// another.
template <class W>
__global__ void __launch_bounds__(kMostThreads, 1)
    expert_sum(const __grid_constant__ ExpertSumArgs a) {
#if GF_BULK
  extern __shared__ __align__(128) char memory[];
  __shared__ float parts[2][kMostThreads / 32][kRows];  // of even and odd turns
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, teams = blockDim.x / 64;
  const int k = (int)a.w.ne[0], n = (int)a.w.ne[1], used = (int)a.ids.ne[0], units = k / 64;
  const int x_bytes = x_bytes_of(k);
  const Shared at(memory, a.by, kMostUsed * 8, used * x_bytes);
  i32* const experts = reinterpret_cast<i32*>(at.head);
  float* const shares = reinterpret_cast<float*>(at.head + kMostUsed * 4);
  at.make_barriers(a.by.stages, lane);
  const int half = warp % 2, middle = (used + 1) / 2;
  const int first = half == 0 ? 0 : middle, last = half == 0 ? middle : used;  // of the experts
  const int begin = blockIdx.x * a.by.rows, end = min((n + 1) / 2, begin + a.by.rows);
  const int pair0 = begin + warp / 2;
  const u64 policy = read_once();
  const i64 token = blockIdx.y;
  const float* const x = reinterpret_cast<const float*>(a.x.row(0, token, 0));
  float* const out = reinterpret_cast<float*>(a.dst.row(token, 0, 0));
  begin_dependent();

  // A lane has an expert.
  i32 expert = -1;
  float share = 0.0f;
  if (lane < used) {
    expert = load_fresh(reinterpret_cast<const i32*>(a.ids.row(token, 0, 0)) + lane);
    share = load_fresh(reinterpret_cast<const float*>(a.shares.row(token, 0, 0)) + lane);
  }
  XRows<8> columns = {x, a.x.nb[1] / 4, used, k, a.by.quads};
  columns.ask(0);
  if ((u32)expert >= (u32)a.w.ne[2]) expert = -1;
  const bool brings = expert >= 0 && lane >= first && lane < last;
  const u32 brought = __popc(__ballot_sync(kAllLanes, brings));
  const char* const w = a.w.row(0, max(expert, 0), 0);
  const auto ask = [&](int pair, int stage) {
    u64* const bar = at.bars + stage;
    const u32 nbytes = min(2, n - 2 * pair) * a.by.row_bytes;
    if (lane == 0) {
      expect_bytes(bar, nbytes * brought);
    }
    __syncwarp();
    if (brings) {
      copy_bulk(at.stages + stage * a.by.stage_bytes + (lane - first) * 2 * a.by.row_bytes,
                w + 2 * pair * a.w.nb[1], nbytes, bar, policy);
    }
  };
  for (int s = 0; s < a.by.stages && pair0 + s * teams < end; ++s) ask(pair0 + s * teams, s);
  if (warp == 0 && lane < used) {
    experts[lane] = expert;
    shares[lane] = expert >= 0 ? share : 0.0f;
  }
  __syncthreads();
  columns.put(at.x, [shares](int j) { return shares[j]; });
  __syncthreads();

  int stage = 0, turn = 0;
  u32 parity = 0;
  // As many turns for every warp, which meet in each.
  for (int from = begin; from < end; from += teams, turn ^= 1) {
    const int pair = from + warp / 2;
    if (pair < end) {
      barrier_wait(at.bars + stage, parity);
      float sums[kRows][1] = {};
      for (int t = lane; t < (last - first) * units; t += 32) {
        const int i = a.by.units.div(t), j = first + i;
        if (experts[j] < 0) continue;
        add_unit<W>(at.stages + stage * a.by.stage_bytes + i * 2 * a.by.row_bytes, a.by.row_bytes,
                    at.x + j * x_bytes, t - i * units, sums);
      }
      __syncwarp();
      if (pair + a.by.stages * teams < end) ask(pair + a.by.stages * teams, stage);
      const float y0 = warp_reduce(sums[0][0], Add()), y1 = warp_reduce(sums[1][0], Add());
      if (lane == 0) {
        parts[turn][warp][0] = y0;
        parts[turn][warp][1] = y1;
      }
      if (++stage == a.by.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
    __syncthreads();  // and nobody is two turns ahead
    const int row = 2 * pair + lane;
    if (pair < end && half == 0 && lane < 2 && row < n) {
      float y = parts[turn][warp][lane] + parts[turn][warp + 1][lane];
      if (a.bias.data) {
        for (int j = 0; j < used; ++j) {
          if (experts[j] >= 0) y = fmaf(shares[j], bias_of(a.bias, experts[j], row), y);
        }
      }
      if (a.r.data) y += load_fresh(reinterpret_cast<const float*>(a.r.row(token, 0, 0)) + row);
      out[row] = y;
    }
  }
#endif
}
