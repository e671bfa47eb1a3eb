// Weighted rows added up, for one token and for several.
#pragma once

#include "cpu/mul_mat_util.h"
#include "cpu/simd.h"
#include "cpu/sparse_neurons.h"
#include "cpu/sparse_window.h"

namespace gf {

// Rows and their weights in order, added up some at a time: columns [begin, end) of y.
class RowSum : public RowWindow<float, RowSum> {
 public:
  RowSum(const RowType& type, int64_t begin, int64_t end, float* y)
      : type_(type), begin_(begin), end_(end), y_(y) {
    std::memset(y + begin, 0, sizeof(float) * (end - begin));
  }

  void bring(const RowsAhead& ahead) const {
    type_.axpy(nullptr, nullptr, 0, ahead, begin_, end_, y_);
  }

  void take(const char* const* rows, const float* h, int n, const RowsAhead& ahead) const {
    type_.axpy(rows, h, n, ahead, begin_, end_, y_);
  }

 private:
  const RowType& type_;
  const int64_t begin_, end_;
  float* const y_;
};

constexpr int64_t kFewTokens = 32;  // up to here each is faster by itself, a tenth being active

// Columns [begin, end) of the sums for several tokens. Rows are decoded in chunks, once for all
// tokens; each token then goes through those of a chunk that it has.
class ChunkSum {
 public:
  // Bytes at `scratch`, aligned to 64.
  static int64_t scratch(int64_t m) {
    return sizeof(float) * kChunk * kStride + SparseActs::up(m * sizeof(Entries));
  }

  ChunkSum(const RowType& type, const gf_tensor& w, const gf_tensor& dst, int64_t begin,
           int64_t end, char* scratch)
      : type_(type),
        w_(w),
        dst_(dst),
        begin_(begin),
        end_(end),
        rows_(reinterpret_cast<float (*)[kStride]>(scratch)),
        entries_(reinterpret_cast<Entries*>(scratch + sizeof(float) * kChunk * kStride)) {}

  // All rows: weigh(t, group, h) gives the weights of the rows of a group of sixteen for token t as
  // h[16], and returns which of them count.
  template <class Weigh>
  void add(int64_t groups, Weigh&& weigh) const {
    const int64_t m = dst_.ne[1];
    for (int64_t t = 0; t < m; ++t) {
      std::memset(floats_of(dst_, t) + begin_, 0, sizeof(float) * (end_ - begin_));
    }
    for (int64_t first = 0; first < groups; first += kChunk / kGroup) {
      const int64_t last = first + kChunk / kGroup < groups ? first + kChunk / kGroup : groups;
      bool used[kChunk] = {};
      for (int64_t t = 0; t < m; ++t) {
        Entries& e = entries_[t];
        e.n = 0;
        for (int64_t group = first; group < last; ++group) {
          float h[kGroup];
          for_bits(weigh(t, group, h), [&](int i) {
            const int r = static_cast<int>(group - first) * kGroup + i;
            e.row[e.n] = static_cast<uint8_t>(r);
            e.h[e.n++] = h[i];
            used[r] = true;
          });
        }
      }
      for (int64_t c0 = begin_; c0 < end_; c0 += kColumns) {
        const int64_t n = end_ - c0 < kColumns ? end_ - c0 : kColumns;
        for (int r = 0; r < kChunk; ++r) {
          if (used[r]) type_.expand(row_of(w_, first * kGroup + r), c0, c0 + n, rows_[r]);
        }
        for (int64_t i = 0; i < n; i += kTile) {
          for (int64_t t = 0; t < m; ++t) add_tile(entries_[t], i, n - i, c0, t);
        }
      }
    }
  }

 private:
  static constexpr int kChunk = 64;                  // rows
  static constexpr int64_t kColumns = 256;           // decoded at a time: a multiple of every block
  static constexpr int64_t kStride = kColumns + 16;  // so that rows do not share cache sets
  static constexpr int kVecs = VL > 8 ? 4 : 8;
  static constexpr int64_t kTile = kVecs * VL;  // columns whose chunk fits the first-level cache

  // The rows of a chunk that count for one token.
  struct Entries {
    int32_t n;
    uint8_t row[kChunk];
    float h[kChunk];
  };

  // Decoded columns [i, i + kTile), of which `left` are left, to those of dst from c0 + i on.
  void add_tile(const Entries& e, int64_t i, int64_t left, int64_t c0, int64_t t) const {
    if (e.n == 0) return;
    float* y = floats_of(dst_, t) + c0 + i;
    vf acc[kVecs];
    if (left >= kTile) {
      for (int v = 0; v < kVecs; ++v) acc[v] = vf_load(y + v * VL);
      for (int k = 0; k < e.n; ++k) {
        const float* w = rows_[e.row[k]] + i;
        const vf h = vf_set(e.h[k]);
        for (int v = 0; v < kVecs; ++v) acc[v] = vf_fma(h, vf_load(w + v * VL), acc[v]);
      }
      for (int v = 0; v < kVecs; ++v) vf_store(y + v * VL, acc[v]);
      return;
    }
    for (int64_t j = 0; j < left; j += VL) {
      vf a = vf_load_to(y + j, left - j);
      for (int k = 0; k < e.n; ++k) {
        a = vf_fma(vf_set(e.h[k]), vf_load_to(rows_[e.row[k]] + i + j, left - j), a);
      }
      vf_store_to(y + j, a, left - j);
    }
  }

  const RowType& type_;
  const gf_tensor &w_, &dst_;
  const int64_t begin_, end_;
  float (*const rows_)[kStride];
  Entries* const entries_;
};

}  // namespace gf
