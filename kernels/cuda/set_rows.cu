// set_rows: rows converted to the state's type and written where the ids say: the KV-cache write.
// Ids outside the state are dropped.
#include "cuda/dependent.cuh"
#include "cuda/dequant.cuh"

struct SetRowsArgs {
  gf_tensor state, x, ids;
};

// A unit of the state's type a thread: a quantized block or a plain element.
template <class T>
__global__ void __launch_bounds__(128) set_rows(const __grid_constant__ SetRowsArgs a) {
  begin_dependent();
  constexpr int UNIT = Writer<T>::UNIT;
  const i64 u = global_thread();
  if (u * UNIT >= a.x.ne[0]) return;
  for (i64 i = blockIdx.y; i < a.x.ne[1]; i += gridDim.y) {
    const i64 id = load_fresh(reinterpret_cast<const i32*>(a.ids.data + i * a.ids.nb[0]));
    if (id < 0 || id >= a.state.ne[1]) continue;
    const float* const x = reinterpret_cast<const float*>(a.x.data + i * a.x.nb[1]) + u * UNIT;
    float y[UNIT];  // of a block, whose line comes once
#pragma unroll
    for (int j = 0; j < UNIT; ++j) y[j] = UNIT == 1 ? load_fresh(x + j) : x[j];
    Writer<T>::write(a.state.data + id * a.state.nb[1], a.state.nb[0], u, y);
  }
}
