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
#include "cuda/columns.cuh"
#include "cuda/compact.cuh"
#include "cuda/float_column.cuh"
#include "cuda/mma.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/rope.cuh"

constexpr int kThreads = 32 * kColumnWarps;
constexpr int kTurnsBarrier = 15;  // the column's is 1; from 2 on they are of tiles

// Mirrored by `launches` in mul_mat_one_float.py.
struct OneFloatArgs {
  ColumnsArgs c;      // w_stages: of each warp
  const float* x;     // what the column is made of
  const float* norm;  // weights of the norm, or null
  const i32* pos;
  const float* factors;  // of the frequencies, or null
  RopeNumbers rope;
  float eps;
  int tiles;          // that a block has at once
  int share, longer;  // tiles of a block in all; the first so many blocks have one more
  FastDiv parts;      // of k
  int length;         // elements of each part but the last, which has what is left
  int rough;          // silu as in mul_mat_tma.cu, not as exact as can be
  int turns_at, squares_at, sums_at, x_at, ring_at;  // bytes in shared memory
};

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
struct OneFloat {
  typedef typename Stored<S>::T W;
  static constexpr bool COMPACT = !is_same<S, W>::value;
  static constexpr int PAIRS = 8, ROWS = 2 * PAIRS;  // of a tile
  static constexpr int STRIDE = 2 * N + 32;          // bytes from row to row: without conflicts
  // In the compact form eight rows lie together, 128 elements of each at a time.
  static constexpr int UNIT = 128, UNIT_BYTES = 4 * kKept, HALF_BYTES = 4 * 256;
  static constexpr int EIGHT = N / UNIT * UNIT_BYTES;
  static constexpr int STAGE = COMPACT ? 2 * EIGHT : ROWS * STRIDE;

  const OneFloatArgs& args;
  const ColumnsArgs& a;
  char* const shared;
  const int warp, lane;
  const int slot, part;     // of the tiles that are there at once, of k
  const int skipped;        // elements before the part of the unit that it begins in
  const int begin, length;  // of the part, with those
  const int first;          // tile of the block
  const int count;          // tiles for this warp to go through, from `slot` on
  u64* const bars;
  char* const ring;

  __device__ __forceinline__ OneFloat(const OneFloatArgs& args, char* shared)
      : args(args),
        a(args.c),
        shared(shared),
        warp(threadIdx.x / 32),
        lane(threadIdx.x % 32),
        slot(args.parts.div(warp)),
        part(warp - slot * (int)args.parts.divisor),
        skipped(COMPACT && !REST ? part * args.length % UNIT : 0),
        begin(part * args.length - skipped),
        length(min(args.length + skipped, a.k - begin)),
        first(args.share * (int)blockIdx.x + min((int)blockIdx.x, args.longer)),
        count(slot < args.tiles ? args.share + ((int)blockIdx.x < args.longer) : 0),
        bars(reinterpret_cast<u64*>(shared) + warp * a.w_stages),
        ring(shared + args.ring_at + warp * a.w_stages * STAGE),
        ask_tile(slot) {}

  // -- rows --

  __device__ __forceinline__ Tile tile_at(int tile) const {
    return KIND == QKV ? tile_of<PAIRS>(a, first + tile) : Tile{0, (first + tile) * PAIRS};
  }

  // Whether pairs of a matrix are neighbours. Of these the compact form has sixteen rows in order.
  __device__ __forceinline__ bool are_neighbours(int matrix) const {
    return KIND == PLAIN || (KIND == QKV && (a.first + matrix >= 2 || !a.neox));
  }
  __device__ __forceinline__ bool in_order(int matrix) const {
    return COMPACT && are_neighbours(matrix);
  }
  // The pair of a tile whose sums this lane finishes.
  __device__ __forceinline__ int pair_of(const Tile& t) const {
    const int r = lane / 4;
    return t.pair + (in_order(t.matrix) ? r % 2 * 4 + r / 2 : r);
  }

  // Row r of a tile: rows r and r + PAIRS are a pair.
  __device__ __forceinline__ const char* tile_row(int tile, int r) const {
    const Tile t = tile_at(tile);
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
    if (ask_k == 0) {
      const Tile t = tile_at(ask_tile);
      const bool second = lane >= PAIRS, next = second && in_order(t.matrix);
      from = row_start(KIND, a, t.matrix, t.pair, second && !next) + begin / UNIT * UNIT_BYTES;
      if (next) from += PAIRS * a.w_row;
    }
    const int n = min(N, length - ask_k);
    const u32 bytes = n / UNIT * UNIT_BYTES + (n % UNIT ? HALF_BYTES : 0);
    const u32 bar = shared_address(bars + stage), to = shared_address(ring + stage * STAGE);
    if (elected()) expect_bytes(bar, 2 * bytes);
    __syncwarp();
    if (lane % PAIRS == 0 && lane < ROWS) {
      copy_bulk(to + lane / PAIRS * EIGHT, from + ask_k / UNIT * UNIT_BYTES, bytes, bar, policy);
    }
  }

