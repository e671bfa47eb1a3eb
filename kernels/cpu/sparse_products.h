// Rows of sixteen times the tokens that have them active.
#pragma once

#include "cpu/mul_mat_util.h"
#include "cpu/sparse_neurons.h"

namespace gf {

// Columns of x as one weight's dot takes them: floats, or SparseActs in scratch.
struct DotColumns {
  const gf_tensor* x;
  const char* acts;  // null: the floats themselves
  int64_t bytes;     // a column of acts

  const void* operator[](int64_t t) const { return acts ? acts + t * bytes : row_of(*x, t); }
};

// put(t, i, row 16 * group + i . x[t]) where bit i of masks[t] is set. Tokens are taken some at a
// time, so that they and the group's rows stay in the second-level cache. put may change masks[t].
template <class Put>
void dot_group(const RowType& type, const gf_tensor& w, int64_t group, const uint16_t* masks,
               int64_t m, const DotColumns& x, Put&& put) {
  constexpr int64_t kTokens = 32;
  for (int64_t begin = 0; begin < m; begin += kTokens) {
    const int64_t end = begin + kTokens < m ? begin + kTokens : m;
    uint32_t tokens[kGroup] = {};  // that have row i active
    uint32_t any = 0;
    for (int64_t t = begin; t < end; ++t) {
      any |= masks[t];
      for_bits(masks[t], [&](int i) { tokens[i] |= 1u << (t - begin); });
    }
    for_bits(any, [&](int i) {
      const char* row = row_of(w, group * kGroup + i);
      const uint32_t later = any >> i >> 1;
      const char* next = later ? row + (1 + __builtin_ctz(later)) * w.nb[1] : nullptr;
      for (uint32_t left = tokens[i]; left;) {
        int64_t t[kDotTile];
        const void* columns[kDotTile];
        float out[kDotTile];
        int n = 0;
        for (; left && n < kDotTile; left &= left - 1, ++n) {
          t[n] = begin + __builtin_ctz(left);
          columns[n] = x[t[n]];
        }
        type.dot(row, next, columns, n, w.ne[0], out);
        next = nullptr;
        for (int c = 0; c < n; ++c) put(t[c], i, out[c]);
      }
    });
  }
}

}  // namespace gf
