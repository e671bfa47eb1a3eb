// What mul_mat_fragments.cu and mul_mat_fragments_few.cu have in common: what warps multiply of
// tiles of quantized weights that lie as fragments, and where their sums meet.
//
// A sum is a chain of tensor-core products along each part of k, in one order. Where that is even
// enough (WHOLE) a warp has a chain. Else all units of a block's chains, one after another, are
// divided among its warps, so that a chain may begin in one warp and go on in the next, from the
// sums that the former had. Every warp goes through its chains from the last one on, which another
// waits for, to the first one, which waits itself. It streams them through stages of its own in
// shared memory.
#pragma once

#include "cuda/cluster.cuh"
#include "cuda/fragments.cuh"
#include "cuda/mma.cuh"
#include "cuda/next_fragments.cuh"
#include "cuda/tile_column.cuh"

// Mirrored by `fragments_product` in tile_fragments.py.
struct FragmentArgs {
  TileColumnArgs o;
  FastDiv units;         // of k
  int early;             // stages that are asked for before the columns
  FragmentsPlace next;   // several columns of GLU once more, for the product behind
  GivenFragments given;  // several columns that the kernel before left
};

#if __CUDA_ARCH__ >= 900

constexpr int kBesideColumn = 64;  // bytes; mirrored by _ZEROS of tile_fragments.py

// WHOLE: see above. UNITS: of a stage's rows. COLUMNS: that lie together, each 16 bytes of a lane
// for 32 elements; lanes of others multiply one of these, or zeros. BLOCKS: as TileColumn has it.
template <int KIND, class W, bool WHOLE, int UNITS, int COLUMNS = 1, int BLOCKS = 1>
struct TileFragments : TileColumn<KIND, true, BLOCKS> {
  typedef TileColumn<KIND, true, BLOCKS> Base;
  typedef FragmentUnit<W> Unit;
  typedef FragmentHalf<W> Half;
  using Base::a;
  using Base::lane;
  using Base::o;
  using Base::parts;
  using Base::tiles;
  using Base::warp;
  static constexpr int PAIRS = Base::PAIRS;
  static constexpr int EIGHT = UNITS * Unit::BYTES, STAGE = 2 * EIGHT;
  static constexpr int EIGHTS = (COLUMNS + 7) / 8;  // of columns
  static constexpr int STEP = COLUMNS * 64;         // bytes of 32 elements of the columns
  static constexpr int UNIT_STEP = Unit::BLOCKS * STEP;
  static constexpr int SUMS = 2 * PAIRS * COLUMNS;  // of a chain
  static constexpr bool LEAVES = KIND == GLU && COLUMNS > 1;
  static constexpr int OF_LANE = COLUMNS == 1 ? 1 : 2 * EIGHTS;  // columns, of some lanes

  // What a warp has still to go through: the last `left` units before unit `end` of k in a part of
  // a tile, and in those before it.
  struct Place {
    int tile, part, end, left;
  };

  const FragmentArgs& args;
  const u64 policy;
  const int here, first_part;  // parts of k that the block has
  const int first_unit, span;  // of these
  Place place, ask;            // what to multiply next, and what to ask for
  // Of what is asked for: the next unit; where the eight rows of a tile begin that are this lane's.
  int ask_unit;
  const char* from;
  u64* const columns_here;           // a barrier, where there are several
  u64* const bars;                   // of this warp's stages, and then of the sums that it gives
  float *const chains, *const hand;  // sums of whole chains; those that warps give
  u32* const largest;  // of each column of results, as bits; and how many warps are done
  char* const ring;
  int stage = 0;
  u32 parity = 0;
  float scale = 1.0f;  // of a single column's sums

  __device__ __forceinline__ TileFragments(const FragmentArgs& args, char* shared)
      : Base(args.o, shared),
        args(args),
        policy(read_once()),
        here(parts / BLOCKS),
        first_part(BLOCKS == 1 ? 0 : here * this->rank()),
        first_unit(BLOCKS == 1 ? 0 : begin_of_part(first_part)),
        span((BLOCKS == 1 ? (int)args.units.divisor : begin_of_part(first_part + here)) -
             first_unit),
        place(start()),
        ask(place),
        columns_here(reinterpret_cast<u64*>(shared)),
        bars(columns_here + 1 + warp * (a.w_stages + !WHOLE)),
        chains(reinterpret_cast<float*>(shared + o.sums_at)),
        hand(chains + (parts > 1 ? (tiles + BLOCKS - 1) / BLOCKS * parts * SUMS : 0)),
        largest(reinterpret_cast<u32*>(hand + (WHOLE ? 0 : kColumnWarps * SUMS))),
        ring(shared + o.ring_at + warp * a.w_stages * STAGE) {
    begin_asking();
  }