  // -- what heads are turned by, found by the last warps, as they may have no rows --

  __device__ __forceinline__ float2* turns() const {
    return reinterpret_cast<float2*>(shared + args.turns_at);
  }
  static __device__ __forceinline__ int first_turn() { return kThreads - 1 - (int)threadIdx.x; }

  __device__ __forceinline__ double angle_at(int i) const {
    return angle_of(args.rope, i, args.factors ? args.factors[i] : 1.0f);
  }
  __device__ __forceinline__ void leave_turns(double angle, int pos) const {
    for (int i = first_turn(); i < a.head_dim / 2; i += kThreads) {
      if (i >= kThreads) angle = angle_at(i);
      turn(args.rope, pos * angle, &turns()[i].y, &turns()[i].x);
    }
  }

  // -- products --

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

  // Of rows in order lane r has the sums of the r-th and of the eighth after it: those of pairs.
  __device__ __forceinline__ float2 in_pairs(float2 y) const {
    const bool odd = lane / 4 % 2;
    const float other = __shfl_xor_sync(kAllLanes, odd ? y.x : y.y, 4);
    return odd ? float2{other, y.y} : float2{y.x, other};
  }

  __device__ __forceinline__ BesideOne beside(int tile, float scale) const {
    const Tile t = tile_at(tile);
    const int pair = pair_of(t);
    BesideOne b = {};
    if (pair < a.pairs[t.matrix]) b = beside_single(KIND, a, t.matrix, pair);
    b.scale = scale;
    return b;
  }

  // A pair's sums, for the warp with the first part. left: what warps leave.
  __device__ __forceinline__ float2 add_parts(float y0, float y1, float* left) const {
    float* const mine = left + warp * 16 + lane / 4;
    if (lane % 4 == 0) {
      mine[0] = y0;
      mine[8] = y1;
    }
    asm volatile("bar.sync %0, %1;" ::"r"(2 + slot), "r"(32 * args.parts.divisor) : "memory");
    for (int i = 1; part == 0 && i < (int)args.parts.divisor; ++i) {
      y0 += mine[16 * i];
      y1 += mine[16 * i + 8];
    }
    return {y0, y1};
  }

  __device__ __forceinline__ void run() {
    barriers_make(bars, a.w_stages, lane);
    const u64 policy = read_once();
    // One by one: of copies that are asked for faster, more are in the column's way (docs/LOG.md).
#pragma unroll 1
    for (int s = 0; s < a.w_stages && ask_tile < count; ++s) request<false>(s, policy);
    launch_dependents();

    // What does not depend on the kernels before this one.
    char* const x = shared + args.x_at;
    FloatColumn<W, NORM, REST> column(args.x, args.norm, a.k, x,
                                      reinterpret_cast<float*>(shared + args.squares_at));
    const bool turned = KIND == QKV && a.first < 2;
    double angle = 0.0;
    if (turned && first_turn() < a.head_dim / 2) angle = angle_at(first_turn());
    wait_for_previous();
    int pos = 0;
    if (turned && first_turn() < a.head_dim / 2) pos = __ldcg(args.pos);
    const float scale = column.make(args.eps);
    bool turns_here = !turned;
    if (turned) {
      leave_turns(angle, pos);
      if (slot >= count) {
        asm volatile("bar.arrive %0, %1;" ::"n"(kTurnsBarrier), "n"(kThreads) : "memory");
      }
    }

    const bool ends = part == 0 && lane % 4 == 0;  // with a pair's sums
    float* left = reinterpret_cast<float*>(shared + args.sums_at);
    float* left_next = left + kColumnWarps * 16;
    // Of the tensor cores' eight columns four are the rest then.
    const int place = lane % 4 * 8, side = REST && lane / 4 % 2 ? rest_at(a.k) : 0;
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int tile = slot; tile < count; tile += args.tiles) {
      BesideOne b = {};
      if (ends) b = beside(tile, scale);
      float sums[4] = {};
#pragma unroll 1
      for (int k = 0; k < length; k += N) {
        barrier_wait(bars + stage, parity);
        const char* const rows = ring + stage * STAGE;
        const char* const column = x + 2 * (begin + k) + place + side;
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
      if (args.parts.divisor > 1) {
        y = add_parts(y.x, y.y, left);
        float* const before = left;  // what is left there is read until warps meet again
        left = left_next;
        left_next = before;
      }
      if (!turns_here) {
        asm volatile("bar.sync %0, %1;" ::"n"(kTurnsBarrier), "n"(kThreads) : "memory");
        turns_here = true;
      }
      if (COMPACT && in_order(tile_at(tile).matrix)) y = in_pairs(y);
      if (ends) {
        const Tile t = tile_at(tile);
        const int pair = pair_of(t);
        if (turned) b.turn = turns()[pair % (a.head_dim / 2)];
        finish_one(KIND, a, t.matrix, pair, 0, y.x, y.y, b, args.rough);
      }
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
