// get_rows: rows of a table of any float or quantized type, packed or not, as f32. An index outside
// the table gives zeros.
#include "cpu/packed.h"
#include "cpu/rows.h"

namespace {

bool is_packed(const gf_op* op) { return (op->src[0].flags & GF_PACKED) != 0; }

// A packed row is put together in scratch, one piece of it a thread.
int64_t piece_bytes(const gf_op* op) {
  return (gf_row_bytes(op->src[0].type, op->src[0].ne[0]) + 63) / 64 * 64;
}

}  // namespace

GF_KERNEL_PACKED(get_rows, 1)
GF_KERNEL_SUPPORTS(get_rows) { return gf_block(op->src[0].type) > 0; }

GF_KERNEL_SCRATCH(get_rows) { return is_packed(op) ? piece_bytes(op) * n_threads : 0; }

GF_KERNEL(get_rows) {
  const gf_tensor& table = op->src[0];
  const auto* const ids = static_cast<const int32_t*>(op->src[1].data);
  const int64_t n = table.ne[0];
  const gf_range rows = gf_split(op->dst.ne[1], th);
  for (int64_t i = rows.begin; i < rows.end; ++i) {
    auto* const y = reinterpret_cast<float*>(static_cast<char*>(op->dst.data) + i * op->dst.nb[1]);
    const int64_t id = ids[i];
    if (id < 0 || id >= table.ne[1]) {
      std::memset(y, 0, n * sizeof(float));
    } else if (is_packed(op)) {
      unsigned char* const row = th->scratch + th->ith * piece_bytes(op);
      gf_unpack_row(table.type, table.data, n, id, row);
      gf_dequantize_row(table.type, row, y, n);
    } else {
      gf_dequantize_row(table.type, static_cast<const char*>(table.data) + id * table.nb[1], y, n);
    }
  }
}
