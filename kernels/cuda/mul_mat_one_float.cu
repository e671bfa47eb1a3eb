// One column times rows of 16-bit weights, and what stands around such a product in a decode step:
// the norm before it, the residual, SwiGLU, rotation and KV write after it. The bits are those that
// a column has among any others (float_columns.cuh), or, where that is not asked for (REST), those
// of a column that is hardly rounded.
//
// A row's sum is a chain of tensor-core products along each part of k, a step of which takes some
// 33 cycles and 32 bytes of each of its tile's rows. So a part of a tile has a warp, and a block
// has as many tiles at once as it has warps for. Every warp streams its part of the rows through
// its own stages in shared memory. The first stages are asked for before the kernel waits for the
// one before it (programmatic dependent launch), so that memory stays busy from kernel to kernel
// while every block makes the column for itself (float_column.cuh).
//
// Of weights in their compact form (compact.cuh) a stage is two runs of bytes, not sixteen.
#include "cuda/compact.cuh"
#include "cuda/mma.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tile_column.cuh"

// Mirrored by `launches` in mul_mat_one_float.py.
struct OneFloatArgs {
  TileColumnArgs o;
  int tiles;   // that a block has at once
  int length;  // elements of each part but the last, which has what is left
  int rough;   // silu as in mul_mat_tma.cu, not as exact as can be
};

constexpr int kTurnsBarrier = 15;  // the column's is 1; from 2 on they are of tiles

#if __CUDA_ARCH__ >= 900

// The type of weights that are stored so.
template <class S>
struct Stored {
  typedef S T;
};
template <class W>
struct Stored<compact<W>> {
  typedef W T;
};

// S: type of the weights, or its compact form (Eights). NORM: whether the column gets a norm. N:
// elements of a stage's rows. REST: whether what rounding takes off the column is multiplied too
// and chains end with stages, for sums nearer to what they should be but without the bits of
// others. Parts are whole units then.
template <int KIND, class S, bool NORM, int N, bool REST>
struct OneFloat : TileColumn<KIND, !is_same<S, typename Stored<S>::T>::value> {
  typedef typename Stored<S>::T W;
  static constexpr bool COMPACT = !is_same<S, W>::value;
  typedef TileColumn<KIND, COMPACT> Base;
  using Base::a;
  using Base::lane;
  using Base::o;
  using Base::parts;
  using Base::shared;
  using Base::warp;
  static constexpr int PAIRS = Base::PAIRS, ROWS = 2 * PAIRS;  // of a tile
  static constexpr int STRIDE = 2 * N + 32;  // bytes from row to row: without conflicts
  // In the compact form eight rows lie together, 128 elements of each at a time.
  static constexpr int UNIT = 128, UNIT_BYTES = 4 * kKept, HALF_BYTES = 4 * 256;
  static constexpr int EIGHT = N / UNIT * UNIT_BYTES;
  static constexpr int STAGE = COMPACT ? 2 * EIGHT : ROWS * STRIDE;

  const OneFloatArgs& args;
  const int slot, part;  // of the tiles that are there at once, of k
  const int count;       // tiles for this warp to go through, from `slot` on
  u64* const bars;
  const int skipped;        // elements before the part of the unit that it begins in
  const int begin, length;  // of the part, with those
  char* const ring;
  bool turns_here = true;
  // What warps leave for the one with a tile's first part, and for the tile behind: what was left
  // is read until they meet again.
  float *left, *left_next;

  __device__ __forceinline__ OneFloat(const OneFloatArgs& args, char* shared)
      : Base(args.o, shared),
        args(args),
        slot(o.parts.div(warp)),
        part(warp - slot * parts),
        count(slot < args.tiles ? this->tiles : 0),
        bars(reinterpret_cast<u64*>(shared) + warp * a.w_stages),
        skipped(COMPACT && !REST ? part * args.length % UNIT : 0),
        begin(part * args.length - skipped),
        length(min(args.length + skipped, a.k - begin)),
        ring(shared + o.ring_at + warp * a.w_stages * STAGE),
        left(reinterpret_cast<float*>(shared + o.sums_at)),
        left_next(left + kColumnWarps * ROWS),
        ask_tile(slot) {}

