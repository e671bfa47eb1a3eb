// Runs one inner product kernel of gguflow once: neon_ours TYPE COLUMNS BLOCKS_OF_32. For counting
// its instructions under an emulator, see ../neon_counts.py; the data are zeros.
#include <stdio.h>
#include <stdlib.h>

#include "cpu/mul_mat_float.h"
#include "cpu/mul_mat_grid.h"
#include "cpu/mul_mat_types.h"

namespace {

constexpr int kBytesOf32 = 256;  // enough for 32 elements of any row or column

// Static, so that clearing them is not counted.
alignas(64) uint8_t rows[1 << 22], copy[1 << 22], columns[1 << 22];

void run_floats(int type, int64_t k, int n_cols) {
  const gf::FloatType f = gf::float_type(type);
  const bool copies = f.convert && n_cols > gf::kFewColumns;
  const void* x[gf::kMaxTile];
  for (int r = 0; copies && r < gf::kRows; ++r) {
    f.convert(type, rows + r * k * 4, k, copy + r * k * 4);
  }
  float out[gf::kMaxTile * gf::kRows];
  for (int c = 0; c < n_cols; c += gf::kMaxTile) {
    const int n = n_cols - c < gf::kMaxTile ? n_cols - c : gf::kMaxTile;
    for (int i = 0; i < n; ++i) x[i] = columns + (c + i) * k * 4;
    (copies ? f.on_copy : f.kernel)(reinterpret_cast<char*>(copies ? copy : rows), k * 4, gf::kRows,
                                    x, n, k, out);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const int type = atoi(argv[1]), n_cols = atoi(argv[2]);
  const int64_t n = atoi(argv[3]);
  if (type == GF_F32 || type == GF_F16 || type == GF_BF16) {
    run_floats(type, n * 32, n_cols);
    return 0;
  }
  alignas(64) float out[gf::kMaxTile * gf::kRows];
  const gf::Tiling tiles(n_cols);
  for (int64_t i = 0; i < tiles.count(); ++i) {
    const gf::Tile t = tiles[i];
    const uint8_t* acts = columns + t.first * n * gf::kActBlockBytes;
    if (const gf::PackedType* p = gf::find_packed_type(type)) {
      p->kernel(t.width)(rows, acts, n / p->blocks_of_32, out);
    } else if (const gf::GridType* g = gf::find_grid_type(type)) {
      g->kernel(t.width)(reinterpret_cast<const char*>(rows), n * kBytesOf32, gf::kRows, acts,
                         n * 32, out);
    } else {
      return 3;
    }
  }
  return 0;
}
