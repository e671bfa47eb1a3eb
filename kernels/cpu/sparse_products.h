// Rows times the tokens that have them active.
#pragma once

#include "cpu/mul_mat_util.h"
#include "cpu/sparse_neurons.h"
#include "cpu/sparse_window.h"
#include "quants/traits.h"

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
      for (uint32_t left = tokens[i]; left;) {
        int64_t t[kDotTile];
        const void* columns[kDotTile];
        float out[kDotTile];
        int n = 0;
        for (; left && n < kDotTile; left &= left - 1, ++n) {
          t[n] = begin + __builtin_ctz(left);
          columns[n] = x[t[n]];
        }
        type.dot(row, columns, n, w.ne[0], out);
        for (int c = 0; c < n; ++c) put(t[c], i, out[c]);
      }
    });
  }
}

// Single rows times one column, in the order they come: put(tag, row . x) some rows later.
template <class Put>
class RowProducts : public RowWindow<int64_t, RowProducts<Put>> {
 public:
  RowProducts(const RowType& type, const gf_tensor& w, const void* x, Put put)
      : type_(type), k_(w.ne[0]), bytes_(gf_row_bytes(w.type, w.ne[0])), x_(x), put_(put) {}

  void bring(const RowsAhead& ahead) const { ahead.bring(0, bytes_); }

  void take(const char* const* rows, const int64_t* tags, int n, const RowsAhead& ahead) const {
    float v[kRowsAtOnce];
    type_.dot_rows(rows, n, ahead, x_, k_, v);
    for (int i = 0; i < n; ++i) put_(tags[i], v[i]);
  }

 private:
  const RowType& type_;
  const int64_t k_, bytes_;
  const void* const x_;
  Put put_;
};

}  // namespace gf
