// The vector abstraction of the kernels: vf is a vector of VL floats of the width this library is
// built for. A kernel is written once; each instruction set compiles it again.
//
// Tails go through the same functions as full vectors (vf_load_n, vf_store_n), so that the value of
// an element does not depend on its position in a row.
#pragma once

#include <stdint.h>

#if defined(__aarch64__) && defined(__ARM_NEON)
#define GF_NEON 1
#endif

#if defined(__AVX512F__)
#include "cpu/simd_avx512.h"
#elif defined(__AVX2__)
#include "cpu/simd_avx2.h"
#elif defined(GF_NEON)
#include "cpu/simd_neon.h"
#else
#include "cpu/simd_vec4.h"
#endif

static inline vf vf_zero() { return vf_set(0.0f); }
static inline vf operator-(vf a) { return vf_set(-0.0f) - a; }

// The first n lanes of p (all of them when n >= VL), the others zero.
static inline vf vf_load_to(const float* p, int64_t n) {
  return n >= VL ? vf_load(p) : vf_load_n(p, static_cast<int>(n));
}
static inline void vf_store_to(float* p, vf a, int64_t n) {
  if (n >= VL) {
    vf_store(p, a);
  } else {
    vf_store_n(p, a, static_cast<int>(n));
  }
}

// n rounded up to whole vectors.
static inline int64_t vf_padded(int64_t n) { return (n + VL - 1) / VL * VL; }

// The first n < VL lanes of p, the others `fill`.
static inline vf vf_load_fill(const float* p, int64_t n, float fill) {
  float lane[VL];
  for (int i = 0; i < VL; ++i) lane[i] = i < n ? p[i] : fill;
  return vf_load(lane);
}

// f(acc, i, n - i) over the vectors of n elements, on four accumulators: enough independent chains
// to hide the latency of an addition. The order depends on n alone.
template <typename F>
static inline vf vf_accumulate(int64_t n, vf start, F&& f, vf (*join)(vf, vf)) {
  vf a = start, b = start, c = start, d = start;
  int64_t i = 0;
  for (; i + 4 * VL <= n; i += 4 * VL) {
    a = f(a, i, VL);
    b = f(b, i + VL, VL);
    c = f(c, i + 2 * VL, VL);
    d = f(d, i + 3 * VL, VL);
  }
  for (; i < n; i += VL) a = f(a, i, n - i);
  return join(join(a, b), join(c, d));
}

static inline vf vf_plus(vf a, vf b) { return a + b; }

// Sums and the maximum of n floats. For the maximum a NaN counts as -inf.
static inline float vf_row_sum(const float* x, int64_t n) {
  const auto f = [x](vf acc, int64_t i, int64_t left) { return acc + vf_load_to(x + i, left); };
  return vf_sum(vf_accumulate(n, vf_zero(), f, vf_plus));
}
static inline float vf_row_sum_squares(const float* x, int64_t n) {
  const auto f = [x](vf acc, int64_t i, int64_t left) {
    const vf v = vf_load_to(x + i, left);
    return vf_fma(v, v, acc);
  };
  return vf_sum(vf_accumulate(n, vf_zero(), f, vf_plus));
}
static inline float vf_row_max(const float* x, int64_t n) {
  const float lowest = -__builtin_huge_valf();
  const auto f = [=](vf acc, int64_t i, int64_t left) {
    return vf_max(left >= VL ? vf_load(x + i) : vf_load_fill(x + i, left, lowest), acc);
  };
  return vf_greatest(vf_accumulate(n, vf_set(lowest), f, vf_max));
}
