// The scale searches of the K-quants. The sub-blocks of a super-block lie side by side, one a SIMD
// lane: x[j * W + k] is element j of sub-block k, of N elements and W sub-blocks. Each lane adds in
// element order, so the result does not depend on the vector width.
// engine/quants/search.py is the same algorithm, operation by operation, and gives the same bytes.
// Formulas: weighted least squares for x ~ scale * q - min (or scale * q) with the codes q held
// fixed, over a grid of trial scales that fix the codes; the search of llama.cpp's K-quants.
#pragma once

#include "common.h"

// Groups whose values span less than this are constant: their trial scales would overflow.
#define GF_TINY_RANGE 1e-30f
// Groups whose values are all smaller than this are zero (llama.cpp's threshold).
#define GF_TINY_GROUP 1e-15f

#if defined(__CUDACC__)
#define GF_SEARCH_LANES 1
#define GF_ROLLED _Pragma("unroll 1")  // unrolled, a kernel takes seconds to compile
#elif defined(__AVX512F__)
#define GF_SEARCH_LANES 16
#elif defined(__AVX__)
#define GF_SEARCH_LANES 8
#else
#define GF_SEARCH_LANES 4
#endif
#if !defined(GF_ROLLED)
#define GF_ROLLED
#endif

// L floats in the vector extension of GCC and Clang; a plain float in CUDA.
template <int L>
struct gf_lanes {
#if defined(__CUDACC__)
  typedef float V;
#else
  typedef float V __attribute__((vector_size(4 * L)));
#endif
};

template <class V>
GF_HD V gf_splat(float x) {
  return V{} + x;
}

template <class V>
GF_HD V gf_load(const float* p) {
#if defined(__CUDACC__)
  return *p;
#else
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
#endif
}

template <class V>
GF_HD void gf_store(float* p, V v) {
#if defined(__CUDACC__)
  *p = v;
#else
  __builtin_memcpy(p, &v, sizeof v);
#endif
}

template <class V>
GF_HD V gf_magnitude(V v) {
  return v < 0.0f ? -v : v;
}

