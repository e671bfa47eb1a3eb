// One column times rows of quantized weights that lie as fragments (fragments.cuh), and what stands
// around such a product in a decode step: the norm before it, the residual, SwiGLU, rotation and KV
// write after it. The bits are those that the column has in mul_mat_columns.cu, among any others.
//
// As in mul_mat_one_float.cu a part of a tile's rows has a warp, which streams it through stages of
// its own in shared memory. Here instructions are what takes longest, about fourteen for eight
// weights, so that the column is to be there soon: most stages are asked for behind it.
#include "cuda/fragments.cuh"
#include "cuda/mma.cuh"
#include "cuda/pipeline.cuh"
#include "cuda/tile_column.cuh"

// Mirrored by `launches` in mul_mat_fragments.py.
struct FragmentArgs {
  TileColumnArgs o;
  int early;  // stages that are asked for before the column
};

#if __CUDA_ARCH__ >= 900

// UNITS: of a stage's rows.
template <int KIND, class W, bool NORM, int UNITS>
struct OneFragment : TileColumn<KIND, true> {
  typedef TileColumn<KIND, true> Base;
  typedef FragmentUnit<W> Unit;
  using Base::a;
  using Base::bars;
  using Base::count;
  using Base::lane;
  using Base::o;
  using Base::part;
  static constexpr int EIGHT = UNITS * Unit::BYTES, STAGE = 2 * EIGHT;
  static constexpr int ORDER = kOfHalves<W> ? FOURS_APART : EIGHTS_APART;

  const int early;
  const int begin, units;  // of the part
  char* const ring;

  __device__ __forceinline__ int first_unit(int part) const {
    return a.k / kUnit * part / (int)o.parts.divisor;
  }
  __device__ __forceinline__ OneFragment(const FragmentArgs& args, char* shared)
      : Base(args.o, shared),
        early(args.early),
        begin(first_unit(part)),
        units(first_unit(part + 1) - begin),
        ring(shared + o.ring_at + this->warp * a.w_stages * STAGE),
        ask_tile(this->slot) {}

  // What is asked for next: of which tile, from which unit of the part on. from: where the part
  // begins in this lane's eight rows.
  int ask_tile, ask_unit = 0;
  const char* from = nullptr;

  __device__ __forceinline__ void request(int stage, u64 policy) {
    if (ask_unit == 0) from = this->eight_of(ask_tile) + begin * (i64)Unit::BYTES;
    const u32 bytes = min(UNITS, units - ask_unit) * Unit::BYTES;
    const u32 bar = shared_address(bars + stage), to = shared_address(ring + stage * STAGE);
    if (elected()) expect_bytes(bar, 2 * bytes);
    __syncwarp();
    if (lane % kEight == 0 && lane < 2 * kEight) {
      copy_bulk(to + lane / kEight * EIGHT, from + ask_unit * Unit::BYTES, bytes, bar, policy);
    }
    ask_unit += UNITS;
    if (ask_unit >= units) {
      ask_unit = 0;
      ask_tile += o.tiles;
    }
  }

  // A unit of each eight; x: this lane's place in the column.
  __device__ __forceinline__ void multiply(const char* rows, const char* x,
                                           float (&sums)[4]) const {
    const Unit upper = Unit::load(rows, lane), lower = Unit::load(rows + EIGHT, lane);
#pragma unroll
    for (int b = 0; b < Unit::BLOCKS; ++b) {
      const uint4 column = *reinterpret_cast<const uint4*>(x + b * 64);
      const Pairs lo = upper.pairs(b, a.masks), hi = lower.pairs(b, a.masks);
      const u32 w0[4] = {lo.v[0], hi.v[0], lo.v[1], hi.v[1]};
      const u32 w1[4] = {lo.v[2], hi.v[2], lo.v[3], hi.v[3]};
      mma<f16>(sums, w0, column.x, column.y);
      mma<f16>(sums, w1, column.z, column.w);
    }
  }

  __device__ __forceinline__ void run() {
    barriers_make(bars, a.w_stages, lane);
    const u64 policy = read_once();
#pragma unroll 1
    for (int s = 0; s < min(early, a.w_stages) && ask_tile < count; ++s) request(s, policy);
    launch_dependents();

    // What does not depend on the kernels before this one.
    char* const x = this->shared + o.x_at;
    FloatColumn<f16, NORM, false, ORDER> column(
        o.x, o.norm, a.k, x, reinterpret_cast<float*>(this->shared + o.squares_at));
    double angle = 0.0;
    if (this->has_turn()) angle = o.turns.angle(this->first_turn());
    wait_for_previous();
    int pos = 0;
    if (this->has_turn()) pos = __ldcg(o.turns.pos);
    const float scale = column.make(o.eps);
#pragma unroll 1
    for (int s = early; s < a.w_stages && ask_tile < count; ++s) request(s, policy);
    bool turns_here = !this->are_turned();
    if (!turns_here) this->leave_turns(angle, pos);

    float *left = this->sums_left(0), *left_next = this->sums_left(1);
    int stage = 0;
    u32 parity = 0;
#pragma unroll 1
    for (int tile = this->slot; tile < count; tile += o.tiles) {
      BesideOne b = {};
      if (this->ends()) b = this->beside(tile, scale);
      float sums[4] = {};
#pragma unroll 1
      for (int u = 0; u < units; u += UNITS) {
        barrier_wait(bars + stage, parity);
        const char* rows = ring + stage * STAGE;
        const char* place = x + (begin + u) * (2 * kUnit) + lane % 4 * 16;
        const int n = min(UNITS, units - u);
#pragma unroll 1
        for (int i = 0; i < n; ++i, rows += Unit::BYTES, place += 2 * kUnit) {
          multiply(rows, place, sums);
        }
        __syncwarp();
        if (ask_tile < count) request(stage, policy);
        if (++stage == a.w_stages) {
          stage = 0;
          parity ^= 1;
        }
      }
      float2 y = {sums[0], sums[2]};
      if (o.parts.divisor > 1) {
        y = this->add_parts(y, left);
        float* const before = left;
        left = left_next;
        left_next = before;
      }
      if (!turns_here) {
        this->wait_for_turns();
        turns_here = true;
      }
      this->finish(tile, y, b, false);
    }
  }
};
#endif

template <int KIND, class W, bool NORM, int UNITS>
__global__ void __launch_bounds__(kThreads, 1)
    mul_mat_fragments(const __grid_constant__ FragmentArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  OneFragment<KIND, W, NORM, UNITS>(args, shared).run();
#endif
}
