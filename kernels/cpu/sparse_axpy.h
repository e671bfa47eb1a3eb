// Weighted rows added up: every column of the result is one chain of multiply-adds over the rows.
#pragma once

#include "cpu/sparse_dot.h"

namespace gf {

template <class T>
void axpy_floats(const char* const* rows, const float* h, int n, const RowsAhead& ahead,
                 int64_t begin, int64_t end, float* y) {
  using Elem = typename T::Elem;
  constexpr int kVecs = 4;
  constexpr int64_t kStep = kVecs * VL;
  int64_t i = begin;
  for (; i + kStep <= end; i += kStep) {
    ahead.bring(i * sizeof(Elem), (i + kStep) * sizeof(Elem));
    vf acc[kVecs];
    for (int v = 0; v < kVecs; ++v) acc[v] = vf_load(y + i + v * VL);
    for (int r = 0; r < n; ++r) {
      const auto* w = reinterpret_cast<const Elem*>(rows[r]) + i;
      const vf hr = vf_set(h[r]);
      for (int v = 0; v < kVecs; ++v) acc[v] = vf_fma(hr, T::load(w + v * VL), acc[v]);
    }
    for (int v = 0; v < kVecs; ++v) vf_store(y + i + v * VL, acc[v]);
  }
  for (; i < end; i += VL) {
    const int64_t left = end - i;
    vf acc = vf_load_to(y + i, left);
    for (int r = 0; r < n; ++r) {
      const auto* w = reinterpret_cast<const Elem*>(rows[r]) + i;
      acc = vf_fma(vf_set(h[r]), left >= VL ? T::load(w) : load_some<T>(w, left), acc);
    }
    vf_store_to(y + i, acc, left);
  }
}

template <class T>
void expand_floats(const char* row, int64_t begin, int64_t end, float* out) {
  const auto* w = reinterpret_cast<const typename T::Elem*>(row);
  int64_t i = begin;
  for (; i + VL <= end; i += VL) vf_store(out + (i - begin), T::load(w + i));
  if (i < end) {
    vf_store_n(out + (i - begin), load_some<T>(w + i, end - i), static_cast<int>(end - i));
  }
}

// A block type by its scalar decoder. begin and end are multiples of the block.
template <class Block>
void axpy_blocks(const char* const* rows, const float* h, int n, const RowsAhead& ahead,
                 int64_t begin, int64_t end, float* y) {
  float w[Block::QK];
  for (int64_t ib = begin / Block::QK; ib < end / Block::QK; ++ib) {
    ahead.bring(ib * sizeof(Block), (ib + 1) * sizeof(Block));
    float* yb = y + ib * Block::QK;
    for (int r = 0; r < n; ++r) {
      dequantize_block(reinterpret_cast<const Block*>(rows[r]) + ib, w);
      const vf hr = vf_set(h[r]);
      for (int i = 0; i < Block::QK; i += VL) {
        vf_store(yb + i, vf_fma(hr, vf_load(w + i), vf_load(yb + i)));
      }
    }
  }
}

template <class Block>
void expand_blocks(const char* row, int64_t begin, int64_t end, float* out) {
  const auto* b = reinterpret_cast<const Block*>(row);
  for (int64_t ib = begin / Block::QK; ib < end / Block::QK; ++ib, out += Block::QK) {
    dequantize_block(b + ib, out);
  }
}

#if defined(__AVX2__)
// The same for the tuned block types, 32 columns in registers at a time.
template <class T>
void axpy_decoded(const char* const* rows, const float* h, int n, const RowsAhead& ahead,
                  int64_t begin, int64_t end, float* y) {
  using Block = typename T::Block;
  constexpr int kVecs = 32 / VL;
  typename T::Scales scales[kRowsAtOnce];
  for (int64_t ib = begin / Block::QK; ib < end / Block::QK; ++ib) {
    ahead.bring(ib * sizeof(Block), (ib + 1) * sizeof(Block));
    for (int r = 0; r < n; ++r) {
      scales[r] = T::scales(reinterpret_cast<const Block*>(rows[r]) + ib);
    }
    float* yb = y + ib * Block::QK;
    static_for<Block::QK / 32>([&](auto sub) GF_LAMBDA_INLINE {
      vf acc[kVecs];
      for (int v = 0; v < kVecs; ++v) acc[v] = vf_load(yb + 32 * sub + v * VL);
      for (int r = 0; r < n; ++r) {
        vf w[kVecs];
        T::values(reinterpret_cast<const Block*>(rows[r]) + ib, sub, scales[r], w);
        const vf hr = vf_set(h[r]);
        for (int v = 0; v < kVecs; ++v) acc[v] = vf_fma(hr, w[v], acc[v]);
      }
      for (int v = 0; v < kVecs; ++v) vf_store(yb + 32 * sub + v * VL, acc[v]);
    });
  }
}

template <class T>
void expand_decoded(const char* row, int64_t begin, int64_t end, float* out) {
  using Block = typename T::Block;
  const auto* b = reinterpret_cast<const Block*>(row);
  for (int64_t ib = begin / Block::QK; ib < end / Block::QK; ++ib, out += Block::QK) {
    const auto scales = T::scales(b + ib);
    static_for<Block::QK / 32>([&](auto sub) GF_LAMBDA_INLINE {
      vf w[32 / VL];
      T::values(b + ib, sub, scales, w);
      for (int v = 0; v < 32 / VL; ++v) vf_store(out + 32 * sub + v * VL, w[v]);
    });
  }
}
#endif

}  // namespace gf
