// What follows a library's products that make queries, keys and values (columns.cuh).
#include "cuda/columns.cuh"
#include "cuda/dependent.cuh"

// a.w: the products' results, [m, rows] f32 each; a.tiles: pairs of all matrices. blockIdx.x counts
// columns; blockIdx.y and threads count pairs.
__global__ void __launch_bounds__(256) turn_columns(const __grid_constant__ ColumnsArgs a) {
  begin_dependent();
  const int column = blockIdx.x, pair = blockIdx.y * blockDim.x + threadIdx.x;
  if (pair >= a.tiles) return;
  const Tile at = tile_of<1>(a, pair);
  const int2 rows = rows_of(QKV, a, at.matrix, at.pair);
  const char* y = a.w[0];
  int n = a.rows[0];
#pragma unroll
  for (int i = 1; i < 3; ++i) {
    if (at.matrix == i) {
      y = a.w[i];
      n = a.rows[i];
    }
  }
  const float* const sums = reinterpret_cast<const float*>(y) + (i64)column * n;
  finish_one(QKV, a, at.matrix, at.pair, column, __ldcg(sums + rows.x), __ldcg(sums + rows.y),
             beside_one(QKV, a, at.matrix, at.pair, column));
}