  // -- which units --

  __device__ __forceinline__ int begin_of_part(int part) const {
    return o.parts.div(args.units.divisor * part);
  }
  __device__ __forceinline__ Place start() const {
    if (WHOLE) {
      const int tile = BLOCKS == 1 ? (int)o.parts.div(warp) : warp / here;
      if (tile >= tiles) return {0, 0, 0, 0};
      const int part = warp - tile * here + first_part, end = begin_of_part(part + 1);
      return {tile, part, end, end - begin_of_part(part)};
    }
    const int all = tiles * span, warps = min(all, kColumnWarps);
    const bool one = warps == kColumnWarps;  // a division less
    const int begin = one ? all * warp / kColumnWarps : min(warp, all);
    const int end = one ? all * (warp + 1) / kColumnWarps : min(warp + 1, all);
    if (begin == end) return {0, 0, 0, 0};
    const int last = end - 1;
    const int tile = BLOCKS == 1 ? (int)args.units.div(last) : last / span;
    const int unit = last - tile * span + first_unit + 1;
    // The last part that begins before it.
    return {tile, (int)args.units.div(unit * parts - 1), unit, end - begin};
  }
  __device__ __forceinline__ int begin_of(const Place& p) const {
    return WHOLE ? p.end - p.left : max(begin_of_part(p.part), p.end - p.left);
  }
  // From a piece of a chain to the one before it.
  __device__ __forceinline__ void next(Place& p, int begin) const {
    p.left -= p.end - begin;
    p.end = begin;
    if (--p.part < first_part) {
      p.part += here;
      p.end += span;
      --p.tile;
    }
  }

  // -- weights --

  __device__ __forceinline__ void begin_asking() {
    if (ask.left == 0) return;
    ask_unit = begin_of(ask);
    from = this->eight_of(ask.tile);
  }
  __device__ __forceinline__ void request(int stage) {
    const int units = min(UNITS, ask.end - ask_unit), bytes = units * Unit::BYTES;
    const u32 bar = shared_address(bars + stage), to = shared_address(ring + stage * STAGE);
    if (elected()) expect_bytes(bar, 2 * bytes);
    __syncwarp();
    if (lane % kEight == 0 && lane < 2 * kEight) {
      copy_bulk(to + lane / kEight * EIGHT, from + ask_unit * Unit::BYTES, bytes, bar, policy);
    }
    ask_unit += units;
    if (WHOLE) {
      ask.left -= units;
    } else if (ask_unit == ask.end) {
      next(ask, begin_of(ask));
      begin_asking();
    }
  }
  // Of the stages from one to another, what there is to ask for.
  __device__ __forceinline__ void request_some(int from, int to) {
#pragma unroll 1
    for (int s = from; s < min(to, a.w_stages) && ask.left > 0; ++s) request(s);
  }
  // Makes the barriers, which warps may use when they have met, and asks for the first stages.
  __device__ __forceinline__ void begin() {
    if (COLUMNS > 1 && threadIdx.x == 0) barrier_init(columns_here);
    if (LEAVES && threadIdx.x <= COLUMNS) largest[threadIdx.x] = 0;
    barriers_make(bars, a.w_stages + !WHOLE, lane);
    request_some(0, args.early);
    launch_dependents();
  }

  // -- products --

  // Seven of the tensor cores' eight columns are zeros where there is one, which takes less power
  // than the same column seven times: as long as a unit, behind the column, in other banks.
  __device__ __forceinline__ char* zeros() const {
    return this->shared + o.x_at + 2 * a.k + kBesideColumn;
  }
  __device__ __forceinline__ void make_zeros() const {
    if (threadIdx.x < UNIT_STEP / 16) {
      reinterpret_cast<uint4*>(zeros())[threadIdx.x] = {};
    }
  }

