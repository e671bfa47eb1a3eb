// map_ids: ids looked up in a table of ids.
#include "cuda/common.cuh"

struct MapIdsArgs {
  gf_tensor dst, ids, table;
};

__global__ void __launch_bounds__(256) map_ids(const __grid_constant__ MapIdsArgs a) {
  const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  const i64 row = i / a.dst.ne[0], j = i % a.dst.ne[0];
  if (row >= a.dst.ne[1]) return;
  const i32 id = reinterpret_cast<const i32*>(a.ids.row(row, 0, 0))[j];
  const bool known = id >= 0 && id < a.table.ne[0];
  reinterpret_cast<i32*>(a.dst.row(row, 0, 0))[j] =
      known ? reinterpret_cast<const i32*>(a.table.data)[id] : -1;
}
