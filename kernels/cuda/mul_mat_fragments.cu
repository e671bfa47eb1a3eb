// One column times rows of quantized weights that lie as fragments (fragments.cuh), and what stands
// around such a product in a decode step: the norm before it, the residual, SwiGLU, rotation and KV
// write after it. The bits are those that the column has in mul_mat_columns.cu, among any others.
//
// Instructions are what takes longest here, about fourteen for eight weights, so that the column is
// to be there soon: most stages are asked for behind it.
#include "cuda/tile_fragments.cuh"

// Blocks of a multiprocessor that registers leave room for. Beside queries, keys and values
// attention may begin then, worth more than what fewer registers take, but for types that need
// many.
template <int KIND, class W, bool WHOLE>
constexpr int kFit = KIND == QKV && WHOLE && FragmentUnit<W>::FORM == SCALES ? 2 : 1;

template <int KIND, class W, bool WHOLE, int UNITS, bool NORM>
__global__ void __launch_bounds__(kThreads, kFit<KIND, W, WHOLE>)
    mul_mat_fragments(const __grid_constant__ FragmentArgs args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char shared[];
  TileFragments<KIND, W, WHOLE, UNITS> t(args, shared);
  t.begin();

  // What does not depend on the kernels before this one.
  const TileColumnArgs& o = args.o;
  char* const x = shared + o.x_at;
  constexpr int ORDER = kOfHalves<W> ? FOURS_APART : EIGHTS_APART;
  FloatColumn<f16, NORM, false, ORDER> column(o.x, o.norm, o.c.k, x,
                                              reinterpret_cast<float*>(shared + o.squares_at));
  BesideOne b;
  t.make_zeros();
  t.scale = t.make(column, [&] { b = t.beside_first(); });
  b.scale = t.scale;
  t.request_some(args.early, o.c.w_stages);
  t.leave_turns();
  if (t.are_turned() && t.parts == 1) __syncthreads();
  t.multiply_all(x);
  if (t.parts == 1) return;
  __syncthreads();
  t.add_parts(b);
#endif
}
