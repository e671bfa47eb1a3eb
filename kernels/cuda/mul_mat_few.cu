// Quantized weights times 1 to 16 columns: weights stream through shared memory once, become int8
// fragments in registers, and meet the columns, which stay in registers, in the tensor cores. The
// order of sums is that of int8_columns.cuh.
//
// A block is one multiprocessor's. Tiles of sixteen rows come through a ring of stages of at most
// 16 chunks of 256 elements; each of sixteen warps multiplies one chunk of a stage. Two more warps
// bring the stages, as whole runs of bytes, and ask for the first before the kernels before this
// one are done (programmatic dependent launch). Others add the chunks' sums, in teams that take
// turns at tiles: adding up and storing one takes longer than bringing the next.
//
// The columns are rounded by a launch of their own (columns_int8.cu), for a multiprocessor needs
// longer to read all of them as floats; or by the kernel before, which may be this one (NEXT).
#include "cuda/columns.cuh"
#include "cuda/int8_weights.cuh"
#include "cuda/next_columns.cuh"
#include "cuda/registers.cuh"
#include "cuda/ring.cuh"

// Mirrored by `launches` in mul_mat_few.py.
struct FewArgs {
  ColumnsArgs c;         // x: the records; splits: phases
  const float* squares;  // of the records, or null: no norm
  ByteMasks masks;
  float eps;
  int v_row;  // bytes from row to row of values, which may have a type of their own
  int sums_at, floats_at, totals_at, halves_at, ring_at;  // bytes in shared memory
  NextColumns next;                                       // of NEXT
};

constexpr int kWarps = 16, kBringers = 2;
constexpr int kTileRows = 16, kTilePairs = 8;
constexpr int kSlots = 4;  // tiles' slices that have sums at once, of all teams
constexpr int kBatch = 8;  // tiles that have sums of a few phases at once

// Whole groups of four warps, which give each other registers.
template <int A>
constexpr int kThreads = 32 * (kWarps + (kBringers + A + 3) / 4 * 4);

#if __CUDA_ARCH__ >= 900

// A team of those that add is one warp for up to four columns, two for eight of them. A place for
// sums is always the same team's: another one may see its barrier a round late.
struct Shares {
  int quads, teams;
};
template <int A>
__device__ __forceinline__ Shares shares_of(const ColumnsArgs& a) {
  static_assert((A == 2 || A == 4) && kSlots == 4, "one or two teams, which share the places");
  const int quads = A == 2 && a.m <= 4 ? 1 : 2;
  return {quads, A / quads};
}

struct Slot {
  int i;
  u32 parity;
};
// Where a team's sums are of so many slices that it had before.
__device__ __forceinline__ Slot slot_of(int team, int teams, u32 unit) {
  const int shift = teams == 1 ? 2 : 1;  // each has 4 or 2
  return {(team << shift) + (int)(unit & ((1 << shift) - 1)), unit >> shift & 1};
}

struct Memory {
  u64 *full, *free;            // of the ring's stages
  u64 *sums_full, *sums_free;  // of the places for sums
  float4* sums;    // [16 warps][slots][groups of 8 columns][8 pairs][8 columns] of 2 rows
  float2* totals;  // [batch][2 quads][groups][2][32 lanes] of a quarter and of those before,
                   // between phases
  float* floats;   // [16 warps][groups] of records
  float2* halves;  // [2][2 quads][groups][32 lanes] of NEXT: results of the first of two tiles
  char* ring;      // [stages][16 rows]
};

// A chunk of a row. Where its bytes are no multiple of 16, rows may start between two such
// multiples: all they touch is copied.
template <class W>
struct Chunks {
  static constexpr int BYTES = kChunkK / W::QK * (int)sizeof(W);
  static constexpr bool ALIGNED = BYTES % 16 == 0;
};

// For both types of weights.
template <class W, class V>
constexpr int kSums = larger(kSumsOf<W>, kSumsOf<V>);
template <class W, class V>
constexpr int kFloats = (1 + kSums<W, V>)*kRecordFloats / 4;  // of a record

// All of this block's work in the order in which every warp does its share: work(phase, tile, i),
// after enter(phase) where a phase begins. A phase is a slice of k, of 16 chunks, whose columns are
// in registers; so many tiles are done phase by phase. With more slices in registers the first
// products wait for all of them. NEXT: neighbouring twos are one block's, which so has the 32 rows
// that are rounded together.
template <bool NEXT, class E, class F>
__device__ __forceinline__ void for_each(const ColumnsArgs& a, E enter, F work) {
  constexpr int EACH = NEXT ? 2 : 1;
  const int mine = ((a.tiles / EACH - 1 - (int)blockIdx.x) / (int)gridDim.x + 1) * EACH;
  const int batch = a.splits > 1 ? kBatch : mine;
  for (int first = 0; first < mine; first += batch) {
    for (int phase = 0; phase < a.splits; ++phase) {
      enter(phase);
      for (int i = first; i < min(first + batch, mine); ++i) {
        work(phase, (int)(blockIdx.x + i / EACH * gridDim.x) * EACH + i % EACH, i);
      }
    }
  }
}

