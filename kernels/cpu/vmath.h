// Elementary functions on vf, within 2.5 units in the last place (of x for gelu). The polynomials
// are minimax fits (weighted Chebyshev least squares) over the reduced ranges given with each.
#pragma once

#include "cpu/simd.h"

// c[0] + c[1] x + ... by Horner's rule.
template <int N>
static inline vf vf_poly(vf x, const float (&c)[N]) {
  vf y = vf_set(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) y = vf_fma(y, x, vf_set(c[i]));
  return y;
}

// e^x = 2^n e^r with |r| <= ln(2)/2. 0 below -104, infinity above 88.73, NaN stays.
static inline vf vf_exp(vf x) {
  static constexpr float c[] = {0.50000001f, 0.166665129f, 0.0416661873f, 0.00836959834f,
                                0.00139517171f};
  x = vf_min(vf_set(89.0f), vf_max(vf_set(-104.0f), x));
  const vf n = vf_round(x * vf_set(1.44269504f));
  // ln(2) in two parts, the first short enough that n * part is exact.
  vf r = vf_fma(n, vf_set(-0.693359375f), x);
  r = vf_fma(n, vf_set(2.12194440e-4f), r);
  const vf p = vf_fma(vf_poly(r, c), r * r, r) + vf_set(1.0f);
  return vf_ldexp(p, n);
}

static inline vf vf_sigmoid(vf x) { return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(-x)); }
static inline vf vf_silu(vf x) { return x / (vf_set(1.0f) + vf_exp(-x)); }

// Polynomial below 0.625, 1 - 2/(e^2|x| + 1) above.
static inline vf vf_tanh(vf x) {
  static constexpr float c[] = {-0.333332783f, 0.133313289f, -0.0537292288f, 0.0206020039f,
                                -0.005660785f};
  const vf a = vf_abs(x), z = x * x;
  const vf near = vf_fma(vf_poly(z, c), z * x, x);
  const vf far = vf_set(1.0f) - vf_set(2.0f) / (vf_exp(a + a) + vf_set(1.0f));
  return vf_select(vf_lt(a, vf_set(0.625f)), near, vf_sign_of(far, x));
}

// x P(x^2) below 1; above, 1 - e^-x^2 Q(1 / (1 + x/2)), Q fitted to e^x^2 erfc(x).
static inline vf vf_erf(vf x) {
  static constexpr float p[] = {1.12837917f,    -0.376126271f,    0.112836002f,  -0.0268544446f,
                                0.00518953534f, -0.000802084128f, 7.88911954e-5f};
  static constexpr float q[] = {0.00180751223f, 0.259831691f, 0.39634457f,
                                -0.0636648856f, 0.635990249f, -0.230563253f};
  const vf one = vf_set(1.0f);
  const vf a = vf_min(vf_set(4.0f), vf_abs(x));  // erf(4) rounds to 1
  const vf near = x * vf_poly(x * x, p);
  const vf t = one / vf_fma(a, vf_set(0.5f), one);
  const vf far = one - vf_exp(-(a * a)) * vf_poly(t, q);
  return vf_select(vf_lt(vf_abs(x), one), near, vf_sign_of(far, x));
}

// tanh form, as in ggml's gelu: x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
static inline vf vf_gelu(vf x) {
  const vf inner = x * vf_fma(x * x, vf_set(0.0356774081f), vf_set(0.797884561f));
  const vf half = x * vf_set(0.5f);
  return vf_fma(half, vf_tanh(inner), half);
}

static inline vf vf_gelu_erf(vf x) {
  const vf half = x * vf_set(0.5f);
  return vf_fma(half, vf_erf(x * vf_set(0.707106781f)), half);
}
