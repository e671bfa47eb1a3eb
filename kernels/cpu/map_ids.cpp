// map_ids: ids looked up in a table of ids.
#include "cpu/kernel.h"

GF_KERNEL(map_ids) {
  const gf_tensor &ids = op->src[0], &table = op->src[1], &dst = op->dst;
  const auto* const to = static_cast<const int32_t*>(table.data);
  const gf_range rows = gf_split(dst.ne[1], th);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const auto* const id = reinterpret_cast<const int32_t*>(gf_row_ptr(ids, r));
    auto* const out = reinterpret_cast<int32_t*>(gf_row_ptr(dst, r));
    for (int64_t j = 0; j < dst.ne[0]; ++j) {
      out[j] = id[j] >= 0 && id[j] < table.ne[0] ? to[id[j]] : -1;
    }
  }
}