// -- weights -------------------------------------------------------------------------------------

// Whether a tile has weights of the type V: values beside queries and keys.
template <class W, class V>
__device__ __forceinline__ bool is_second(const ColumnsArgs& a, int tile) {
  return !is_same<W, V>::value && a.kind == QKV && tile_of<kTilePairs>(a, tile).matrix == 2;
}

__device__ __forceinline__ i64 row_bytes(const FewArgs& args, int matrix) {
  return args.c.kind == QKV && matrix == 2 ? args.v_row : args.c.w_row;
}

// Where a row of a pair starts.
__device__ __forceinline__ const char* start_of(const FewArgs& args, int matrix, int row, int i) {
  const ColumnsArgs& a = args.c;
  const int at = a.kind == GLU ? i : matrix;
  const char* w = a.w[0];
#pragma unroll
  for (int n = 1; n < 3; ++n) {
    if (at == n) w = a.w[n];
  }
  return w + row * row_bytes(args, matrix);
}

// A slice of a row for lanes that have one.
template <class T>
__device__ __forceinline__ void ask(const FewArgs& args, const Memory& m, const Place& at,
                                    const char* row, int phase, int r, bool has_row, u64 policy) {
  using L = Chunks<T>;
  const int chunks = args.c.k / kChunkK, first = phase * kWarps;
  const int n = min(chunks - first, kWarps) * L::BYTES;
  const char* const from = row + first * L::BYTES;
  const int offset = L::ALIGNED ? 0 : (int)(reinterpret_cast<u64>(from) & 15);
  const u32 all = (u32)(offset + n + 15) & ~15u;
  if (!has_row) return;
  const u32 bar = shared_address(m.full + at.stage);
  const u32 to = shared_address(m.ring) + (at.stage * kTileRows + r) * args.c.w_stride;
  expect_bytes(bar, all);
  copy_bulk(to, from - offset, all, bar, policy);
}

// Warp i brings the first or the second rows of the pairs.
template <class W, class V, bool NEXT>
__device__ __forceinline__ void bring(const FewArgs& args, const Memory& m, int i, int lane) {
  const ColumnsArgs& a = args.c;
  const u64 policy = read_once();
  Place at;
  const auto nothing = [](int) {};
  for_each<NEXT>(a, nothing, [&](int phase, int tile, int) {
    const Tile t = tile_of<kTilePairs>(a, tile);
    const int2 rows = rows_of(a, t.matrix, min(t.pair + lane % 8, a.pairs[t.matrix] - 1));
    const char* const row = start_of(args, t.matrix, i ? rows.y : rows.x, i);
    barrier_wait(m.free + at.stage, at.parity ^ 1);
    if (is_second<W, V>(a, tile)) {
      ask<V>(args, m, at, row, phase, i * 8 + lane, lane < 8, policy);
    } else {
      ask<W>(args, m, at, row, phase, i * 8 + lane, lane < 8, policy);
    }
    __syncwarp();
    at.next(a.w_stages);
  });
}

// -- columns -------------------------------------------------------------------------------------

// This warp's chunk of a phase from the records, of columns that there are.
template <int SUMS, int G>
__device__ __forceinline__ void load_records(const FewArgs& args, int chunk, int lane,
                                             float* floats, uint2 (&x)[kChunkBlocks][G]) {
  constexpr int FLOATS = (1 + SUMS) * kRecordFloats / 4;
  const bool is_chunk = chunk < args.c.k / kChunkK;
#pragma unroll
  for (int j = 0; j < G; ++j) {
    const char* const record = args.c.x + (i64)(chunk * G + j) * record_bytes(SUMS);
    const bool is_column = is_chunk && j * 8 + lane / 4 < args.c.m;
#pragma unroll
    for (int b = 0; b < kChunkBlocks; ++b) {
      x[b][j] = uint2{};
      if (is_column) x[b][j] = __ldcg(reinterpret_cast<const uint2*>(record) + b * 32 + lane);
    }
    for (int i = lane; i < FLOATS / 4; i += 32) {
      if (!is_chunk) continue;
      reinterpret_cast<float4*>(floats + j * FLOATS)[i] =
          __ldcg(reinterpret_cast<const float4*>(record + kRecordD) + i);
    }
  }
  __syncwarp();
}

