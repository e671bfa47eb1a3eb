// mul_mat on rows of plain floats: lanes over the depth.
//
// Every (row, column) sums into lanes, stepping over the depth in order, then folds the lanes in
// one fixed tree: the same result whatever the tiling, also where partial sums rest in memory
// between two stretches of the depth.
#pragma once

#include "cpu/mul_mat_acts.h"
#include "cpu/mul_mat_bf16.h"
#if defined(__AMX_BF16__)
#include "cpu/mul_mat_float_amx.h"
#endif
#include "quants/traits.h"

namespace gf {

// out[c * kRows + r] = rows r = 0 .. n_rows - 1 (n_rows <= 16, row_bytes apart) times columns x[c],
// c = 0 .. n_cols - 1 (n_cols <= kMaxTile), over k elements. ahead: bytes from each row to one that
// is to be brought into the cache meanwhile, for who comes next; 0: none.
using FloatKernel = void (*)(const char* rows, int64_t row_bytes, int n_rows, const void* const* x,
                             int n_cols, int64_t k, int64_t ahead, float* out);

// Up to so many columns rows come straight from memory, one after the other. For more, a register
// tile takes several rows, which should be in the cache beforehand: those of a group while the one
// before it is multiplied, or, where there are more columns than a tile has, see read_ahead.
constexpr int kStreamColumns = 2;
// Bytes of a row a register tile takes at a time, so that its operands stay in the L1 cache.
constexpr int64_t kStretchBytes = 2048;

#if defined(GF_LOADS_MOVE_ON)
constexpr bool kLoadsMoveOn = true;  // a load advances its pointer, for nothing
#else
constexpr bool kLoadsMoveOn = false;  // pointers stay, and have one index
#endif

template <class Row>
GF_INLINE typename Row::Vec load_at(const typename Row::Elem*& p, int64_t i) {
#if defined(GF_LOADS_MOVE_ON)
  (void)i;
  return Row::load_next(p);
#else
  return Row::load(p + i);
#endif
}

// One step of R rows times C columns.
template <class Row, class Column, int R, int C>
GF_INLINE void float_step(const typename Row::Elem* (&w)[R], const typename Column::Elem* (&x)[C],
                          int64_t i, VecL (&acc)[R][C]) {
  typename Column::Vec xv[C];
  static_for<C>([&](auto c) GF_LAMBDA_INLINE { xv[c] = load_at<Column>(x[c], i); });
  static_for<R>([&](auto r) GF_LAMBDA_INLINE {
    const auto wv = load_at<Row>(w[r], i);
    static_for<C>([&](auto c) GF_LAMBDA_INLINE { acc[r][c] = mul_add(wv, xv[c], acc[r][c]); });
  });
}

// Sums of elements [begin, end) added to lanes[c * kRows + r]; `fresh`: these start at zero.
template <class Row, int R, int C, bool AHEAD = false>
GF_INLINE void float_register_tile(const char* rows, int64_t row_bytes, const void* const* x,
                                   int64_t begin, int64_t end, bool fresh, VecL* lanes,
                                   int64_t ahead = 0) {
  using Column = typename Row::Column;
  constexpr int64_t kLine = 64 / sizeof(typename Row::Elem);
  static_assert(kLine % Row::kStep == 0, "whole steps have the elements of a cache line");
  const typename Row::Elem* w[R];
  const typename Column::Elem* xc[C];
  VecL acc[R][C];
  static_for<C>([&](auto c)
                    GF_LAMBDA_INLINE { xc[c] = static_cast<const typename Column::Elem*>(x[c]); });
  static_for<R>([&](auto r) GF_LAMBDA_INLINE {
    w[r] = reinterpret_cast<const typename Row::Elem*>(rows + r * row_bytes);
    static_for<C>([&](auto c)
                      GF_LAMBDA_INLINE { acc[r][c] = fresh ? VecL{} : lanes[c * kRows + r]; });
  });
  int64_t i = begin;
  if constexpr (kLoadsMoveOn) {
    static_for<C>([&](auto c) GF_LAMBDA_INLINE { xc[c] += begin; });
    static_for<R>([&](auto r) GF_LAMBDA_INLINE { w[r] += begin; });
  }
  while (AHEAD && i + kLine <= end) {
    static_for<R>([&](auto r) GF_LAMBDA_INLINE {
      const auto* here = kLoadsMoveOn ? w[r] : w[r] + i;
      __builtin_prefetch(reinterpret_cast<const char*>(here) + ahead, 0, 2);
    });
    for (const int64_t stop = i + kLine; i < stop; i += Row::kStep) {
      float_step<Row, Column, R, C>(w, xc, i, acc);
    }
  }
  for (; i + Row::kStep <= end; i += Row::kStep) float_step<Row, Column, R, C>(w, xc, i, acc);
  if (i < end) {
    typename Column::Vec xv[C];
    const int64_t at = kLoadsMoveOn ? 0 : i;
    static_for<C>([&](auto c)
                      GF_LAMBDA_INLINE { xv[c] = Column::load_first(xc[c] + at, end - i); });
    static_for<R>([&](auto r) GF_LAMBDA_INLINE {
      const auto wv = Row::load_first(w[r] + at, end - i);
      static_for<C>([&](auto c) GF_LAMBDA_INLINE { acc[r][c] = mul_add(wv, xv[c], acc[r][c]); });
    });
  }
  static_for<R>([&](auto r) GF_LAMBDA_INLINE {
    static_for<C>([&](auto c) GF_LAMBDA_INLINE { lanes[c * kRows + r] = acc[r][c]; });
  });
}

// All rows for C columns, R at a time.
template <class Row, int C, int R>
GF_INLINE void float_columns(const char* rows, int64_t row_bytes, int n_rows, const void* const* x,
                             int64_t begin, int64_t end, bool fresh, VecL* lanes,
                             int64_t ahead = 0) {
  int r = 0;
  if (ahead != 0) {
    for (; r + R <= n_rows; r += R) {
      float_register_tile<Row, R, C, true>(rows + r * row_bytes, row_bytes, x, begin, end, fresh,
                                           lanes + r, ahead);
    }
  }
  for (; r + R <= n_rows; r += R) {
    float_register_tile<Row, R, C>(rows + r * row_bytes, row_bytes, x, begin, end, fresh,
                                   lanes + r);
  }
  for (; r < n_rows; ++r) {
    float_register_tile<Row, 1, C>(rows + r * row_bytes, row_bytes, x, begin, end, fresh,
                                   lanes + r);
  }
}

// The same for rows that come from memory. One after the other they come fastest, but columns that
// do not stay in the L1 cache are read again for every row: then several rows share the reading.
template <class Row, int C>
GF_INLINE void stream_columns(const char* rows, int64_t row_bytes, int n_rows, const void* const* x,
                              int64_t k, VecL* lanes) {
  constexpr int kShare = kFloatRows * 2 / C;
  if (C * k * static_cast<int64_t>(sizeof(typename Row::Column::Elem)) <= kStayingBytes) {
    float_columns<Row, C, 1>(rows, row_bytes, n_rows, x, 0, k, true, lanes);
  } else {
    float_columns<Row, C, kShare>(rows, row_bytes, n_rows, x, 0, k, true, lanes);
  }
}

// Brings n contiguous bytes into the cache in one run.
inline void read_ahead(const char* p, int64_t n) {
  uint64_t sum = 0;
  for (int64_t i = 0; i + 8 <= n; i += 64) {
    uint64_t word;
    std::memcpy(&word, p + i, 8);
    sum += word;
  }
  volatile uint64_t keep = sum;
  (void)keep;
}

// What a column's products are multiplied by: rows of halves may have been scaled when they were
// rounded, and say so behind their last element.
template <class Row>
GF_INLINE float column_factor(const void* x, int64_t k) {
#if defined(GF_F16_DOT)
  if constexpr (std::is_same_v<Row, RowDotF16>) {
    float factor;
    std::memcpy(&factor, static_cast<const uint16_t*>(x) + (k + 31) / 32 * 32, sizeof factor);
    return factor;
  }
#endif
  (void)x, (void)k;
  return 1.0f;
}

template <class Row>
void float_tile(const char* rows, int64_t row_bytes, int n_rows, const void* const* x, int n_cols,
                int64_t k, int64_t ahead, float* out) {
  VecL lanes[kMaxTile * kRows];
  if (n_cols <= kStreamColumns) {
    int c = 0;
    for (; c + 2 <= n_cols; c += 2) {
      stream_columns<Row, 2>(rows, row_bytes, n_rows, x + c, k, lanes + c * kRows);
    }
    for (; c < n_cols; ++c) {
      stream_columns<Row, 1>(rows, row_bytes, n_rows, x + c, k, lanes + c * kRows);
    }
  } else {
    constexpr int64_t kStretch = kStretchBytes / sizeof(typename Row::Elem);
    for (int64_t begin = 0; begin == 0 || begin < k; begin += kStretch) {
      const int64_t end = begin + kStretch < k ? begin + kStretch : k;
      int c = 0;
      for (; n_cols - c > kLastCols; c += kFloatCols) {
        float_columns<Row, kFloatCols, kFloatRows>(rows, row_bytes, n_rows, x + c, begin, end,
                                                   begin == 0, lanes + c * kRows,
                                                   c == 0 ? ahead : 0);
      }
      static_for<kLastCols>([&](auto i) GF_LAMBDA_INLINE {
        constexpr int C = i + 1, R = C == 1 ? kFloatRows * 2 : kFloatRows;
        if (n_cols - c != C) return;
        float_columns<Row, C, R>(rows, row_bytes, n_rows, x + c, begin, end, begin == 0,
                                 lanes + c * kRows, c == 0 ? ahead : 0);
      });
    }
  }
  for (int c = 0; c < n_cols; ++c) {
    for (int r = n_rows; r < kRows; ++r) lanes[c * kRows + r] = VecL{};
    sum_lanes(lanes + c * kRows, out + c * kRows);
    const float factor = column_factor<Row>(x[c], k);
    if (factor != 1.0f) {
      for (int r = 0; r < kRows; ++r) out[c * kRows + r] *= factor;
    }
  }
}

// Turns a row of `type` into what a kernel takes.
using RowConverter = void (*)(int type, const void* row, int64_t k, void* out);

inline void row_to_f32(int type, const void* row, int64_t k, void* out) {
  gf_dequantize_row(type, row, static_cast<float*>(out), k);
}

// Rounds a column to the halves a kernel multiplies, with zeros up to a multiple of 32 and, where
// the kernel knows of it, a factor behind them. step: pairs of elements from one of the column to
// its next, where the kernel takes a tile's columns interleaved.
using ColumnRounder = void (*)(const float* x, int64_t k, uint16_t* out, int step);

template <void (*round)(const float* x, int64_t k, uint16_t* out)>
void by_itself(const float* x, int64_t k, uint16_t* out, int) {
  round(x, k, out);
}

// How rows that are not packed are multiplied.
struct FloatType {
  FloatKernel kernel;    // on rows as they are; may be null
  FloatKernel on_copy;   // on rows converted beforehand, worth it for many columns; may be null
  RowConverter convert;  // to what on_copy takes
  int copy_bytes;        // an element of a converted row
  ColumnRounder round_x = nullptr;  // null: columns are taken as they are
  bool interleaved = false;         // a tile's rounded columns, pair by pair
};

// The type is one of gguflow's float or quantized types; a quantized row has no kernel of its own.
inline FloatType float_type(int type) {
#if defined(__AMX_BF16__)
  if (type == GF_BF16) return {&bf16_tile, nullptr, nullptr, 0, &f32_row_to_bf16_pairs, true};
#elif defined(GF_BF16_DOT)
  constexpr ColumnRounder to_bf16 = &by_itself<f32_row_to_bf16>;
  if (type == GF_BF16) return {&float_tile<RowDotBF16>, nullptr, nullptr, 0, to_bf16, false};
#else
  if (type == GF_BF16) return {&float_tile<RowBF16>, &float_tile<RowF32>, &row_to_f32, 4};
#endif
#if defined(GF_F16_DOT)
  constexpr ColumnRounder to_f16 = &by_itself<f32_row_to_f16>;
  if (type == GF_F16) return {&float_tile<RowDotF16>, nullptr, nullptr, 0, to_f16, false};
#else
  // Not as bf16, where that is native: twice the speed for prompts, but bf16's error for f16
  // weights.
  if (type == GF_F16) return {&float_tile<RowF16>, &float_tile<RowF32>, &row_to_f32, 4};
#endif
  if (type == GF_F32) return {&float_tile<RowF32>, nullptr, nullptr, 0};
  return {nullptr, &float_tile<RowF32>, &row_to_f32, 4};
}

}  // namespace gf
