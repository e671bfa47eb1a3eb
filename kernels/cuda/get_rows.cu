// get_rows: rows of a table of any type, dequantized. An id outside the table gives zeros.
#include "cuda/dependent.cuh"
#include "cuda/dequant.cuh"

struct GetRowsArgs {
  gf_tensor dst, table, ids;
};

// A piece a thread; block row y is output row y.
template <class T>
__global__ void __launch_bounds__(128) get_rows(const __grid_constant__ GetRowsArgs a) {
  begin_dependent();
  constexpr int PIECE = Row<T>::PIECE;
  const i64 p = global_thread();
  if (p * PIECE >= a.dst.ne[0]) return;
  for (i64 i = blockIdx.y; i < a.dst.ne[1]; i += gridDim.y) {
    const i64 id = load_fresh(reinterpret_cast<const i32*>(a.ids.data + i * a.ids.nb[0]));
    float y[PIECE] = {};
    if (id >= 0 && id < a.table.ne[1]) {
      Row<T>::read(a.table.data + id * a.table.nb[1], a.table.nb[0], p, y);
    }
    float* const out = reinterpret_cast<float*>(a.dst.data + i * a.dst.nb[1]) + p * PIECE;
#pragma unroll
    for (int j = 0; j < PIECE; ++j) out[j] = y[j];
  }
}