// -- products ------------------------------------------------------------------------------------

// upper, lower: this lane's rows of the chunk. x, floats: of its columns.
template <class W, int FLOATS, int G>
__device__ __forceinline__ void multiply_chunk(float (&acc)[G][4], const char* upper,
                                               const char* lower, int t, const ByteMasks& masks,
                                               const uint2 (&x)[kChunkBlocks][G],
                                               const float* floats) {
  using T = Int8<W>;
  const auto head_upper = T::head(upper, t), head_lower = T::head(lower, t);
#pragma unroll
  for (int i = 0; i < kChunkBlocks / T::SPAN; ++i) {
    const auto raw_upper = T::load(upper, i, t, head_upper);
    const auto raw_lower = T::load(lower, i, t, head_lower);
#pragma unroll
    for (int b = i * T::SPAN; b < (i + 1) * T::SPAN; ++b) {
      const Int8Block block_upper = T::block(raw_upper, b, head_upper, masks);
      const Int8Block block_lower = T::block(raw_lower, b, head_lower, masks);
#pragma unroll
      for (int j = 0; j < G; ++j) {
        multiply_block<W>(acc[j], block_upper, block_lower, x[b][j],
                          block_columns<W>(floats + j * FLOATS, b, t));
      }
    }
  }
}

// A warp's chunk of a tile, of weights of type T. rows: of this lane's two rows the first byte.
template <class T, int FLOATS, int G>
__device__ __forceinline__ void multiply_tile(float (&acc)[G][4], const FewArgs& args, int tile,
                                              int chunk, const char* stage, int warp, int lane,
                                              const uint2 (&x)[kChunkBlocks][G],
                                              const float* floats) {
  using L = Chunks<T>;
  const char* row[2];
  row[0] = stage + lane / 4 * args.c.w_stride + warp * L::BYTES;
  row[1] = row[0] + 8 * args.c.w_stride;
  if (!L::ALIGNED) {
    const Tile t = tile_of<kTilePairs>(args.c, tile);
    const int2 rows = rows_of(args.c, t.matrix, min(t.pair + lane / 4, args.c.pairs[t.matrix] - 1));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const char* const start = start_of(args, t.matrix, i ? rows.y : rows.x, i);
      row[i] += (int)(reinterpret_cast<u64>(start) + (chunk - warp) * L::BYTES) & 15;
    }
  }
  multiply_chunk<T, FLOATS, G>(acc, row[0], row[1], lane % 4, args.masks, x, floats);
}

template <class W, class V, int G, int A, bool NEXT>
__device__ __forceinline__ void multiply(const FewArgs& args, const Memory& m, int warp, int lane) {
  constexpr int FLOATS = kFloats<W, V>;
  const ColumnsArgs& a = args.c;
  const int chunks = a.k / kChunkK;
  float* const floats = m.floats + warp * G * FLOATS;
  float4* const to = m.sums + warp * kSlots * G * 32 + lane;
  uint2 x[kChunkBlocks][G];
  wait_for_previous();
  const auto enter = [&](int phase) {
    load_records<kSums<W, V>, G>(args, phase * kWarps + warp, lane, floats, x);
  };
  Place at;
  const int teams = shares_of<A>(a).teams;
  u32 units[2] = {};  // slices of tiles so far, of each team
  for_each<NEXT>(a, enter, [&](int phase, int tile, int which) {
    const int team = which % teams, chunk = phase * kWarps + warp;
    const u32 unit = team ? units[1]++ : units[0]++;
    float acc[G][4] = {};
    barrier_wait(m.full + at.stage, at.parity);
    if (chunk < chunks) {
      const char* const stage = m.ring + at.stage * kTileRows * a.w_stride;
      if (is_second<W, V>(a, tile)) {
        multiply_tile<V, FLOATS, G>(acc, args, tile, chunk, stage, warp, lane, x, floats);
      } else {
        multiply_tile<W, FLOATS, G>(acc, args, tile, chunk, stage, warp, lane, x, floats);
      }
    }
    warp_arrive(m.free + at.stage, lane);
    at.next(a.w_stages);
    const Slot slot = slot_of(team, teams, unit);
    barrier_wait(m.sums_free + slot.i, slot.parity ^ 1);
#pragma unroll
    for (int j = 0; j < G; ++j) {
      to[(slot.i * G + j) * 32] = {acc[j][0], acc[j][2], acc[j][1], acc[j][3]};
    }
    warp_arrive(m.sums_full + slot.i, lane);
  });
}

