// The scale searches of the K-quants: the sub-blocks of one super-block side by side, one a SIMD
// lane, so that each lane adds in plain element order and the compiler vectorises across lanes.
// engine/quants/search.py is the same algorithm, operation by operation, and gives the same bytes.
// Formulas: weighted least squares for x ~ scale * q + min (or scale * q) with q held fixed, over a
// grid of trial scales; the search of llama.cpp's K-quants.
#pragma once

#include "common.h"

// Rounds to the nearest integer, ties to even, within [lo, hi]; |lo|, |hi| < 2^22.
GF_HD float gf_round_within(float v, float lo, float hi) {
  v = v < lo ? lo : v;
  v = v > hi ? hi : v;
  return (v + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: the spacing of floats there is 1
}

// Groups whose values span less than this are constant: their trial scales would overflow.
#define GF_TINY_RANGE 1e-30f
// Groups whose values are all smaller than this are zero (llama.cpp's threshold).
#define GF_TINY_GROUP 1e-15f

struct gf_affine_search {
  float top;    // largest code
  float first;  // trial s divides the range by top + first + step * s
  float step;
  int trials;
  bool absolute;  // weigh |error| instead of error^2
};

// For each lane k: x[.][k] ~ scale[k] * q - min[k], q in 0..top, min >= 0, weighted error least.
template <int N, int W>
static inline void gf_search_affine(const float (&x)[N][W], const float (&w)[N][W],
                                    gf_affine_search s, float (&scale)[W], float (&min)[W]) {
  float low[W], high[W], sum_w[W], sum_x[W], best[W], q[N][W];
  for (int k = 0; k < W; ++k) {
    low[k] = high[k] = x[0][k];
    sum_w[k] = sum_x[k] = 0.0f;
  }
  for (int j = 0; j < N; ++j) {
    for (int k = 0; k < W; ++k) {
      low[k] = x[j][k] < low[k] ? x[j][k] : low[k];
      high[k] = x[j][k] > high[k] ? x[j][k] : high[k];
      sum_w[k] += w[j][k];
      sum_x[k] += w[j][k] * x[j][k];
    }
  }
  bool constant[W];
  for (int k = 0; k < W; ++k) {
    low[k] = low[k] > 0.0f ? 0.0f : low[k];
    constant[k] = !(high[k] - low[k] > GF_TINY_RANGE);
    min[k] = -low[k];
  }

  // Weighted error of codes q under (a, b), compared and kept in `best`.
  const auto error_of = [&](const float (&a)[W], const float (&b)[W], float (&error)[W]) {
    for (int k = 0; k < W; ++k) error[k] = 0.0f;
    for (int j = 0; j < N; ++j) {
      for (int k = 0; k < W; ++k) {
        const float diff = (a[k] * q[j][k] + b[k]) - x[j][k];
        error[k] += w[j][k] * (s.absolute ? gf_abs(diff) : diff * diff);
      }
    }
  };

  for (int k = 0; k < W; ++k) scale[k] = 1.0f / (s.top / (high[k] - low[k]));
  for (int j = 0; j < N; ++j) {
    for (int k = 0; k < W; ++k) {
      const float inverse = s.top / (high[k] - low[k]);
      q[j][k] = gf_round_within(inverse * (x[j][k] - low[k]), 0.0f, s.top);
    }
  }
  error_of(scale, low, best);

  for (int trial = 0; trial < s.trials; ++trial) {
    const float target = (s.first + s.step * (float)trial) + s.top;
    float inverse[W], sum_q[W], sum_q2[W], sum_xq[W], a[W], b[W], error[W];
    for (int k = 0; k < W; ++k) {
      inverse[k] = target / (high[k] - low[k]);
      sum_q[k] = sum_q2[k] = sum_xq[k] = 0.0f;
    }
    for (int j = 0; j < N; ++j) {
      for (int k = 0; k < W; ++k) {
        q[j][k] = gf_round_within(inverse[k] * (x[j][k] - low[k]), 0.0f, s.top);
        const float wq = w[j][k] * q[j][k];
        sum_q[k] += wq;
        sum_q2[k] += wq * q[j][k];
        sum_xq[k] += wq * x[j][k];
      }
    }
    float det[W];
    for (int k = 0; k < W; ++k) {
      det[k] = sum_w[k] * sum_q2[k] - sum_q[k] * sum_q[k];
      a[k] = (sum_w[k] * sum_xq[k] - sum_x[k] * sum_q[k]) / det[k];
      b[k] = (sum_q2[k] * sum_x[k] - sum_q[k] * sum_xq[k]) / det[k];
      const bool positive = b[k] > 0.0f;  // the format has no positive offset: refit without one
      a[k] = positive ? sum_xq[k] / sum_q2[k] : a[k];
      b[k] = positive ? 0.0f : b[k];
    }
    error_of(a, b, error);
    for (int k = 0; k < W; ++k) {
      const bool better = (det[k] > 0.0f) & (error[k] < best[k]);
      best[k] = better ? error[k] : best[k];
      scale[k] = better ? a[k] : scale[k];
      low[k] = better ? b[k] : low[k];  // later trials start from the better offset
    }
  }
  for (int k = 0; k < W; ++k) {
    scale[k] = constant[k] ? 0.0f : scale[k];
    min[k] = constant[k] ? min[k] : -low[k];
  }
}

// Of each lane, the element of largest magnitude, sign kept; the first of equals.
template <int N, int W>
static inline void gf_largest(const float (&x)[N][W], float (&largest)[W]) {
  for (int k = 0; k < W; ++k) largest[k] = 0.0f;
  for (int j = 0; j < N; ++j) {
    for (int k = 0; k < W; ++k) {
      largest[k] = gf_abs(x[j][k]) > gf_abs(largest[k]) ? x[j][k] : largest[k];
    }
  }
}

// Codes of x * inverse in -top..top-1 and the two sums of their least-squares scale.
template <int N, int W>
static inline void gf_symmetric_sums(const float (&x)[N][W], const float (&w)[N][W],
                                     const float (&inverse)[W], float top, float (&q)[N][W],
                                     float (&sum_xq)[W], float (&sum_q2)[W]) {
  for (int k = 0; k < W; ++k) sum_xq[k] = sum_q2[k] = 0.0f;
  for (int j = 0; j < N; ++j) {
    for (int k = 0; k < W; ++k) {
      q[j][k] = gf_round_within(inverse[k] * x[j][k], -top, top - 1.0f);
      sum_xq[k] += (w[j][k] * x[j][k]) * q[j][k];
      sum_q2[k] += (w[j][k] * q[j][k]) * q[j][k];
    }
  }
}

// For each lane: x ~ scale * q, q in -top..top-1, by trial scales around the one that maps the
// largest element to -top.
template <int N, int W>
static inline void gf_search_symmetric(const float (&x)[N][W], const float (&w)[N][W], float top,
                                       float (&scale)[W]) {
  float largest[W], inverse[W], sum_xq[W], sum_q2[W], best[W], q[N][W];
  gf_largest(x, largest);
  for (int k = 0; k < W; ++k) inverse[k] = -top / largest[k];
  gf_symmetric_sums(x, w, inverse, top, q, sum_xq, sum_q2);
  for (int k = 0; k < W; ++k) {
    scale[k] = sum_q2[k] > 0.0f ? sum_xq[k] / sum_q2[k] : 0.0f;
    best[k] = scale[k] * sum_xq[k];
  }
  for (int trial = -9; trial <= 9; ++trial) {
    if (trial == 0) continue;
    for (int k = 0; k < W; ++k) inverse[k] = -(top + 0.1f * (float)trial) / largest[k];
    gf_symmetric_sums(x, w, inverse, top, q, sum_xq, sum_q2);
    for (int k = 0; k < W; ++k) {
      const bool better = (sum_q2[k] > 0.0f) & (sum_xq[k] * sum_xq[k] > best[k] * sum_q2[k]);
      const float fit = sum_xq[k] / sum_q2[k];
      scale[k] = better ? fit : scale[k];
      best[k] = better ? fit * sum_xq[k] : best[k];
    }
  }
  for (int k = 0; k < W; ++k) scale[k] = gf_abs(largest[k]) < GF_TINY_GROUP ? 0.0f : scale[k];
}

// As gf_search_symmetric for few codes: instead of trial scales, up to five rounds that move one
// code at a time to where the scale fitted to the others puts it, when that lowers the error.
template <int N, int W>
static inline void gf_search_coordinate(const float (&x)[N][W], const float (&w)[N][W], float top,
                                        float (&scale)[W]) {
  float largest[W], inverse[W], sum_xq[W], sum_q2[W], q[N][W];
  gf_largest(x, largest);
  for (int k = 0; k < W; ++k) inverse[k] = -top / largest[k];
  gf_symmetric_sums(x, w, inverse, top, q, sum_xq, sum_q2);
  for (int round = 0; round < 5; ++round) {
    for (int j = 0; j < N; ++j) {
      for (int k = 0; k < W; ++k) {
        const float wx = w[j][k] * x[j][k];
        float xq = sum_xq[k] - wx * q[j][k];
        float q2 = sum_q2[k] - (w[j][k] * q[j][k]) * q[j][k];
        const bool usable = xq > 0.0f;
        const float moved = gf_round_within((x[j][k] * q2) / xq, -top, top - 1.0f);
        xq += wx * moved;
        q2 += (w[j][k] * moved) * moved;
        const bool better = usable & (moved != q[j][k]) & (q2 > 0.0f) &
                            ((xq * xq) * sum_q2[k] > (sum_xq[k] * sum_xq[k]) * q2);
        q[j][k] = better ? moved : q[j][k];
        sum_xq[k] = better ? xq : sum_xq[k];
        sum_q2[k] = better ? q2 : sum_q2[k];
      }
    }
  }
  for (int k = 0; k < W; ++k) {
    const bool none = (gf_abs(largest[k]) < GF_TINY_GROUP) | !(sum_q2[k] > 0.0f);
    scale[k] = none ? 0.0f : sum_xq[k] / sum_q2[k];
  }
}
