// Weighted rows added up, for one token and for several.
#pragma once

#include "cpu/mul_mat_util.h"
#include "cpu/simd.h"
#include "cpu/sparse_neurons.h"

namespace gf {

// Rows and their weights in order, added to columns [begin, end) of y some at a time.
class RowSum {
 public:
  RowSum(const RowType& type, int64_t begin, int64_t end, float* y)
      : type_(type), begin_(begin), end_(end), y_(y) {}

  void add(const char* row, float h) {
    rows_[n_] = row;
    h_[n_] = h;
    if (++n_ < 2 * kAxpyRows) return;
    // The second half comes into the cache while the first is added.
    type_.axpy(rows_, h_, kAxpyRows, rows_ + kAxpyRows, kAxpyRows, begin_, end_, y_);
    std::memcpy(rows_, rows_ + kAxpyRows, sizeof rows_ / 2);
    std::memcpy(h_, h_ + kAxpyRows, sizeof h_ / 2);
    n_ = kAxpyRows;
  }

  void finish() {
    const int first = n_ < kAxpyRows ? n_ : kAxpyRows, rest = n_ - first;
    type_.axpy(rows_, h_, first, rows_ + first, rest, begin_, end_, y_);
    if (rest > 0) type_.axpy(rows_ + first, h_ + first, rest, nullptr, 0, begin_, end_, y_);
    n_ = 0;
  }

 private:
  const RowType& type_;
  const int64_t begin_, end_;
  float* const y_;
  int n_ = 0;
  const char* rows_[2 * kAxpyRows];
  float h_[2 * kAxpyRows];
};

// Columns [begin, end) of dst for all tokens: group by group, weigh(t, group, h) gives the weights
// of its rows for token t as h[16] and returns which of them count. A group's rows are decoded once
// for all tokens. masks [m] is the thread's own.
template <class Weigh>
void add_groups(const RowType& type, const gf_tensor& w, const gf_tensor& dst, int64_t groups,
                int64_t begin, int64_t end, uint16_t* masks, Weigh&& weigh) {
  constexpr int64_t kColumns = 256;  // of decoded rows: 16 KiB; a multiple of every block
  constexpr int kVecs = 8;
  const int64_t m = dst.ne[1];
  alignas(64) float rows[kGroup][kColumns];
  for (int64_t c0 = begin; c0 < end; c0 += kColumns) {
    const int64_t n = end - c0 < kColumns ? end - c0 : kColumns;
    const auto y_of = [&](int64_t t) { return reinterpret_cast<float*>(gf_row_ptr(dst, t)) + c0; };
    for (int64_t t = 0; t < m; ++t) std::memset(y_of(t), 0, sizeof(float) * n);
    for (int64_t group = 0; group < groups; ++group) {
      alignas(64) float h[kGroup];
      uint32_t any = 0;
      for (int64_t t = 0; t < m; ++t) any |= masks[t] = weigh(t, group, h);
      for_bits(any, [&](int i) {
        const char* row = static_cast<const char*>(w.data) + (group * kGroup + i) * w.nb[1];
        type.expand(row, c0, c0 + n, rows[i]);
      });
      for (int64_t t = 0; t < m; ++t) {
        if (!masks[t]) continue;
        weigh(t, group, h);
        float* y = y_of(t);
        int64_t i = 0;
        for (; i + kVecs * VL <= n; i += kVecs * VL) {
          vf acc[kVecs];
          for (int v = 0; v < kVecs; ++v) acc[v] = vf_load(y + i + v * VL);
          for_bits(masks[t], [&](int r) GF_LAMBDA_INLINE {
            const vf hr = vf_set(h[r]);
            for (int v = 0; v < kVecs; ++v) {
              acc[v] = vf_fma(hr, vf_load(rows[r] + i + v * VL), acc[v]);
            }
          });
          for (int v = 0; v < kVecs; ++v) vf_store(y + i + v * VL, acc[v]);
        }
        for (; i < n; i += VL) {
          vf acc = vf_load_to(y + i, n - i);
          for_bits(masks[t], [&](int r) GF_LAMBDA_INLINE {
            acc = vf_fma(vf_set(h[r]), vf_load_to(rows[r] + i, n - i), acc);
          });
          vf_store_to(y + i, acc, n - i);
        }
      }
    }
  }
}

}  // namespace gf
