// Rows of bf16 times a tile of columns by the matrix unit, for any number of columns: each sum adds
// products in one order along the row, whatever is computed beside it.
#pragma once

#include "cpu/matrix_unit.h"
#include "cpu/mul_mat_bf16.h"
#include "cpu/mul_mat_acts.h"

namespace gf {

// x as bf16, two elements a word, the words `step` apart, so that a tile's columns lie interleaved;
// zeros up to a multiple of 32 elements.
inline void f32_row_to_bf16_pairs(const float* x, int64_t k, uint16_t* out, int step) {
  for (int64_t i = 0; i < k; i += 32) {
    const int64_t left = k - i < 32 ? k - i : 32;
    alignas(64) uint16_t halves[32];
    f32_row_to_bf16(x + i, left, halves);
    for (int j = 0; j < 16; ++j) std::memcpy(out + (i + 2 * j) * step, halves + 2 * j, 4);
  }
}

// A FloatKernel.
inline void bf16_tile(const char* rows, int64_t row_bytes, int n_rows, const void* const* x,
                      int n_cols, int64_t k, int64_t ahead, float* out) {
  constexpr int64_t kStepBytes = 64;  // of a row, 32 elements
  const auto* columns = static_cast<const char*>(x[0]);
  const int64_t column_step = 16 * 4 * int64_t{n_cols};
  MatrixUnit::halves(n_rows, n_cols);
  __asm__ volatile("" ::: "memory");
  _tile_zero(0);
  int64_t i = 0;
  for (; i + 64 <= k; i += 64, rows += 2 * kStepBytes, columns += 2 * column_step) {
    if (ahead != 0) {
      for (int r = 0; r < n_rows; ++r) {
        __builtin_prefetch(rows + r * row_bytes + ahead, 0, 2);
        __builtin_prefetch(rows + r * row_bytes + ahead + kStepBytes, 0, 2);
      }
    }
    _tile_loadd(1, rows, row_bytes);
    _tile_loadd(2, columns, 4 * n_cols);
    _tile_dpbf16ps(0, 1, 2);
    _tile_loadd(3, rows + kStepBytes, row_bytes);
    _tile_loadd(4, columns + column_step, 4 * n_cols);
    _tile_dpbf16ps(0, 3, 4);
  }
  for (; i < k; i += 32, rows += kStepBytes, columns += column_step) {
    // What is behind a row's end belongs to somebody else.
    alignas(64) char last[kRows][kStepBytes] = {};
    const int64_t left = k - i < 32 ? k - i : 32;
    for (int r = 0; r < n_rows; ++r) {
      std::memcpy(last[r], rows + r * row_bytes, static_cast<size_t>(2 * left));
    }
    __asm__ volatile("" ::"r"(last) : "memory");
    _tile_loadd(1, last, kStepBytes);
    _tile_loadd(2, columns, 4 * n_cols);
    _tile_dpbf16ps(0, 1, 2);
  }
  alignas(64) float sums[kRows * kMaxTile];
  _tile_stored(0, sums, 4 * n_cols);
  for (int c = 0; c < n_cols; ++c) {
    for (int r = 0; r < kRows; ++r) out[c * kRows + r] = r < n_rows ? sums[r * n_cols + c] : 0.0f;
  }
}

}  // namespace gf