  // A unit of each eight; x: this lane's place in the columns.
  __device__ __forceinline__ void multiply(const char* rows, const char* x,
                                           float (&sums)[EIGHTS][4]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const Half upper = Half::load(rows, h, lane), lower = Half::load(rows + EIGHT, h, lane);
#pragma unroll
      for (int b = 0; b < Half::BLOCKS; ++b, x += STEP) {
        const Pairs lo = upper.pairs(b), hi = lower.pairs(b);
        const u32 w0[4] = {lo.v[0], hi.v[0], lo.v[1], hi.v[1]};
        const u32 w1[4] = {lo.v[2], hi.v[2], lo.v[3], hi.v[3]};
#pragma unroll
        for (int j = 0; j < EIGHTS; ++j) {
          const uint4 column = *reinterpret_cast<const uint4*>(x + j * 512);
          mma<f16>(sums[j], w0, column.x, column.y);
          mma<f16>(sums[j], w1, column.z, column.w);
        }
      }
    }
  }
  // So many units that lie in stages; x: this lane's place in the columns where they begin; step:
  // from a unit to the next one.
  __device__ __forceinline__ void multiply_units(const char* x, int step, int units,
                                                 float (&sums)[EIGHTS][4]) {
#pragma unroll 1
    for (int u = 0; u < units; u += UNITS) {
      barrier_wait(bars + stage, parity);
      const char* rows = ring + stage * STAGE;
      const int n = min(UNITS, units - u);
#pragma unroll 1
      for (int i = 0; i < n; ++i, rows += Unit::BYTES, x += step) multiply(rows, x, sums);
      __syncwarp();
      if (ask.left > 0) request(stage);
      if (++stage == a.w_stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  }

  // All that the warp has. x: the columns, from this block's first unit on.
  __device__ __forceinline__ void multiply_all(const char* x) {
    int step = UNIT_STEP;
    if (COLUMNS == 1 && lane >= 4) {
      x = zeros();
      step = 0;
    }
    x += (lane / 4 % min(COLUMNS, 8) * 4 + lane % 4) * 16;
#pragma unroll 1
    while (place.left > 0) {
      const int begin = begin_of(place);
      const bool ends = WHOLE || place.end == begin_of_part(place.part + 1);
      const bool alone = ends && parts == 1;
      const Tile t = this->tile_at(place.tile);
      BesideOne b = {};
      if (COLUMNS == 1 && alone && lane % 4 == 0) b = beside(t, this->pair_of(t), 0);
      float sums[EIGHTS][4] = {};
      if (!WHOLE && begin > begin_of_part(place.part)) take(sums);
      multiply_units(x + (begin - first_unit) * step, step, place.end - begin, sums);
      if (alone) {
        finish_sums(t, sums, b);
      } else if (ends) {
        leave_chain(sums);
      } else {
        give(sums);
      }
      if (WHOLE) return;
      next(place, begin);
    }
  }

  // -- sums, as they lie in shared memory --

  static __device__ __forceinline__ int sum_at(int row, int column) {
    return row * COLUMNS + column;
  }
  // f: of where each lane's sums of two columns lie, and of which two.
  template <class F>
  static __device__ __forceinline__ void each_two(F f) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2 * EIGHTS; ++i) {
      const int column = i / 2 * 8 + lane % 4 * 2;
      if (column < COLUMNS) f(sum_at(lane / 4 + i % 2 * PAIRS, column), i / 2, i % 2 * 2);
    }
  }
  static __device__ __forceinline__ void put_two(float* to, float2 two) {
    if (COLUMNS == 1) {
      *to = two.x;
    } else {
      *reinterpret_cast<float2*>(to) = two;
    }
  }

  // To the warp behind, whose chain it is too; from the warp before.
  __device__ __forceinline__ void give(float (&sums)[EIGHTS][4]) const {
    float* const to = hand + warp * SUMS;
    each_two([&](int at, int j, int i) { put_two(to + at, {sums[j][i], sums[j][i + 1]}); });
    __syncwarp();
    if (lane == 0) barrier_arrive(bars + a.w_stages);
  }
  __device__ __forceinline__ void take(float (&sums)[EIGHTS][4]) const {
    barrier_wait(bars - 1, 0);
    const float* const from = hand + (warp - 1) * SUMS;
    each_two([&](int at, int j, int i) {
      sums[j][i] = from[at];
      if (COLUMNS > 1) sums[j][i + 1] = from[at + 1];
    });
  }

  // Where the sums of a tile's chains meet: in which block, and where in its shared memory.
  static __device__ __forceinline__ int owner_of(int tile) { return tile % BLOCKS; }
  __device__ __forceinline__ float* chains_of(int tile) const {
    return chains + tile / BLOCKS * parts * SUMS;
  }
  __device__ __forceinline__ void leave_chain(float (&sums)[EIGHTS][4]) const {
    float* const to = chains_of(place.tile) + place.part * SUMS;
    each_two([&](int at, int j, int i) {
      const float2 two = {sums[j][i], sums[j][i + 1]};
      if (BLOCKS == 1) {
        put_two(to + at, two);
      } else {
        put_at(address_at(shared_address(to + at), owner_of(place.tile)), two);
      }
    });
  }

  // -- what becomes of them --

  // What the sums of columns that the kernel before left are multiplied by.
  __device__ __forceinline__ float* scales() const {
    return reinterpret_cast<float*>(this->shared + o.squares_at);
  }

  // pair: of the tile's matrix.
  __device__ __forceinline__ BesideOne beside(const Tile& t, int pair, int column) const {
    return COLUMNS == 1 ? this->beside_pair(t.matrix, pair, scale)
                        : beside_one(KIND, a, t.matrix, pair, column);
  }
  __device__ __forceinline__ void finish(const Tile& t, int pair, int column, float2 y,
                                         BesideOne& b) const {
    if (COLUMNS == 1) {
      this->finish_pair(t.matrix, pair, y, b, false);
    } else {
      if (args.given.largest) b.scale = scales()[column];
      finish_one(KIND, a, t.matrix, pair, column, y.x, y.y, b);
    }
    if (!LEAVES || args.next.to == nullptr || column >= a.m) return;
    const float made = gated_sums(y.x, y.y, b, false);
    args.next.put(pair, column, made);
    atomicMax(largest + column, gf_bits_of(fmaxf(fabsf(made), 0.0f)));
  }

  // Of one part: each lane has its sums. b: what is beside a single column.
  __device__ __forceinline__ void finish_sums(const Tile& t, float (&sums)[EIGHTS][4],
                                              BesideOne& b) const {
    const int pair = this->pair_of(t);
#pragma unroll
    for (int i = 0; i < OF_LANE; ++i) {
      const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
      float2 y = {sums[i / 2][i % 2], sums[i / 2][2 + i % 2]};
      if (this->in_order(t.matrix)) y = in_pairs(y);
      if (column >= a.m) continue;
      if (COLUMNS > 1) b = beside(t, pair, column);
      finish(t, pair, column, y, b);
    }
  }

  // A pair's sums in a column.
  struct Item {
    int tile;
    Tile t;
    int pair, column;  // pair: of the tile
  };
  __device__ __forceinline__ Item item_at(int i) const {
    const int tile = i / (PAIRS * COLUMNS) * BLOCKS + this->rank();
    return {tile, this->tile_at(tile), i / COLUMNS % PAIRS, i % COLUMNS};
  }
  // What is beside the first of the sums that this thread adds up, to be asked for early.
  __device__ __forceinline__ BesideOne beside_first() const {
    BesideOne b = {};
    if (parts > 1 && (int)threadIdx.x < items()) b = beside_item(item_at(threadIdx.x));
    return b;
  }
  __device__ __forceinline__ int items() const {
    return (tiles - this->rank() + BLOCKS - 1) / BLOCKS * PAIRS * COLUMNS;
  }
  __device__ __forceinline__ BesideOne beside_item(const Item& at) const {
    return beside(at.t, at.t.pair + at.pair, at.column);
  }
  // After all threads that leave chains have met. b: what is beside the first.
  __device__ __forceinline__ void add_parts(BesideOne& b) const {
    Item at = item_at(threadIdx.x);
#pragma unroll 1
    for (int i = threadIdx.x; i < items(); i += kThreads) {
      if (i >= kThreads) {
        at = item_at(i);
        b = beside_item(at);
      }
      const bool order = this->in_order(at.t.matrix);
      const int upper = order ? 2 * at.pair : at.pair;
      const float* const x = chains_of(at.tile) + sum_at(upper, at.column);
      const float* const y = x + (order ? 1 : PAIRS) * COLUMNS;
      float2 sums = {0.0f, 0.0f};
#pragma unroll 4
      for (int p = 0; p < parts; ++p) {
        sums.x += x[p * SUMS];
        sums.y += y[p * SUMS];
      }
      finish(at.t, at.t.pair + at.pair, at.column, sums, b);
    }
  }
  // Of what the block has finished, for the product behind, by the warp that is done last.
  __device__ __forceinline__ void leave_largest() const {
    if (!LEAVES || args.next.to == nullptr) return;
    __syncwarp();
    u32 before = 0;
    if (lane == 0) {
      __threadfence_block();
      before = atomicAdd(largest + COLUMNS, 1u);
    }
    if (__shfl_sync(kAllLanes, before, 0) != kColumnWarps - 1) return;
    if (lane < a.m) {
      args.next.put_largest((int)blockIdx.x, lane, gf_float_of(atomicMax(largest + lane, 0u)));
    }
  }
};
#endif