// -- sums ----------------------------------------------------------------------------------------

__device__ __forceinline__ float2 plus(float2 a, float2 b) { return {a.x + b.x, a.y + b.y}; }

// The chunks of a quarter so far, and the quarters before it.
struct Sums {
  float2 quarter, total;
  int left;  // chunks of the quarter that are still to come

  __device__ __forceinline__ void add(float2 v, int chunks_of_quarter) {
    const bool ends = left == 0;
    const float2 next = plus(total, quarter);
    total = ends ? next : total;
    quarter = plus(ends ? float2{} : quarter, v);
    left = (ends ? chunks_of_quarter : left) - 1;
  }
};

// Waits for the kernels before, and leaves the turns of the columns behind, shared out among all
// blocks: an angle takes long, and is made before.
template <int A>
__device__ __forceinline__ void wait_and_turn(const NextColumns& next, int m, int thread) {
  const int n = next.turns == nullptr ? 0 : m * next.half_dim, half = next.half_dim;
  int i = thread * gridDim.x + blockIdx.x;
  double angle = i < n ? next.by.angle(i % half) : 0.0;
  wait_for_previous();
  while (i < n) {
    next.turns[i] = next.by.at(i / half, angle);
    i += 32 * A * gridDim.x;
    if (i < n) angle = next.by.angle(i % half);
  }
}

// The warps of both teams that have the same columns, or one that has the tiles of both.
__device__ __forceinline__ void teams_meet(int quad, int teams) {
  if (teams > 1) {
    asm volatile("bar.sync %0, 64;" ::"r"(1 + quad) : "memory");
  } else {
    __syncwarp();
  }
}