  // -- rows --

  // Row r of a tile: rows r and r + PAIRS are a pair.
  __device__ __forceinline__ const char* tile_row(int tile, int r) const {
    const Tile t = this->tile_at(tile);
    return row_start(KIND, a, t.matrix, t.pair + r % PAIRS, r / PAIRS);
  }

  // What is asked for next: of which tile, from which element of the part on. from: where this
  // lane's row of it begins, or in the compact form its eight rows: lanes 0 to 7 have the first.
  int ask_tile, ask_k = 0;
  const char* from = nullptr;

  // AT_ONCE: each row's lane asks for its own, else one for all of them.
  template <bool AT_ONCE>
  __device__ __forceinline__ void request(int stage, u64 policy) {
    if constexpr (COMPACT) {
      request_eights(stage, policy);
    } else {
      request_rows<AT_ONCE>(stage, policy);
    }
    ask_k += N;
    if (ask_k >= length) {
      ask_k = 0;
      ask_tile += args.tiles;
    }
  }

  template <bool AT_ONCE>
  __device__ __forceinline__ void request_rows(int stage, u64 policy) {
    if (ask_k == 0) from = tile_row(ask_tile, lane % ROWS) + 2 * begin;
    const u32 bytes = 2 * min(N, length - ask_k);
    const u32 bar = shared_address(bars + stage), to = shared_address(ring + stage * STAGE);
    if (elected()) expect_bytes(bar, ROWS * bytes);
    if (AT_ONCE) {
      __syncwarp();
      if (lane < ROWS) copy_bulk(to + lane * STRIDE, from + 2 * ask_k, bytes, bar, policy);
    } else {
#pragma unroll 1
      for (int r = 0; r < ROWS; ++r) {
        const u64 row = __shfl_sync(kAllLanes, reinterpret_cast<u64>(from), r);
        const char* const run = reinterpret_cast<const char*>(row) + 2 * ask_k;
        if (elected()) copy_bulk(to + r * STRIDE, run, bytes, bar, policy);
      }
      __syncwarp();
    }
  }

  // Of a unit that the part ends in only the first half.
  __device__ __forceinline__ void request_eights(int stage, u64 policy) {
    if (ask_k == 0) from = this->eight_of(ask_tile) + begin / UNIT * UNIT_BYTES;
    const int n = min(N, length - ask_k);
    const u32 bytes = n / UNIT * UNIT_BYTES + (n % UNIT ? HALF_BYTES : 0);
    const u32 bar = shared_address(bars + stage), to = shared_address(ring + stage * STAGE);
    if (elected()) expect_bytes(bar, 2 * bytes);
    __syncwarp();
    if (lane % PAIRS == 0 && lane < ROWS) {
      copy_bulk(to + lane / PAIRS * EIGHT, from + ask_k / UNIT * UNIT_BYTES, bytes, bar, policy);
    }
  }

  // -- products --

  // The tensor cores' columns that there are not are zeros, which take less power: as long as a
  // stage, behind the column, in other banks.
  __device__ __forceinline__ char* zeros() const {
    return shared + o.x_at + (REST ? rest_at(a.k) : 0) + (2 * a.k + 127) / 128 * 128 + 32;
  }
  __device__ __forceinline__ void make_zeros() const {
    for (int i = threadIdx.x; i < N / 2; i += kThreads) reinterpret_cast<u32*>(zeros())[i] = 0;
  }

