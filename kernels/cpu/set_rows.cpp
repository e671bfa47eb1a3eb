// set_rows: rows converted to the state's type and written where the indices say: the KV-cache
// write. Indices outside the state are dropped.
#include "cpu/rows.h"

GF_KERNEL_SUPPORTS(set_rows) { return gf_writable(op->dst.type); }

GF_KERNEL(set_rows) {
  const gf_tensor& state = op->dst;  // a view of src[0]
  const gf_tensor& x = op->src[1];
  const auto* const ids = static_cast<const int32_t*>(op->src[2].data);
  const gf_range rows = gf_split(x.ne[1], th);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    const int64_t id = ids[i];
    if (id < 0 || id >= state.ne[1]) continue;
    const char* const from = static_cast<const char*>(x.data) + i * x.nb[1];
    char* const to = static_cast<char*>(state.data) + id * state.nb[1];
    gf_quantize_row(state.type, reinterpret_cast<const float*>(from), to, x.ne[0]);
  }
}
