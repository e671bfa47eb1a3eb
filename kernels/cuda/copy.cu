// Copies that keep every bit: cont, concat and repeat. E is an unsigned integer of the element's
// size. The source is read modulo its lengths.
#include "cuda/common.cuh"

struct CopyArgs {
  gf_tensor dst, src;
  i64 n;
  FastDiv by[3];
};

template <bool WIDE, class E>
__global__ void __launch_bounds__(256) copy_strided(const __grid_constant__ CopyArgs a) {
  for (i64 i = global_thread(); i < a.n; i += global_threads()) {
    const Index at = unravel<WIDE>(i, a.dst.ne, a.by);
    const auto wrap = [&a](i64 k, int d) {
      return a.src.ne[d] == a.dst.ne[d] ? k : k % a.src.ne[d];
    };
    const char* const from =
        a.src.row(wrap(at.i1, 1), wrap(at.i2, 2), wrap(at.i3, 3)) + wrap(at.i0, 0) * a.src.nb[0];
    char* const to = a.dst.row(at.i1, at.i2, at.i3) + at.i0 * a.dst.nb[0];
    *reinterpret_cast<E*>(to) = *reinterpret_cast<const E*>(from);
  }
}