  // A step of the chain. upper, lower: the words of the tile's rows that this lane has; x: its
  // place in the column. Lane t of the four that share a row has elements 4 t to 4 t + 3 of every
  // sixteen.
  static __device__ __forceinline__ void step(uint2 upper, uint2 lower, const char* x,
                                              float (&sums)[4]) {
    const uint2 column = *reinterpret_cast<const uint2*>(x);
    const u32 w[4] = {upper.x, lower.x, upper.y, lower.y};
    mma<W>(sums, w, column.x, column.y);
  }

  // rows: this lane's place in them.
  static __device__ __forceinline__ void two_steps(const char* rows, const char* x,
                                                   float (&sums)[4]) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const uint2 upper = *reinterpret_cast<const uint2*>(rows + s * 32);
      const uint2 lower = *reinterpret_cast<const uint2*>(rows + s * 32 + PAIRS * STRIDE);
      step(upper, lower, x + s * 32, sums);
    }
  }

  static __device__ __forceinline__ void multiply(const char* rows, const char* x, int n,
                                                  float (&sums)[4]) {
    if (n >= N) {
#pragma unroll
      for (int i = 0; i < N / 32; ++i) two_steps(rows + i * 64, x + i * 64, sums);
    } else {
      for (int i = 0; i < n / 32; ++i) two_steps(rows + i * 64, x + i * 64, sums);
    }
  }

  // This lane's words of step i of a unit. last: what earlier ones carried of the last word.
  __device__ __forceinline__ uint2 words_of(const char* unit, int i, u32& last) const {
    if (i == 7) {
      const u32 word = *reinterpret_cast<const u32*>(unit + 7 * 256 + lane * 4);
      return {without(word), last | carried(word, kSet - 2)};
    }
    const uint2 w = *reinterpret_cast<const uint2*>(unit + i * 256 + lane * 8);
    last |= carried(w.x, 2 * i) | carried(w.y, 2 * i + 1);
    return {without(w.x), without(w.y)};
  }

  // The steps of a unit, or of SOME units, which the part begins or ends in, those from `first` on
  // and before `end`.
  template <bool SOME>
  __device__ __forceinline__ void unit_steps(const char* unit, const char* x, int first, int end,
                                             float (&sums)[4]) const {
    u32 upper = 0, lower = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (SOME && i >= end) break;
      const uint2 of_upper = words_of(unit, i, upper), of_lower = words_of(unit + EIGHT, i, lower);
      if (!SOME || i >= first) step(of_upper, of_lower, x + i * 32, sums);
    }
  }

  // rows: a stage; x: this lane's place in the column; n: elements from there to the part's end;
  // skip: of them, at the beginning.
  __device__ __forceinline__ void multiply_units(const char* rows, const char* x, int n, int skip,
                                                 float (&sums)[4]) const {
    if (n >= N && skip == 0) {
#pragma unroll
      for (int i = 0; i < N / UNIT; ++i) {
        unit_steps<false>(rows + i * UNIT_BYTES, x + i * 2 * UNIT, 0, 8, sums);
      }
      return;
    }
#pragma unroll 1
    for (int k = 0; k < min(n, N); k += UNIT) {
      const char *const unit = rows + k / UNIT * UNIT_BYTES, *const column = x + 2 * k;
      if (!REST && ((k == 0 && skip) || n - k < UNIT)) {
        unit_steps<true>(unit, column, k == 0 ? skip / 16 : 0, (n - k) / 16, sums);
      } else {
        unit_steps<false>(unit, column, 0, 8, sums);
      }
    }
  }

  // -- sums --

  __device__ __forceinline__ void leave_turns() {
    if (!this->are_turned()) return;
    Base::leave_turns();
    turns_here = false;
    if (slot >= count) {
      asm volatile("bar.arrive %0, %1;" ::"n"(kTurnsBarrier), "n"(kThreads) : "memory");
    }
  }
  __device__ __forceinline__ void wait_for_turns() {
    if (turns_here) return;
    asm volatile("bar.sync %0, %1;" ::"n"(kTurnsBarrier), "n"(kThreads) : "memory");
    turns_here = true;
  }

  __device__ __forceinline__ bool ends() const { return part == 0 && lane % 4 == 0; }
  __device__ __forceinline__ BesideOne beside(int tile, float scale) const {
    const Tile t = this->tile_at(tile);
    return this->beside_pair(t.matrix, this->pair_of(t), scale);
  }

  // A pair's sums of all parts, for the warp with the first one.
  __device__ __forceinline__ float2 add_parts(float2 y) {
    float* const mine = left + warp * ROWS + lane / 4;
    if (lane % 4 == 0) {
      mine[0] = y.x;
      mine[PAIRS] = y.y;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(2 + slot), "r"(32 * parts) : "memory");
    for (int i = 1; part == 0 && i < parts; ++i) {
      y.x += mine[ROWS * i];
      y.y += mine[ROWS * i + PAIRS];
    }
    float* const before = left;
    left = left_next;
    left_next = before;
    return y;
  }

  // y: of this warp's part of a tile.
  __device__ __forceinline__ void finish(int tile, float2 y, BesideOne& b) {
    if (parts > 1) y = add_parts(y);
    wait_for_turns();
    const Tile t = this->tile_at(tile);
    if (this->in_order(t.matrix)) y = in_pairs(y);
    if (ends()) this->finish_pair(t.matrix, this->pair_of(t), y, b, args.rough);
  }

  __device__ __forceinline__ void run() {
    barriers_make(bars, a.w_stages, lane);
    const u64 policy = read_once();
    // One by one: of copies that are asked for faster, more are in the column's way (docs/LOG.md).
#pragma unroll 1
    for (int s = 0; s < a.w_stages && ask_tile < count; ++s) request<false>(s, policy);
    launch_dependents();

    // What does not depend on the kernels before this one.
    char* const x = shared + o.x_at;
    FloatColumn<W, NORM, REST> column(o.x, o.norm, a.k, x,
                                      reinterpret_cast<float*>(shared + o.squares_at));
    make_zeros();
    const float scale = this->make(column, [] {});
    leave_turns();

    // The second of the tensor cores' columns is the rest.
    const int place = lane % 4 * 8, step = lane < (REST ? 8 : 4) ? 2 : 0;
    const char* const mine =
        step == 0 ? zeros() : x + 2 * begin + (REST && lane >= 4 ? rest_at(a.k) : 0);
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int tile = slot; tile < count; tile += args.tiles) {
      BesideOne b = {};
      if (ends()) b = beside(tile, scale);
      float sums[4] = {};
#pragma unroll 1
      for (int k = 0; k < length; k += N) {
        barrier_wait(bars + stage, parity);
        const char* const rows = ring + stage * STAGE;
        const char* const column = mine + k * step + place;
        if constexpr (REST) {
          float of_stage[4] = {};
          multiply_units(rows, column, length - k, k ? 0 : skipped, of_stage);
          for (int i = 0; i < 4; ++i) sums[i] += of_stage[i];
        } else if constexpr (COMPACT) {
          multiply_units(rows, column, length - k, k ? 0 : skipped, sums);
        } else {
          multiply(rows + lane / 4 * STRIDE + place, column, length - k, sums);
        }
        __syncwarp();
        // Of gate and up, whose copies are short, one by one is faster still.
        if (ask_tile < count) request<KIND != GLU>(stage, policy);
        if (++stage == a.w_stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      float2 y = {sums[0], sums[2]};
      if (REST) y = {sums[0] + sums[1], sums[2] + sums[3]};
      finish(tile, y, b);
    }
  }
};
#endif

template <int KIND, class S, bool NORM, int N, bool REST>
__global__ void __launch_bounds__(kThreads, 2)
    mul_mat_one_float(const __grid_constant__ OneFloatArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  OneFloat<KIND, S, NORM, N, REST>(args, shared).run();
#endif
}
