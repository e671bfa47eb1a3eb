// Rows of quantized weights as fragments (fragments.cuh).
#include "cuda/fragments.cuh"

// Mirrored by `fragments_launch` in fragments.py.
struct FragmentsArgs {
  const char* from;
  char* to;
  i32* too_large;  // becomes 1 where a scale is
  i64 from_step;   // bytes from row to row
  i64 rows;        // whole eights
  i64 units;       // along them
};

template <class W>
__global__ void __launch_bounds__(256) make_fragments(const __grid_constant__ FragmentsArgs a) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const i64 all = a.rows / kEight * a.units;
  for (i64 at = blockIdx.x * 8ll + warp; at < all; at += gridDim.x * 8ll) {
    const char* const from = a.from + at / a.units * kEight * a.from_step +
                             at % a.units * (kUnit / W::QK * (int)sizeof(W));
    char* const to = a.to + at * FragmentUnit<W>::BYTES;
    if (FragmentUnit<W>::make(from + lane / 4 * a.from_step, to, lane)) *a.too_large = 1;
  }
}
