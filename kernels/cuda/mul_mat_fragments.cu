// One column times rows of quantized weights that lie as fragments (fragments.cuh), and what stands
// around such a product in a decode step: the norm before it, the residual, SwiGLU, rotation and KV
// write after it. The bits are those that the column has in mul_mat_columns.cu, among any others.
//
// As in mul_mat_one_float.cu a part of a tile's rows has a warp, which streams it through stages of
// its own in shared memory. Here instructions are what takes longest, about fourteen for eight
// weights, so that the column is to be there soon: most stages are asked for behind it.
#include "cuda/tile_fragments.cuh"

#if __CUDA_ARCH__ >= 900

template <int KIND, class W, bool NORM, int UNITS>
struct OneFragment : TileFragments<KIND, W, UNITS> {
  typedef TileFragments<KIND, W, UNITS> Base;
  using Base::a;
  using Base::o;
  static constexpr int ORDER = kOfHalves<W> ? FOURS_APART : EIGHTS_APART;

  __device__ __forceinline__ OneFragment(const FragmentArgs& args, char* shared)
      : Base(args.o, shared) {}

  __device__ __forceinline__ void run(int early) {
    barriers_make(this->bars, a.w_stages, this->lane);
    this->request_some(0, early);
    launch_dependents();

    // What does not depend on the kernels before this one.
    char* const x = this->shared + o.x_at;
    FloatColumn<f16, NORM, false, ORDER> column(
        o.x, o.norm, a.k, x, reinterpret_cast<float*>(this->shared + o.squares_at));
    const float scale = this->make(column);
    this->request_some(early, a.w_stages);
    this->leave_turns();

    const char* const place = this->place_in(x) + this->begin * (2 * kUnit);
#pragma unroll 1
    for (int tile = this->slot; tile < this->count; tile += o.tiles) {
      BesideOne b = {};
      if (this->ends()) b = this->beside(tile, scale);
      float sums[1][4] = {};
      this->multiply_part(place, sums);
      this->finish(tile, {sums[0][0], sums[0][2]}, b, false);
    }
  }
};
#endif

template <int KIND, class W, bool NORM, int UNITS>
__global__ void __launch_bounds__(kThreads, 1)
    mul_mat_fragments(const __grid_constant__ FragmentArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  OneFragment<KIND, W, NORM, UNITS>(args, shared).run(args.early);
#endif
}
