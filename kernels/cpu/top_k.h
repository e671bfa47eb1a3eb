// The largest of n floats: the first of them, the k first of them, or all in order.
#pragma once

#include <algorithm>
#include <numeric>
#include <utility>

#include "cpu/rows.h"
#include "cpu/simd.h"

// An integer that orders as the float does, zeros equal and NaN below everything: a comparison that
// NaN cannot make inconsistent.
inline int32_t gf_order_key(float x) {
  if (x != x) return INT32_MIN;
  x += 0.0f;  // -0 becomes 0
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 31) & INT32_MAX);
}

// Index of the largest of v[0..n), the lowest on ties; n > 0. A NaN counts as -inf.
inline int64_t gf_argmax(const float* v, int64_t n) {
  const float max = vf_row_max(v, n);
  if (max == -__builtin_huge_valf()) return 0;
  int64_t i = 0;
  while (i + GF_RUN < n && vf_row_max(v + i, GF_RUN) != max) i += GF_RUN;
  for (; i < n; ++i) {
    if (v[i] == max) return i;
  }
  return 0;  // not reached: `max` is one of them
}

// top[0..k) = indices of the largest of v[0..n), descending, the lower index first on ties.
inline void gf_top_k(const float* v, int64_t n, int64_t k, int32_t* top) {
  const auto before = [v](int32_t a, int32_t b) {
    const int32_t ka = gf_order_key(v[a]), kb = gf_order_key(v[b]);
    return ka > kb || (ka == kb && a < b);
  };
  std::iota(top, top + k, 0);
  if (k == n) return std::sort(top, top + k, before);
  // A heap of the k best so far, the worst of them on top.
  std::make_heap(top, top + k, before);
  int32_t worst = gf_order_key(v[top[0]]);
  for (int64_t i = k; i < n; ++i) {
    if (gf_order_key(v[i]) <= worst) continue;  // a tie loses: its index is higher
    std::pop_heap(top, top + k, before);
    top[k - 1] = static_cast<int32_t>(i);
    std::push_heap(top, top + k, before);
    worst = gf_order_key(v[top[0]]);
  }
  std::sort_heap(top, top + k, before);
}

// order[0..n) = all indices, sorted as gf_top_k does, by three stable passes over the digits of
// their keys. `other` holds n more indices.
inline void gf_sort_descending(const float* v, int64_t n, int32_t* order, int32_t* other) {
  constexpr int kBits = 11;
  int32_t* from = other;
  int32_t* to = order;
  std::iota(from, from + n, 0);
  for (int shift = 0; shift < 32; shift += kBits, std::swap(from, to)) {
    const auto digit = [v, shift](int32_t i) {
      const uint32_t ascending = static_cast<uint32_t>(gf_order_key(v[i])) ^ 0x80000000u;
      return (~ascending >> shift) & ((1u << kBits) - 1);
    };
    int32_t place[1 << kBits] = {};
    for (int64_t i = 0; i < n; ++i) ++place[digit(from[i])];
    int32_t before = 0;
    for (int32_t& p : place) before += std::exchange(p, before);
    for (int64_t i = 0; i < n; ++i) to[place[digit(from[i])]++] = from[i];
  }
}
