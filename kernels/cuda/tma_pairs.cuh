// 16-bit weights in pairs of rows (columns.cuh), as tiles of tensor maps: what mul_mat_tma.cu and
// mul_mat_tma_many.cu are given, and where rows lie.
#pragma once

#include "cuda/columns.cuh"
#include "cuda/rope.cuh"
#include "cuda/tma.cuh"

constexpr int kTilePairs = 64;
constexpr int kTileBytes = kTilePairs * kTileRow;  // of the first or the second rows of pairs

// Mirrored by `tma_arguments` in mul_mat_tma.py. w: of each matrix; its dimensions are k, pairs
// before the next heads, first and second row of a pair, heads (or k and rows, where one matrix has
// no pairs: mul_mat_tma_many.cu). x: k, columns. scales: of these, or null, where c has none.
struct TmaArgs {
  TensorMap w[3], x;
  ColumnsArgs c;
  const float* scales;
  int shares;  // of columns, which blocks of the same rows have
  Turns turns;
};

// Where the first or the second rows of 64 pairs lie.
struct RowsOfPairs {
  const TensorMap* map;
  int inner, second, head;
};
template <int KIND>
__device__ __forceinline__ RowsOfPairs rows_of_pairs(const TmaArgs& t, int matrix, int pair,
                                                     int second) {
  const ColumnsArgs& a = t.c;
  if (KIND == GLU) return {t.w + second, pair, 0, 0};
  if (KIND == QKV && a.first + matrix < 2 && a.neox) {
    return {t.w + matrix, pair % (a.head_dim / 2), second, pair / (a.head_dim / 2)};
  }
  return {t.w + matrix, 0, second, pair};
}