// Rounds to the nearest integer, ties to even, within [lo, hi]; |lo|, |hi| < 2^22.
template <class V>
GF_HD V gf_round_within(V v, V lo, V hi) {
  v = v < lo ? lo : v;
  v = v > hi ? hi : v;
  return (v + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: the spacing of floats there is 1
}

// Calls search(first lane) with the widest vectors that divide W.
template <int W, class Search>
GF_HD void gf_each_lane_group(Search search) {
  constexpr int L = W < GF_SEARCH_LANES ? W : GF_SEARCH_LANES;
  GF_ROLLED
  for (int k = 0; k < W; k += L) search(k, typename gf_lanes<L>::V{});
}

struct gf_affine_search {
  float top;    // largest code
  float first;  // trial s divides the range of a sub-block by top + first + step * s
  float step;
  int trials;
  bool absolute;  // weigh |error| instead of error^2
};

// One group of lanes of gf_search_affine.
template <int N, int W, class V>
struct gf_affine_lanes {
  const float* x;
  const float* w;
  gf_affine_search s;
  V low;
  V q[N];

  GF_MEMBER void set_codes(V inverse) {
    const V zero = V{}, top = gf_splat<V>(s.top);
    GF_ROLLED
    for (int j = 0; j < N; ++j) {
      q[j] = gf_round_within(inverse * (gf_load<V>(x + j * W) - low), zero, top);
    }
  }

  // Weighted error of the codes under x ~ a * q + b.
  GF_MEMBER V error(V a, V b) const {
    V sum = V{};
    GF_ROLLED
    for (int j = 0; j < N; ++j) {
      const V diff = (a * q[j] + b) - gf_load<V>(x + j * W);
      sum += gf_load<V>(w + j * W) * (s.absolute ? gf_magnitude(diff) : diff * diff);
    }
    return sum;
  }

  GF_MEMBER void run(float* scale_out, float* min_out) {
    const V zero = V{};
    V high = gf_load<V>(x), sum_w = zero, sum_x = zero;
    low = high;
    GF_ROLLED
    for (int j = 0; j < N; ++j) {
      const V xj = gf_load<V>(x + j * W), wj = gf_load<V>(w + j * W);
      low = xj < low ? xj : low;
      high = xj > high ? xj : high;
      sum_w += wj;
      sum_x += wj * xj;
    }
    low = low > zero ? zero : low;
    const V constant_min = -low;
    const V first_range = high - low;

    V scale = 1.0f / (s.top / first_range);
    set_codes(s.top / first_range);
    V best = error(scale, low);
    GF_ROLLED
    for (int trial = 0; trial < s.trials; ++trial) {
      const float target = (s.first + s.step * (float)trial) + s.top;
      set_codes(target / (high - low));
      V sum_q = zero, sum_q2 = zero, sum_xq = zero;
      GF_ROLLED
      for (int j = 0; j < N; ++j) {
        const V wq = gf_load<V>(w + j * W) * q[j];
        sum_q += wq;
        sum_q2 += wq * q[j];
        sum_xq += wq * gf_load<V>(x + j * W);
      }
      const V det = sum_w * sum_q2 - sum_q * sum_q;
      V a = (sum_w * sum_xq - sum_x * sum_q) / det;
      V b = (sum_q2 * sum_x - sum_q * sum_xq) / det;
      a = b > zero ? sum_xq / sum_q2 : a;  // the format has no positive offset: refit without one
      b = b > zero ? zero : b;
      const V e = error(a, b);
      const auto better = (det > zero) & (e < best);
      best = better ? e : best;
      scale = better ? a : scale;
      low = better ? b : low;  // later trials start from the better offset
    }
    gf_store(scale_out, first_range > GF_TINY_RANGE ? scale : zero);
    gf_store(min_out, first_range > GF_TINY_RANGE ? -low : constant_min);
  }
};

// For each lane: x ~ scale * q - min, q in 0..top, min >= 0, least in weighted error.
template <int N, int W>
GF_HD void gf_search_affine(const float* x, const float* w, gf_affine_search s, float* scale,
                            float* min) {
  gf_each_lane_group<W>([&](int k, auto v) {
    gf_affine_lanes<N, W, decltype(v)> lanes;
    lanes.x = x + k;
    lanes.w = w + k;
    lanes.s = s;
    lanes.run(scale + k, min + k);
  });
}

// Codes of x * inverse in -top..top-1 and the two sums of their least-squares scale.
template <int N, int W, class V>
GF_HD void gf_symmetric_sums(const float* x, const float* w, V inverse, float top, V* q, V& sum_xq,
                             V& sum_q2) {
  const V lo = gf_splat<V>(-top), hi = gf_splat<V>(top - 1.0f);
  sum_xq = sum_q2 = V{};
  GF_ROLLED
  for (int j = 0; j < N; ++j) {
    const V xj = gf_load<V>(x + j * W), wj = gf_load<V>(w + j * W);
    q[j] = gf_round_within(inverse * xj, lo, hi);
    sum_xq += (wj * xj) * q[j];
    sum_q2 += (wj * q[j]) * q[j];
  }
}

// Of each lane, the element of largest magnitude, sign kept; the first of equals.
template <int N, int W, class V>
GF_HD V gf_largest(const float* x) {
  V big = gf_load<V>(x);
  GF_ROLLED
  for (int j = 1; j < N; ++j) {
    const V xj = gf_load<V>(x + j * W);
    big = gf_magnitude(xj) > gf_magnitude(big) ? xj : big;
  }
  return big;
}

// For each lane: x ~ scale * q, q in -top..top-1, by trials around the scale that maps the largest
// element to -top.
template <int N, int W>
GF_HD void gf_search_symmetric(const float* x, const float* w, float top, float* scale_out) {
  gf_each_lane_group<W>([&](int k, auto tag) {
    using V = decltype(tag);
    const V zero = V{}, big = gf_largest<N, W, V>(x + k);
    V q[N], sum_xq, sum_q2;
    gf_symmetric_sums<N, W>(x + k, w + k, -top / big, top, q, sum_xq, sum_q2);
    V scale = sum_q2 > zero ? sum_xq / sum_q2 : zero;
    V best = scale * sum_xq;
    GF_ROLLED
    for (int trial = -9; trial <= 9; ++trial) {
      if (trial == 0) continue;
      const V inverse = -(top + 0.1f * (float)trial) / big;
      gf_symmetric_sums<N, W>(x + k, w + k, inverse, top, q, sum_xq, sum_q2);
      const auto better = (sum_q2 > zero) & (sum_xq * sum_xq > best * sum_q2);
      const V fit = sum_xq / sum_q2;
      scale = better ? fit : scale;
      best = better ? fit * sum_xq : best;
    }
    gf_store(scale_out + k, gf_magnitude(big) < GF_TINY_GROUP ? zero : scale);
  });
}

// As gf_search_symmetric for few codes: instead of trial scales, up to five rounds that move one
// code at a time to where the scale fitted to the others puts it, when that lowers the error.
template <int N, int W>
GF_HD void gf_search_coordinate(const float* x, const float* w, float top, float* scale_out) {
  gf_each_lane_group<W>([&](int k, auto tag) {
    using V = decltype(tag);
    const V zero = V{}, lo = gf_splat<V>(-top), hi = gf_splat<V>(top - 1.0f);
    const V big = gf_largest<N, W, V>(x + k);
    V q[N], sum_xq, sum_q2;
    gf_symmetric_sums<N, W>(x + k, w + k, -top / big, top, q, sum_xq, sum_q2);
    GF_ROLLED
    for (int round = 0; round < 5; ++round) {
      GF_ROLLED
      for (int j = 0; j < N; ++j) {
        const V xj = gf_load<V>(x + j * W + k), wj = gf_load<V>(w + j * W + k), wx = wj * xj;
        V xq = sum_xq - wx * q[j];
        V q2 = sum_q2 - (wj * q[j]) * q[j];
        const auto usable = xq > zero;
        const V moved = gf_round_within((xj * q2) / xq, lo, hi);
        xq += wx * moved;
        q2 += (wj * moved) * moved;
        const auto better =
            usable & (moved != q[j]) & (q2 > zero) & ((xq * xq) * sum_q2 > (sum_xq * sum_xq) * q2);
        q[j] = better ? moved : q[j];
        sum_xq = better ? xq : sum_xq;
        sum_q2 = better ? q2 : sum_q2;
      }
    }
    const auto some = (gf_magnitude(big) >= GF_TINY_GROUP) & (sum_q2 > zero);
    gf_store(scale_out + k, some ? sum_xq / sum_q2 : zero);
  });
}

// Root mean square of each lane.
template <int N, int W>
GF_HD void gf_root_mean_square(const float* x, float* out) {
  gf_each_lane_group<W>([&](int k, auto tag) {
    using V = decltype(tag);
    V sum = V{};
    GF_ROLLED
    for (int j = 0; j < N; ++j) sum += gf_load<V>(x + j * W + k) * gf_load<V>(x + j * W + k);
    gf_store(out + k, sum / (float)N);
  });
  GF_ROLLED
  for (int k = 0; k < W; ++k) out[k] = gf_sqrt(out[k]);
}
