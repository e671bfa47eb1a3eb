// Selecting the k largest of n floats.
#pragma once

#include <algorithm>
#include <numeric>

#include "cpu/kernel.h"

// An integer that orders as the float does, zeros equal and NaN below everything: a comparison that
// NaN cannot make inconsistent.
inline int32_t gf_order_key(float x) {
  if (x != x) return INT32_MIN;
  x += 0.0f;  // -0 becomes 0
  int32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits ^ ((bits >> 31) & INT32_MAX);
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