// Lane 4 p + c adds the sums of pair p in column c of this warp's four, of each group of eight.
template <int G, int A, bool NEXT>
__device__ __forceinline__ void add(const FewArgs& args, const Memory& m, int adder, int lane) {
  const ColumnsArgs& a = args.c;
  const Shares shares = shares_of<A>(a);
  const int kind = NEXT ? PLAIN : a.kind;
  const int chunks = a.k / kChunkK, quarter = (chunks + 3) / 4;
  const int quad = adder % shares.quads, team = adder / shares.quads;
  const int column = quad * 4 + lane % 4;
  if (team >= shares.teams) return;
  const float2* const sums_of_lane =
      reinterpret_cast<const float2*>(m.sums) + lane / 4 * 8 + column;
  float scale[G];
  u32 unit = 0;  // slices of the team's tiles so far
  if (NEXT) {
    wait_and_turn<A>(args.next, a.m, adder * 32 + lane);
  } else {
    wait_for_previous();
  }
#pragma unroll
  for (int j = 0; j < G; ++j) scale[j] = 1.0f;
  if (args.squares) {
#pragma unroll
    for (int j = 0; j < G; ++j) {
      const float* const squares = args.squares + (column + j * 8) * (a.k / 32);
      scale[j] = norm_scale_of_blocks(squares, a.k, args.eps, lane);
    }
  }
  const auto nothing = [](int) {};
  for_each<NEXT>(a, nothing, [&](int phase, int tile, int which) {
    if (which % shares.teams != team) return;
    const int begin = phase * kWarps, n = min(chunks - begin, kWarps);
    const bool last = phase == a.splits - 1;
    const Tile t = tile_of<kTilePairs>(a, tile);
    const int pair = t.pair + lane / 4;
    float2* const kept = m.totals + (which % kBatch * 2 + quad) * G * 64 + lane;
    BlockRows norm = {};
    if (NEXT && last && which % 2 == 1) norm = norm_rows(args.next, tile / 2, lane);
    BesideOne beside[G];
    Sums sums[G];
#pragma unroll
    for (int j = 0; j < G; ++j) {
      if (last) beside[j] = beside_one(kind, a, t.matrix, pair, column + 8 * j);
      sums[j] = {float2{}, float2{}, quarter - begin % quarter};
      if (phase > 0) {
        sums[j].quarter = kept[j * 64];
        sums[j].total = kept[j * 64 + 32];
        if (sums[j].left == quarter) sums[j].left = 0;  // the one before ends here
      }
    }
    const Slot slot = slot_of(team, shares.teams, unit++);
    barrier_wait(m.sums_full + slot.i, slot.parity);
#pragma unroll
    for (int j = 0; j < G; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        constexpr int HALF = kWarps / 2;
        float2 v[HALF];
#pragma unroll
        for (int w = 0; w < HALF; ++w) {
          v[w] = sums_of_lane[(((h * HALF + w) * kSlots + slot.i) * G + j) * 64];
        }
        if (h == 1 && j == G - 1) warp_arrive(m.sums_free + slot.i, lane);
        if (quarter == 4 && n == kWarps) {  // quarters that do not wait for each other
          const float2 q0 = plus(plus(plus(plus(float2{}, v[0]), v[1]), v[2]), v[3]);
          const float2 q1 = plus(plus(plus(plus(float2{}, v[4]), v[5]), v[6]), v[7]);
          sums[j].total = plus(sums[j].total, q0);
          (h == 0 ? sums[j].total : sums[j].quarter) = plus(h == 0 ? sums[j].total : float2{}, q1);
          continue;
        }
#pragma unroll
        for (int w = 0; w < HALF; ++w) {
          if (h * HALF + w < n) sums[j].add(v[w], quarter);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < G; ++j) {
      if (!last) {
        kept[j * 64] = sums[j].quarter;
        kept[j * 64 + 32] = sums[j].total;
        continue;
      }
      beside[j].scale = scale[j];
      const float2 y = plus(sums[j].total, sums[j].quarter);
      finish_one(kind, a, t.matrix, pair, column + 8 * j, y.x, y.y, beside[j]);
      if (NEXT) sums[j].total = plain_sums(y.x, y.y, beside[j]);
    }
    if (!NEXT || !last) return;
    float2* const halves = m.halves + (which / 2 % 2 * 2 + quad) * G * 32 + lane;
#pragma unroll
    for (int j = 0; j < G; ++j) {
      if (which % 2 == 0) halves[j * 32] = sums[j].total;
    }
    teams_meet(quad, shares.teams);
    if (which % 2 == 0) return;
#pragma unroll
    for (int j = 0; j < G; ++j) {
      const int at = column + 8 * j;
      put_rows(args.next, tile / 2, at, at < a.m, {halves[j * 32], sums[j].total}, norm, lane);
    }
  });
}

// Of a thread.
template <int A>
struct Registers {
  static constexpr int MULTIPLY = A == 2 ? 104 : 96, ADD = 64, BRING = A == 2 ? ADD : 32;
  static constexpr int ALL = 4 * MULTIPLY + ADD + (A == 2 ? 0 : BRING);
  static_assert(registers_are_there<kThreads<A>>(ALL), "");
};

template <class W, class V, int G, int A, bool NEXT>
__device__ __forceinline__ void run(const FewArgs& args) {
  extern __shared__ __align__(128) char shared[];
  Memory m;
  m.full = reinterpret_cast<u64*>(shared);
  m.free = m.full + args.c.w_stages;
  m.sums_full = m.free + args.c.w_stages;
  m.sums_free = m.sums_full + kSlots;
  m.sums = reinterpret_cast<float4*>(shared + args.sums_at);
  m.floats = reinterpret_cast<float*>(shared + args.floats_at);
  m.totals = reinterpret_cast<float2*>(shared + args.totals_at);
  m.halves = reinterpret_cast<float2*>(shared + args.halves_at);
  m.ring = shared + args.ring_at;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (warp == 0) {  // a lane for each stage: as in barriers_make
    if (lane < args.c.w_stages) {
      barrier_make(m.full + lane, kTileRows);
      barrier_make(m.free + lane, kWarps);
    }
    if (lane < kSlots) {
      barrier_make(m.sums_full + lane, kWarps);
      barrier_make(m.sums_free + lane, shares_of<A>(args.c).quads);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __syncthreads();
  if (warp < kWarps) {
    registers_more<Registers<A>::MULTIPLY>();
    multiply<W, V, G, A, NEXT>(args, m, warp, lane);
    return;
  }
  // Two that bring and two that add are a group; four that add have one for themselves.
  const int helper = warp - kWarps, bringer = A == 2 ? helper : helper - A;
  if (bringer >= 0) {
    registers_less<Registers<A>::BRING>();
    if (bringer < kBringers) {
      launch_dependents();
      bring<W, V, NEXT>(args, m, bringer, lane);
      return;
    }
    if (A == 4) return;
  } else {
    registers_less<Registers<A>::ADD>();
  }
  add<G, A, NEXT>(args, m, A == 2 ? helper - kBringers : helper, lane);
}
#endif

// W: type of the weights; V: of the values among QKV, which may differ. G: groups of eight columns.
// A: warps that add. NEXT: of PLAIN, the results are rounded for the product behind.
template <class W, class V, int G, int A, bool NEXT>
__global__ void __launch_bounds__(kThreads<A>, 1) mul_mat_few(const __grid_constant__ FewArgs a) {
#if __CUDA_ARCH__ >= 900
  run<W, V, G, A, NEXT>(a);
#endif
}
