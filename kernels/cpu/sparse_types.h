// Single rows of a weight in the file's own layout, by type: dot products with activations, and
// sums of weighted rows. For the ops that read only the rows of active neurons.
//
// A value never depends on what is computed beside it: every (row, token) product has its own
// accumulators, and a column of a sum is one chain of fused multiply-adds over its rows in order.
#pragma once

#include "cpu/kernel.h"

namespace gf {

constexpr int kDotTile = 4;     // columns of x a row is decoded once for
constexpr int kRowsAtOnce = 8;  // that are handled in a row, or added in one pass over the result

// Rows of which to bring a part into the second-level cache while others are computed: a line of
// each in turn. Rows lie anywhere in memory, and lines of several come much faster than those of
// one, for which it is also why rows are computed side by side.
struct RowsAhead {
  const char* const* rows = nullptr;
  int n = 0;

  // The lines that bytes [begin, end) of each row start.
  GF_INLINE void bring(int64_t begin, int64_t end) const {
    for (int64_t at = begin; at < end; at += 64) {
      for (int r = 0; r < n; ++r) __builtin_prefetch(rows[r] + at, 0, 2);
    }
  }
};

// How dot takes a column of x: as the floats it is, or as SparseActs.
struct ColumnForm {
  bool bytes;
  int bias;    // of the weights, which are unsigned bytes
  bool quads;  // four blocks at a time: first their first halves, then their second

  bool operator==(const ColumnForm& o) const {
    return bytes == o.bytes && bias == o.bias && quads == o.quads;
  }
};

struct RowType {
  ColumnForm x;
  // The columns of a result that different threads write start at multiples of this.
  int unit;
  // out[c] = row . x[c] over k elements, c < n.
  void (*dot)(const char* row, const void* const* x, int n, int64_t k, float* out);
  // out[r] = rows[r] . x, n <= kRowsAtOnce rows. `ahead` comes into the cache meanwhile, whole.
  void (*dot_rows)(const char* const* rows, int n, const RowsAhead& ahead, const void* x, int64_t k,
                   float* out);
  // y[i] += h[0] rows[0][i] + h[1] rows[1][i] + ..., n <= kRowsAtOnce rows, for begin <= i < end;
  // of `ahead` those columns come into the cache.
  void (*axpy)(const char* const* rows, const float* h, int n, const RowsAhead& ahead,
               int64_t begin, int64_t end, float* y);
  // out[i - begin] = row[i], the values axpy multiplies.
  void (*expand)(const char* row, int64_t begin, int64_t end, float* out);
};

// Null for a type that has no values to multiply.
const RowType* find_row_type(int type);

// One column of x in steps of 127 levels a block of 32, padded with zeros to four blocks.
//   float d[blocks]          steps
//   float sum[blocks]        d * the sum of q: what a type's minimum is multiplied by
//   int8 q[32 * blocks]
//   int32 start[8 * blocks]  where the 32-bit sums of products with biased weights start: -bias *
//                            the sum of the q that go into each; for quads, 16 a quad
struct SparseActs {
  explicit SparseActs(int64_t k) : blocks((k + 127) / 128 * 4) {}

  int64_t blocks;
  int64_t sum() const { return up(4 * blocks); }
  int64_t q() const { return 2 * up(4 * blocks); }
  int64_t start() const { return q() + 32 * blocks; }
  int64_t bytes() const { return start() + 32 * blocks; }

  static int64_t up(int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

// Bytes of a converted column, a multiple of 64; 0 when floats are taken.
inline int64_t column_bytes(const ColumnForm& form, int64_t k) {
  return form.bytes ? SparseActs(k).bytes() : 0;
}

// Writes them at `out`, which is aligned to 64.
void convert_column(const ColumnForm& form, const float* x, int64_t k, char* out);

}  // namespace gf
