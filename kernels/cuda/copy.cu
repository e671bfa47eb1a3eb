// Copies that keep every bit: cont, cpy without conversion, concat and repeat. E is an unsigned
// integer of the element's size, or of more where rows are whole words.
#include "cuda/dependent.cuh"

struct CopyArgs {
  gf_tensor dst, src;
  i64 n;  // elements; tiles of copy_transposed
  FastDiv by[3];
};

template <class E>
__global__ void __launch_bounds__(256) copy_dense(const __grid_constant__ CopyArgs a) {
  begin_dependent();
  for (i64 i = global_thread(); i < a.n; i += global_threads()) {
    reinterpret_cast<E*>(a.dst.data)[i] = load_fresh(reinterpret_cast<const E*>(a.src.data) + i);
  }
}

// Any strides. MODULO: the source is read modulo its lengths.
template <bool WIDE, bool MODULO, class E>
__global__ void __launch_bounds__(256) copy_strided(const __grid_constant__ CopyArgs a) {
  begin_dependent();
  for (i64 i = global_thread(); i < a.n; i += global_threads()) {
    const Index at = unravel<WIDE>(i, a.dst.ne, a.by);
    const auto wrap = [&a](i64 k, int d) {
      return MODULO && a.src.ne[d] != a.dst.ne[d] ? k % a.src.ne[d] : k;
    };
    const char* const from =
        a.src.row(wrap(at.i1, 1), wrap(at.i2, 2), wrap(at.i3, 3)) + wrap(at.i0, 0) * a.src.nb[0];
    char* const to = a.dst.row(at.i1, at.i2, at.i3) + at.i0 * a.dst.nb[0];
    *reinterpret_cast<E*>(to) = load_fresh(reinterpret_cast<const E*>(from));
  }
}

// A source whose neighbours in memory lie along dimension 1: squares of 64 x 64 elements go through
// shared memory, so that both reads and writes are of neighbours. Blocks of (32, 8).
template <class E>
__global__ void __launch_bounds__(256) copy_transposed(const __grid_constant__ CopyArgs a) {
  begin_dependent();
  constexpr int SIDE = 64, X = 32, Y = 8;
  constexpr int GAP = sizeof(E) < 4 ? 4 / sizeof(E) : 1;  // a column lies in different banks
  __shared__ E tile[SIDE][SIDE + GAP];                    // [i0][i1]
  const i64 ne[3] = {(a.dst.ne[0] + SIDE - 1) / SIDE, (a.dst.ne[1] + SIDE - 1) / SIDE, a.dst.ne[2]};
  const Index at = unravel<false>(blockIdx.x, ne, a.by);
  const i64 i0 = at.i0 * SIDE, i1 = at.i1 * SIDE;
  const i64 left0 = a.dst.ne[0] - i0, left1 = a.dst.ne[1] - i1;
  const int n0 = left0 < SIDE ? (int)left0 : SIDE, n1 = left1 < SIDE ? (int)left1 : SIDE;
  const int x = threadIdx.x, y = threadIdx.y;
  const char* const from = a.src.row(i1 + x, at.i2, at.i3) + (i0 + y) * a.src.nb[0];
  char* const to = a.dst.row(i1 + y, at.i2, at.i3) + (i0 + x) * a.dst.nb[0];
  E v[SIDE / Y][SIDE / X];  // all reads are under way before the first write
#pragma unroll
  for (int r = 0; r < SIDE; r += Y) {
#pragma unroll
    for (int c = 0; c < SIDE; c += X) {
      if (y + r < n0 && x + c < n1) {
        v[r / Y][c / X] =
            load_fresh(reinterpret_cast<const E*>(from + r * a.src.nb[0] + c * a.src.nb[1]));
      }
    }
  }
#pragma unroll
  for (int r = 0; r < SIDE; r += Y) {
#pragma unroll
    for (int c = 0; c < SIDE; c += X) tile[y + r][x + c] = v[r / Y][c / X];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < SIDE; r += Y) {
#pragma unroll
    for (int c = 0; c < SIDE; c += X) {
      if (y + r < n1 && x + c < n0) {
        *reinterpret_cast<E*>(to + r * a.dst.nb[1] + c * a.dst.nb[0]) = tile[x + c][y + r];
      }
    }
  }
}
