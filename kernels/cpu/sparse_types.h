// Single rows of a weight in the file's own layout, by type: dot products with activations, and
// sums of weighted rows. For the ops that read only the rows of active neurons.
//
// A value never depends on what is computed beside it: every (row, token) product has its own
// accumulators, and a column of a sum is one chain of fused multiply-adds over its rows in order.
#pragma once

#include "cpu/kernel.h"

namespace gf {

constexpr int kDotTile = 4;   // columns of x a row is decoded once for
constexpr int kAxpyRows = 8;  // rows added in one pass over the result

struct RowType {
  // What x must be made into, see SparseActs: -1 for dot taking floats as they are.
  int x_bias;
  // The columns of a result that different threads write start at multiples of this.
  int unit;
  // out[c] = row . x[c] over k elements, c < n. `next` is the row to bring into the cache
  // meanwhile, or null.
  void (*dot)(const char* row, const char* next, const void* const* x, int n, int64_t k,
              float* out);
  // y[i] += h[0] rows[0][i] + h[1] rows[1][i] + ..., n <= kAxpyRows rows, for begin <= i < end.
  // `next`: n_next rows to bring into the cache meanwhile.
  void (*axpy)(const char* const* rows, const float* h, int n, const char* const* next, int n_next,
               int64_t begin, int64_t end, float* y);
  // out[i - begin] = row[i], the values axpy multiplies.
  void (*expand)(const char* row, int64_t begin, int64_t end, float* out);
};

// Null for a type that has no values to multiply.
const RowType* find_row_type(int type);

// One column of x in steps of 127 levels a block of 32, as dot of quantized rows takes it.
//   float d[k / 32]       steps
//   float sum[k / 32]     d * the sum of q: what a type's minimum is multiplied by
//   int8 q[k]
//   int32 start[k / 4]    -bias * the sum of four q: where the product of unsigned weights starts
struct SparseActs {
  explicit SparseActs(int64_t k) : n(k / 32) {}

  int64_t n;  // blocks
  int64_t sum() const { return up(4 * n); }
  int64_t q() const { return 2 * up(4 * n); }
  int64_t start() const { return q() + up(32 * n); }
  int64_t bytes() const { return start() + 32 * n; }

  static int64_t up(int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

// Writes SparseActs(k).bytes() bytes at `out`, which is aligned to 64.
void quantize_acts(const float* x, int64_t k, int bias, char* out);

}  // namespace gf
