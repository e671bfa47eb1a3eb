// mul_mat on rows of plain floats, straight from the file: lanes over the depth.
//
// Every (row, column) sums into sixteen lanes, stepping over the depth in order, then folds the
// lanes in one fixed order: the same result whatever the register tile.
#pragma once

#include "cpu/mul_mat_acts.h"

namespace gf {

// out[c * kRows + r] = rows r = 0 .. n_rows - 1 (n_rows <= 16, row_bytes apart) times columns x[c],
// c = 0 .. n_cols - 1, over k elements.
using FloatKernel = void (*)(const char* rows, int64_t row_bytes, int n_rows, const float* const* x,
                             int n_cols, int64_t k, float* out);

template <class Row, int R, int C>
GF_INLINE void float_register_tile(const char* rows, int64_t row_bytes, const float* const* x,
                                   int64_t k, float* out) {
  using Elem = typename Row::Elem;
  VecF acc[R][C];
  const Elem* w[R];
  static_for<R>([&](auto r) GF_LAMBDA_INLINE {
    w[r] = reinterpret_cast<const Elem*>(rows + r * row_bytes);
    static_for<C>([&](auto c) GF_LAMBDA_INLINE { acc[r][c] = zero_f(); });
  });
  int64_t i = 0;
  for (; i + 16 <= k; i += 16) {
    VecF xv[C];
    static_for<C>([&](auto c) GF_LAMBDA_INLINE { xv[c] = RowF32::load(x[c] + i); });
    static_for<R>([&](auto r) GF_LAMBDA_INLINE {
      const VecF wv = Row::load(w[r] + i);
      static_for<C>([&](auto c) GF_LAMBDA_INLINE { acc[r][c] = fma_f(wv, xv[c], acc[r][c]); });
    });
  }
  if (i < k) {
    VecF xv[C];
    static_for<C>([&](auto c) GF_LAMBDA_INLINE { xv[c] = RowF32::load_first(x[c] + i, k - i); });
    static_for<R>([&](auto r) GF_LAMBDA_INLINE {
      const VecF wv = Row::load_first(w[r] + i, k - i);
      static_for<C>([&](auto c) GF_LAMBDA_INLINE { acc[r][c] = fma_f(wv, xv[c], acc[r][c]); });
    });
  }
  static_for<R>([&](auto r) GF_LAMBDA_INLINE {
    static_for<C>([&](auto c) GF_LAMBDA_INLINE { out[c * kRows + r] = sum_f(acc[r][c]); });
  });
}

// All rows for C columns.
template <class Row, int C, int R>
GF_INLINE void float_columns(const char* rows, int64_t row_bytes, int n_rows, const float* const* x,
                             int64_t k, float* out) {
  int r = 0;
  for (; r + R <= n_rows; r += R) {
    float_register_tile<Row, R, C>(rows + r * row_bytes, row_bytes, x, k, out + r);
  }
  for (; r < n_rows; ++r) {
    float_register_tile<Row, 1, C>(rows + r * row_bytes, row_bytes, x, k, out + r);
  }
}

template <class Row>
void float_tile(const char* rows, int64_t row_bytes, int n_rows, const float* const* x, int n_cols,
                int64_t k, float* out) {
  int c = 0;
  for (; c + kFloatCols <= n_cols; c += kFloatCols) {
    float_columns<Row, kFloatCols, kFloatRows>(rows, row_bytes, n_rows, x + c, k, out + c * kRows);
  }
  for (; c < n_cols; ++c) {
    float_columns<Row, 1, kFloatRows * 2>(rows, row_bytes, n_rows, x + c, k, out + c * kRows);
  }
}

}  // namespace gf
