// Products with weights whose rows stay as they lie in the file: the types whose codes name rows of
// a grid, and TQ1_0. A row's 32 elements become signed bytes in one register, which multiply the
// columns of a tile (mul_mat_acts.h); a row's result does not depend on the columns beside it.
#pragma once

#include "cpu/mul_mat_acts.h"

namespace gf {

// out[c * kRows + r] = rows r = 0 .. n_rows - 1 (row_bytes apart) times the columns of a tile.
using GridKernel = void (*)(const char* rows, int64_t row_bytes, int n_rows, const uint8_t* acts,
                            int64_t k, float* out);

struct GridType {
  int type;
  GridKernel tile[kAnyWidth + 1];  // widths 1 .. kAnyWidth, then kMaxTile

  static constexpr SumUse kSums = {0, 1, false, false};
  GridKernel kernel(int width) const { return tile[width <= kAnyWidth ? width - 1 : kAnyWidth]; }
};

// The kernels of a type; null when it has none.
const GridType* find_grid_type(int type);

}  // namespace gf
